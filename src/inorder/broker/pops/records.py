"""What the lease journal holds of POP, and the message that goes to the retry topic.

A record of the journal states what holds from now on. `Popped` takes its messages over from earlier
check points of its queue; `PopState` and `PopBatch` replace what stood before. An older broker
skips them, and begins at the group's offset, which lies before all messages in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from inorder.broker.pops.rules import Batch, CheckPoint, PopTable
from inorder.errors import RecordTooLarge
from inorder.model import GroupQueue
from inorder.wire.extensions import SEND_PROPERTIES
from inorder.wire.properties import PROPERTIES_BYTES_MAX, join, parse
from inorder.wire.record import Record, encode
from inorder.wire.requests.pops import FIRST_POP_TIME, POP_CK, pop_retry_topic


class _Record(msgspec.Struct, frozen=True, array_like=True):
    group: str
    topic: str
    queue_id: int


class Popped(_Record, frozen=True, tag="pp"):
    """Messages are in flight."""

    pop_ms: int
    invisible_ms: int
    deadline_ms: int
    """By the clock of this boot."""
    start: int
    cursor: int
    offsets: list[int]
    depends_on: int


class PopDone(_Record, frozen=True, tag="pd"):
    """Messages under a token are acknowledged, or stored in the retry topic."""

    pop_ms: int
    offsets: list[int]


class PopState(_Record, frozen=True, tag="ps"):
    """All that is in flight of a queue; check points are tuples in the order of `Popped`."""

    cursor: int
    last_pop_ms: int
    points: list[tuple[int, int, int, int, list[int]]]
    depends_on: int


class PopBatch(_Record, frozen=True, tag="pb"):
    """A batch that was popped in order; without offsets there is none."""

    epoch: int
    attempt: str
    pop_ms: int
    invisible_ms: int
    until_ms: int
    offsets: tuple[int, ...]
    acked: int
    visible: tuple[tuple[int, int], ...]
    counts: tuple[tuple[int, int], ...]
    was_reset: bool
    acks: int
    depends_on: int


class PopReset(_Record, frozen=True, tag="pr"):
    """An operator set the offset of a queue."""


class PopForgotten(msgspec.Struct, frozen=True, array_like=True, tag="px"):
    """A group or a topic was deleted; an empty name stands for all."""

    group: str
    topic: str


PopRecord: TypeAlias = Popped | PopDone | PopState | PopBatch | PopReset | PopForgotten
POP_RECORDS: Final = (Popped, PopDone, PopState, PopBatch, PopReset, PopForgotten)


def popped(key: GroupQueue, point: CheckPoint, cursor: int, end: int) -> Popped:
    """Return the record of a pop; `end` is the end of the log."""
    return Popped(
        *key, point.pop_ms, point.invisible_ms, point.deadline_ms, point.start, cursor,
        list(point.left), end,
    )  # fmt: skip


def batch_record(key: GroupQueue, batch: Batch, end: int) -> PopBatch:
    """Return the record of a batch."""
    return PopBatch(
        *key, batch.epoch, batch.attempt, batch.pop_ms, batch.invisible_ms, batch.until_ms,
        batch.offsets, batch.acked, batch.visible, batch.counts, batch.was_reset, batch.acks, end,
    )  # fmt: skip


def no_batch(key: GroupQueue, batch: Batch, end: int) -> PopBatch:
    """Return the record of a batch that is done."""
    return batch_record(key, replace(batch, offsets=(), visible=(), counts=()), end)


def summary(table: PopTable, end: int) -> Iterator[PopRecord]:
    """Yield the records of the present state."""
    for key in list(table.queues):
        queue = table.queues.get(key)
        if queue is not None:
            points = [
                (one.pop_ms, one.invisible_ms, one.deadline_ms, one.start, list(one.left))
                for one in queue.check_points()
            ]
            yield PopState(*key, queue.cursor, queue.last_pop_ms, points, end)
    for key in list(table.batches):
        batch = table.batches.get(key)
        if batch is not None:
            yield batch_record(key, batch, end)


def replay(records: Iterable[object], table: PopTable, *, now_ms: int, same_boot: bool) -> None:
    """Apply the records of a journal to the table.

    Deadlines hold within a boot. After another boot, each time begins anew.
    """

    def deadline(stated_ms: int, whole_ms: int) -> int:
        return min(stated_ms, now_ms + whole_ms) if same_boot else now_ms + whole_ms

    for record in records:
        if isinstance(record, PopForgotten):
            table.forget(group=record.group, topic=record.topic)
        if not isinstance(record, _Record):
            continue
        key = GroupQueue(record.group, record.topic, record.queue_id)
        if isinstance(record, Popped):
            point = CheckPoint(
                record.pop_ms, record.invisible_ms,
                deadline(record.deadline_ms, record.invisible_ms), record.start,
                dict.fromkeys(record.offsets),
            )  # fmt: skip
            table.take(key, point, record.cursor, now_ms)
        elif isinstance(record, PopDone):
            table.finish(key, record.pop_ms, record.offsets)
        elif isinstance(record, PopState):
            batch = table.batches.get(key)
            table.reset(key)
            if batch is not None:
                table.put_batch(key, batch)
            for pop_ms, invisible_ms, deadline_ms, start, offsets in record.points:
                table.take(
                    key,
                    CheckPoint(
                        pop_ms, invisible_ms, deadline(deadline_ms, invisible_ms), start,
                        dict.fromkeys(offsets),
                    ),
                    record.cursor,
                    now_ms,
                )  # fmt: skip
            table.pass_by(key, record.cursor, now_ms)
            table.queues[key].last_pop_ms = max(table.queues[key].last_pop_ms, record.last_pop_ms)
        elif isinstance(record, PopBatch):
            until_ms = deadline(record.until_ms, record.invisible_ms)
            _replay_batch(record, key, table, until_ms, record.visible if same_boot else ())
        elif isinstance(record, PopReset):
            table.reset(key)


def _replay_batch(
    record: PopBatch, key: GroupQueue, table: PopTable, until_ms: int,
    visible: tuple[tuple[int, int], ...],
) -> None:  # fmt: skip
    batch = Batch(
        record.epoch, record.attempt, record.pop_ms, record.invisible_ms, until_ms,
        record.offsets, record.acked, visible, record.counts, record.was_reset, record.acks,
    )  # fmt: skip
    table.put_batch(key, batch)
    if not record.offsets:
        table.end_batch(key)


# -- messages --------------------------------------------------------------------------------------


def revived(record: Record, *, group: str, pop_ms: int, store_host: bytes) -> Record:
    """Return the copy of a message for the retry topic: its time ended."""
    found = parse(record.properties)
    for name in (*SEND_PROPERTIES, POP_CK):
        found.pop(name, None)
    properties = join(found).encode()
    if record.redeliveries == 0 or FIRST_POP_TIME not in found:
        found[FIRST_POP_TIME] = str(pop_ms)
        longer = join(found).encode()
        if len(longer) <= PROPERTIES_BYTES_MAX:
            properties = longer
    return replace(
        record,
        topic=pop_retry_topic(group, record.topic),
        queue_id=0,
        properties=properties,
        born_host=store_host,
        store_host=store_host,
        redeliveries=record.redeliveries + 1,
        prepared_position=0,
        version=1,
    )


def as_popped(record: Record, *, topic: str, receipt: str) -> bytes:
    """Return a message of the retry topic as a consumer gets it: under its topic, with a receipt.

    A message whose properties have no room for the receipt keeps its form; the header of the
    answer says the same of it.
    """
    found = parse(record.properties)
    found[POP_CK] = receipt
    try:
        return encode(replace(record, topic=topic, properties=join(found).encode(), version=1))
    except RecordTooLarge:
        return encode(record)
