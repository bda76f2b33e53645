"""A group of ordered consumers of several client libraries, and what everyone of them did.

Members come, freeze, die and go while two producers write. A group has settled when every queue was
handled, for a while, by the one member that the allocation gives it: computed here, by hand, from
the member list of the broker. In the end the order checker judges what all of them said.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import inorder
from bench.systems import System
from inorder.checker import (
    Event,
    Finding,
    Handled,
    HandledResult,
    Kind,
    Report,
    Rules,
    Sent,
    Stored,
    check,
    queue_name,
)
from inorder.model import TopicQueue
from tests.interop.driver import Driver, Message
from tests.interop.rawclient import GET_ROUTE, RawClient, body_of
from tests.interop.stage import member_ids
from tests.interop.stock import BY_NAME

QUEUES = 10
KEYS = 4 * QUEUES
WORK_MS = 5
PAUSE_S = 0.04
STOCK_FROM = 1_000_000
STOCK_ROUND = 10
STOCK_PAUSE_S = 1.0
WINDOW_S = 2.0
LOOK_S = 0.2
BROKER = "broker-a"

# A client may hand a queue over while its handler runs, and a frozen one ends its handler when it
# thaws: that is in the clients, and is counted. Nothing else is let through.
COUNTED = frozenset((Kind.OVERLAP, Kind.ZOMBIE_EFFECT))


def allocate(client_ids: Sequence[str], queues: int) -> dict[str, range]:
    """Share queues out as RocketMQ's default does: blocks, the first members get one more."""
    shares, first = {}, 0
    base, more = divmod(queues, len(client_ids))
    for index, client_id in enumerate(sorted(client_ids)):
        size = base + (index < more)
        shares[client_id] = range(first, first + size)
        first += size
    return shares


