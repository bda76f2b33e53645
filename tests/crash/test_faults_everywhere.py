"""A full disk and a failing one, at every point where a broker touches its disk.

A small workload on a simulated loop: start, make topics, send over several log files, consume and
commit, let time pass (entries, index, offsets and checkpoint are written), send again, stop. It is
played once without faults to count the operations of each kind, then once per operation with that
one failing. Held against every run:

- a send is answered 0, or refused with 14 (the disk is full, or failed), or, if its own sync
  failed or its write could neither be done nor undone, with 1: the outcome is unknown. Nothing
  refused is ever delivered;
- reads go on: whatever was acknowledged can be pulled, also while writes are refused;
- after a full disk has room again, writes are taken again without a restart;
- after a failed write or sync of the log nothing is acknowledged any more; after a failed sync of
  the files of owners nothing is until they are written anew, without a restart;
- a commit that was acknowledged stands after any restart that its flush mode promises to survive,
  and no epoch is given twice;
- a restart (after a stop, a kill or a power cut) finds everything acknowledged, in order.

The default run takes a sample; `INORDER_ROUNDS=0` takes every point.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from inorder.checker import SentResult
from inorder.client.api import BrokerApi
from inorder.errors import InorderError
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.wire.header import Command
from inorder.wire.requests.leases import (
    CommitAnswer,
    CommitBody,
    LeaseAnswer,
    LeaseBody,
    QueueCommit,
    QueueWish,
)
from tests.crash.load import (
    QUEUES,
    TOPICS,
    Book,
    Letter,
    Sender,
    consume,
    make_topics,
    read_queue,
    send_command,
)
from tests.crash.machine import STORE, Machine
from tests.kit.disk import FakeFiles, Fault
from tests.kit.simloop import Shuffle, SimLoop, run

ALL = os.environ.get("INORDER_ROUNDS") == "0"
SAMPLE_POINTS = 4
SMALL = replace(STORE, segment_bytes=24 * 1024)
KINDS = ("write", "sync", "create", "truncate", "rename", "remove", "change")
"""`change` is any of the others: from some operation on nothing works at all."""
OK, UNKNOWN, REFUSED = 0, 1, 14
LOG = Path("/srv/broker/data/commitlog")
PLACES = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]


@dataclass(frozen=True)
class Plan:
    """What fails, when, how, and whether it goes on failing until it is healed."""

    sync_flush: bool
    kind: str = ""
    nth: int = 0
    error: int = errno.ENOSPC
    forever: bool = False
    kept_bytes: int = 0

    @property
    def full(self) -> bool:
        return self.error == errno.ENOSPC

    def __str__(self) -> str:
        flush = "sync" if self.sync_flush else "async"
        name = errno.errorcode[self.error]
        return f"{flush} flush, {name} at {self.kind} {self.nth} forever={self.forever}"


class Faulty(FakeFiles):
    """A disk that remembers where it failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failed_at: list[Path] = []

    def _raise(self, fault: Fault, path: Path) -> None:
        self.failed_at.append(path)
        super()._raise(fault, path)


class Held:
    """A consumer of ours that holds a queue and commits; it knows what was acknowledged."""

    PLACE = ("held", *PLACES[0])

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.commits: list[int] = []

    async def work(self, connection: Connection) -> None:
        """Take the queue, commit one more message a few times a second."""
        group, topic, queue_id = self.PLACE
        who = {"group": group, "clientId": "holder", "instance": "i1"}
        terms = {"leaseMs": "30000", "graceMs": "1000"}
        number = 0
        while True:
            await asyncio.sleep(0.4)
            epoch = self.epochs[-1] if self.epochs else 0
            wish = LeaseBody([QueueWish(topic, queue_id, epoch)]).encode()
            answer = await connection.call(Command.request(7120, who | terms, wish), 20_000)
            granted = LeaseAnswer.decode(answer.body).granted if answer.code == OK else []
            if not granted:
                continue
            self.epochs.append(granted[0].epoch)
            number += 1
            place = {"topic": topic, "queueId": str(queue_id)}
            end = await connection.call(Command.request(30, place), 20_000)
            offset = min(1 + len(self.commits), int(end.fields["offset"]))
            commit = QueueCommit(topic, queue_id, granted[0].epoch, number, offset, "")
            body = CommitBody([commit]).encode()
            answer = await connection.call(Command.request(7122, who, body), 20_000)
            if answer.code == OK and CommitAnswer.decode(answer.body).taken:
                self.commits.append(commit.offset)

    def judge(self, machine: Machine) -> Iterator[str]:
        """Hold what a broker knows after a start against what was acknowledged."""
        stands = machine.broker.offsets.query(*self.PLACE)
        if self.commits and stands < self.commits[-1]:
            yield f"committed {self.commits[-1]} and acknowledged, {stands} stands"
        if self.epochs and machine.broker.leases.take_epoch() <= self.epochs[-1]:
            yield f"epoch {self.epochs[-1]} can be given again"


