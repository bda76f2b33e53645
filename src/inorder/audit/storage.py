"""The files of the audit log: one that grows, and former ones, the oldest with the largest number.

    audit.log  audit.1.log  audit.2.log  ...

All calls come from one thread.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inorder.disk import File, Files


class AuditFiles:
    """Appends to the present file, and begins a new one when it is full."""

    def __init__(self, files: Files, folder: Path, *, file_bytes_max: int, files_max: int) -> None:
        self._files = files
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._file: File | None = None
        self._end = 0

    @property
    def path(self) -> Path:
        """Return the present file."""
        return self._folder / "audit.log"

    def append(self, data: bytes) -> None:
        """Write lines at the end. Raises OSError; then nothing of them is in the file."""
        if self._file is not None and not self._files.exists(self.path):
            self.close()  # somebody has moved it away
        file = self._file or self._open()
        if self._end and self._end + len(data) > self._file_bytes_max:
            self._rotate()
            file = self._open()
        try:
            file.pwrite(data, self._end)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._end)
            self.close()
            raise
        self._end += len(data)

    def close(self) -> None:
        """Give the descriptor back; a later `append` opens the file again."""
        file, self._file, self._end = self._file, None, 0
        if file is not None:
            file.close()

    def _open(self) -> File:
        self._files.makedirs(self._folder)
        file = self._files.open(self.path, create=True)
        end = file.size()
        try:
            if end and file.pread(1, end - 1) != b"\n":  # a write that a crash has cut
                file.pwrite(b"\n", end)
                end += 1
        except BaseException:
            file.close()
            raise
        self._file, self._end = file, end
        return file

    def _rotate(self) -> None:
        self.close()
        former = [self._folder / f"audit.{number}.log" for number in range(1, self._files_max)]
        if not former:
            self._files.remove(self.path)
            return
        for older, newer in zip(reversed(former), [*reversed(former[:-1]), self.path], strict=True):
            if self._files.exists(newer):
                self._files.rename(newer, older)