@dataclass(slots=True)
class Verdict:
    """What the checker says, and what is counted without being judged."""

    report: Report
    counted: Counter[tuple[str, str]]
    """Overlaps and late effects, by the member that handled what was no longer its own."""
    repeated: int
    by_member: dict[str, int]
    settled: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Return the findings that no client is excused for."""
        return [str(one) for one in self.report.findings if one.kind not in COUNTED]

    def __str__(self) -> str:
        members = " ".join(f"{name}={count}" for name, count in self.by_member.items())
        counted = [f"{count} {kind} of {name}" for (kind, name), count in self.counted.items()]
        lines = [*self.settled, f"handled by: {members}; again: {self.repeated}"]
        return "\n".join([*lines, f"counted: {', '.join(counted) or 'nothing'}", *self.wrong])


class Crowd:
    """A topic, its producers, and a group of members in processes of their own."""

    def __init__(self, system: System, folder: Path, *, topic: str = "crowd") -> None:
        self.system, self.topic, self.group = system, topic, topic
        self._folder = folder
        self._drivers: dict[str, Driver] = {}
        self._present: set[str] = set()
        self._sent: list[Sent] = []
        self._settled: list[str] = []
        self._ending = threading.Event()
        self._failures: list[BaseException] = []
        self._make_topic()

    @contextmanager
    def producing(self, stock: str) -> Iterator[None]:
        """Let our producer and one of a RocketMQ client write during the block."""
        with ExitStack() as stack:
            driver = self._start("producer", stock)
            stack.callback(driver.end)
            works: list[Callable[[], None]] = [
                self._produce_ours,
                lambda: self._produce_stock(driver),
            ]
            threads = [threading.Thread(target=self._guard, args=[w], daemon=True) for w in works]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._ending.set()
                for thread in threads:
                    thread.join(30)
        if self._failures:
            raise self._failures[0]

    def join(self, **members: str) -> None:
        """Start members, name by name of a client, all at the same time."""
        with ThreadPoolExecutor(len(members)) as pool:
            list(pool.map(self._join, members.keys(), members.values()))

    def leave(self, name: str) -> None:
        """Let a member go as it should."""
        self._present.discard(name)
        self._drivers[name].do("stop", name=name)

    def kill(self, name: str) -> None:
        """Kill a member."""
        self._present.discard(name)
        self._drivers[name].kill()

    def freeze(self, name: str, seconds: float) -> None:
        """Stop a member for a while."""
        self._drivers[name].freeze()
        time.sleep(seconds)
        self._drivers[name].thaw()

    def settle(self, what: str, *, within_s: float) -> float:
        """Wait until each queue has one owner, the right one, for a while; return the seconds."""
        began = time.monotonic()
        since_us = time.time_ns() // 1000
        while (why := self._unsettled(since_us)) is not None:
            took = time.monotonic() - began
            if took > within_s:
                raise AssertionError(f"after {what}: not settled in {within_s} s: {why}")
            if self._failures:
                raise self._failures[0]
            time.sleep(LOOK_S)
        took = time.monotonic() - began
        self._settled.append(f"{what}: settled in {took:.1f} s")
        return took

    def finish(self, *, within_s: float) -> Verdict:
        """Wait until everything sent was handled, and judge."""
        stored = self._read_stored()
        wanted = {record.id for record in stored}
        deadline = time.monotonic() + within_s
        while wanted - (done := {str(m.number) for _, m in self._told("got")}):
            if time.monotonic() > deadline:
                missing = sorted(wanted - done)
                raise AssertionError(f"{len(missing)} messages not handled: {missing[:10]}")
            time.sleep(LOOK_S)
        return self._judge(stored)

    def end(self) -> None:
        """End all processes."""
        for driver in self._drivers.values():
            if driver.alive:
                driver.thaw()
            driver.end()

    def _judge(self, stored: list[Stored]) -> Verdict:
        handled = list(self._runs())
        events: list[Event] = [*self._sent, *stored, *handled]
        report = check(events, rules=Rules(handled_once=False))
        counted = Counter(
            (one.kind.value, self._blamed(one)) for one in report.findings if one.kind in COUNTED
        )
        done = [run for run in handled if run.result is HandledResult.DONE]
        by_member = Counter(run.client for run in done)
        repeated = len(done) - len({run.id for run in done})
        return Verdict(report, counted, repeated, dict(by_member), self._settled)

    def _blamed(self, finding: Finding) -> str:
        """Return the member that handled a queue which was no longer its own."""
        named = [word for word in finding.message.split() if word in self._drivers]
        return named[-1] if finding.kind is Kind.OVERLAP else named[0]

    def _runs(self) -> Iterator[Handled]:
        """Return each run of a handler: its beginning, and its end if there was one."""
        ended = {(name, m.number, m.begin_us): m.end_us for name, m in self._told("got")}
        keys = {one.id: one.key for one in self._sent}
        for name, message in self._told("begun"):
            end_us = ended.get((name, message.number, message.begin_us))
            number = str(message.number)
            yield Handled(
                name,
                self._queue_name(message.queue),
                message.offset,
                number,
                keys.get(number),
                message.begin_us * 1000,
                None if end_us is None else end_us * 1000,
                None if end_us is None else HandledResult.DONE,
            )

    def _told(self, kind: str) -> Iterator[tuple[str, Message]]:
        for name, driver in list(self._drivers.items()):
            for message in driver.messages(kind):
                yield name, message

    def _unsettled(self, since_us: int) -> str | None:
        """Say why the group has not settled, or None if it has."""
        now_us = time.time_ns() // 1000
        if now_us - since_us < WINDOW_S * 1e6:
            return "too early to say"
        from_us = now_us - int(WINDOW_S * 1e6)
        owners: dict[int, set[str]] = {queue: set() for queue in range(QUEUES)}
        for name, driver in list(self._drivers.items()):
            for message in driver.latest("begun", 2000):
                if message.begin_us >= from_us:
                    owners[message.queue].add(name)
        ids = self._members()
        names = {self._name_of(client_id) for client_id in ids}
        if names != self._present:
            return f"the broker knows {ids}, present are {sorted(self._present)}"
        wanted = {
            queue: {self._name_of(client_id)}
            for client_id, share in allocate(ids, QUEUES).items()
            for queue in share
        }
        wrong = {queue: who for queue, who in owners.items() if who != wanted[queue]}
        return f"handled by {wrong}, to be handled by {wanted}" if wrong else None

    def _name_of(self, client_id: str) -> str:
        """Return the member of a client id: host@instance, sometimes with more behind."""
        return client_id.split("@")[1]

    def _members(self) -> list[str]:
        with RawClient(self.system.address) as raw:
            return sorted(member_ids(raw, self.group))

    def _join(self, name: str, kind: str) -> None:
        driver = self._start(name, kind)
        self._drivers[name] = driver
        driver.do(
            "push", name=name, group=self.group, topic=self.topic, tags="*", mode="orderly",
            work=WORK_MS,
        )  # fmt: skip
        self._present.add(name)

    def _start(self, name: str, kind: str) -> Driver:
        host, port = self.system.namesrv
        command = BY_NAME[kind].command()
        return Driver(name, command, f"{host}:{port}", self._folder / name)

    def _make_topic(self) -> None:
        """Make the topic, and commit 0 everywhere: C++ begins at the end of a queue otherwise."""
        with RawClient(self.system.address) as raw:
            raw.create_topic(self.topic, QUEUES)
            raw.create_group(self.group)
        deadline = time.monotonic() + 30
        with RawClient(self.system.namesrv) as raw:
            while raw.request(GET_ROUTE, {"topic": self.topic}).code != 0:
                assert time.monotonic() < deadline, f"no route of {self.topic}"
                time.sleep(0.05)
        with RawClient(self.system.address) as raw:
            for queue in range(QUEUES):
                raw.commit(self.group, self.topic, queue, 0)

    def _produce_ours(self) -> None:
        """Send by key with our producer: each key has one queue."""
        with inorder.Producer("{}:{}".format(*self.system.namesrv)) as producer:
            for number in itertools.count():
                if self._ending.wait(PAUSE_S):
                    return
                key = f"key-{number % KEYS}"
                queue = TopicQueue(self.topic, BROKER, number % QUEUES)
                receipt = producer.send(self.topic, str(number).encode(), key=key, queue=queue)
                self._note("ours", key, number, receipt.queue.index, receipt.offset)

    def _produce_stock(self, driver: Driver) -> None:
        """Send with the producer of a RocketMQ client, a few at a time."""
        for first in itertools.count(STOCK_FROM, STOCK_ROUND):
            if self._ending.wait(STOCK_PAUSE_S):
                return
            driver.do("produce", topic=self.topic, first=first, count=STOCK_ROUND, tags="A")
            for m in driver.messages("sent")[-STOCK_ROUND:]:
                self._note("stock", f"key-{m.number}", m.number, m.queue, m.offset)

    def _note(self, who: str, key: str, number: int, queue: int, offset: int) -> None:
        name = self._queue_name(queue)
        self._sent.append(Sent(who, key, number, str(number), queue=name, offset=offset))

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # a thread's root: the test raises it
            self._failures.append(error)

    def _read_stored(self) -> list[Stored]:
        with RawClient(self.system.address) as raw:
            return [
                Stored(self._queue_name(queue), offset, body_of(record).decode())
                for queue in range(QUEUES)
                for offset, record in enumerate(raw.read_queue(self.topic, queue))
            ]

    def _queue_name(self, queue: int) -> str:
        return queue_name(TopicQueue(self.topic, BROKER, queue))