class Run:
    """One play of the workload."""

    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.plan = plan
        self.disk = Faulty()
        store = replace(SMALL, sync_flush=plan.sync_flush)
        self.machine = Machine(loop, store, self.disk)
        self.book = Book()
        self.sender = Sender("p", self.book, 1)
        self.codes: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.held = Held()
        self.api: BrokerApi
        self.connection: Connection
        if plan.kind:
            self.disk.fail(Fault(plan.kind, plan.nth, plan.error, plan.forever, plan.kept_bytes))

    async def play(self) -> None:
        """Go through the whole story."""
        await self.start()
        await make_topics(self.api)
        await self.send_and_read(bursts=5)
        await self.make_and_delete_topic()
        reading = asyncio.create_task(self.consume())
        assigned = asyncio.create_task(self.held.work(await self.machine.connect()))
        await asyncio.sleep(1)
        await self.send_and_read(bursts=4)
        await asyncio.sleep(12)  # beyond the flush of everything
        await self.send_and_read(bursts=3)
        reading.cancel()
        self.disk.heal()
        await asyncio.sleep(6)  # it notices by itself
        taken = len(self.held.commits)
        await asyncio.sleep(2)
        self.expect(len(self.held.commits) > taken, "no commit is taken after all was healed")
        assigned.cancel()
        await asyncio.gather(reading, assigned, return_exceptions=True)
        await self.send_and_read(bursts=1, must_succeed=not self.log_failed)
        await self.end()
        await self.judge()

    async def start(self) -> None:
        """Start; if the disk does not allow it, the error says so, and the next try succeeds."""
        try:
            await self.machine.start()
        except (OSError, InorderError) as error:
            self.expect(bool(self.disk.failed_at), f"the start failed without a reason: {error}")
            self.disk.heal()
            self.machine.kill()
            await self.machine.start()
        await self.connect()

    async def connect(self) -> None:
        self.connection = await self.machine.connect()
        self.api = BrokerApi(self.connection, timeout_ms=20_000)

    async def make_and_delete_topic(self) -> None:
        """Drop a queue's files; on a bad disk it may be refused."""
        try:
            await self.api.create_topic(TopicConfig("gone", 1, 1))
            letter = replace(self.sender.letter(), place=("gone", 0))
            await self.connection.call(send_command([letter]), 20_000)
            await asyncio.sleep(0.1)
            await self.api.delete_topic("gone")
        except InorderError as error:
            self.expect(bool(self.disk.failed_at), f"refused without a reason: {error}")

    async def consume(self) -> None:
        connection = await self.machine.connect()
        await consume(BrokerApi(connection), PLACES, self.book, suspend_ms=300)

    @property
    def log_failed(self) -> bool:
        """Tell whether a write or sync of the log itself failed for another reason than room, or a
        sync of it for any reason."""
        hit = any(LOG in (path, path.parent) for path in self.disk.failed_at)
        final = self.machine.broker.store.log.failed
        return final is not None or (hit and not self.plan.full)

    async def send_and_read(self, *, bursts: int, must_succeed: bool = False) -> None:
        for _ in range(bursts):
            dead = self.machine.broker.store.log.failed is not None
            codes = await self.burst()
            self.codes.update(codes)
            allowed = {OK, REFUSED}
            if self.machine.broker.store.log.failed is not None:
                allowed.add(UNKNOWN)
            self.expect(set(codes) <= allowed, f"answers {codes}")
            if dead:
                self.expect(set(codes) == {REFUSED}, f"answers {codes} after the log failed")
            if must_succeed:
                self.expect(set(codes) == {OK}, f"answers {codes} after everything was healed")
            await self.read_all()
            await asyncio.sleep(0.1)

    async def burst(self) -> list[int]:
        """Pipeline some single messages and a batch; return the codes of the answers."""
        groups = [[self.sender.letter()] for _ in range(5)] + [self.sender.batch()]
        answers = []
        for letters in groups:
            self.book.attempts.update(letter.id for letter in letters)
            answers.append(self.connection.call(send_command(letters), 20_000))
        codes = []
        for letters, answer in zip(groups, answers, strict=True):
            reply = await answer
            codes.append(reply.code)
            self.note(letters, reply.code, reply.fields.get("queueOffset"), reply.remark)
        return codes

    def note(
        self, letters: list[Letter], code: int, offset: str | None, remark: str | None
    ) -> None:
        results = {OK: SentResult.OK, UNKNOWN: SentResult.UNKNOWN}
        for number, letter in enumerate(letters):
            at = int(offset) + number if code == OK and offset is not None else None
            self.book.note(letter, results.get(code, SentResult.FAILED), at)
        if code != OK:
            self.expect(bool(remark), f"code {code} without a word")

    async def read_all(self) -> None:
        """Everything acknowledged is readable, whatever the disk says to writes."""
        stored = sum([len(await read_queue(self.api, place)) for place in PLACES])
        known = self.book.acknowledged
        self.expect(stored >= known, f"{stored} readable of {known} acknowledged")

    async def end(self) -> None:
        """Stop; where the store failed, the stop may say so. Keep what a power cut would leave."""
        self.after_power_cut = self.machine.disk.crash(random.Random(self.plan.nth))
        try:
            await self.machine.stop()
        except (OSError, InorderError) as error:
            self.expect(bool(self.disk.failed_at), f"the stop failed without a reason: {error}")
        left = [str(file.path) for file in self.machine.disk.open_now]
        self.expect(not left, f"left open: {left}")
        self.disk.heal()
        self.counts = dict(self.disk.counts)

    async def judge(self) -> None:
        """Open what the stop left, and what a power cut before it would have left."""
        images = {"stop": self.machine.disk}
        if self.plan.sync_flush:
            images["power cut"] = self.after_power_cut
        for name, image in images.items():
            self.machine.disk = image
            await self.machine.start()
            await self.connect()
            book = replace(self.book, shown=dict(self.book.shown))
            self.wrong += [f"after the {name}: {line}" for line in await book.judge(self.api)]
            self.wrong += [f"after the {name}: {line}" for line in self.held.judge(self.machine)]
            apart = Sender(name, Book(), 1)
            answer = await self.connection.call(send_command([apart.letter()]), 20_000)
            self.expect(answer.code == OK, f"after the {name} a send was answered {answer.code}")
            self.machine.kill()

    def expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self.wrong.append(otherwise)


