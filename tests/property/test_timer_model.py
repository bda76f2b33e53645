"""Timers against the shortest description of them: each once, at its time, in the order of times.

The queue of timers and the log of deliveries are lists. A crash keeps both and the last saved
snapshot; a start reads the marks in the log behind the snapshot, and the queue, as the broker does.
Chunks and the window in memory are small here, so that passes and shrinking happen all the time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inorder.broker.timers import rules
from inorder.broker.timers.records import File, decode, encode
from inorder.broker.timers.rules import Point, TimerTable
from inorder.wire.timers import code_of, due_of, is_recall

START = 1_700_000_000_000


@dataclass(frozen=True)
class Waits:
    """An entry of the queue: a message, or the recall of one."""

    code: int
    name: int


@contextmanager
def small() -> Iterator[None]:
    """Make everything small."""
    with (
        patch.object(rules, "CHUNK", 4),
        patch.object(rules, "WINDOW_MAX", 3),
        patch.object(rules, "SPAN_MS", 60),
        patch.object(rules, "LEAD_MS", 20),
    ):
        yield


class TimerModel(RuleBasedStateMachine):
    """A queue, a log of deliveries, a file."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.latest = START
        self.queue: list[Waits] = []
        self.log: list[tuple[int, int]] = []  # offset, when
        self.recalled: set[int] = set()
        self.table = TimerTable(now_ms=START)
        self.file = self.saved(0)
        self.turn: list[Point] = []  # packed, not written yet
        self.unsettled: list[tuple[int, list[Point]]] = []  # written: where in the log

    def saved(self, position: int) -> bytes:
        return encode(File(self.table.snapshot(), position, 0, 0))

    def arrive(self, code: int, name: int) -> None:
        self.queue.append(Waits(code, name))
        with small():
            self.table.note(len(self.queue) - 1, code)

    @rule(ms=st.integers(1, 300))
    def store(self, ms: int) -> None:
        self.arrive(code_of(self.now + ms), len(self.queue))

    @rule(ms=st.integers(1, 300), count=st.integers(2, 9))
    def store_many(self, ms: int, count: int) -> None:
        for number in range(count):
            self.arrive(code_of(self.now + ms + number % 2), len(self.queue))

    @precondition(lambda self: self.queue)
    @rule(draw=st.data())
    def recall(self, draw: st.DataObject) -> None:
        """Of a message whose time has not come."""
        name = draw.draw(st.integers(0, len(self.queue) - 1))
        due = due_of(self.queue[name].code)
        if is_recall(self.queue[name].code) or due <= self.now or self.table.is_over(due):
            return
        self.recalled.add(name)
        self.arrive(code_of(due, recall=True), name)

    @rule(ms=st.sampled_from([1, 7, 50, 200, 1000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(ms=st.integers(1, 100))
    def the_clock_is_set_back(self, ms: int) -> None:
        self.now -= ms

    @rule()
    def begin_a_pass(self) -> None:
        with small():
            self.table.begin_pass(self.now)

    @rule()
    def read_a_chunk(self) -> None:
        with small():
            first = self.table.next_chunk()
            if first is not None:
                end = min(first + rules.CHUNK, len(self.queue))
                entries = (struct.pack(">qiq", 0, 100, one.code) for one in self.queue[first:end])
                self.table.read_chunk(first, b"".join(entries))

    @precondition(lambda self: not self.turn)
    @rule(room=st.integers(1, 5))
    def look_and_take(self, room: int) -> None:
        with small():
            self.turn = self.table.take(self.now, room)

    @precondition(lambda self: self.turn)
    @rule(written=st.booleans())
    def the_tick_ends(self, written: bool) -> None:
        if written:
            self.unsettled.append((len(self.log), self.turn))
            self.deliver(self.turn)
        else:
            with small():
                self.table.give_back(self.turn)
        self.turn = []

    def deliver(self, points: list[Point]) -> None:
        for code, offset in points:
            name = self.queue[offset].name
            if is_recall(code):
                self.table.recalled[str(name)] = due_of(code) + 1000
            elif str(name) not in self.table.recalled:
                assert due_of(code) <= self.now, "early"
                self.log.append((offset, self.now))

    @precondition(lambda self: self.unsettled)
    @rule()
    def the_oldest_tick_is_on_disk(self) -> None:
        with small():
            self.table.settle(self.unsettled.pop(0)[1])

    @rule()
    def save(self) -> None:
        with small():
            self.file = self.saved(self.unsettled[0][0] if self.unsettled else len(self.log))

    @rule()
    def crash(self) -> None:
        self.turn, self.unsettled = [], []
        self.table = TimerTable(now_ms=self.now)
        file = decode(self.file)
        with small():
            self.table.restore(file.saved)
            for offset, _ in self.log[file.position :]:
                self.table.was_delivered(offset, self.queue[offset].code)
            for offset in range(self.table.next_offset, len(self.queue)):
                self.table.note(offset, self.queue[offset].code)

    @invariant()
    def none_twice_and_none_that_was_recalled(self) -> None:
        offsets = [offset for offset, _ in self.log]
        assert len(set(offsets)) == len(offsets), "twice"
        assert not self.recalled.intersection(offsets), "recalled"

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.table._window) <= 2 * 3 + len(self.table._late) + 4 + 5

    def teardown(self) -> None:
        """In the end everything comes, in the order of times."""
        self.crash()
        self.now = max(self.now, START) + 1_000_000
        before = len(self.log)
        for _ in range(20 * len(self.queue) + 20):
            self.begin_a_pass()
            self.read_a_chunk()
            self.look_and_take(5)
            if self.turn:
                self.the_tick_ends(written=True)
                self.the_oldest_tick_is_on_disk()
        came = {offset for offset, _ in self.log}
        messages = {at for at, one in enumerate(self.queue) if not is_recall(one.code)}
        assert came == messages - self.recalled, "lost"
        order = [(self.queue[offset].code, offset) for offset, _ in self.log[before:]]
        assert order == sorted(order)
        with small():
            assert not self.table.waiting
            assert self.table.wake_ms() is None


TimerModel.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestTimersFollowTheirRules = TimerModel.TestCase
