"""Consume queues compared with the log, and repaired from it.

A queue is damaged if one of its entries does not lead to the record of that topic, queue and
offset: a file is missing, cut, zeroed, flipped or an older copy. The log holds everything that an
entry says, so the entry is made again. Where the log no longer has the record, a filler marks the
gap: no reader gets it, and the gap is reported as lost messages (`Loss`).

    mend         reads the log once for any number of queues and repairs their entries. It opens
                 files of its own, so it may run in any thread. Offsets that are given out meanwhile
                 lie after the ones it looks at.
    compare      compares all queues of a directory with its log and changes nothing. It may run
                 beside a broker: entries below the noted ends no longer change. Without notes
                 (`ends.py`), the log says where queues end.

Why a damaged queue stops only itself: decision 45.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from inorder.disk import Files
from inorder.errors import StoreError
from inorder.store.checkpoints import PositionsFile
from inorder.store.dispatcher import tag_code
from inorder.store.ends import EndsFile
from inorder.store.intact import LIGHT_PREFIX
from inorder.store.layout import (
    ENTRY,
    ENTRY_BYTES,
    FILLER,
    FILLER_SIZE,
    RECORD_BYTES_MIN,
    Layout,
    file_name,
    parse_name,
)
from inorder.store.scan import MAGIC_AT, MAGICS, LogScan
from inorder.store.segments import Segment, Segments
from inorder.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC
from inorder.wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK, ScannedRecord, scan

CHUNK_BYTES: Final = 1024 * 1024
BLOCK_ENTRIES: Final = 4096
_NONE: Final = bytes(ENTRY_BYTES)
_TAG_AT: Final = 12
LOST_RANGES_MAX: Final = 1000
"""How many gaps of a queue are listed; the last one then covers all that follow."""


class Wanted(NamedTuple):
    """A queue to compare, and its known end."""

    topic: str
    queue_id: int
    end: int | None
    """The offset after its last entry; None: as the log says."""
    since: int = 0
    """Records before this position belong to an earlier topic of that name."""


@dataclass(slots=True)
class Mended:
    """The result for one queue."""

    topic: str
    queue_id: int
    end: int
    first: int
    """The lowest offset of which the log has the record; the end if it has none."""
    changed: int = 0
    """Entries that were wrong."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Offsets from, to (excluded) that had an entry, or none, and have no record."""
    holds_last: bool = False
    """The log has the record before the end."""


