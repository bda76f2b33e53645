"""The records of the log that hold a mark, found without looking at the others one by one.

A log that holds none is searched as fast as memory is read. Where there is one there are mostly
more: then the records are read one after the other until one comes without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from inorder.store.segment import Segment
from inorder.store.segments import Segments
from inorder.wire.record import TWO_INTS, ScannedRecord, scan


def marked_records(
    segments: Segments, start: int, end: int, mark: bytes
) -> Iterator[ScannedRecord]:
    """Give the records between two positions whose properties hold `mark`, in their order.

    `start` is where a record begins, or below the oldest byte; `end` is the end of the log.
    """
    search = re.compile(re.escape(mark)).search
    position = max(start, segments.min_position)
    for segment in list(segments.after(position)):
        at = max(position, segment.position) - segment.position
        limit = min(end, segment.end) - segment.position
        while at < limit:
            hit = search(segment.view(), at, limit)
            if hit is None:
                break
            at = _record_around(segment, at, limit, hit.start())
            found = scan(
                segment.view(), at, limit, position_of_at=segment.position + at, check_crc=False
            )
            before = at
            for record in found:
                at = record.position + record.size - segment.position
                if mark not in record.properties:
                    break
                yield record
            if at == before:  # the blank at the end of the segment, or bytes that are no record
                break


def _record_around(segment: Segment, at: int, limit: int, inside: int) -> int:
    """Return where the record begins that holds the index `inside`."""
    view = segment.view()
    while at < limit:
        size, _ = TWO_INTS.unpack_from(view, at)
        if size <= 0 or at + size > inside:
            break
        at += size
    return at
