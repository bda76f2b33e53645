"""Whether the entries of a queue lead to their records, without reading all of them.

An entry is right if it leads to a record of that topic, queue and offset. `count_right` compares
them in Python or by the compiled module.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final

from inorder.accelerated import native
from inorder.store.commitlog import CommitLog
from inorder.store.consumequeue import QueueIndex
from inorder.store.layout import ENTRY, ENTRY_BYTES, FILLER_SIZE, RECORD_BYTES_MIN
from inorder.store.scan import record_matches
from inorder.wire.record import BORN_HOST_V6, MAGIC_V1, MAGIC_V2, STORE_HOST_V6

LIGHT_PREFIX: Final = "%LMQ%"
"""Queues of RocketMQ whose entries lead to records of other topics."""

_EACH: Final = struct.Struct(">qi4xi")  # the low half of the tag code: filters compare 32 bits
_HEAD: Final = struct.Struct(">iiiiiqqi")
_INT: Final = struct.Struct(">i")
_native_count_right: Final = None if native is None else native.count_right


def is_light(queue: QueueIndex) -> bool:
    """Return whether a queue may lead to records of other topics."""
    return queue.topic.startswith(LIGHT_PREFIX)


def is_intact(log: CommitLog, queue: QueueIndex, offset: int) -> bool:
    """Return whether the entry at an offset leads to its record. Fillers and expired ones count."""
    position, size = _place(queue.read(offset, 1))
    if size == FILLER_SIZE:
        return True
    if size <= 0 or position < 0:
        return False
    return position < log.min_position or _is_at(log, queue, offset, position, size)


def leads_to_record(
    log: CommitLog, queue: QueueIndex, offset: int, entry: bytes | bytearray
) -> bool:
    """Return whether an entry names the record with an offset of the queue."""
    position, size = _place(entry)
    return size > 0 and _is_at(log, queue, offset, position, size)


def _is_at(log: CommitLog, queue: QueueIndex, offset: int, position: int, size: int) -> bool:
    return record_matches(
        log, position, size, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset
    )


def _place(entry: bytes | bytearray) -> tuple[int, int]:
    """Return position and size of an entry; of one that its file cuts off, (-1, -1)."""
    if len(entry) != ENTRY_BYTES:
        return -1, -1
    position, size, _ = ENTRY.unpack(entry)
    return position, size


def looks_intact(log: CommitLog, queue: QueueIndex) -> bool:
    """Check the first and the last entry, and that the record before the first is gone."""
    end, first = queue.settled_offset, queue.min_offset
    if not end or is_light(queue):
        return True
    if not is_intact(log, queue, end - 1):
        return False
    if first < end and not is_intact(log, queue, first):
        return False
    if first <= queue.first_file // ENTRY_BYTES:
        return True
    return is_gone(log, queue, first - 1)


def is_gone(log: CommitLog, queue: QueueIndex, offset: int) -> bool:
    """Return whether the log no longer has the record of an entry; a filler has none.

    Positions grow along a queue: if the entry before names a later record, one of them is wrong.
    """
    position, size = _place(queue.read(offset, 1))
    if size == FILLER_SIZE:
        return True
    if size <= 0 or not 0 <= position < log.min_position:
        return False
    if offset <= queue.first_file // ENTRY_BYTES:
        return True
    position_before, size_before = _place(queue.read(offset - 1, 1))
    return size_before == FILLER_SIZE or position_before < position


def count_intact(
    log: CommitLog,
    queue: QueueIndex,
    data: bytes | bytearray,
    offset: int,
    wanted: Container[int] | None = None,
) -> int:
    """Return how many entries from an offset on lead to their records, before one does not.

    Fillers count, and so do entries that expired since the queue's beginning was set. Of entries
    whose tag hash is not wanted only the size is checked. This touches the records, so it is not
    for records that may not be in memory.
    """
    total = len(data) // ENTRY_BYTES
    if is_light(queue):
        return total
    topic, done, last = queue.topic.encode(), 0, None
    expired = log.min_position if queue.first_position < log.min_position else 0
    while done < total:
        rest = data if not done else memoryview(data)[done * ENTRY_BYTES :]
        segment = log.segments.find(_first_position(rest, wanted))
        if segment is None:
            passed = _count_passed(rest, wanted, expired)
            if not passed:
                break
            done += passed
            continue
        if segment is last:
            break
        place = (segment.view(), segment.position, log.end_position, topic, queue.queue_id)
        if wanted is None and _native_count_right is not None:
            done += _native_count_right(rest, *place, offset + done)
        else:
            done += count_right(rest, *place, offset + done, wanted)
        last = segment
    return done


def _first_position(data: bytes | bytearray | memoryview, wanted: Container[int] | None) -> int:
    """Return the position in the first entry that has one, -1 if none has."""
    for position, size, tag in _EACH.iter_unpack(data):
        if size != FILLER_SIZE and (wanted is None or tag in wanted):
            return int(position)
    return -1


def _count_passed(
    data: bytes | bytearray | memoryview, wanted: Container[int] | None, expired: int
) -> int:
    """Return how many fillers, expired entries, and entries that nobody wants, come first."""
    count = 0
    for position, size, tag in _EACH.iter_unpack(data):
        unwanted = wanted is not None and tag not in wanted
        if size <= 0 or not (size == FILLER_SIZE or unwanted or 0 <= position < expired):
            break
        count += 1
    return count


def count_right(  # noqa: PLR0917 - as its compiled twin
    data: bytes | bytearray | memoryview,
    view: memoryview,
    base: int,
    end: int,
    topic: bytes,
    queue_id: int,
    offset: int,
    wanted: Container[int] | None = None,
) -> int:
    """Return how many queue entries lead to the records that they should, within one segment.

    `view` is the segment, which begins at `base`; the log ends at `end`. `offset` is that of the
    first entry.
    """
    count = 0
    limit = min(len(view), end - base)
    for position, size, tag in _EACH.iter_unpack(data):
        if size != FILLER_SIZE:
            if size <= 0:
                break
            if wanted is None or tag in wanted:
                at = position - base
                if size < RECORD_BYTES_MIN or at < 0 or at > limit - size:
                    break
                place = (size, queue_id, offset + count, position)
                if not _is_record(view, at, place, topic):
                    break
        count += 1
    return count


def _is_record(view: memoryview, at: int, place: tuple[int, int, int, int], topic: bytes) -> bool:
    size, magic, _, queue_id, _, queue_offset, position, flag = _HEAD.unpack_from(view, at)
    if (size, queue_id, queue_offset, position) != place or magic not in (MAGIC_V1, MAGIC_V2):
        return False
    topic_at = 84 + (12 if flag & BORN_HOST_V6 else 0) + (12 if flag & STORE_HOST_V6 else 0)
    if topic_at + 4 > size:
        return False
    (body,) = _INT.unpack_from(view, at + topic_at)
    topic_at += 4 + body
    length = len(topic).to_bytes(1 if magic == MAGIC_V1 and len(topic) < 256 else 2, "big")
    if body < 0 or topic_at + len(length) + len(topic) + 2 > size:
        return False
    found = view[at + topic_at : at + topic_at + len(length) + len(topic)]
    return bool(found == length + topic)
