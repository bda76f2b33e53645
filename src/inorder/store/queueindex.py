"""One topic queue: entry i says where the i-th message of the queue lies in the log.

    min_offset <= visible_offset <= settled_offset <= next_offset
                  readers end here  the log has it    given out in this tick

New entries wait in `tail` and reach their file in `write_out`, together, a little later: the log is
the truth, the entries are derived from it and rebuilt after a crash. Entries that the log did not
take are dropped by `roll_back`, so offsets have no gaps (S1).
"""

from __future__ import annotations

import struct
from typing import Final

from inorder.store.layout import ENTRY, ENTRY_BYTES, FILLER, FILLER_SIZE
from inorder.store.queuefiles import Key, QueueFiles

_pack: Final = ENTRY.pack
_unpack: Final = ENTRY.unpack
FILLER_BLOCK: Final = 4096


class QueueIndex:
    """The entries of one queue. An idle one costs some 300 bytes and no descriptor."""

    __slots__ = (
        "_dirty", "_files", "damaged", "first_file", "first_position", "min_offset", "next_offset",
        "queue_id", "settled_offset", "tail", "tail_offset", "topic", "visible_offset",
    )  # fmt: skip

    def __init__(
        self, topic: str, queue_id: int, files: QueueFiles, dirty: list[QueueIndex]
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._files = files
        self._dirty = dirty
        self.first_file = 0  # byte offset of the oldest file
        self.first_position = -1  # of the record at min_offset, if known
        self.min_offset = 0
        self.next_offset = 0
        self.settled_offset = 0
        self.visible_offset = 0
        self.tail = bytearray()
        self.tail_offset = 0
        self.damaged = False  # an entry does not lead to its record; see `mending.py`

    def start_at(self, *, first_file: int, next_offset: int) -> None:
        """Continue at `next_offset`; all entries before it are in files."""
        self.first_file = first_file
        self.next_offset = self.settled_offset = self.visible_offset = next_offset
        self.tail_offset = next_offset
        self.tail.clear()

    # hot: 0.14 µs
    def append(self, position: int, size: int, tag_hash: int) -> int:
        """Give the next offset to the record at `position`; return it."""
        offset = self.next_offset
        if offset == self.settled_offset:
            self._dirty.append(self)
        self.tail += _pack(position, size, tag_hash)
        self.next_offset = offset + 1
        return offset

    # hot: 0.15 µs an entry
    def append_many(self, entries: list[int]) -> None:
        """Give offsets to several records: (position, size, tag hash) after one another."""
        self.append_packed(struct.pack(">" + "qiq" * (len(entries) // 3), *entries))

    def append_packed(self, entries: bytes) -> None:
        """Give offsets to several records by their entries as they lie in the file."""
        if self.next_offset == self.settled_offset:
            self._dirty.append(self)
        self.tail += entries
        self.next_offset += len(entries) // ENTRY_BYTES

    def roll_back(self) -> None:
        """Forget the offsets given since the last settled one."""
        del self.tail[(self.settled_offset - self.tail_offset) * ENTRY_BYTES :]
        self.next_offset = self.settled_offset

    # hot: 0.3 µs from the tail, 1.6 µs from an open file
    def read(self, offset: int, count: int) -> bytes | bytearray:
        """Return up to `count` entries from `offset` on, as bytes; empty if their file is gone.

        Fewer come back at the end of a file. The caller stays between min and visible.
        """
        from_tail = offset - self.tail_offset
        if from_tail >= 0:
            return self.tail[from_tail * ENTRY_BYTES : (from_tail + count) * ENTRY_BYTES]
        files = self._files
        at = offset * ENTRY_BYTES
        inside = at % files.size
        length = min(count, -from_tail) * ENTRY_BYTES
        try:
            file = files.get((self.topic, self.queue_id, at - inside))
        except FileNotFoundError:
            return b""
        data = file.pread(min(length, files.size - inside), inside)
        if count > -from_tail and len(data) == length:
            data += self.tail[: (count + from_tail) * ENTRY_BYTES]
        return data

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return (position, size, tag code) at `offset`, None if there is none."""
        return self.given_entry(offset) if offset < self.settled_offset else None

    def given_entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return the same also for an offset that was given out in this tick."""
        if not 0 <= offset < self.next_offset:
            return None
        data = self.read(offset, 1)
        if len(data) != ENTRY_BYTES:
            return None
        position, size, tag = _unpack(data)
        return None if size <= 0 or size == FILLER_SIZE else (position, size, tag)

    def write_out(self) -> None:
        """Write the settled entries of the tail to the files; OSError: they stay in the tail."""
        files = self._files
        count = (self.settled_offset - self.tail_offset) * ENTRY_BYTES
        done = 0
        while done < count:
            at = self.tail_offset * ENTRY_BYTES
            inside = at % files.size
            step = min(count - done, files.size - inside)
            key = (self.topic, self.queue_id, at - inside)
            files.get_or_create(key).pwrite(self.tail[:step], inside)
            files.unsynced[key] = None
            del self.tail[:step]
            self.tail_offset += step // ENTRY_BYTES
            done += step
        if not self.tail:
            self.tail = bytearray()  # the old one keeps its memory

    def start_with_filler(self, offset: int) -> None:
        """Begin an empty queue at `offset`, as RocketMQ: fillers stand before it in its file."""
        size = self._files.size
        first_file = offset * ENTRY_BYTES // size * size
        self.start_at(first_file=first_file, next_offset=first_file // ENTRY_BYTES)
        self.min_offset = offset
        self.fill_to(offset)

    def fill_to(self, offset: int) -> None:
        """Put fillers, which no reader is given, up to `offset`: the log has no such messages."""
        while self.settled_offset < offset:
            count = min(FILLER_BLOCK, offset - self.settled_offset)
            self.tail += FILLER * count
            self.next_offset += count
            self.settled_offset = self.visible_offset = self.next_offset
            self.write_out()

    def first_file_of(self, offset: int) -> int:
        """Return which file is the first that has to stay if a queue begins at `offset`."""
        size = self._files.size
        return min(offset, max(self.tail_offset - 1, 0)) * ENTRY_BYTES // size * size

    def drop_files_before(self, offset: int) -> None:
        """Unlink leading files whose entries are all below `offset`; the last file stays."""
        size = self._files.size
        keep = self.first_file_of(offset)
        while self.first_file < keep:
            self._files.remove(self._key(self.first_file))
            self.first_file += size

    def find_first(self, position: int, low: int) -> int:
        """Return the first offset at or after `low` whose record lies at or after `position`.

        Fillers may stand anywhere, and say nothing: the entry behind them decides.
        """
        high = self.settled_offset
        while low < high:
            middle = (low + high) // 2
            at, found = self._next_entry(middle, high)
            if at == high or found >= position:
                high = middle
            else:
                low = at + 1
        return self._next_entry(low, self.settled_offset)[0]

    def _next_entry(self, offset: int, end: int) -> tuple[int, int]:
        """Return the next offset that has no filler and the position there, -1 if it is gone."""
        while offset < end:
            data = self.read(offset, 1)
            if len(data) != ENTRY_BYTES:
                return offset, -1
            position, size, _ = _unpack(data)
            if size != FILLER_SIZE:
                return offset, position
            block = self.read(offset, min(FILLER_BLOCK, end - offset))
            run = 0
            while block[run : run + ENTRY_BYTES] == FILLER:
                run += ENTRY_BYTES
            offset += max(run // ENTRY_BYTES, 1)
        return end, -1

    @property
    def needs_file(self) -> bool:
        """Tell whether the next entry to be written begins a file."""
        return self.tail_offset * ENTRY_BYTES % self._files.size == 0

    @property
    def end_position(self) -> int:
        """Return where the record of the last entry ends, -1 if there is none."""
        last = self.entry(self.settled_offset - 1)
        return -1 if last is None else last[0] + last[1]

    @property
    def entries_per_file(self) -> int:
        """Return how many entries a file holds."""
        return self._files.size // ENTRY_BYTES

    def _key(self, base: int) -> Key:
        return (self.topic, self.queue_id, base)

    def __repr__(self) -> str:
        return (
            f"QueueIndex({self.topic}/{self.queue_id}, "
            f"{self.min_offset}..{self.visible_offset}, next={self.next_offset})"
        )
