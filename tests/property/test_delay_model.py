"""The schedule against the shortest description of it: each message once, at its time, in order.

The log is a list. A crash keeps the log and the last saved file; a start reads the log behind the
position in the file, as the broker does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inorder.broker.delays.rules import Delays, delivered_properties, mark

DELAYS_MS = (1000, 5000, 20_000)
START = 1_700_000_000_000


@dataclass(frozen=True)
class Delivered:
    """A message in its own queue: which one, and when it came."""

    level: int
    offset: int
    at_ms: int
    properties: bytes


class DelayModel(RuleBasedStateMachine):
    """Levels with their queues, a log of deliveries, a file."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.latest = START
        self.queues: dict[int, list[int]] = {1: [], 2: [], 3: []}  # when each is due
        self.log: list[Delivered] = []
        self.delays = Delays(DELAYS_MS, now_ms=START)
        self.file = self.delays.encode(position=0)
        self.turn: list[Delivered] = []  # packed, not written yet
        self.span = (0, 0, 0)  # of the turn: level, from, until
        self.unsettled: list[tuple[int, int, int]] = []  # written: where in the log, level, until

    @rule(level=st.integers(1, 5), count=st.integers(1, 4))
    def store(self, level: int, count: int) -> None:
        level = self.delays.clamp_level(level)
        self.queues[level] += [self.delays.due_ms(level, self.now)] * count

    @rule(ms=st.sampled_from([1, 50, 999, 4000, 30_000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(ms=st.integers(1, 900))
    def the_clock_is_set_back_a_little(self, ms: int) -> None:
        """By less than a second in all: beyond that what waits is delivered at once."""
        self.latest = max(self.latest, self.now)
        self.now = max(self.now - ms, self.latest - 900)

    @precondition(lambda self: not self.turn)
    @rule(level=st.integers(1, 3), room=st.integers(1, 5))
    def look_and_take(self, level: int, room: int) -> None:
        offset = self.delays.next_offset(level)
        dues = self.queues[level][offset : offset + room]
        entries = b"".join(struct.pack(">qiq", 0, 100, due) for due in dues)
        found = self.delays.scan(level, entries, self.now)
        self.turn = [
            Delivered(level, one.offset, self.now, delivered_properties(b"", level, one.offset))
            for one in found.due
        ]
        if found.wake_ms is not None:
            assert found.wake_ms > self.now
            assert found.wake_ms == dues[found.next_offset - offset]
        self.delays.take(level, found.next_offset)
        self.span = (level, offset, found.next_offset)

    @precondition(lambda self: self.turn)
    @rule(written=st.booleans())
    def the_tick_ends(self, written: bool) -> None:
        level, start, until = self.span
        if written:
            self.unsettled.append((len(self.log), level, until))
            self.log += self.turn
        else:
            self.delays.give_back(level, start)
        self.turn = []

    @precondition(lambda self: self.unsettled)
    @rule()
    def the_oldest_tick_is_on_disk(self) -> None:
        _, level, until = self.unsettled.pop(0)
        self.delays.settle(level, until, self.now)

    @rule()
    def save(self) -> None:
        position = self.unsettled[0][0] if self.unsettled else len(self.log)
        self.file = self.delays.encode(position=position)

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        """What was being written is in the log, or it is not."""
        if written:
            self.log += self.turn
        self.turn = []
        self.unsettled = []
        self.delays = Delays(DELAYS_MS, now_ms=self.now)
        self.delays.decode(self.file)
        assert self.delays.position is not None
        for one in self.log[self.delays.position :]:
            found = mark(one.properties)
            assert found == (one.level, one.offset)
            assert one.offset <= self.delays.next_offset(one.level), "no delivery is missing"
            self.delays.advance(one.level, one.offset + 1)

    @invariant()
    def each_once_at_its_time_and_in_order(self) -> None:
        for level, queue in self.queues.items():
            came = [one for one in self.log if one.level == level]
            assert [one.offset for one in came] == list(range(len(came)))
            for one in came:
                assert one.at_ms >= queue[one.offset], "early"
            assert self.delays.settled_offset(level) <= len(came)

    def teardown(self) -> None:
        """In the end everything comes."""
        self.crash(written=True)
        self.now += 1_000_000
        for level, queue in self.queues.items():
            while self.delays.next_offset(level) < len(queue):
                self.look_and_take(level, 5)
                self.the_tick_ends(written=True)
                self.the_oldest_tick_is_on_disk()
            assert sum(one.level == level for one in self.log) == len(queue)


DelayModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestDelaysFollowTheirRules = DelayModel.TestCase
