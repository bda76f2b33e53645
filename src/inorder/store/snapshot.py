"""Whole tables in small JSON files: topics, groups, offsets.

A save leaves the new content under the name and the previous content under `<name>.bak`, as
RocketMQ's ConfigManager does. It is on disk when the call returns. The new file is complete before
it gets its name, so a crash at any point leaves at least one readable file:

    write <name>.tmp, sync      <name> old    .bak older
    rename <name> to .bak       <name> -      .bak old
    rename .tmp to <name>       <name> new    .bak old      sync the directory

After a failed sync the next save begins with a new draft, so that no page of the old one counts.
Until a save succeeds, the content of a file below `inorder/` is unknown (`faults.py`).

A load takes the file, or the `.bak` if the file is missing, empty or unreadable. An unreadable file
is kept as `<name>.corrupt`. If both exist and both are unreadable, the load fails: an empty table
would forget topics or progress. How tables reach their files: decision 7.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inorder.disk import Files
from inorder.errors import RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.store.faults import Kind, Meaning, Step, judge

if TYPE_CHECKING:
    from inorder.broker.durability import Safety

logger = get_logger(__name__)

CONFIG_BYTES_MAX = 1 << 30


class Snapshot:
    """One file, and its backup."""

    def __init__(self, files: Files, path: Path, safety: Safety | None = None) -> None:
        self._files = files
        self._safety = safety
        self._step = Step.WRITE
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        self._draft = path.with_name(path.name + ".tmp")
        self._directory_is_durable = False
        self.loaded_checksum: int | None = None
        """Of the content that `load` found; None: there was none."""
        self.took_backup = False
        """Whether `load` took the backup, because the file is missing or cannot be read."""

    def __repr__(self) -> str:
        return f"Snapshot({str(self.path)!r})"

    def exists(self) -> bool:
        """Return whether the file or its backup is there."""
        return self._files.exists(self.path) or self._files.exists(self._backup)

    def save(self, content: bytes) -> None:
        """Replace the content; return when it is on disk.

        Raises:
            OSError: the old content counts, or the new one if only the directory is not synced.
        """
        self._step = Step.WRITE
        try:
            self._save(content)
        except OSError as error:
            meaning = judge(Kind.TABLE, self._step, error.errno)
            if self._safety is not None and meaning is Meaning.REWRITE:
                self._safety.broke(self.path.name, error)
            raise
        if self._safety is not None:
            self._safety.mended(self.path.name)

    @property
    def in_doubt(self) -> bool:
        """Return whether the last sync failed, so that the table must be saved again."""
        return self._safety is not None and self._safety.is_broken(self.path.name)

    def _save(self, content: bytes) -> None:
        files = self._files
        if not self._directory_is_durable:  # also one that a killed run has just made
            files.makedirs(self.path.parent)
            files.fsync_dir(self.path.parent.parent)
            self._directory_is_durable = True
        try:
            self._write_draft(content)
        except OSError:
            files.remove(self._draft)  # it may hold the last free space of the disk
            raise
        if files.exists(self.path):
            files.rename(self.path, self._backup)
        files.rename(self._draft, self.path)
        self._step = Step.SYNC
        files.fsync_dir(self.path.parent)

    def _write_draft(self, content: bytes) -> None:
        self._files.remove(self._draft)  # one that a failed sync or a kill has left
        file = self._files.open(self._draft, create=True)
        try:
            file.truncate(len(content))
            file.pwrite(content, 0)
            self._step = Step.SYNC
            file.fdatasync()
            self._step = Step.WRITE
        finally:
            file.close()

    def load(self, decode: Callable[[bytes], None]) -> bool:
        """Pass the content to `decode`; False if nothing was ever saved."""
        failures: list[str] = []
        for path in (self.path, self._backup):
            content = self._read(path)
            if not content:
                continue
            try:
                decode(content)
            except RemoteProtocolError as error:
                logger.warning("unreadable file=%s error=%s", path, error)
                failures.append(f"{path}: {error}")
                continue
            self.loaded_checksum = zlib.crc32(content)
            self.took_backup = path == self._backup
            if failures:
                self._set_aside()
                logger.warning("took the previous content file=%s", path)
            return True
        if len(failures) > 1:
            raise StoreError(
                f"{failures[0]}; {failures[1]}: repair one of them, or move both away to start "
                "without what they held"
            )
        if failures:
            self._set_aside()
            logger.warning("starting without file=%s: there is no readable copy", self.path)
        return False

    def contents(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the content saved last, then the one before, as far as they exist."""
        for path in (self.path, self._backup):
            content = self._read(path)
            if content:
                yield path, content

    def remove(self, path: Path) -> None:
        """Remove one of the files that `contents` yielded, durably."""
        self._files.remove(path)
        self._files.fsync_dir(path.parent)

    def _read(self, path: Path) -> bytes:
        files = self._files
        if not files.exists(path):
            return b""
        file = files.open(path)
        try:
            size = file.size()
            if size > CONFIG_BYTES_MAX:
                raise StoreError(f"{path} has {size} bytes; at most {CONFIG_BYTES_MAX} are read")
            return file.pread(size, 0)
        finally:
            file.close()

    def _set_aside(self) -> None:
        corrupt = self.path.with_name(self.path.name + ".corrupt")
        if self._files.exists(self.path):
            self._files.rename(self.path, corrupt)
