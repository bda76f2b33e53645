"""Walking over the log from a position to its end, and looking behind that end."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from inorder.store.segment import Segment
from inorder.store.segments import Segments
from inorder.wire.record import BLANK, MAGIC_V1, MAGIC_V2, ScannedRecord, scan

MAGICS: Final = (struct.pack(">i", MAGIC_V1), struct.pack(">i", MAGIC_V2))
MAGIC_AT: Final = 4
CHUNK_BYTES: Final = 1024 * 1024
ZERO_BYTES_ENOUGH: Final = 64 * 1024 * 1024


class LogScan:
    """The valid records from `start` on, across segments; afterwards `end` is behind the last."""

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
            # Not through the map: behind the end there may be a hole, and to touch one where the
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
    """Tell whether a record, a blank or nothing begins at `position`."""
    segment = segments.find(position)
    if segment is None:
        return position == (segments.items[-1].end if segments.items else 0)
    head = segment.read(8, position)
    if head == bytes(len(head)):
        return True
    found = LogScan(segments, position)
    first = next(iter(found), None)
    return found.end != position and (first is None or first.position >= position)


class Behind:
    """What lies behind the end of the log: how many bytes, and the first valid record."""

    __slots__ = ("first", "last_byte")

    def __init__(self, segments: Segments, end: int) -> None:
        self.first: ScannedRecord | None = None
        self.last_byte = end
        for segment in segments.after(end):
            self._look(segment, max(end, segment.position))

    def _look(self, segment: Segment, position: int) -> None:
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