def play(plan: Plan) -> Run:
    """Play one plan on a loop of its own."""

    async def main(loop: SimLoop) -> Run:
        story = Run(loop, plan)
        await story.play()
        return story

    return run(main, 7, shuffle=Shuffle.NONE)


@cache
def operations(sync_flush: bool) -> Counter[str]:
    """Return how many operations of each kind a run without a fault has."""
    clean = play(Plan(sync_flush))
    assert not clean.wrong, clean.wrong
    assert set(clean.codes) == {OK}
    return clean.counts


def points(total: int) -> Iterator[int]:
    """Return the operations to fail: all of them, or some spread over the run."""
    step = 1 if ALL else max(1, total // SAMPLE_POINTS)
    return iter(range(1 + (0 if ALL else total % step), total + 1, step))


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_a_disk_fault_at_any_point_costs_no_acknowledged_message(
    sync_flush: bool, error: int, kind: str
) -> None:
    """Refused or acknowledged, nothing in between; reads go on; a restart finds all."""
    total = operations(sync_flush)[kind]
    assert total > 2, f"the workload has too few operations of this kind: {total}"
    codes: Counter[int] = Counter()
    fired = 0
    for nth in points(total):
        for forever in (True,) if kind == "change" else (False, True):
            plan = Plan(sync_flush, kind, nth, error, forever, (0, 7, 300)[nth % 3])
            story = play(plan)
            assert not story.wrong, "\n".join(
                [str(plan), *map(str, story.disk.failed_at[:3]), *story.wrong[:10]]
            )
            codes.update(story.codes)
            fired += bool(story.disk.failed_at)
    assert fired, "no fault was ever met"
    print(f"{kind}: {total} points, {fired} faults met, answers {dict(codes)}")
