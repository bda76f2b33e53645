"""The pending transactions after a start: the queues of halves and of their ends, and the log.

Nothing is saved but the two offsets that RocketMQ saves, of the group CID_RMQ_SYS_TRANS: the first
half that counts, and the first record of ended halves that counts. A start reads the halves and the
records from there. What ended after the last such record is in the log behind the position that the
record names: `recover` reads the log from there, or from the first pending half. Pending halves lie
near the end of the log (`PUT_BACK_BYTES` in `rules.py`), so that is little.

After RocketMQ has written the directory, the log is read from the first pending half: its messages
name their halves, too. So a transaction that RocketMQ had committed, and not yet noted, is not
committed twice.

A crash may lose the saved offsets' last change and the last record; neither is ever ahead of the
log, since an offset moves when the end behind it is stored, and the file of offsets is written
after the log is durable. Why: decision 50.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from inorder.broker.transactions.records import (
    Ended,
    Found,
    Noted,
    end_in,
    ended_offsets,
    ends_in,
    found_in,
    half_of,
    living,
    number,
)
from inorder.errors import CorruptRecord
from inorder.logs import get_logger
from inorder.store.intact import is_intact
from inorder.store.scan import LogScan, is_boundary
from inorder.wire.extensions import ENDED_BEFORE
from inorder.wire.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from inorder.wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Record, decode

if TYPE_CHECKING:
    from inorder.broker.offsets.rules import OffsetTable
    from inorder.broker.transactions.rules import End, Transactions
    from inorder.store.consumequeue import QueueIndex
    from inorder.store.store import Store

log = get_logger(__name__)

GROUP: Final = TRANSACTION_GROUP
REMEMBERED_AT_START: Final = 4096
"""How many ends a start reads, with their halves, and in how many records it looks for them."""


def recover(store: Store, offsets: OffsetTable, table: Transactions) -> list[Noted]:
    """Fill an empty table; return the halves that have ended without a record of it."""
    halves = store.find_queue(HALF_TOPIC, 0)
    if halves is None or not halves.visible_offset:
        return []
    for topic in (HALF_TOPIC, OP_HALF_TOPIC):
        _require_intact(store, offsets, topic)
    start = max(offsets.query(GROUP, HALF_TOPIC, 0), halves.min_offset)
    ended, ended_before = _read_ends(store, offsets, table, start)
    found = list(_read_halves(store, halves, start, ended))
    ends: list[Ended] = []
    if found:
        first = min(one.half.position for one in found)
        ends = list(_read_log(store, max(first, ended_before)))
    alive, to_note, known = living(found, ended, ends)
    for half in alive:
        table.add(half)
    _remember_last(store, halves, table)
    for origin, how in known.items():
        table.remember(origin, how)
    if alive or to_note:
        log.info(
            "transactions pending=%d ended_without_a_record=%d halves_read=%d",
            len(alive), len(to_note), len(found),
        )  # fmt: skip
    return to_note


def _require_intact(store: Store, offsets: OffsetTable, topic: str) -> None:
    """Compare a queue with the log if an entry that is to be read does not lead to its record.

    A half that is not found would never be asked about, and one whose end is not found would be
    committed again.
    """
    queue = store.find_queue(topic, 0)
    if queue is None:
        return
    start = max(offsets.query(GROUP, topic, 0), queue.min_offset)
    intact = (is_intact(store.log, queue, offset) for offset in range(start, queue.visible_offset))
    if queue.damaged or not all(intact):
        store.mend_now(queue)


def _read_ends(
    store: Store, offsets: OffsetTable, table: Transactions, first_half: int
) -> tuple[set[int], int]:
    """Return the offsets of ended halves, and the log position before which no end is missing."""
    ended: set[int] = set()
    ended_before = 0
    queue = store.find_queue(OP_HALF_TOPIC, 0)
    if queue is None:
        return ended, ended_before
    start = max(offsets.query(GROUP, OP_HALF_TOPIC, 0), queue.min_offset)
    for offset in range(start, queue.visible_offset):
        record = read(store, queue, offset)
        if record is None:
            continue
        numbers = [number for number in ended_offsets(record.body) if number >= first_half]
        if numbers:
            ended.update(numbers)
            table.note(offset, max(numbers))
        ended_before = max(ended_before, number(record.properties, ENDED_BEFORE.encode()) or 0)
    if not store.log.min_position <= ended_before <= store.log.end_position or not is_boundary(
        store.log.segments, ended_before
    ):
        ended_before = 0
    return ended, ended_before


def _remember_last(store: Store, halves: QueueIndex, table: Transactions) -> None:
    """Remember how the last transactions ended, for requests that come again."""
    queue = store.find_queue(OP_HALF_TOPIC, 0)
    if queue is None:
        return
    found: list[tuple[int, End]] = []
    offset = queue.visible_offset
    first = max(queue.min_offset, offset - REMEMBERED_AT_START)  # RocketMQ's records say nothing
    while len(found) < REMEMBERED_AT_START and offset > first:
        offset -= 1
        record = read(store, queue, offset)
        found += reversed([] if record is None else ends_in(record))
    for half_offset, how in reversed(found[:REMEMBERED_AT_START]):
        half = read(store, halves, half_offset)
        if half is not None:
            table.remember(half_of(half).origin, how)


def _read_halves(store: Store, queue: QueueIndex, start: int, ended: set[int]) -> Iterator[Found]:
    for offset in range(start, queue.visible_offset):
        if offset in ended:
            continue
        record = read(store, queue, offset)
        if record is None:
            log.error("a half is gone from the log offset=%d", offset)
        else:
            yield found_in(record)


def _read_log(store: Store, start: int) -> Iterator[Ended]:
    for record in LogScan(store.log.segments, start, check_crc=False):
        prepared = 0
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            data = store.log.view_at(record.position, record.size)
            prepared = 0 if data is None else decode(data, check_crc=False).prepared_position
        end = end_in(record.topic, record.sys_flag, record.properties, record.position, prepared)
        if end is not None:
            yield end


def read(store: Store, queue: QueueIndex, offset: int) -> Record | None:
    """Return the record at an offset of a queue, None if the log has it no more."""
    entry = queue.entry(offset)
    view = None if entry is None else store.log.view_at(entry[0], entry[1])
    try:
        return None if view is None else decode(view)
    except CorruptRecord:
        return None
