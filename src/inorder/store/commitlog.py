"""The log: records are packed into one buffer and reach the files by one pwrite a tick.

    reserve(size) -> index into `pending`      the record's position is pending_base + index
    write()                                    everything pending goes to the files, or nothing does
    sync()                                     from another thread: what is written becomes durable

A record never spans two segments. When the next one does not fit (with 8 bytes to spare) a blank
record ends the segment and the buffer is sealed. Only `write` touches files, so `reserve` cannot
fail because of the disk, and a failed write leaves nothing half done.

If a write fails, the bytes that may have reached the file are cut off, so that a refused record
cannot come back at the next start; if there were such bytes, the cut is synced. They are not
overwritten: an overwrite could stop half way and look like damage. If the cut or a sync fails, the
log is failed for good, because the content of the disk is unknown (`faults.py`). Why: decision 4.
"""

from __future__ import annotations

from typing import Final

from inorder.disk import Buffer
from inorder.errors import (
    DiskFull,
    NoDescriptors,
    RecordTooLarge,
    StoreBusy,
    StoreFailed,
    WriteInDoubt,
)
from inorder.store.faults import NO_DESCRIPTORS, Kind, Meaning, Step, judge
from inorder.store.layout import BLANK, BLANK_BYTES
from inorder.store.segments import Segment, Segments
from inorder.wire.record import MAGIC_BLANK, stored_at_ms

PENDING_BYTES: Final = 1024 * 1024
PENDING_BYTES_KEPT: Final = 8 * 1024 * 1024
PAGE_BYTES: Final = 4096


