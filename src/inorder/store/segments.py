"""The commit-log files: one segment, and the chain of all segments.

A segment is opened when first needed, written by pwrite and read through a map. The chain loads,
finds, extends and drops segments. Its list is replaced and never changed in place, so a sync or a
cold read in another thread always sees a whole list.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from inorder.disk import Buffer, File, Files
from inorder.errors import StoreError
from inorder.logs import get_logger
from inorder.store.layout import Layout, file_name, parse_name

log = get_logger(__name__)


class Segment:
    """The log's bytes from `position` to `end`."""

    __slots__ = ("_file", "_files", "_view", "end", "path", "position", "size")

    def __init__(self, files: Files, path: Path, position: int, size: int) -> None:
        self._files = files
        self._file: File | None = None
        self._view: memoryview | None = None
        self.path = path
        self.position = position
        self.size = size
        self.end = position + size

    def create(self) -> None:
        """Create the file in its full size, sparse."""
        self._file = self._files.open(self.path, create=True, size=self.size)

    def file(self) -> File:
        """Return the open file."""
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    def view(self) -> memoryview:
        """Return the whole segment, read-only; it shows later writes and outlives `drop`."""
        if self._view is None:
            self._view = self.file().view()
        return self._view

    def write(self, data: Buffer, position: int) -> None:
        """Write at a position of the log."""
        self.file().pwrite(data, position - self.position)

    def read(self, length: int, position: int) -> bytes:
        """Read at a position of the log; needs no map, so that a cold page cannot stop the loop."""
        return self.file().pread(min(length, self.end - position), position - self.position)

    def read_apart(self, length: int, position: int) -> bytes | None:
        """Read through a descriptor of its own, so that a drop meanwhile does no harm."""
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return None
        try:
            return file.pread(min(length, self.end - position), position - self.position)
        finally:
            file.close()

    def clear_from(self, position: int) -> None:
        """Turn everything from `position` on into zeros, at the price of two length changes.

        If the process dies between the two the file is short; recovery completes it.
        """
        file = self.file()
        file.truncate(position - self.position)
        file.truncate(self.size)

    def close(self) -> None:
        """Close the file; views of it stay valid."""
        self._view = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def __repr__(self) -> str:
        return f"Segment({self.position}..{self.end})"


class Segments:
    """Neighbouring segments of one size, oldest first."""

    __slots__ = ("_directory", "_files", "completed", "items", "size")

    def __init__(self, files: Files, layout: Layout, size: int) -> None:
        self._files = files
        self._directory = layout.commitlog
        self.size = size
        self.items: list[Segment] = []
        self.completed = False  # a file was short: what it held may be lost

    def load(self, *, short_allowed: bool) -> None:
        """Find the files; complete short ones if `short_allowed`.

        Those are our own: a cut that was broken off, or what a power cut left of files that were
        made since the last sync. What is missing of them reads as zeros, and the log ends there.

        Raises:
            StoreError: a stray file, a wrong size, or a missing one in between.
        """
        names = self._files.listdir(self._directory)
        for index, name in enumerate(names):
            path = self._directory / name
            position = parse_name(name)
            if position is None or position % self.size:
                raise StoreError(
                    f"{path} does not belong here: a commit-log file is named by a multiple of "
                    f"mappedFileSizeCommitLog={self.size}; move it away or correct the setting"
                )
            last = index == len(names) - 1
            size = self._files.info(path).size
            if size == 0 and last:
                self._files.remove(path)
                continue
            if size != self.size:
                if not (short_allowed and size < self.size):
                    raise StoreError(
                        f"{path} has {size} bytes but mappedFileSizeCommitLog={self.size}: "
                        "start with the size that the directory was written with"
                    )
                log.warning("completing short file=%s size=%d", path, size)
            segment = Segment(self._files, path, position, self.size)
            if size != self.size:
                segment.create()
                self.completed = True
            self.items = [*self.items, segment]
        for before, after in zip(self.items, self.items[1:], strict=False):
            if before.end != after.position:
                raise StoreError(
                    f"commit-log file {file_name(before.end)} is missing between "
                    f"{before.path.name} and {after.path.name}: restore it, or move the older away"
                )

    @property
    def min_position(self) -> int:
        """Return the position of the oldest byte."""
        return self.items[0].position if self.items else 0

    def find(self, position: int) -> Segment | None:
        """Return the segment that holds `position`."""
        items = self.items
        if not items:
            return None
        index = (position - items[0].position) // self.size
        return items[index] if 0 <= index < len(items) else None

    def extend_to(self, position: int) -> Segment:
        """Return the segment that holds `position`, made if it is the next one."""
        found = self.find(position)
        if found is not None:
            return found
        start = position - position % self.size
        if self.items and self.items[-1].end != start:
            raise StoreError(f"position {position} does not continue {self.items[-1]!r}")
        self._files.makedirs(self._directory)
        segment = Segment(self._files, self._directory / file_name(start), start, self.size)
        segment.create()
        # Its name and length are durable before its first byte: after a power cut no segment is
        # short or missing while a later one is there.
        try:
            segment.file().fdatasync()
            self.sync_directory()
        except OSError:
            segment.close()
            with contextlib.suppress(OSError):  # a later sync of this file would prove nothing
                self._files.remove(segment.path)
            raise
        self.items = [*self.items, segment]
        return segment

    def after(self, position: int) -> list[Segment]:
        """Return the segments that hold bytes at or after `position`."""
        return [segment for segment in self.items if segment.end > position]

    def drop_after(self, position: int) -> None:
        """Remove segments that begin at or after `position`, the last first."""
        while self.items and self.items[-1].position >= position:
            segment = self.items[-1]
            self.items = self.items[:-1]
            self._remove(segment)

    def drop_first(self) -> Segment:
        """Remove the oldest segment; the file is unlinked, views of it stay valid."""
        segment = self.items[0]
        self.items = self.items[1:]
        self._remove(segment)
        return segment

    def _remove(self, segment: Segment) -> None:
        self._files.remove(segment.path)
        segment.close()

    def sync_directory(self) -> None:
        """Make new and removed names durable."""
        self._files.fsync_dir(self._directory)

    def close(self) -> None:
        """Close all files."""
        for segment in self.items:
            segment.close()
