"""Reading a queue by offset, and finding messages by store time.

Entries come from one unpack, records are views of the log, and neighbouring records are one view.
The loop is RocketMQ's: the first record always fits; then the limits on messages, bytes and
examined entries hold; a call reads at most one consume-queue file. `cold` says that the bytes lie
so far behind the end of the log that they are probably not in memory. Touching the views could
then block the caller, so `load` reads them by pread in another thread. How a reader meets a damaged
queue: decision 45.

A filter over properties needs the records themselves. `get_filtered` asks it for each entry, up to
a bound of time. If the records are probably not in memory, the result is `unfiltered`: `select`
reads and filters them in another thread, and `selected` makes the result of that.
"""

from __future__ import annotations

import os
import struct
from enum import Enum
from typing import Any, Final, NamedTuple, cast

from inorder.accelerated import native
from inorder.filters.compiled import Filter
from inorder.store.commitlog import CommitLog
from inorder.store.consumequeue import QueueIndex
from inorder.store.intact import count_intact, is_light
from inorder.store.layout import ENTRY_BYTES, FILLER_SIZE
from inorder.store.segments import Segment
from inorder.wire.record import STORED_AT_END, Sliced, properties_at, stored_at_ms

MEMORY_RATIO: Final = 0.4
UNPACK_MAX: Final = 64
COPY_BYTES_MAX: Final = 128 * 1024
FILTER_NS_MAX: Final = 2_000_000
"""The time that one call may spend on asking a filter; others wait for the loop meanwhile."""
COLD_SCAN_MAX: Final = 256
COLD_BYTES_MAX: Final = 4 * 1024 * 1024
"""How many entries and bytes of records one call of `select` reads."""
_ENTRY: Final = "qi4xi"  # the low half of the tag code: filters compare 32 bits
_ENTRIES: Final = [struct.Struct(">" + _ENTRY * count) for count in range(UNPACK_MAX + 1)]
_EACH: Final = _ENTRIES[1]