class CommitLog:
    """All records, in the order of their arrival."""

    __slots__ = (
        "_directory_synced", "_last_at", "_pending_bytes_max", "_pending_ms", "_room", "_sealed",
        "_sealed_bytes", "_segment_end", "_used", "durable_position", "end_position", "failed",
        "pending", "pending_base", "segments", "stored_at_ms",
    )  # fmt: skip

    def __init__(self, segments: Segments, pending_bytes_max: int) -> None:
        self.segments = segments
        self._pending_bytes_max = pending_bytes_max
        self.pending = bytearray(PENDING_BYTES)  # this object never changes, only its length
        self.pending_base = 0
        self._used = 0
        self._room = 0
        self._last_at = -1
        self._pending_ms = 0
        self._sealed: list[tuple[int, bytes]] = []
        self._sealed_bytes = 0
        self._segment_end = 0
        self._directory_synced = False
        self.end_position = 0
        self.durable_position = 0
        self.stored_at_ms = 0
        self.failed: str | None = None

    def start_at(self, position: int, stored_at_ms: int) -> None:
        """Continue at `position`: recovery found the end of the log there."""
        self.end_position = position
        self.durable_position = position
        self.stored_at_ms = stored_at_ms
        self._reset_pending()

    def forget_synced(self, position: int) -> None:
        """Treat everything from `position` on, and all file names, as not durable."""
        self.durable_position = position
        self._directory_synced = False

    @property
    def min_position(self) -> int:
        """Return the position of the oldest byte kept."""
        return self.segments.min_position

    # hot: 0.07 µs
    def reserve(self, size: int) -> int:
        """Return where in `pending` a record (or the records of a batch) of `size` bytes goes.

        Raises:
            RecordTooLarge: no segment can hold it.
            StoreBusy: too much is waiting for a write.
            StoreFailed: the log takes no more.
        """
        at = self._used
        used = at + size
        if used > self._room:
            at = self._make_room(size)
            used = at + size
        self._used = used
        self._last_at = at
        return at

    def open_room(self) -> tuple[int, int, int]:
        """Return where in `pending` the next record goes, where the room ends, and the base.

        Whoever puts records there calls `took`; `reserve` makes more room.
        """
        return self._used, self._room, self.pending_base

    def took(self, used: int, last_at: int) -> None:
        """Count the records put into the open room, up to `used`; the last one is at `last_at`."""
        self._used = used
        self._last_at = last_at

    def _make_room(self, size: int) -> int:
        if self.failed is not None:
            raise StoreFailed(self.failed)
        if size + BLANK_BYTES > self.segments.size:
            raise RecordTooLarge(
                f"{size} bytes do not fit into a commit-log file of {self.segments.size}"
            )
        if self._sealed_bytes + self._used + size + BLANK_BYTES > self._pending_bytes_max:
            raise StoreBusy(f"{self._sealed_bytes + self._used} bytes wait to be written")
        if self._used + size > self._segment_end - self.pending_base - BLANK_BYTES:
            self._roll()
        need = self._used + size + BLANK_BYTES
        if need > len(self.pending):
            self.pending.extend(bytes(max(need - len(self.pending), len(self.pending))))
        self._set_room()
        return self._used

    def _roll(self) -> None:
        """End the segment with a blank record and go on in the next one."""
        at = self._used
        left = self._segment_end - self.pending_base - at
        if left:
            if at + BLANK_BYTES > len(self.pending):
                self.pending.extend(bytes(BLANK_BYTES))
            BLANK.pack_into(self.pending, at, left, MAGIC_BLANK)
            sealed = bytes(self.pending[: at + BLANK_BYTES])
            self._sealed.append((self.pending_base, sealed))
            self._sealed_bytes += len(sealed)
        self._note_time()
        self.pending_base = self._segment_end
        self._segment_end += self.segments.size
        self._used = 0

    def _set_room(self) -> None:
        in_segment = self._segment_end - self.pending_base - BLANK_BYTES
        self._room = -1 if self.failed is not None else min(in_segment, len(self.pending))

    def _note_time(self) -> None:
        """Remember the store time of the last record reserved."""
        at = self._last_at
        if at >= 0:
            self._pending_ms = stored_at_ms(self.pending, at)
            self._last_at = -1

    def _reset_pending(self) -> None:
        size = self.segments.size
        self.pending_base = self.end_position
        self._used = 0
        self._last_at = -1
        self._sealed.clear()
        self._sealed_bytes = 0
        self._segment_end = -(-self.end_position // size) * size
        if len(self.pending) > PENDING_BYTES_KEPT:
            del self.pending[PENDING_BYTES:]
        self._set_room()

    # hot: 2 µs and the pwrite (42 kB: 16 µs)
    def write(self) -> bool:
        """Write the pending records; return whether there were any.

        Raises:
            DiskFull, NoDescriptors: nothing was kept; the next write may succeed.
            StoreFailed: nothing was kept and no write will succeed.
            WriteInDoubt: likewise, but what was written may come back at the next start.
        """
        if self.failed is not None:
            self._reset_pending()
            raise StoreFailed(self.failed)
        if not self._used and not self._sealed:
            return False
        self._note_time()
        failure: OSError | None = None
        with memoryview(self.pending) as whole, whole[: self._used] as last:
            try:
                if self._sealed:  # a file that cannot be made is found out before a byte is written
                    self._extend()
                for base, data in self._sealed:
                    self._write_at(base, data)
                self._write_at(self.pending_base, last)
            except OSError as error:
                failure = error
        if failure is not None:
            self._take_back(failure)
        self.end_position = self.pending_base + self._used
        self.stored_at_ms = self._pending_ms
        self._reset_pending()
        return True

    def _extend(self) -> None:
        for base, _ in self._sealed:
            self.segments.extend_to(base)
        self.segments.extend_to(self.pending_base)

    def _write_at(self, position: int, data: Buffer) -> None:
        self.segments.extend_to(position).write(data, position)

    def _take_back(self, error: OSError) -> None:
        """Undo a failed write and raise its error."""
        ranges = [(base, len(data)) for base, data in self._sealed]
        ranges.append((self.pending_base, self._used))
        reason = f"writing the commit log at position {self.end_position} failed: {error}"
        in_doubt = False
        try:
            for base, length in reversed(ranges):
                segment = self.segments.find(base)
                if segment is not None and _is_written(segment, base, length):
                    segment.clear_from(base)
                    segment.file().fdatasync()
        except OSError as second:
            in_doubt = True
            reason = f"{reason}; taking the bytes back failed too: {second}"
            self.failed = f"{reason}; restart to recover"
        else:
            if judge(Kind.LOG, Step.WRITE, error.errno) is Meaning.FINAL:
                self.failed = f"{reason}; restart to recover"
        self._reset_pending()
        if in_doubt:
            raise WriteInDoubt(self.failed) from error
        if self.failed is not None:
            raise StoreFailed(self.failed) from error
        if error.errno in NO_DESCRIPTORS:
            raise NoDescriptors(reason) from error
        raise DiskFull(reason) from error

    def sync(self) -> int:
        """Sync the written records; return the position up to which the log is durable.

        Any thread may call it, one at a time.

        Raises:
            StoreFailed: the sync failed, now or before. It is never tried again: the kernel may
                have dropped the pages and would report success.
            NoDescriptors: a file could not be opened, so none was asked; it can be tried again.
        """
        if self.failed is not None:
            raise StoreFailed(self.failed)
        target = self.end_position
        try:
            done = self.durable_position
            for segment in self.segments.after(done):
                if segment.position < target and done < target:
                    segment.file().fdatasync()
            if not self._directory_synced:  # what recovery removed is gone for good
                self.segments.sync_directory()
                self._directory_synced = True
        except OSError as error:
            if judge(Kind.LOG, Step.SYNC, error.errno) is Meaning.RETRY:
                raise NoDescriptors(f"the commit log is not synced yet: {error}") from error
            self.fail(f"syncing the commit log failed: {error}; restart to recover")
            raise StoreFailed(self.failed) from error
        self.durable_position = max(self.durable_position, target)
        return target

    def fail(self, reason: str) -> None:
        """Refuse all further writes: the content of the disk is unknown."""
        self.failed = reason
        self._room = -1

    def view_at(self, position: int, size: int) -> memoryview | None:
        """Return `size` written bytes, None if they are not (or no longer) there."""
        segment = self.segments.find(position)
        if segment is None or position < 0 or position + size > self.end_position:
            return None
        start = position - segment.position
        view = segment.view()[start : start + size]
        return view if len(view) == size else None

    def bytes_at(self, position: int, size: int = 0) -> bytes:
        """Return a copy of a record (0: all of it), also of one not written yet; empty if none."""
        if not size:
            size = int.from_bytes(self._copy(position, 4), "big")
        return self._copy(position, size)

    def _copy(self, position: int, size: int) -> bytes:
        if position < self.end_position:
            view = self.view_at(position, size)
            return b"" if view is None else bytes(view)
        for base, data in (*self._sealed, (self.pending_base, self.pending)):
            if base <= position < base + len(data):
                return bytes(data[position - base : position - base + size])
        return b""

    def read_at(self, position: int, size: int) -> bytes | None:
        """Return a copy of written bytes by pread: for cold data, from any thread."""
        segment = self.segments.find(position)
        if segment is None or position < 0 or position + size > self.end_position:
            return None
        data = segment.read_apart(size, position)
        return data if data is not None and len(data) == size else None

    def close(self) -> None:
        """Close the files."""
        self.segments.close()

    def __repr__(self) -> str:
        span = f"{self.min_position}..{self.end_position}"
        return f"CommitLog({span}, durable={self.durable_position})"


def _is_written(segment: Segment, position: int, length: int) -> bool:
    """Return whether any byte of a range is not zero."""
    end = position + length
    while position < end:
        step = min(PAGE_BYTES, end - position)
        if segment.read(step, position).count(0) != step:
            return True
        position += step
    return False
