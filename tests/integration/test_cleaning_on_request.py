"""An operator asks to delete what has expired: offsets and fences go on (306, 316, 329)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from inorder.testing.clock import MovableClock
from tests.integration.brokerkit import SMALL, Rig, running
from tests.kit.disk import FakeFiles

STORE = replace(SMALL, segment_bytes=64 * 1024, delete_when="", retention_hours=1)
HOUR_MS = 3_600_000


async def fill(rig: Rig, topic: str, count: int, size: int = 2000) -> None:
    for number in range(count):
        answer = await rig.send(b"%06d" % number * (size // 6), b=topic, e="0")
        assert answer.code == 0, answer.remark


async def ends(rig: Rig, topic: str) -> tuple[int, int]:
    fields = {"topic": topic, "queueId": "0"}
    low, high = await rig.ask(31, fields), await rig.ask(30, fields)
    return int(low.fields["offset"]), int(high.fields["offset"])


def test_a_queue_whose_messages_have_expired_goes_on_where_it_ended() -> None:
    """RocketMQ begins such a queue again at 0; a fence would refuse its next message."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        files.now_ms = clock.now_ms()
        async with running(files, store=STORE, clock=clock) as rig:
            await fill(rig, "Old", 100)
            await fill(rig, "New", 200)
            await rig.broker.housekeeping.flush_now()
            assert await ends(rig, "Old") == (0, 100)
            assert (await rig.ask(329)).code == 0
            assert await ends(rig, "Old") == (0, 100), "nothing has expired yet"
            clock.advance(2 * HOUR_MS)
            assert (await rig.ask(329)).code == 0
            low, high = await ends(rig, "Old")
            assert (low, high) == (100, 100)
            assert (await rig.ask(306)).code == 0
            assert (await rig.ask(316)).code == 0
            assert await ends(rig, "Old") == (100, 100)
            answer = await rig.send(b"again", b="Old", e="0")
            assert answer.fields["queueOffset"] == "100"
            low, high = await ends(rig, "New")
            assert 0 < low < high == 200
        async with running(files, store=STORE, clock=clock) as rig:
            assert await ends(rig, "Old") == (100, 101)
            assert (await rig.ask(306)).code == 0
            assert await ends(rig, "Old") == (100, 101)

    asyncio.run(scenario())


def test_a_kill_right_after_loses_no_end() -> None:
    """What was deleted on request was noted before."""

    async def scenario() -> None:
        files, clock = FakeFiles(), MovableClock()
        files.now_ms = clock.now_ms()
        async with running(files, store=STORE, clock=clock, stop=False) as rig:
            await fill(rig, "Old", 60)
            await fill(rig, "New", 100)
            await rig.broker.housekeeping.flush_now()
            clock.advance(2 * HOUR_MS)
            for code in (329, 306, 316):
                assert (await rig.ask(code)).code == 0
            assert await ends(rig, "Old") == (60, 60)
        async with running(files.kill(), store=STORE, clock=clock) as rig:
            assert await ends(rig, "Old") == (60, 60)
            answer = await rig.send(b"again", b="Old", e="0")
            assert answer.fields["queueOffset"] == "60"

    asyncio.run(scenario())
