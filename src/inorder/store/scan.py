"""Walking over the log: to its end, beyond its end, and to the records that hold a mark.

    LogScan          record by record from a position to the end of the log
    LogTail           what follows the first invalid bytes: whether valid records do
    marked_records   the log is searched for the mark at the speed of memory. Where one record
                     holds it, its neighbours are read one by one until one does not
    record_at        one record, without trust in the position that led to it

Where recovery starts its walk: decision 5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from inorder.store.commitlog import CommitLog
from inorder.store.segments import Segment, Segments
from inorder.wire.record import BLANK, MAGIC_V1, MAGIC_V2, TWO_INTS, ScannedRecord, scan

MAGICS: Final = (struct.pack(">i", MAGIC_V1), struct.pack(">i", MAGIC_V2))
MAGIC_AT: Final = 4
CHUNK_BYTES: Final = 1024 * 1024
ZERO_BYTES_ENOUGH: Final = 64 * 1024 * 1024


class LogScan:
    """The valid records from `start` on, across segments; then `end` is the end of the last."""

    __slots__ = ("_check_crc", "_segments", "end")

    def __init__(self, segments: Segments, start: int, *, check_crc: bool = True) -> None:
        self._segments = segments
        self._check_crc = check_crc
        self.end = start

    def __iter__(self) -> Iterator[ScannedRecord]:
        window = CHUNK_BYTES
        while True:
            segment = self._segments.find(self.end)
            if segment is None:
                return
            # Not through the map: beyond the end there may be a hole, and to touch one where the
            # file system is full kills the process.
            data = segment.read(window, self.end)
            before = self.end
            found = scan(data, 0, len(data), position_of_at=before, check_crc=self._check_crc)
            for record in found:
                self.end = record.position + record.size
                yield record
            if found.reason == BLANK:
                self.end = segment.end
            elif self.end == before:
                need = int.from_bytes(data[:4], "big", signed=True)
                if not len(data) < need <= segment.end - before:
                    return
                window = need
                continue
            window = CHUNK_BYTES


def is_boundary(segments: Segments, position: int) -> bool:
    """Return whether a record, a blank or nothing begins at `position`."""
    segment = segments.find(position)
    if segment is None:
        return position == (segments.items[-1].end if segments.items else 0)
    head = segment.read(8, position)
    if head == bytes(len(head)):
        return True
    found = LogScan(segments, position)
    first = next(iter(found), None)
    return found.end != position and (first is None or first.position >= position)


class LogTail:
    """The bytes beyond the end of the log: their number, and the first valid record."""

    __slots__ = ("first", "last_byte")

    def __init__(self, segments: Segments, end: int) -> None:
        self.first: ScannedRecord | None = None
        self.last_byte = end
        for segment in segments.after(end):
            self._scan(segment, max(end, segment.position))

    def _scan(self, segment: Segment, position: int) -> None:
        zeros = 0
        while position < segment.end and zeros < ZERO_BYTES_ENOUGH:
            # Chunks overlap, so that a magic number across their border is seen.
            data = segment.read(CHUNK_BYTES + 8, position)
            used = data.rstrip(b"\0")
            zeros = 0 if used else zeros + len(data)
            if used:
                self.last_byte = max(self.last_byte, position + len(used))
            if self.first is None and used:
                self.first = _first_record(segment, position, data)
            position += CHUNK_BYTES


def _first_record(segment: Segment, position: int, data: bytes) -> ScannedRecord | None:
    places = []
    for magic in MAGICS:
        at = data.find(magic)
        while at >= 0:
            places.append(at)
            at = data.find(magic, at + 1)
    for at in sorted(places):
        start = position + at - MAGIC_AT
        if start >= segment.position:
            found = scan(
                segment.view(), start - segment.position, segment.size, position_of_at=start
            )
            record = next(found, None)
            if record is not None:
                return record
    return None


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


def record_at(log: CommitLog, position: int, *, check_crc: bool = False) -> ScannedRecord | None:
    """Return the head of the record that begins exactly at `position`, None if none does."""
    segment = log.segments.find(position)
    if segment is None or not 0 <= position < log.end_position:
        return None
    found = scan(
        segment.view(),
        position - segment.position,
        min(segment.end, log.end_position) - segment.position,
        position_of_at=position,
        check_crc=check_crc,
    )
    return next(found, None)


def record_matches(
    log: CommitLog, position: int, size: int, *, topic: str, queue_id: int, queue_offset: int
) -> bool:
    """Return whether a queue entry names the record that it should."""
    record = record_at(log, position)
    return record is not None and (
        (record.size, record.topic, record.queue_id, record.queue_offset)
        == (size, topic, queue_id, queue_offset)
    )
