"""What RocketMQ had popped when it left a directory: its check points are taken over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from inorder.broker.pops.revivelog import REVIVE_GROUP, Place, read, take_over
from inorder.model import GroupQueue
from inorder.testing.clock import FakeClock
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.record import Record
from tests.integration.brokerkit import Rig, running, until
from tests.integration.popkit import GROUP, TOPIC, ack, move, offset_of, pop, send
from tests.kit.disk import FakeFiles

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
KEY = GroupQueue(GROUP, TOPIC, 1)
LONG_MS = 60_000


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def check_point(start: int, steps: list[int], pop_ms: int, **more: object) -> bytes:
    """Return the body of RocketMQ's check point, as fastjson writes it."""
    return json.dumps({
        "bm": 0, "bn": "broker-a", "c": GROUP, "d": steps, "it": LONG_MS, "n": len(steps),
        "pt": pop_ms, "q": 1, "ro": 0, "so": start, "t": TOPIC, **more,
    }).encode()  # fmt: skip


def ack_of(start: int, offset: int, pop_ms: int) -> bytes:
    return json.dumps({
        "ao": offset, "bn": "broker-a", "c": GROUP, "pt": pop_ms, "q": 1, "so": start, "t": TOPIC,
    }).encode()  # fmt: skip


def acks_of(start: int, offsets: list[int], pop_ms: int) -> bytes:
    found = json.loads(ack_of(start, -1, pop_ms))
    return json.dumps({**found, "aol": offsets}).encode()


def record(tag: str, body: bytes) -> Record:
    return Record(REVIVE, 0, 0, 0, body, f"TAGS\x01{tag}\x02".encode())


@pytest.mark.parametrize(
    ("records", "left"),
    [
        ([("ck", check_point(4, [0, 1, 3], 7))], {4, 5, 7}),
        ([("ck", check_point(4, [], 7, n=2))], {4, 5}),
        ([("ck", check_point(4, [0, 1, 3], 7, bm=5))], {5}),
        ([("ck", check_point(4, [0, 1, 3], 7)), ("ack", ack_of(4, 5, 7))], {4, 7}),
        ([("ack", ack_of(4, 5, 7)), ("ck", check_point(4, [0, 1, 3], 7))], {4, 7}),
        ([("ck", check_point(4, [0, 1, 3], 7)), ("bAck", acks_of(4, [4, 7], 7))], {5}),
        ([("ck", check_point(4, [0, 1, 3], 7)), ("ack", ack_of(4, 5, 8))], {4, 5, 7}),
        ([("ck", check_point(4, [0], 7)), ("ck", b"garbage"), ("ack", b"[]")], {4}),
    ],
)
def test_check_points_and_acknowledgements_are_compared(
    records: list[tuple[str, bytes]], left: set[int]
) -> None:
    """By their common place, in any order; what cannot be read is left out."""
    (found,) = read(record(*one) for one in records).items()
    assert found[0] == Place(KEY, 4, 7)
    assert set(found[1].offsets) - found[1].acked == left


async def revive(rig: Rig, tag: str, body: bytes, more: str = "") -> None:
    answer = await rig.send(body, b=REVIVE, e="0", i=f"TAGS\x01{tag}\x02UNIQ_KEY\x01u\x02{more}")
    assert answer.code == 0, answer.remark


def test_what_rocketmq_had_in_flight_is_in_flight() -> None:
    """For the rest of its time, under its token; the offset goes back, also after a kill."""

    async def scenario() -> None:
        files, clock = FakeFiles(), FakeClock()
        async with running(files, clock=clock, stop=False) as rig:
            broker = rig.broker
            await send(rig, 8)
            broker.ensure_topic(REVIVE, queues=8)
            token = clock.now_ms() - 20_000
            await revive(rig, "ck", check_point(0, [0, 1], token - 90_000))  # worked off
            await revive(rig, "ck", check_point(2, [0, 1, 2], token))
            await revive(rig, "ack", ack_of(2, 3, token))
            later = f"TIMER_DELIVER_MS\x01{clock.now_ms() + 40_000}\x02"
            await revive(rig, "ck", check_point(5, [0, 1], token), later)
            await revive(rig, "ack", ack_of(5, 5, token), later)
            broker.offsets.commit(GROUP, TOPIC, 1, 7, 0)
            broker.offsets.commit(REVIVE_GROUP, REVIVE, 0, 0, 0)
            waiting = broker.store.queue(TIMER_TOPIC, 0).visible_offset
            assert take_over(broker, range(waiting)) == 3
            assert sorted(broker.pop_table.queues[KEY].points) == [2, 4, 6]
            assert offset_of(rig) == 2
            assert broker.offsets.query(REVIVE_GROUP, REVIVE, 0) == 2
        async with running(files, clock=clock) as rig:
            assert (offset_of(rig), rig.broker.pop_table.messages) == (2, 3)
            found = await pop(rig)
            assert found.bodies == [b"m7"], "behind what is in flight"
            extra = f"2 {token} {LONG_MS} 3 0 broker-a 1 2"
            fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "offset": "2"}
            assert (await rig.ask(200051, {**fields, "extraInfo": extra})).code == 0
            assert offset_of(rig) == 4
            assert (await ack(rig, found, 1, 7)).code == 0
            await move(rig, clock, 40_000)
            await until(lambda: rig.broker.revival.revived == 2)
            assert offset_of(rig) == 8
            assert sorted((await pop(rig)).bodies) == [b"m4", b"m6"]

    run(scenario)


def test_nothing_in_flight_changes_nothing() -> None:
    """Unknown topics, offsets that are gone, and a directory without the topic."""

    async def scenario() -> None:
        async with running(clock=FakeClock()) as rig:
            await send(rig, 2)
            assert take_over(rig.broker, []) == 0
            rig.broker.ensure_topic(REVIVE, queues=8)
            await revive(rig, "ck", check_point(0, [0], 7, t="NoSuch"))
            await revive(rig, "ck", check_point(90, [0], 7))
            assert take_over(rig.broker, [0, 99]) == 0
            assert (offset_of(rig), rig.broker.pop_table.messages) == (-1, 0)

    run(scenario)
