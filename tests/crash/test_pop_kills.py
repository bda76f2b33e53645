"""POP over kills at every change of a file: nothing is lost, no acknowledgement undone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.testing.clock import FakeClock
from tests.integration.brokerkit import SMALL, Rig, running, until
from tests.integration.popkit import (
    INVISIBLE_MS,
    RETRY,
    ack,
    change,
    look,
    move,
    offset_of,
    pop,
    pop_in_order,
    send,
)
from tests.kit.disk import _CHANGES, FakeFiles, Fault

PLAIN, ORDERED = 1, 2


class Watched(FakeFiles):
    """A disk that keeps how it was before each change, as a kill there would have left it."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[bytes] = []
        self.asked: list[bytes] = []
        """Acknowledged, or about to be."""
        self.acked: list[bytes] = []
        """The acknowledgement was answered."""
        self.floor = 0
        """The offset in order up to which all was acknowledged and answered."""
        self.watching = False
        self.moments: list[tuple[FakeFiles, set[bytes], set[bytes], set[bytes], int]] = []

    def _fault(self, operation: str, path: Path) -> Fault | None:
        fault = super()._fault(operation, path)
        if self.watching and operation in _CHANGES:
            known = (set(self.stored), set(self.asked), set(self.acked))
            self.moments.append((self.kill(), *known, self.floor))
        return fault


async def live(files: Watched, clock: FakeClock, rig: Rig) -> None:
    """Send, pop, acknowledge, change times, and let times end, in order and without."""

    async def sent(count: int, queue: int, first: int) -> None:
        for number in range(first, first + count):
            await send(rig, 1, queue=queue, first=number)
            files.stored.append(b"m%d" % number)

    async def acked(popped: object, queue: int, offset: int, body: bytes, **kind: str) -> None:
        files.asked.append(body)
        assert (await ack(rig, popped, queue, offset, **kind)).code == 0  # type: ignore[arg-type]
        files.acked.append(body)
        files.floor = max(files.floor, offset_of(rig, ORDERED))

    files.watching = True
    await sent(6, PLAIN, 0)
    await sent(6, ORDERED, 100)
    first = await pop(rig, queueId=str(PLAIN), maxMsgNums="5")
    await acked(first, PLAIN, 1, b"m1")
    assert (await change(rig, first, PLAIN, 3, 3 * INVISIBLE_MS)).code == 0
    await acked(first, PLAIN, 0, b"m0")
    batch = await pop_in_order(rig, ORDERED, maxMsgNums="3", attemptId="a")
    await acked(batch, ORDERED, 0, b"m100")
    await acked(batch, ORDERED, 2, b"m102")
    await rig.broker.lease_journal.fold()
    await move(rig, clock, INVISIBLE_MS)  # m2 and m4 go to the retry topic
    await until(lambda: rig.broker.revival.revived == 2)
    again = await pop(rig, queueId=str(PLAIN))
    number = again.bodies.index(b"m2")
    offset = again.records[number].queue_offset
    await acked(again, 0, offset, b"m2", topic=RETRY, retry="1")
    batch = await pop_in_order(rig, ORDERED, attemptId="b")
    assert batch.bodies == [b"m101", b"m102", b"m103", b"m104", b"m105"]
    for number in (1, 2, 3):
        await acked(batch, ORDERED, number, b"m10%d" % number)
    await rig.broker.lease_journal.fold()
    await rig.broker.housekeeping.flush_now()
    files.watching = False


async def rest_of(rig: Rig, clock: FakeClock) -> tuple[list[bytes], list[bytes]]:
    """Pop all that is left, without order and in order, and acknowledge it."""
    plain: list[bytes] = []
    ordered: list[bytes] = []
    for _ in range(6):
        await move(rig, clock, INVISIBLE_MS)
        await look(rig)
        await until(lambda: rig.broker.revival.idle)  # under sync flush a thread has to end
        found = await pop(rig, queueId=str(PLAIN), attemptId="z")
        plain += found.bodies
        for record in found.records:
            topic, retry = (RETRY, "1") if record.redeliveries else ("Orders", "0")
            answer = await ack(
                rig, found, record.queue_id, record.queue_offset, topic=topic, retry=retry
            )
            assert answer.code == 0
        found = await pop_in_order(rig, ORDERED, attemptId="z")
        ordered += found.bodies
        for record in found.records:
            assert (await ack(rig, found, ORDERED, record.queue_offset)).code == 0
    return plain, ordered


@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
def test_a_kill_at_any_change_of_a_file_loses_nothing(sync: bool) -> None:
    """What nobody acknowledged comes again; what was acknowledged and answered does not.

    In order, what follows a message without acknowledgement comes again with it.
    """
    files, clock = Watched(), FakeClock()
    store = replace(SMALL, sync_flush=sync)

    async def lived() -> None:
        async with running(files, clock=clock, store=store, stop=False) as rig:
            await live(files, clock, rig)

    async def come_back(
        disk: FakeFiles, stored: set[bytes], asked: set[bytes], acked: set[bytes], floor: int
    ) -> None:
        async with running(disk, clock=clock, store=store, stop=False) as rig:
            plain, ordered = await rest_of(rig, clock)
        of_order = {one for one in stored if len(one) > 2}
        assert set(plain) & acked == set(), "an acknowledgement was undone"
        assert stored - of_order - asked <= set(plain), "a message was lost"
        assert len(plain) <= len(set(plain)) + 2, "a kill repeats the copies of one turn at most"
        assert ordered == sorted(ordered), "in order, each once"
        assert all(one >= b"m10%d" % floor for one in ordered), "the group went back"
        assert of_order - asked <= set(ordered), "a message was lost"

    asyncio.run(lived())
    assert len(files.moments) > 30
    for moment in files.moments:
        asyncio.run(come_back(*moment))
