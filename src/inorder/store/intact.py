"""Whether the entries of a queue lead to their records, without reading all of them."""

from __future__ import annotations

from typing import Final

from inorder.store.commitlog import CommitLog
from inorder.store.layout import ENTRY, ENTRY_BYTES, FILLER_SIZE
from inorder.store.queueindex import QueueIndex
from inorder.store.recordview import record_matches

LIGHT_PREFIX: Final = "%LMQ%"
"""Queues of RocketMQ whose entries lead to records of other topics."""


def is_intact(log: CommitLog, queue: QueueIndex, offset: int) -> bool:
    """Tell whether the entry at an offset leads to its record; fillers and the expired do."""
    data = queue.read(offset, 1)
    if len(data) != ENTRY_BYTES:
        return False
    position, size, _ = ENTRY.unpack(data)
    if size == FILLER_SIZE:
        return True
    if size <= 0 or position < 0:
        return False
    return position < log.min_position or leads_to_record(log, queue, offset, data)


def leads_to_record(
    log: CommitLog, queue: QueueIndex, offset: int, entry: bytes | bytearray
) -> bool:
    """Tell whether an entry names the record with an offset of the queue."""
    position, size, _ = ENTRY.unpack(entry)
    return size > 0 and record_matches(
        log, position, size, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset
    )


def looks_intact(log: CommitLog, queue: QueueIndex) -> bool:
    """Look at the first and the last entry, and at that before the first: it must be gone."""
    end, first = queue.settled_offset, queue.min_offset
    if not end or queue.topic.startswith(LIGHT_PREFIX):
        return True
    if not is_intact(log, queue, end - 1):
        return False
    if first < end and not is_intact(log, queue, first):
        return False
    if first <= queue.first_file // ENTRY_BYTES:
        return True
    data = queue.read(first - 1, 1)
    if len(data) != ENTRY_BYTES:
        return False
    position, size, _ = ENTRY.unpack(data)
    return bool(size == FILLER_SIZE or (size > 0 and 0 <= position < log.min_position))