class ReadStatus(Enum):
    """RocketMQ's outcomes of a read."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    QUEUE_DAMAGED = "QUEUE_DAMAGED"  # inorder's own: an entry does not lead to its record


class ReadResult:
    """The result of a read: `views` of the log, or copies of small records in memory.

    If it is `cold`, the views must not be touched; `ranges` are then their (position, size).
    """

    __slots__ = (
        "cold", "count", "entries", "filter_ns", "max_offset", "min_offset", "next_offset",
        "ranges", "size", "status", "unfiltered", "views",
    )  # fmt: skip

    def __init__(
        self, status: ReadStatus, next_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.views: list[memoryview | bytes] = []
        self.ranges: list[tuple[int, int]] = []
        self.count = 0
        self.size = 0
        self.cold = False
        self.entries: bytes | bytearray = b""
        """If it is cold, the entries that are still to be compared with their records."""
        self.filter_ns = 0
        """About how long the filter took."""
        self.unfiltered = False
        """The filter has yet to be asked, in another thread: take `entries` to `select`."""

    def __repr__(self) -> str:
        return (
            f"ReadResult({self.status.name}, next={self.next_offset}, "
            f"{self.min_offset}..{self.max_offset}, count={self.count}, size={self.size})"
        )


class Reader:
    """Reads the visible messages of queues."""

    __slots__ = ("_log", "hot_bytes")

    def __init__(self, log: CommitLog, hot_bytes: int | None = None) -> None:
        self._log = log
        self.hot_bytes = _memory_bytes() if hot_bytes is None else hot_bytes

    # hot: 32 contiguous records 3 µs (4.3 if their entries are in a file), 32 scattered ones 10 µs;
    # to compare them with their entries 0.1 µs a record, 2 µs without the compiled module
    def get(
        self,
        queue: QueueIndex,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        scan_max: int,
        wanted: frozenset[int] | None,
        end: int | None = None,
    ) -> ReadResult:
        """Return the records from `offset` to `end` whose tag hash is wanted (None: all)."""
        max_offset = queue.visible_offset
        if end is not None and end < max_offset:
            max_offset = end
        min_offset = queue.min_offset
        if not min_offset <= offset < max_offset:
            return _outside(offset, min_offset, max_offset)
        available = max_offset - offset
        count = max(max_messages, 1) if wanted is None else max(scan_max, 1)
        data = queue.read(offset, count if count < available else available)
        found = len(data) // ENTRY_BYTES
        if not found or queue.damaged:
            return ReadResult(ReadStatus.QUEUE_DAMAGED, offset, min_offset, max_offset)
        cold = self._is_cold(data)
        if not cold:
            right = count_intact(self._log, queue, data, offset, wanted)
            if not right:
                return ReadResult(ReadStatus.QUEUE_DAMAGED, offset, min_offset, max_offset)
            if right < found:  # the entries before it are right
                data, found = data[: right * ENTRY_BYTES], right
        if wanted is None and found <= UNPACK_MAX:
            values = _ENTRIES[found].unpack(data)
            sizes = values[1::3]
            size = sum(sizes)
            if size <= max_bytes and min(sizes) > 0:
                result = ReadResult(ReadStatus.FOUND, offset + found, min_offset, max_offset)
                if self._whole(result, values[::3], sizes, size):
                    result.entries = data if cold else b""
                    return result
        result = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, offset, min_offset, max_offset)
        self._collect(result, data, max_messages=max_messages, max_bytes=max_bytes, wanted=wanted)
        result.entries = data[: (result.next_offset - offset) * ENTRY_BYTES] if cold else b""
        return result

    # hot: 0.6 µs
    def entries(
        self, queue: QueueIndex, offset: int, count: int
    ) -> tuple[bytes | bytearray, Segment] | None:
        """Return up to `count` visible entries from an offset on, and the segment of the first.

        None if something is unusual: `get` then finds out what. The caller compares the entries
        with their records, which are in memory.
        """
        available = queue.visible_offset - offset
        if queue.damaged or available <= 0 or offset < queue.min_offset or is_light(queue):
            return None
        data = queue.read(offset, count if count < available else available)
        if len(data) < ENTRY_BYTES or self._is_cold(data):
            return None
        segment = self._log.segments.find(_EACH.unpack_from(data)[0])
        return None if segment is None else (data, segment)

    def get_filtered(
        self,
        queue: QueueIndex,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        scan_max: int,
        wanted: Filter,
        end: int | None = None,
    ) -> ReadResult:
        """Return the records from `offset` to `end` that match a filter over their properties.

        The call ends after about `FILTER_NS_MAX`, and then says how far it came.
        """
        max_offset = queue.visible_offset
        if end is not None and end < max_offset:
            max_offset = end
        min_offset = queue.min_offset
        if not min_offset <= offset < max_offset:
            return _outside(offset, min_offset, max_offset)
        data = queue.read(offset, min(max(scan_max, 1), max_offset - offset))
        if len(data) < ENTRY_BYTES or queue.damaged:
            return ReadResult(ReadStatus.QUEUE_DAMAGED, offset, min_offset, max_offset)
        result = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, offset, min_offset, max_offset)
        if self._is_cold(data):
            result.unfiltered = result.cold = True
            result.entries = data[: COLD_SCAN_MAX * ENTRY_BYTES]
        else:
            self._filter(
                result, queue, data, max_messages=max_messages, max_bytes=max_bytes, wanted=wanted
            )
        return result

    # hot: 2.5 us a message for two terms (bench/hotpath.py)
    def _filter(
        self,
        result: ReadResult,
        queue: QueueIndex,
        data: bytes | bytearray,
        *,
        max_messages: int,
        max_bytes: int,
        wanted: Filter,
    ) -> None:
        """Examine entries and their records one by one until a limit is met."""
        log, offset, done = self._log, result.next_offset, 0
        oldest, end_position = log.min_position, log.end_position
        picked = _Picked(max_messages, max_bytes)
        matches, cost_ns, left_ns = wanted.matches, wanted.cost_ns, FILTER_NS_MAX
        start = limit = 0
        view, source = memoryview(b""), cast("Sliced", b"")
        found = len(data) // ENTRY_BYTES
        going = True
        while going and done < found:
            chunk = data[done * ENTRY_BYTES : (done + UNPACK_MAX) * ENTRY_BYTES]
            right = count_intact(log, queue, chunk, offset + done)
            for position, size, _ in _EACH.iter_unpack(chunk[: right * ENTRY_BYTES]):
                if picked.is_full(size) or left_ns <= 0:
                    going = False
                    break
                done += 1
                if size <= 0 or size == FILLER_SIZE:
                    continue
                if position < oldest:
                    picked.removed = True
                    continue
                if not start <= position < limit:
                    segment = log.segments.find(position)
                    if segment is None:
                        picked.removed = True
                        continue
                    start, limit, view = segment.position, segment.end, segment.view()
                    source = cast("Sliced", view.obj)
                if position + size > limit or position + size > end_position:
                    picked.removed = True
                    continue
                raw = properties_at(view, source, position - start, size)
                left_ns -= cost_ns(len(raw))
                if matches(raw):
                    picked.add(position, size)
            if right < len(chunk) // ENTRY_BYTES:
                if not done:
                    result.status = ReadStatus.QUEUE_DAMAGED
                going = False
        result.next_offset = offset + done
        result.filter_ns = FILTER_NS_MAX - left_ns
        views = self._views(picked.places)
        if picked.count and views is not None:
            result.status = ReadStatus.FOUND
            result.views, result.count, result.size = views, picked.count, picked.size
        elif picked.removed:
            result.status = ReadStatus.MESSAGE_WAS_REMOVING

    def select(
        self, entries: bytes | bytearray, *, max_messages: int, max_bytes: int, wanted: Filter
    ) -> Selected:
        """Read the records of entries, and keep those that match. May run in any thread."""
        records: list[bytes] = []
        examined = size_read = kept = 0
        removed = False
        for position, size, _ in _EACH.iter_unpack(entries):
            full = len(records) >= max_messages or kept + size > max_bytes
            if examined and (size_read >= COLD_BYTES_MAX or (records and full)):
                break
            examined += 1
            if size <= 0 or size == FILLER_SIZE:
                continue
            record = self._log.read_at(position, size)
            if record is None:
                removed = True
                continue
            size_read += size
            if wanted.matches(properties_at(memoryview(record), record, 0, size)):
                records.append(record)
                kept += size
        return Selected(records, examined, removed)

    def selected(self, before: ReadResult, found: Selected) -> ReadResult:
        """Return the result of `select` for an unfiltered result."""
        result = ReadResult(
            ReadStatus.NO_MATCHED_MESSAGE,
            before.next_offset + found.examined,
            before.min_offset,
            before.max_offset,
        )
        if found.records:
            result.status = ReadStatus.FOUND
            result.views = list(found.records)
            result.count = len(found.records)
            result.size = sum(map(len, found.records))
        elif found.removed:
            result.status = ReadStatus.MESSAGE_WAS_REMOVING
        return result

    def _is_cold(self, data: bytes | bytearray) -> bool:
        """Return whether the first record lies so far back that it is probably not in memory."""
        position, size, _ = _EACH.unpack_from(data)
        if size == FILLER_SIZE:
            return False
        return bool(position >= 0 and self._log.end_position - position > self.hot_bytes)

    def _whole(
        self, result: ReadResult, positions: tuple[int, ...], sizes: tuple[int, ...], size: int
    ) -> bool:
        """Take all entries if their records lie in one segment; tell whether they do."""
        log = self._log
        first = positions[0]
        end = positions[-1] + sizes[-1]
        segment = log.segments.find(first)
        if segment is None or end > segment.end or end > log.end_position or end <= first:
            return False
        base, view = segment.position, segment.view()
        result.count = len(sizes)
        result.size = size
        result.cold = log.end_position - first > self.hot_bytes
        # Records lie side by side exactly when the span holds nothing but them.
        if end - first == size:
            result.views = [view[first - base : end - base]]
            result.ranges = [(first, size)]
            return True
        if result.cold or size > COPY_BYTES_MAX:
            source: Any = view
        else:
            source = view.obj  # the mapping itself: a small copy is cheaper than a small view
        result.views = [
            source[position - base : position - base + length]
            for position, length in zip(positions, sizes, strict=True)
        ]
        if result.cold:
            result.ranges = list(zip(positions, sizes, strict=True))
        return sum(map(len, result.views)) == size

    def _collect(
        self,
        result: ReadResult,
        data: bytes | bytearray,
        *,
        max_messages: int,
        max_bytes: int,
        wanted: frozenset[int] | None,
    ) -> None:
        """Examine entries one by one until a limit is met."""
        oldest = self._log.min_position
        if wanted is None and native is not None:
            found = native.ranges_of(data, max_messages, max_bytes, oldest)
        else:
            found = ranges_of(data, max_messages, max_bytes, oldest, wanted)
        ranges, count, total, examined, removed = found
        result.next_offset += examined
        if removed and not count:
            result.status = ReadStatus.MESSAGE_WAS_REMOVING
        if not count:
            return
        views = self._views(ranges)
        if views is None:  # an entry beyond the log: never serve a part
            result.status = ReadStatus.MESSAGE_WAS_REMOVING
            return
        result.status = ReadStatus.FOUND
        result.views = views
        result.ranges = ranges
        result.count = count
        result.size = total
        result.cold = self._log.end_position - ranges[0][0] > self.hot_bytes

    def _views(self, ranges: list[tuple[int, int]]) -> list[memoryview | bytes] | None:
        """Return the ranges as views, None if one is not in the log."""
        views: list[memoryview | bytes] = []
        start = limit = 0
        whole = memoryview(b"")
        end_position = self._log.end_position
        for position, size in ranges:
            end = position + size
            if not start <= position < limit:
                segment = self._log.segments.find(position)
                if segment is None:
                    return None
                start, limit, whole = segment.position, segment.end, segment.view()
            if end > limit or end > end_position:
                return None
            views.append(whole[position - start : end - start])
        return views

    def load(self, ranges: list[tuple[int, int]]) -> list[bytes] | None:
        """Return copies of ranges by pread, None if some are gone. May run in any thread."""
        loaded = []
        for position, size in ranges:
            data = self._log.read_at(position, size)
            if data is None:
                return None
            loaded.append(data)
        return loaded


class Selected(NamedTuple):
    """The records that match, how many entries were examined, and whether some are gone."""

    records: list[bytes]
    examined: int
    removed: bool


class _Picked:
    """The places of the records that an answer has so far; neighbours are one range."""

    __slots__ = ("_bytes_max", "_count_max", "count", "places", "removed", "size")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.places: list[tuple[int, int]] = []
        self.count = 0
        self.size = 0
        self.removed = False
        """Some records are gone."""

    def is_full(self, size: int) -> bool:
        """Return whether a record of a size has no place any more; the first always has."""
        if not self.count:
            return False
        return self.count >= self._count_max or self.size + size > self._bytes_max

    def add(self, position: int, size: int) -> None:
        self.count += 1
        self.size += size
        places = self.places
        if places and sum(places[-1]) == position:
            places[-1] = places[-1][0], places[-1][1] + size
        else:
            places.append((position, size))


Ranges = tuple[list[tuple[int, int]], int, int, int, bool]


def ranges_of(
    data: bytes | bytearray,
    count_max: int,
    bytes_max: int,
    oldest: int,
    wanted: frozenset[int] | None,
) -> Ranges:
    """Return the ranges of the log that queue entries name, and how far the entries were read.

    The result is (ranges, records, bytes, entries examined, whether some records are gone).
    """
    ranges: list[tuple[int, int]] = []
    count = total = examined = 0
    start = end = -1
    removed = False
    for position, size, tag in _EACH.iter_unpack(data):
        if count and (count >= count_max or total + size > bytes_max):
            break
        examined += 1
        if size == FILLER_SIZE or size <= 0 or (wanted is not None and tag not in wanted):
            continue
        if position < oldest:
            removed = True
            continue
        if position != end:
            if end > start:
                ranges.append((start, end - start))
            start = position
        end = position + size
        count += 1
        total += size
    if end > start:
        ranges.append((start, end - start))
    return ranges, count, total, examined, removed


def _outside(offset: int, min_offset: int, max_offset: int) -> ReadResult:
    if max_offset == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, min_offset, max_offset)
    if offset < min_offset:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset)
    if offset == max_offset:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, min_offset, max_offset)
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, max_offset, min_offset, max_offset)


def _memory_bytes() -> int:
    """Return RocketMQ's accessMessageInMemoryMaxRatio of the machine's memory."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_RATIO)


def stored_at(log: CommitLog, queue: QueueIndex, offset: int) -> int:
    """Return the store time of the message at `offset`, -1 if it is not there."""
    if not queue.min_offset <= offset < queue.visible_offset:
        return -1
    entry = queue.entry(offset)
    head = None if entry is None else log.view_at(entry[0], STORED_AT_END)
    return -1 if head is None else stored_at_ms(head)


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
