"""kvConfig.json: the name server's key-value table, as one snapshot (`store/snapshot.py`).

A name server whose file and backup are both damaged logs that and starts with an empty table, since
routes do not depend on the table. How a snapshot is written: decision 7.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inorder.errors import RemoteProtocolError
from inorder.logs import get_logger
from inorder.nameserver.rules import KvTable
from inorder.store.snapshot import Snapshot

if TYPE_CHECKING:
    from inorder.disk import Files

logger = get_logger(__name__)


class KvFile:
    """The file of a KvTable."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self.path = folder / "kvConfig.json"
        self._snapshot = Snapshot(files, self.path)

    def load(self) -> KvTable:
        """Return the table that was saved last, or the backup if the file is missing or damaged.

        A damaged file is kept as kvConfig.json.corrupt for a person to look at. Raises OSError if
        the folder does not exist and cannot be created: a name server that cannot save says so when
        it starts.
        """
        self._files.makedirs(self._folder)
        for path, content in self._snapshot.contents():
            try:
                table = KvTable.decode(content)
            except RemoteProtocolError as error:
                kept = path.with_name(f"{path.name}.corrupt")
                self._files.rename(path, kept)
                logger.error("file=%s is damaged (%s); it is kept as %s", path, error, kept.name)
                continue
            if path != self.path:
                logger.warning("file=%s is used: the newer one is missing or damaged", path)
            return table
        return KvTable()

    def save(self, table: KvTable) -> None:
        """Write the table so that it is on disk when this returns. Raises OSError."""
        self._snapshot.save(table.encode())
