"""The file of committed offsets, `consumerOffset.json`.

The lease journal knows what this file holds: every offset in it, and its checksum, are in the
journal before the file is written. A start replays the journal over the file, so an offset that
only the file has would be undone by an older record. A file whose checksum the journal does not
know was written by another broker. Why: decisions 7 and 15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from inorder.broker.durability import DurableTable
from inorder.errors import StoreError

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

NAME: Final = "consumerOffset.json"


class OffsetSnapshot(DurableTable):
    """Saves and restores the committed offsets."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, NAME, "consumer offsets were not saved")

    @property
    def revision(self) -> int:
        """Return the revision of the offsets."""
        return self._broker.offsets.revision

    @property
    def settled_position(self) -> int:
        """Return the end of the log: no offset lies beyond it."""
        return self._broker.store.log.end_position

    def encode(self, covered: int) -> Iterator[bytes]:
        """Encode the offsets in one step, after the journal has all of them.

        Raises:
            DiskFull, StoreFailed: the journal has not; do not save the file.
        """
        self._broker.lease_journal.flush()
        content = self._broker.offsets.encode()
        self._broker.lease_journal.will_save(content)
        yield content

    def load(self) -> None:
        """Restore the offsets from the file."""
        self.file.load(self._broker.offsets.decode)
        self._saved_revision = self.revision

    def save_soon(self) -> None:
        """Start a save, unless the journal is untrusted: it takes nothing."""
        if not self._broker.safety.broken:
            super().save_soon()

    def save_at_stop(self) -> None:
        """Save, even if the journal does not take the checksum: its own save follows.

        Raises:
            OSError: the old file is kept.
        """
        content = self._broker.offsets.encode()
        with contextlib.suppress(StoreError):  # no commit follows that only the journal would hold
            self._broker.lease_journal.will_save(content)
        self.file.save(content)
