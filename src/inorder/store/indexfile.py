"""One file of the key index: a hash table whose chains run through an array of entries.

Writes go entries -> slots -> header. Entries are appended at once. Changed slots are collected in
memory, because each would cost a page write, and go out together, region by region. The header
follows: its count makes entries valid. So after a kill the file holds a valid prefix. A slot may
point at an entry at or after the count; it is followed through that entry's `previous` until it
is below the count. Adding the same records again writes the same entries. After a power cut only
the entries below a synced count are certain, and `rebuild` makes the slots from them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from inorder.disk import File, Files
from inorder.store.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    SLOT_BYTES,
)
from inorder.store.slotarray import SlotArray

REGION_SLOTS: Final = 16 * 1024
SECONDS_MAX: Final = 0x7FFFFFFF
REBUILD_ENTRIES: Final = 50_000
PART_SLOTS: Final = 8 * REGION_SLOTS
"""How many slots of a file are read at a time to make the array of all."""
FROZEN_STEP: Final = 4096
_SLOT: Final = struct.Struct(">i")


Late = Callable[[], bool]
"""Says whether work that can wait has taken long enough; what is left goes on at the next call."""

IndexRow = tuple[int, int, int]
"""A key to be added: (hash, position, store time)."""


class Header(NamedTuple):
    """The header: the first 40 bytes of the file."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    slots_used: int = 0
    next_entry: int = 1


