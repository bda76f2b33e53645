"""One commit-log file: opened when first needed, written by pwrite, read through a map."""

from __future__ import annotations

from pathlib import Path

from inorder.disk import Buffer, File, Files


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
        """Make the file, sparse, in its full size."""
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
        """Give the descriptor back; views that others hold stay good."""
        self._view = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def __repr__(self) -> str:
        return f"Segment({self.position}..{self.end})"
