"""kvConfig.json: written whole, beside the old one, so that a crash leaves one of both.

kvConfig.json.tmp   written and synced, then
kvConfig.json       becomes kvConfig.json.bak, and
kvConfig.json.tmp   becomes kvConfig.json
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inorder.errors import RemoteProtocolError
from inorder.logs import get_logger
from inorder.nameserver.rules import KvTable

if TYPE_CHECKING:
    from inorder.disk import Files

logger = get_logger(__name__)

FILE_BYTES_MAX = 256 * 1024 * 1024


class KvFile:
    """The file of a KvTable."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self.path = folder / "kvConfig.json"
        self.backup_path = folder / "kvConfig.json.bak"
        self._temporary_path = folder / "kvConfig.json.tmp"

    def load(self) -> KvTable:
        """Return what was saved last; from the backup if the file is missing or damaged.

        A damaged file is kept as kvConfig.json.corrupt for a person to look at. Raises OSError if
        the folder is not there and cannot be made.
        """
        self._files.makedirs(self._folder)  # who cannot keep anything says so at its start
        for path in (self.path, self.backup_path):
            if not self._files.exists(path):
                continue
            try:
                table = KvTable.decode(self._read(path))
            except RemoteProtocolError as error:
                kept = path.with_name(f"{path.name}.corrupt")
                self._files.rename(path, kept)
                logger.error("file=%s is damaged (%s); it is kept as %s", path, error, kept.name)
                continue
            if path == self.backup_path:
                logger.warning("file=%s is used: the newer one is missing or damaged", path)
            return table
        return KvTable()

    def save(self, table: KvTable) -> None:
        """Write the table so that it is on disk when this returns. Raises OSError."""
        data = table.encode()
        self._files.makedirs(self._folder)
        file = self._files.open(self._temporary_path, create=True, size=len(data))
        try:
            file.pwrite(data, 0)
            file.fdatasync()
        finally:
            file.close()
        if self._files.exists(self.path):
            self._files.rename(self.path, self.backup_path)
        self._files.rename(self._temporary_path, self.path)
        self._files.fsync_dir(self._folder)

    def _read(self, path: Path) -> bytes:
        file = self._files.open(path)
        try:
            size = file.size()
            if size > FILE_BYTES_MAX:
                raise RemoteProtocolError(f"it has {size} bytes, more than {FILE_BYTES_MAX}")
            return file.pread(size, 0)
        finally:
            file.close()