class _Found:
    """The entries of one queue's records; of two with one offset the later counts."""

    __slots__ = ("_blocks", "end", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.end = wanted.end or 0
        self._blocks: dict[int, bytearray] = {}

    def put(self, offset: int, entry: bytes, *, offset_max: int) -> None:
        """Take a record. An offset that is too high for the records before it is a flipped bit."""
        if not 0 <= offset <= offset_max:
            return
        if self.wanted.end is None:
            if offset < self.end:
                self._blocks.clear()  # the topic was deleted and made again
            self.end = offset + 1
        elif offset >= self.wanted.end:
            return
        number, inside = divmod(offset, BLOCK_ENTRIES)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = bytearray(BLOCK_ENTRIES * ENTRY_BYTES)
        block[inside * ENTRY_BYTES : (inside + 1) * ENTRY_BYTES] = entry

    def first(self) -> int:
        """Return the lowest offset that has a record; the end if none has."""
        for number in sorted(self._blocks):
            block = self._blocks[number]
            for inside in range(BLOCK_ENTRIES):
                if any(block[inside * ENTRY_BYTES : (inside + 1) * ENTRY_BYTES]):
                    return number * BLOCK_ENTRIES + inside
        return self.end

    def part(self, start: int, end: int) -> bytes:
        """Return the entries from an offset to another; zeros where there is no record."""
        parts = []
        while start < end:
            number, inside = divmod(start, BLOCK_ENTRIES)
            count = min(end - start, BLOCK_ENTRIES - inside)
            block = self._blocks.get(number)
            if block is None:
                parts.append(bytes(count * ENTRY_BYTES))
            else:
                parts.append(bytes(block[inside * ENTRY_BYTES : (inside + count) * ENTRY_BYTES]))
            start += count
        return b"".join(parts)


def mend(
    files: Files,
    layout: Layout,
    segments: Segments,
    wanted: Sequence[Wanted],
    delays_ms: Sequence[int],
    *,
    log_end: int,
    queue_file_bytes: int,
    dry: bool = False,
) -> list[Mended]:
    """Compare queues with the log and correct their files; with `dry` only compare.

    Raises:
        OSError: not everything could be read or written; another call continues.
    """
    found = {(one.topic, one.queue_id): _Found(one) for one in wanted}
    for record in surviving(segments, segments.min_position, log_end):
        one = found.get((record.topic, record.queue_id))
        if one is None or record.position < one.wanted.since:
            continue
        if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            continue
        one.put(
            record.queue_offset,
            ENTRY.pack(record.position, record.size, tag_code(record, delays_ms)),
            offset_max=record.position // RECORD_BYTES_MIN,
        )
    return [
        _Correction(
            files, layout, one, oldest=segments.min_position, size=queue_file_bytes, dry=dry
        ).run()
        for one in found.values()
    ]


def surviving(segments: Segments, start: int, end: int) -> Iterator[ScannedRecord]:
    """Yield the records between two positions, also after damage; bodies are not checked."""
    position = start
    while position < end:
        found = LogScan(segments, position, check_crc=False)
        for record in found:
            if record.position >= end:
                return
            yield record
        if found.end >= end:
            return
        following = _next_record(segments, found.end + 1, end)
        if following is None:
            return
        position = following


def _next_record(segments: Segments, position: int, end: int) -> int | None:
    """Return where the next record begins whose head and body are right."""
    for segment in segments.after(position):
        at = max(position, segment.position)
        while at < min(segment.end, end):
            data = segment.read(CHUNK_BYTES + 8, at)
            place = _first_in(segment, at, data)
            if place is not None:
                return place
            at += CHUNK_BYTES
    return None


def _first_in(segment: Segment, position: int, data: bytes) -> int | None:
    places = sorted(_places(data, MAGICS))
    for at in places:
        start = position + at - MAGIC_AT
        if start < segment.position:
            continue
        rest = segment.read(segment.end - start if at + 8 > len(data) else _size(data, at), start)
        if next(iter(scan(rest, 0, len(rest), position_of_at=start)), None) is not None:
            return start
    return None


def _size(data: bytes, magic_at: int) -> int:
    """Return the size that a record claims, bounded."""
    said = int.from_bytes(data[max(0, magic_at - MAGIC_AT) : magic_at], "big", signed=True)
    return min(max(said, 0), 64 * CHUNK_BYTES)


def _places(data: bytes, marks: Iterable[bytes]) -> Iterator[int]:
    for mark in marks:
        at = data.find(mark)
        while at >= 0:
            yield at
            at = data.find(mark, at + 1)


class _Correction:
    """The repair of one queue."""

    def __init__(
        self, files: Files, layout: Layout, found: _Found, *, oldest: int, size: int, dry: bool
    ) -> None:
        wanted = found.wanted
        self._files = files
        self._found = found
        self._oldest = oldest
        self._size = size
        self._dry = dry
        self._directories = (
            layout.queue(wanted.topic, wanted.queue_id),
            layout.consumequeue / wanted.topic,
            layout.consumequeue,
        )
        self._due_in_tag = wanted.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
        self.done = Mended(wanted.topic, wanted.queue_id, found.end, found.first())
        self.done.holds_last = found.end > 0 and found.part(found.end - 1, found.end) != _NONE

    def run(self) -> Mended:
        """Make the files agree with the log."""
        done, size = self.done, self._size
        directory = self._directories[0]
        names = [
            int(name) for name in self._files.listdir(directory) if parse_name(name) is not None
        ]
        low = min([done.first, *(name // ENTRY_BYTES for name in names)])
        written = False
        for base in range(low * ENTRY_BYTES // size * size, done.end * ENTRY_BYTES, size):
            first = base // ENTRY_BYTES
            last = min(done.end, (base + size) // ENTRY_BYTES)
            old = self._read(directory / file_name(base), (last - first) * ENTRY_BYTES)
            new = self._corrected(old, self._found.part(first, last), first)
            if new != old and not self._dry:
                if not written:
                    self._files.makedirs(directory)
                    written = True
                self._write(directory / file_name(base), new)
        if written:
            for one in self._directories:
                self._files.fsync_dir(one)
        return done

    def _read(self, path: Path, length: int) -> bytes:
        """Return the entries of a file; zeros where it has none."""
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return bytes(length)
        try:
            return file.pread(length, 0).ljust(length, b"\0")
        finally:
            file.close()

    def _write(self, path: Path, data: bytes) -> None:
        file = self._files.open(path, create=True, size=self._size)
        try:
            file.pwrite(data, 0)
            file.fdatasync()
        finally:
            file.close()

    def _corrected(self, old: bytes, said: bytes, first: int) -> bytes:
        """Return what the entries from an offset on should be; count what is wrong or lost."""
        if old == said and _NONE not in said:
            return old
        parts = bytearray(old)
        for at in range(0, len(old), ENTRY_BYTES):
            before, entry = old[at : at + ENTRY_BYTES], said[at : at + ENTRY_BYTES]
            if before == entry != _NONE:
                continue
            right = self._entry(before, entry, first + at // ENTRY_BYTES)
            if right != before:
                self.done.changed += 1
                parts[at : at + ENTRY_BYTES] = right
        return bytes(parts)

    def _entry(self, before: bytes, said: bytes, offset: int) -> bytes:
        if said != _NONE:
            same = self._due_in_tag and before[:_TAG_AT] == said[:_TAG_AT]
            return before if same else said
        position, size, _ = ENTRY.unpack(before)
        if size == FILLER_SIZE:
            return before
        expired = offset < self.done.first and self._oldest > 0
        if expired and size > 0 and 0 <= position < self._oldest:
            return before
        if not expired or (size > 0 and position >= self._oldest):
            self._lose(offset)
        return FILLER

    def _lose(self, offset: int) -> None:
        lost = self.done.lost
        if lost and (lost[-1][1] == offset or len(lost) >= LOST_RANGES_MAX):
            lost[-1] = (lost[-1][0], offset + 1)
        else:
            lost.append((offset, offset + 1))


SEGMENT_BYTES: Final = 1024 * 1024 * 1024
QUEUE_FILE_BYTES: Final = 6_000_000


@dataclass(slots=True)
class Comparison:
    """The number of compared entries, and the differences."""

    queues: int = 0
    entries: int = 0
    log_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """Damage that is not in a queue."""
    differing: list[Mended] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether nothing differs."""
        return not self.problems and not self.differing


def compare(files: Files, root: Path, delays_ms: Sequence[int]) -> Comparison:
    """Compare the queues of a data directory with its log.

    Raises:
        StoreError: it is no data directory, or its log has a hole.
    """
    layout = Layout(root)
    if not files.is_dir(layout.commitlog):
        raise StoreError(f"{root} is no data directory of a broker: it has no commitlog")
    positions = PositionsFile(files, layout)
    written, synced = positions.load()
    positions.close()
    known = written or synced
    segments = Segments(files, layout, known.segment_bytes if known else SEGMENT_BYTES)
    segments.load(short_allowed=False)
    notes = EndsFile(files, layout).load()
    found = Comparison(log_bytes=sum(one.size for one in segments.items))
    if notes is not None and notes.damaged:
        found.problems.append(notes.damaged)
    if notes is not None and segments.min_position > notes.kept:
        low, high = notes.kept, segments.min_position - 1
        found.problems.append(f"positions {low} to {high} of the log are missing")
    ends = {} if notes is None else {key: noted.end for key, noted in notes.ends.items()}
    dropped = {} if notes is None else notes.dropped
    keys = {*_on_disk(files, layout), *ends}
    wanted = [
        Wanted(topic, queue_id, ends.get((topic, queue_id)), dropped.get(topic, 0))
        for topic, queue_id in sorted(keys)
        if not topic.startswith(LIGHT_PREFIX)
    ]
    log_end = segments.items[-1].end if segments.items else 0
    if notes is not None:  # after it nothing is noted yet
        log_end = min(log_end, max(notes.position, known.queues if known else 0))
    try:
        done = mend(
            files, layout, segments, wanted, delays_ms,
            log_end=log_end,
            queue_file_bytes=known.queue_file_bytes if known else QUEUE_FILE_BYTES,
            dry=True,
        )  # fmt: skip
    finally:
        segments.close()
    found.queues = len(done)
    found.entries = sum(one.end - one.first for one in done)
    found.differing = [one for one in done if one.changed or one.lost]
    return found


def _on_disk(files: Files, layout: Layout) -> set[tuple[str, int]]:
    return {
        (topic, int(name))
        for topic in files.listdir(layout.consumequeue)
        for name in files.listdir(layout.consumequeue / topic)
        if name.isascii() and name.isdigit()
    }


NOT_IN_LOG: Final = "its records are not in the log"


class Loss(msgspec.Struct, frozen=True):
    """Offsets of a queue that are gone, from `low` to before `high`.

    Without a topic they are positions of the log.
    """

    topic: str
    queue_id: int
    low: int
    high: int
    reason: str

    def __str__(self) -> str:
        if not self.topic:
            return f"positions {self.low} to {self.high - 1} of the log: {self.reason}"
        return f"{self.topic}/{self.queue_id} offsets {self.low} to {self.high - 1}: {self.reason}"
