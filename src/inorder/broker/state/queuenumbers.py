"""The numbers of one producer on one queue: the last one stored, and where its latest messages lie.

Answers are remembered as runs: numbers that follow one another mostly got offsets that do, so a
run is (first number, offset, last number), and the open one costs nothing to continue. The last
1,024 runs are kept at least, so the last 1,024 answers at least.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from inorder.ordering.sequence import NOTHING

if TYPE_CHECKING:
    from inorder.broker.state.producers import Producer

Connection = TypeVar("Connection")

RUNS_MAX: Final = 1024
RUN: Final = 3
"""A run is this many integers: first number, value, last number."""


class QueueNumbers(Generic[Connection]):
    """What is stored of one producer in one queue.

    A remembered value is the offset, or, of a message that lies elsewhere (one with a delay),
    -2 - its position in the log.
    """

    __slots__ = (
        "end", "first", "last", "producer", "queue_id", "runs", "settled_end", "settled_last",
        "topic", "value",
    )  # fmt: skip

    def __init__(self, producer: Producer[Connection], topic: str, queue_id: int) -> None:
        self.producer = producer
        self.topic = topic
        self.queue_id = queue_id
        self.last = self.settled_last = NOTHING
        self.end = self.settled_end = 0  # the offset that would continue the open run
        self.first = 0
        self.value = 0
        self.runs = array("q")

    def note(self, number: int, value: int) -> int:
        """Note a message; return by how many the closed runs grew."""
        if number == self.last + 1 and value == self.end:
            self.last = number
            self.end = value + 1
            return 0
        grown = self._close_run()
        self.first, self.value, self.last = number, value, number
        self.end = value + 1 if value >= 0 else NOTHING
        return grown

    def note_many(self, numbers: Sequence[int], value: int) -> int:
        """Note messages at `value` and the offsets behind it; return how the closed runs grew."""
        count, first, last = len(numbers), numbers[0], numbers[-1]
        if last - first == count - 1:  # they follow one another
            if first != self.last + 1 or value != self.end:
                return self.note(first, value) + self._go_on(last, value + count)
            return self._go_on(last, value + count)
        before = len(self.runs)
        self._close_run()
        closed = min(count - 1, RUNS_MAX)  # those before them would be forgotten at once
        runs = array("q", bytes(8 * RUN * closed))
        runs[0::RUN] = runs[2::RUN] = array("q", numbers[-1 - closed : -1])
        runs[1::RUN] = array("q", range(value + count - 1 - closed, value + count - 1))
        self.runs += runs
        if len(self.runs) > 2 * RUNS_MAX * RUN:
            del self.runs[: -RUNS_MAX * RUN]
        self.first = self.last = last
        self.value, self.end = value + count - 1, value + count
        return (len(self.runs) - before) // RUN

    def _go_on(self, last: int, end: int) -> int:
        """The open run goes on."""
        self.last, self.end = last, end
        return 0

    def _close_run(self) -> int:
        if self.last < self.first:
            return 0
        runs = self.runs
        runs.extend((self.first, self.value, self.last))
        if len(runs) > 2 * RUNS_MAX * RUN:
            del runs[: RUNS_MAX * RUN]
            return 1 - RUNS_MAX
        return 1

    def find(self, number: int) -> int | None:
        """Return the remembered value of a number, None if there is none."""
        if self.first <= number <= self.last:
            return self.value + (number - self.first if self.value >= 0 else 0)
        runs = self.runs
        at = bisect_right(runs[::RUN], number) * RUN - RUN
        if at < 0 or number > runs[at + 2]:
            return None
        value = runs[at + 1]
        return value + (number - runs[at] if value >= 0 else 0)

    def roll_back(self) -> int:
        """Forget what was noted since the last settled one; return how the closed runs grew."""
        before = len(self.runs)
        last, settled_last = self.last, self.settled_last
        while self.first > settled_last and self.runs:
            self.first, self.value, last = self.runs[-RUN:]
            del self.runs[-RUN:]
        if self.first <= last < settled_last:  # a run ends before: the open one is empty
            self.runs.extend((self.first, self.value, last))
            self.first = settled_last + 1
        self.first = min(self.first, settled_last + 1)
        self.last, self.end = settled_last, self.settled_end
        return (len(self.runs) - before) // RUN

    def forget_runs(self) -> int:
        """Forget all answers but the latest; return how the closed runs grew."""
        count = len(self.runs) // RUN
        self.runs = array("q")
        return -count

    def settled(self) -> QueueNumbers[Connection]:
        """Return this without what an unwritten tick holds."""
        if self.last == self.settled_last:
            return self
        copy = QueueNumbers(self.producer, self.topic, self.queue_id)
        copy.last, copy.end, copy.first, copy.value = self.last, self.end, self.first, self.value
        copy.settled_last, copy.settled_end = self.settled_last, self.settled_end
        copy.runs = array("q", self.runs)
        copy.roll_back()
        return copy

    def __repr__(self) -> str:
        return f"QueueNumbers({self.producer.id}, {self.topic}/{self.queue_id}, last={self.last})"
