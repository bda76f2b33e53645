"""Parked keys against a small model: whatever happens in whatever order, a restart knows the same,
and an owner that follows the rules neither overtakes nor loses nor repeats.

Table, file, the owner's view and the queue of keys are the real ones. The broker around them gets
requests twice, and its answers may be lost.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.broker.parking import storage as parking_storage
from inorder.broker.parking.records import (
    Dropped,
    Event,
    Installed,
    Moved,
    Parked,
    Redriven,
    Redriving,
    Unparked,
)
from inorder.broker.parking.rules import ParkingTable, Verdict
from inorder.client.consume.rules.keyed import KeyOrder, Work
from inorder.client.consume.rules.parking import ParkedView
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import GroupQueue, ReceivedMessage, TopicQueue
from inorder.ordering.finished import FinishedMap
from inorder.wire.requests.parking import OwnedKey, QueueParking, QueuePlace

PLACE = GroupQueue("billing", "orders", 0)
KEYS = ("a", "b", "c")
OFFSETS = st.integers(0, 12)
NAMES = st.sampled_from(KEYS)
ELSEWHERE = QueuePlace("broker-b", 7)

EVENTS = st.one_of(
    st.builds(
        lambda offset, key, error, until: Parked(
            "orders", 0, offset, key, 1, error, offset, 100, key, until
        ),
        OFFSETS, NAMES, st.sampled_from(["", "no"]), st.sampled_from([0, 20]),
    ),
    st.builds(lambda key, rate: Redriving("orders", 0, key, rate), NAMES, st.integers(0, 9)),
    st.builds(
        lambda key, done, error: Redriven("orders", 0, key, done, error),
        NAMES, st.lists(OFFSETS, max_size=3), st.sampled_from([None, "again"]),
    ),
    st.builds(lambda key: Unparked("orders", 0, key), NAMES),
    st.builds(lambda key, gone: Dropped("orders", 0, key, gone, "why"), NAMES,
              st.lists(OFFSETS, max_size=3)),
    st.builds(lambda key: Moved("orders", 0, key, ELSEWHERE), NAMES),
    st.builds(lambda key: Installed("orders", 0, key, ELSEWHERE, 5), NAMES),
)  # fmt: skip


def content(table: ParkingTable) -> bytes:
    """Return all of a table."""
    queues = [parking_storage.encode_queue(place, one) for place, one in table.places.items()]
    return parking_storage.encode(queues, replay_from=0, depends_on=0, log_crc=0)


def applied(events: list[Event], table: ParkingTable | None = None, start: int = 0) -> ParkingTable:
    """Apply events."""
    table = table or ParkingTable()
    for position, event in enumerate(events, start):
        table.apply("billing", event, position * 100)
    return table


@given(st.lists(EVENTS, max_size=30), st.data())
@settings(max_examples=200, deadline=None)
def test_file_and_log_make_the_same_table(events: list[Event], data: st.DataObject) -> None:
    """Saved anywhere and continued, it is the table of the whole log; its sums fit its keys."""
    cut = data.draw(st.integers(0, len(events)))
    whole = applied(events)
    restored = ParkingTable()
    parking_storage.decode(content(applied(events[:cut]))).restore(restored)
    applied(events[cut:], restored, cut)
    assert content(restored) == content(whole)
    messages = [
        message for _, one in whole.entries("") for message in one.messages
    ]  # fmt: skip
    keys = list(whole.entries(""))
    expected = (len(keys), len(messages), sum(message.size for message in messages))
    assert whole.statistics("billing") == restored.statistics("billing") == expected
    for _, one in keys:
        offsets = [message.origin for message in one.messages]
        assert offsets == sorted(set(offsets))
        assert all(offset <= one.end for offset in offsets)


class Run:
    """A queue, its broker and its owner, from one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.keys = [self.draw.choice(KEYS) for _ in range(self.draw.randint(5, 25))]
        self.table = ParkingTable()
        self.log: list[Event] = []
        self.base, self.finished = 0, "0:0"
        self.bad: set[str] = set()
        self.done: defaultdict[str, list[int]] = defaultdict(list)
        self.reported: set[int] = set()
        self.repeats = 0
        self.crashed = False
        self.begin()

    # The broker.

    def store(self, event: Event) -> None:
        """Store and apply."""
        self.table.apply("billing", event, len(self.log) * 100)
        self.log.append(event)

    def park(self, offset: int, key: str, error: str | None) -> str:
        """Answer a park; sometimes the request came twice."""
        for _ in range(self.draw.choice((1, 1, 2))):
            verdict, _ = self.table.judge(
                PLACE, offset, key, joins=error is None, size=100, floor=self.base, now_ms=0
            )
            if verdict is Verdict.STORE:
                self.store(Parked("orders", 0, offset, key, 1, error or "", 0, 100, key))
                verdict = Verdict.PARKED
        return verdict.value

    def restart(self) -> None:
        """Die and come back: from the log alone, or from a file and the rest of the log."""
        cut = self.draw.randint(0, len(self.log))
        table = ParkingTable()
        parking_storage.decode(content(applied(self.log[:cut]))).restore(table)
        self.table = applied(self.log[cut:], table, cut)

    # The owner.

    def begin(self) -> None:
        """Begin with what the broker has: a fresh lease."""
        self.view = ParkedView(self.table.version(*PLACE))
        finished = FinishedMap.decode(self.finished)
        self.order = KeyOrder(lambda m: m.key)
        self.queue = QueueProgress(finished.base, keys=self.order, finished=finished)
        self.load(first=True)
        self.running: list[Work] = []
        self.unsure: list[Work] = []  # parked, as far as the owner knows: perhaps
        self.redriving: dict[str, tuple[int, int] | None] = {}  # key: (offset, redrive) that runs

    def load(self, *, first: bool = False) -> None:
        """Ask for the parked keys."""
        queue = self.table.places.get(PLACE)
        keys = [
            OwnedKey(one.key, one.end, one.redrive, one.rate)
            for one in (queue.keys.values() if queue is not None else ())
        ]
        done = self.table.done(PLACE, self.base)
        self.view.load(QueueParking(self.table.version(*PLACE), keys, done))
        self.order.parked = self.view.keys
        if first:
            self.queue.done_elsewhere(done)

    def pull(self) -> None:
        """Get one more message."""
        offset = self.queue.pulled_to
        if offset < len(self.keys):
            message = ReceivedMessage(
                "orders", TopicQueue("orders", "a", 0), offset, b"",
                {"__SHARDINGKEY": self.keys[offset]}, str(offset), 0, 0,
            )  # fmt: skip
            self.queue.put(self.queue.without_finished((message,)), offset + 1)

    def take(self) -> None:
        """Begin with a work: call the handler, or join the parked key."""
        if self.view.version < self.table.version(*PLACE):
            self.load()
        work = self.queue.take_work(0)
        if work is None:
            return
        assert work.key not in {other.key for other in self.running}
        if not work.parked:
            assert self.redriving.get(work.key or "") is None, "it overtakes its redrive"
            self.running.append(work)
            return
        done = 0
        outcomes = [self.park(message.offset, work.key or "", None) for message in work.messages]
        if self.draw.random() < 0.3:  # the answer is lost
            self.queue.again(work, 0, maybe_parked=True)
            return
        for outcome in outcomes:
            if outcome == "live":
                self.view.go_live(work.key or "")
            if outcome != "parked":
                break
            done += 1
        if done:
            self.queue.done(work, 0, done)
        else:
            self.queue.again(work, 0)

    def end(self) -> None:
        """End a handler of a work."""
        if not self.running:
            return
        at = self.draw.randrange(len(self.running))
        work = self.running[at]
        (message,) = work.messages
        key = work.key or ""
        assert message.offset not in FinishedMap.decode(self.finished), "it was committed"
        if key not in self.bad and work not in self.unsure:
            self.effect(key, message.offset)
            self.queue.done(work, 0)
        else:
            self.unsure.append(work)
            outcome = self.park(message.offset, key, "no")
            if self.draw.random() < 0.3:
                return  # the answer is lost: it is asked again, and no handler runs
            assert outcome == "parked"
            self.view.park(key, message.offset)
            self.queue.done(work, 0)
        del self.running[at]

    def effect(self, key: str, offset: int) -> None:
        """Take an effect."""
        if offset in self.done[key]:
            assert self.crashed, f"{offset} of {key} is handled twice without a crash"
            assert offset not in self.reported, f"{offset} of {key} was redriven and is done"
            self.repeats += 1
            return
        assert not self.done[key] or self.done[key][-1] < offset, f"{key}: {offset} comes too late"
        self.done[key].append(offset)

    def redrive(self) -> None:
        """Go one step in the redrive of a key: begin a message, end it, or let the key go."""
        if self.view.version < self.table.version(*PLACE):
            self.load()
        keys = [one.key for one in self.view.wanted(())]
        if not keys:
            return
        key = self.draw.choice(sorted(keys))
        one = self.table.find(PLACE, key)
        runs = self.redriving.get(key)
        if runs is not None:
            offset, _ = runs
            self.redriving[key] = None
            if key in self.bad:
                self.store(Redriven("orders", 0, key, [], "again"))
                return
            self.effect(key, offset)
            self.store(Redriven("orders", 0, key, [offset]))
            self.reported.add(offset)
        elif one is not None and one.messages:
            self.redriving[key] = (one.messages[0].origin, one.redrive)
        else:
            end = max(self.view.keys[key].end, max(self.done[key], default=-1))
            if not self.table.may_unpark(PLACE, key, end, successor=False):
                if one is not None:
                    self.store(Unparked("orders", 0, key))
                if self.draw.random() < 0.8:  # else the answer is lost, and it asks again
                    self.view.go_live(key)

    # The world.

    def step(self, *, calm: bool) -> None:
        """Let something happen."""
        kind = self.draw.choice(
            ("pull", "take", "take", "end", "end", "redrive", "redrive", "commit")
            + (() if calm else ("bad", "heal", "ask", "crash", "restart"))
        )
        key = self.draw.choice(KEYS)
        if kind == "bad":
            self.bad.add(key)
        elif kind == "heal":
            self.bad.discard(key)
        elif kind == "ask" or calm:
            for name in KEYS if calm else (key,):
                one = self.table.find(PLACE, name)
                if one is not None and not one.redrive:
                    self.store(Redriving("orders", 0, name, 0))
        if kind == "commit":
            said = self.queue.progress()
            self.base, self.finished = said.offset, said.finished or f"{said.offset}:0"
            self.table.prune(PLACE, self.base)
        elif kind == "crash":
            self.crashed = True
            self.begin()
        elif kind == "restart":
            self.restart()
        elif kind in ("pull", "take", "end", "redrive"):
            getattr(self, kind)()

    def is_over(self) -> bool:
        """Tell whether everything is done."""
        return sum(map(len, self.done.values())) == len(self.keys) and not self.table.groups()


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_nothing_overtakes_and_nothing_is_lost(seed: int) -> None:
    """Keys fail and heal, requests repeat, answers are lost, owner and broker die: in the end every
    message had its effect, in the order of its key, and twice only if its owner died."""
    run = Run(seed)
    for _ in range(run.draw.randint(20, 200)):
        run.step(calm=False)
    run.bad.clear()
    for _ in range(5000):
        if run.is_over():
            break
        run.step(calm=True)
    assert run.is_over(), (run.done, run.table, list(run.table.entries("")))
    expected = {key: [at for at, one in enumerate(run.keys) if one == key] for key in set(run.keys)}
    assert {key: found for key, found in run.done.items() if found} == expected
