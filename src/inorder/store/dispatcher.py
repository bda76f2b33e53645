"""From a record of the log to its queue entry and its keys: how recovery makes the derived files.

The fast path of sends does the same inline. With `strict`, the queue files must hold everything
before the first record dispatched. An offset that does not continue its queue shows that they do
not, and `Mismatch` asks for a start further back. When the whole log is read (not strict), the log
is right by definition. A queue may then begin late, because older records expired, or begin again,
because its topic was deleted and created again. A hole is filled with entries that no reader gets,
and reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from inorder.store.consumequeue import QueueIndex
from inorder.store.keyindex import KeyIndex
from inorder.store.queues import QueueTable
from inorder.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC, delay_ms
from inorder.wire.properties import get
from inorder.wire.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    ScannedRecord,
)
from inorder.wire.timers import entry_code

PROBLEMS_MAX: Final = 100
GAPS_MAX: Final = 1000


class Mismatch(Exception):
    """A record does not continue its queue."""


class Gap(NamedTuple):
    """Offsets of a queue whose records the log does not have, from `low` to before `high`."""

    topic: str
    queue_id: int
    low: int
    high: int


class Dispatcher:
    """Feeds queues and key index from scanned records."""

    __slots__ = ("_keys", "_queues", "delays_ms", "dropped", "gaps", "problems", "strict")

    def __init__(self, queues: QueueTable, keys: KeyIndex, delays_ms: Sequence[int]) -> None:
        self._queues = queues
        self._keys = keys
        self.delays_ms = delays_ms
        self.strict = True
        self.dropped: dict[str, int] = {}
        """Topics that were deleted, with their records before a position."""
        self.problems: list[str] = []
        self.gaps: list[Gap] = []

    def to_queue(self, record: ScannedRecord) -> None:
        """Append the record's queue entry, unless it is a prepared or rolled back transaction."""
        if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return
        if self.dropped and record.position < self.dropped.get(record.topic, 0):
            return
        queue = self._queues.get(record.topic, record.queue_id)
        if record.queue_offset != queue.next_offset:
            self._align(queue, record)
        queue.append(record.position, record.size, tag_code(record, self.delays_ms))
        queue.stored_bytes = 0  # counts from the start on

    def to_keys(self, record: ScannedRecord) -> None:
        """Note the record's keys, unless it is a transaction's rollback."""
        if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            self._keys.note(record.topic, record.properties, record.position, record.stored_at_ms)

    def _align(self, queue: QueueIndex, record: ScannedRecord) -> None:
        what = (
            f"{queue.topic}/{queue.queue_id}: the record at position {record.position} has queue "
            f"offset {record.queue_offset}, expected {queue.next_offset}"
        )
        if self.strict:
            raise Mismatch(what)
        self._queues.settle()
        if record.queue_offset < queue.next_offset:
            self._report(f"{what}; the queue starts again there")
            self._queues.restart(queue)
        if queue.next_offset == 0:
            if record.queue_offset:
                queue.start_with_filler(record.queue_offset)
            return
        self._report(f"{what}; the messages between are not in the log")
        if len(self.gaps) < GAPS_MAX:
            self.gaps.append(
                Gap(queue.topic, queue.queue_id, queue.next_offset, record.queue_offset)
            )
        queue.fill_to(record.queue_offset)
        self._queues.unwritten.pop(queue, None)

    def _report(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def tag_code(record: ScannedRecord, delays_ms: Sequence[int]) -> int:
    """Return the tag code of a queue entry: the tag's hash, or the time of a delayed message."""
    if record.topic == SCHEDULE_TOPIC:
        level = get(record.properties, b"DELAY")
        if level is not None and level.isdigit() and int(level) > 0:
            return record.stored_at_ms + delay_ms(delays_ms, int(level))
    if record.topic == TIMER_TOPIC:
        code = entry_code(record.properties)
        if code is not None:
            return code
    return record.tag_hash