class IndexFile:
    """An open index file."""

    __slots__ = (
        "_array", "_dirty", "_file", "_freezing", "_frozen", "_making", "_slots", "entries_max",
        "header", "path", "written",
    )  # fmt: skip

    def __init__(self, file: File, path: Path, *, slots: int, entries: int, header: Header) -> None:
        self._file = file
        self.path = path
        self._slots = slots
        self.entries_max = entries
        self.header = header  # with everything added
        self.written = header  # as in the file
        self._dirty: dict[int, int] = {}
        self._frozen: dict[int, int] = {}
        self._freezing: Iterator[None] | None = None
        self._array: SlotArray | None = None
        self._making: Iterator[None] | None = None

    @staticmethod
    def size_of(slots: int, entries: int) -> int:
        """Return the length of a file."""
        return INDEX_HEADER_BYTES + slots * SLOT_BYTES + entries * INDEX_ENTRY_BYTES

    @classmethod
    def open(cls, files: Files, path: Path, *, slots: int, entries: int) -> IndexFile:
        """Open an existing file."""
        file = files.open(path)
        header = Header(*INDEX_HEADER.unpack(file.pread(INDEX_HEADER_BYTES, 0)))
        if header.next_entry < 1:
            header = header._replace(next_entry=1)
        return cls(file, path, slots=slots, entries=entries, header=header)

    @classmethod
    def create(
        cls, files: Files, path: Path, *, slots: int, entries: int, before: Header | None
    ) -> IndexFile:
        """Make a file; its times and positions begin where the one before ended."""
        file = files.open(path, create=True, size=cls.size_of(slots, entries))
        header = Header()
        if before is not None:
            end_ms, end = before.end_ms, before.end_position
            header = Header(end_ms, end_ms, end, end)
        made = cls(file, path, slots=slots, entries=entries, header=header)
        try:
            made._write_header(header)
        except OSError:  # the next try has another name: leave nothing behind
            made.close()
            files.remove(path)
            raise
        return made

    @property
    def room(self) -> int:
        """Return how many entries still fit."""
        return self.entries_max - self.header.next_entry

    def _entry_at(self, number: int) -> int:
        return INDEX_HEADER_BYTES + self._slots * SLOT_BYTES + number * INDEX_ENTRY_BYTES

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        data = self._file.pread(INDEX_ENTRY_BYTES, self._entry_at(number))
        key_hash, position, seconds, previous = INDEX_ENTRY.unpack(data)
        return key_hash, position, seconds, previous

    def _slot(self, slot: int) -> int:
        """Return the number of a slot's newest entry, 0 if it has none."""
        if self._array is not None:
            return self._array.get(slot)
        known = self._dirty.get(slot) or self._frozen.get(slot)
        if known is not None:
            return known
        at = INDEX_HEADER_BYTES + slot * SLOT_BYTES
        # By pread: a map of a hole wants a page on some file systems, and a full disk is a SIGBUS.
        number: int = _SLOT.unpack(self._file.pread(SLOT_BYTES, at))[0]
        count = self.header.next_entry
        while number >= count:  # written before a kill, not yet counted
            previous = self._entry(number)[3] if number < self.entries_max else 0
            number = previous if previous < number else 0
        return max(number, 0)

    # hot: 0.9 µs a key, and one pwrite
    def add(self, rows: Iterable[IndexRow]) -> None:
        """Append entries, which the caller knows to fit. If the write fails, nothing is added."""
        begin_ms, end_ms, begin, end, used, count = self.header
        first = count
        changed: dict[int, int] = {}
        slots, slot_of, pack = self._slots, self._slot, INDEX_ENTRY.pack
        out = bytearray()
        for key_hash, position, stored_at_ms in rows:
            if count <= 1:
                begin_ms, begin = stored_at_ms, position
            slot = key_hash % slots
            previous = changed.get(slot)
            if previous is None:
                previous = slot_of(slot)
            if not previous:
                used += 1
            seconds = (stored_at_ms - begin_ms) // 1000 if stored_at_ms > begin_ms else 0
            seconds = min(seconds, SECONDS_MAX)
            out += pack(key_hash, position, seconds, previous)
            changed[slot] = count
            count += 1
            end, end_ms = position, stored_at_ms
        if out:
            self._file.pwrite(out, self._entry_at(first))
            self._making = None  # what it has read is old now
            if self._array is None:
                self._dirty.update(changed)
            else:
                for slot, number in changed.items():
                    self._array.set(slot, number)
            self.header = Header(begin_ms, end_ms, begin, end, used, count)

    def add_packed(self, native: ModuleType, hashes: bytes, positions: bytes, times: bytes) -> None:
        """Append entries by the compiled module; otherwise as `add`.

        Each entry has a hash (i32), a position (i64) and a store time (i64).
        """
        self.prepare(native)
        array = self._array
        assert array is not None, "it is prepared"
        begin_ms, _, begin, _, used, count = self.header
        places, stored = memoryview(positions).cast("q"), memoryview(times).cast("q")
        if count <= 1:
            begin_ms, begin = stored[0], places[0]
        chained = array.chain(hashes, positions, times, begin_ms, count)
        self._file.pwrite(chained.entries, self._entry_at(count))
        array.enter(chained, count)
        used += chained.slots_used
        self.header = Header(begin_ms, stored[-1], begin, places[-1], used, count + len(places))

    def prepare(self, native: ModuleType, late: Late | None = None) -> bool:
        """Make the array of all slots; False: it is late, call again to go on."""
        if self._array is not None:
            return True
        if self._making is None:
            self._making = self._make_array(native)
        try:
            for _ in self._making:
                if late is not None and late():
                    return False
        except OSError:
            self._making = None
            raise
        self._making = None
        return True

    def _make_array(self, native: ModuleType) -> Iterator[None]:
        while self._freezing is not None or self._dirty:
            self.write_slots(1)
            yield
        array = SlotArray(native, region_slots=REGION_SLOTS)
        for first in range(0, self._slots, PART_SLOTS):
            size = min(PART_SLOTS, self._slots - first) * SLOT_BYTES
            data = self._file.pread(size, INDEX_HEADER_BYTES + first * SLOT_BYTES)
            array.extend(data, self.header.next_entry, self._slot)
            yield
        self._array = array

    def drop_array(self) -> None:
        """Free the memory of the array if the file is settled."""
        if self.settled:
            self._array = self._making = None

    @property
    def settled(self) -> bool:
        """Return whether the file holds everything added."""
        return not self.dirty_slots and self.written == self.header

    @property
    def freezing(self) -> bool:
        """Return whether slots are being written."""
        return self._freezing is not None

    @property
    def dirty_slots(self) -> int:
        """Return how many changed slots, or regions of the array, wait in memory."""
        if self._array is not None:
            return self._array.dirty_regions
        return len(self._dirty) + len(self._frozen)

    def write_slots(self, regions_max: int, late: Late | None = None) -> bool:
        """Write changed slots, one region at least; tell whether file and memory agree.

        Ends after `regions_max` regions, or when it is `late`.
        """
        if self._freezing is None:
            if not self.dirty_slots:
                if self.written != self.header:
                    self._write_header(self.header)
                return True
            if self._array is not None:
                self._freezing = self._write_regions(self._array, self.header)
            else:
                self._frozen, self._dirty = self._dirty, {}
                self._freezing = self._write_frozen(self.header)
        try:
            for _ in itertools.islice(self._freezing, regions_max):
                if late is not None and late():
                    break
        except OSError:
            self._dirty = {**self._frozen, **self._dirty}
            self._frozen = {}
            self._freezing = None
            raise
        return self.settled

    def _write_frozen(self, header: Header) -> Iterator[None]:
        regions: dict[int, list[int]] = {}
        for index, slot in enumerate(self._frozen, 1):
            regions.setdefault(slot // REGION_SLOTS, []).append(slot)
            if index % FROZEN_STEP == 0:
                yield
        for region in sorted(regions):
            slots = regions[region]
            low, high = min(slots), max(slots) + 1
            at = INDEX_HEADER_BYTES + low * SLOT_BYTES
            data = bytearray(self._file.pread((high - low) * SLOT_BYTES, at))
            for slot in slots:
                _SLOT.pack_into(data, (slot - low) * SLOT_BYTES, self._frozen[slot])
            self._file.pwrite(data, at)
            yield
        self._write_header(header)
        self._frozen = {}
        self._freezing = None

    def _write_regions(self, array: SlotArray, header: Header) -> Iterator[None]:
        for first, data in array.take_regions():
            try:
                self._file.pwrite(data, INDEX_HEADER_BYTES + first * SLOT_BYTES)
            except OSError:
                array.set_dirty(first)
                raise
            yield
        self._write_header(header)
        self._freezing = None

    def _write_header(self, header: Header) -> None:
        self._file.pwrite(INDEX_HEADER.pack(*header), 0)
        self.written = header

    def find(self, key_hash: int, *, begin_ms: int, end_ms: int, count_max: int) -> list[int]:
        """Return positions with this hash stored in [begin, end], newest first."""
        found: list[int] = []
        number = self._slot(key_hash % self._slots)
        start = self.header.begin_ms
        while number > 0 and len(found) < count_max:
            stored_hash, position, seconds, previous = self._entry(number)
            stored_ms = start + seconds * 1000
            if stored_hash == key_hash and begin_ms <= stored_ms <= end_ms:
                found.append(position)
            if previous >= number or stored_ms < begin_ms:
                break
            number = previous
        return found

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file holds something stored in [begin, end]."""
        header = self.header
        return header.next_entry > 1 and begin_ms <= header.end_ms and end_ms >= header.begin_ms

    def rebuild(self, count: int, end_ms: int) -> None:
        """Rebuild the slots from the entries below `count` and drop the other entries."""
        self._array = self._making = None
        slots = bytearray(self._slots * SLOT_BYTES)
        header = self.header
        used = 0
        begin, end = header.begin_position, header.end_position
        for first in range(1, count, REBUILD_ENTRIES):
            amount = min(REBUILD_ENTRIES, count - first)
            data = self._file.pread(amount * INDEX_ENTRY_BYTES, self._entry_at(first))
            for number, entry in enumerate(INDEX_ENTRY.iter_unpack(data), first):
                key_hash, end, _, previous = entry
                used += not previous
                begin = end if number == 1 else begin
                _SLOT.pack_into(slots, key_hash % self._slots * SLOT_BYTES, number)
        self._file.pwrite(slots, INDEX_HEADER_BYTES)
        self._file.truncate(self._entry_at(count))
        self._file.truncate(self.size_of(self._slots, self.entries_max))
        self.header = Header(header.begin_ms, end_ms, begin, end, used, count)
        self._write_header(self.header)
        self._file.fdatasync()

    def sync(self) -> None:
        """Make the file durable."""
        self._file.fdatasync()

    def close(self) -> None:
        """Close the file; slots and entries in memory are lost."""
        self._file.close()
