"""Append-only files of small records that a start reads back, such as leases.

    0        4        8
    +--------+--------+---------------+
    | length |  crc32 |    payload    |   repeated; big-endian; the checksum is the payload's
    +--------+--------+---------------+

An append is written when it returns and so survives a kill; it is on disk after a sync. A torn or
damaged record ends the journal, and the next start cuts off the bytes after it.

After a failed sync the content on disk is unknown. Nothing is appended until `switch` has gone to
a new file that holds the whole state and is on disk; the older files are then dropped.

`prepare` and `switch` also keep the journal short: they begin a new file, and the older files are
dropped once the new one, or a snapshot, holds everything and is on disk. A start reads all files in
order. Why a journal: decision 15.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.errors import StoreError, StoreFailed
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.disk import File, Files

log = get_logger(__name__)

_HEAD: Final = struct.Struct(">II")
PAYLOAD_BYTES_MAX: Final = 1 << 20
FILE_BYTES_MAX: Final = 1 << 30


class Journal:
    """The files `<name>.<number>` of a folder. `open` first."""

    def __init__(self, files: Files, folder: Path, name: str) -> None:
        self._files = files
        self._pattern = re.compile(re.escape(name) + r"\.(\d{6,})")
        self._file: File | None = None
        self._older: list[Path] = []
        self._number = 0
        self.folder = folder
        self.name = name
        self.size = 0
        """Bytes of the newest file."""
        self.failed: str | None = None
        """Why nothing is appended: the content of the files on disk is unknown."""
        self._behind: list[File] = []  # older files that may not be on disk
        self.cut_bytes = 0
        """Bytes that a start found after a torn or damaged record, and cut off."""
        self._torn = False  # bytes of a failed append lie after the last record

    def __repr__(self) -> str:
        return f"Journal({self.name!r}, file {self._number}, {self.size} bytes)"

    @property
    def has_older(self) -> bool:
        """Return whether there are files before the newest."""
        return bool(self._older)

    def open(self) -> list[bytes]:
        """Open or create the files, cut off torn records, return the payloads."""
        files = self._files
        if not files.exists(self.folder):
            files.makedirs(self.folder)
            files.fsync_dir(self.folder.parent)
        found = sorted(
            int(match[1])
            for name in files.listdir(self.folder)
            if (match := self._pattern.fullmatch(name)) is not None
        )
        payloads: list[bytes] = []
        for number in found:  # each record is complete in itself: those after a gap still count
            payloads += self._read(self._path(number))
            self._number = number
            self._older.append(self._path(number))
        if self._older:
            self._file = files.open(self._older.pop())
            self.size = self._file.size()
        else:
            self.switch(self.prepare())
        return payloads

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.name}.{number:06d}"

    def _read(self, path: Path) -> list[bytes]:
        file = self._files.open(path)
        try:
            size = file.size()
            if size > FILE_BYTES_MAX:
                raise StoreError(f"{path} has {size} bytes; at most {FILE_BYTES_MAX} are read")
            payloads, end = split(file.pread(size, 0))
            if end < size:
                self.cut_bytes += size - end
                log.warning("journal cut at its first torn record file=%s at=%d of=%d",
                            path, end, size)  # fmt: skip
                file.truncate(end)
                file.fdatasync()
            return payloads
        finally:
            file.close()

    def append(self, payloads: Iterable[bytes]) -> None:
        """Write records after the last one.

        Raises:
            OSError: none of them counts, unless a kill comes before the next append: what was
                written of them could then not be taken back.
            StoreFailed: a sync has failed; all that stands must be in a new file first.
        """
        if self.failed is not None:
            raise StoreFailed(f"{self.name}: {self.failed}")
        assert self._file is not None, "open it first"
        data = b"".join(map(pack, payloads))
        if self._torn:
            self._file.truncate(self.size)
            self._torn = False
        try:
            self._file.pwrite(data, self.size)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # then before the next append
                self._file.truncate(self.size)
                self._torn = False
            raise
        self.size += len(data)

    def plan_sync(self) -> Callable[[], None]:
        """Return a function that puts the records so far on disk; another thread may call it.

        One at a time: of two syncs the kernel would report a failure to one only. Call `synced`
        after it.
        """
        assert self._file is not None, "open it first"
        files = [*self._behind, self._file]

        def sync() -> None:
            for file in files:
                file.fdatasync()

        return sync

    def synced(self) -> None:
        """Note that a sync has succeeded, with no `switch` since it was planned."""
        for file in self._behind:
            file.close()
        self._behind.clear()

    def prepare(self) -> File:
        """Create the next file; another thread may call this. An unused earlier one is removed."""
        path = self._path(self._number + 1)
        self._files.remove(path)
        file = self._files.open(path, create=True)
        try:
            self._files.fsync_dir(self.folder)
        except OSError:
            file.close()
            raise
        return file

    def discard(self, file: File) -> None:
        """Give up a file that was prepared."""
        file.close()
        with contextlib.suppress(OSError):  # removed when the next one is prepared
            self._files.remove(file.path)

    def switch(self, file: File, size: int = 0) -> None:
        """Continue in the prepared file, which holds `size` bytes of records.

        No sync may be under way. OSError: not yet.
        """
        if self._file is not None:
            if self._torn and self.failed is None:
                self._file.truncate(self.size)
            self._torn = False
            self._older.append(self._path(self._number))
            self._behind.append(self._file)
        self._number += 1
        self._file = file
        self.size = size

    def plan_drop(self) -> Callable[[], None]:
        """Return a function that removes the older files; another thread may call it.

        The newest file must be on disk. Call `dropped` afterwards.
        """
        files, folder, older = self._files, self.folder, list(self._older)

        def drop() -> None:
            for path in older:  # oldest first: the newest ones are left
                files.remove(path)
            files.fsync_dir(folder)

        return drop

    def dropped(self) -> None:
        """Note that the files before the newest are gone."""
        self._older.clear()
        self.synced()

    def close(self) -> None:
        """Close the files."""
        self.synced()
        if self._file is not None:
            self._file.close()
            self._file = None


def pack(payload: bytes) -> bytes:
    """Return a record."""
    assert 0 < len(payload) <= PAYLOAD_BYTES_MAX, f"a record of {len(payload)} bytes"
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def split(data: bytes) -> tuple[list[bytes], int]:
    """Return the payloads, and where the first torn record begins."""
    payloads: list[bytes] = []
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        payload = data[start : start + length]
        if not 0 < length <= PAYLOAD_BYTES_MAX or len(payload) < length:
            break
        if zlib.crc32(payload) != checksum:
            break
        payloads.append(payload)
        at = start + length
    return payloads, at
