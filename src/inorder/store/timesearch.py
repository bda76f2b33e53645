"""Finding messages of a queue by their store time."""

from __future__ import annotations

import struct
from typing import Final

from inorder.store.commitlog import CommitLog
from inorder.store.queueindex import QueueIndex
from inorder.wire.record import BORN_HOST_V6

_SYS_FLAG: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")
_HEAD_BYTES: Final = 76


def stored_at(log: CommitLog, queue: QueueIndex, offset: int) -> int:
    """Return the store time of the message at `offset`, -1 if it is not there."""
    if not queue.min_offset <= offset < queue.visible_offset:
        return -1
    entry = queue.entry(offset)
    head = None if entry is None else log.view_at(entry[0], _HEAD_BYTES)
    if head is None:
        return -1
    (sys_flag,) = _SYS_FLAG.unpack_from(head, 36)
    found: int = _TIME.unpack_from(head, 68 if sys_flag & BORN_HOST_V6 else 56)[0]
    return found


def search(log: CommitLog, queue: QueueIndex, timestamp_ms: int, boundary: str) -> int:
    """Return LOWER: the first offset stored at or after; UPPER: the last stored at or before.

    LOWER past the end is the end; UPPER before the beginning is the beginning.
    """
    low, high = queue.min_offset, queue.visible_offset
    upper = boundary.upper() == "UPPER"
    while low < high:
        middle = (low + high) // 2
        found = stored_at(log, queue, middle)
        if found < timestamp_ms or (upper and found == timestamp_ms):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low
