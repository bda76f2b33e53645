"""Losses that were reported (`inorder/losses.json`), and directories that are not complete.

A loss is logged when it is found and kept here once, until an operator deletes the file, so that
`inorder cluster losses` shows it later. Why: decision 45.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inorder.errors import RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.store.layout import RESTORING
from inorder.store.mending import Loss
from inorder.store.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from inorder.clock import Clock
    from inorder.disk import Files

log = get_logger(__name__)

LOSSES_MAX: Final = 1000
"""How many losses are kept; later ones are only logged."""


def refuse_unfinished(files: Files, root: Path) -> None:
    """Refuse a directory into which a backup was not restored to the end.

    Raises:
        StoreError: it is one; nothing was changed.
    """
    if files.exists(root / RESTORING):
        raise StoreError(
            f"{root} is not complete: the restore of a backup into it was broken off. Run "
            "`inorder restore` again, or remove the directory"
        )


class Reported(msgspec.Struct, frozen=True):
    """Lost messages, or a damaged file of the broker, and when it was found."""

    found_ms: int
    text: str
    topic: str = ""
    queue_id: int = -1
    low: int = 0
    high: int = 0


class Losses:
    """Logs losses and remembers them."""

    def __init__(self, files: Files, path: Path, clock: Clock) -> None:
        self._file = Snapshot(files, path)
        self._clock = clock
        self._unsaved = False
        self.reported: list[Reported] = []

    def __repr__(self) -> str:
        return f"Losses({len(self.reported)})"

    def load(self) -> None:
        """Load earlier reports. A file that cannot be read is only logged."""
        try:
            self._file.load(self._decode)
        except StoreError as error:
            log.error("earlier reports of losses cannot be read: %s", error)

    def _decode(self, data: bytes) -> None:
        try:
            self.reported = msgspec.json.decode(data, type=list[Reported])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not losses: {error}") from None

    def report(self, loss: Loss) -> None:
        """Log and remember that messages are lost."""
        self._add(
            Reported(
                self._clock.now_ms(), str(loss), loss.topic, loss.queue_id, loss.low, loss.high
            ),
        )
        log.error(
            "messages are lost: %s. Restore the commitlog from a copy, or go on without them; "
            "`inorder cluster losses` lists what is gone", loss,
        )  # fmt: skip

    def report_file(self, text: str) -> None:
        """Log and remember that the content of one of the broker's files is lost."""
        self._add(Reported(self._clock.now_ms(), text))
        for part in text.split(". "):
            log.error("lost: %s", part)

    def _add(self, one: Reported) -> None:
        known = {(old.text, old.topic, old.queue_id, old.low) for old in self.reported}
        if (one.text, one.topic, one.queue_id, one.low) in known:
            return
        if len(self.reported) < LOSSES_MAX:
            self.reported.append(one)
            self._unsaved = True

    def save(self) -> None:
        """Save new reports; a failed save is logged and retried."""
        if not self._unsaved:
            return
        try:
            self._file.save(msgspec.json.encode(self.reported))
            self._unsaved = False
        except OSError as error:
            log.error("losses are not written down yet error=%s", error)
