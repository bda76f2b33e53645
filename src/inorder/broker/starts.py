"""What a broker knows of its own starts: `start.json`, on disk before the port opens.

start        grows with every start: the high half of the epochs of leases
boot_id      of the machine; while it is the same, what was written is there
clean        the last stop was one, so that no end of the log can be missing
generation   of the log; grows when its end was lost, or may have been
longest_ms   how long the owners of queues may believe in what was granted; raised on disk before
             anything longer is granted, so that a start that cannot know the leases knows how
             long to wait
waits        a start that could not know the leases has not waited that long yet
waits_until_ms  when it will have, by the clock of this boot; a kill does not begin that anew
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inorder.broker.state.leaseterms import deadline_after_start
from inorder.errors import RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.store.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from inorder.broker.durability import Safety
    from inorder.disk import Files

log = get_logger(__name__)


class Start(msgspec.Struct, frozen=True):
    """The content of the file."""

    start: int = 0
    boot_id: str = ""
    clean: bool = True
    generation: int = 0
    longest_ms: int = 0
    waits: bool = False
    waits_until_ms: int = 0


class StartFile:
    """Keeps it."""

    def __init__(self, files: Files, path: Path, safety: Safety | None = None) -> None:
        self._file = Snapshot(files, path, safety)
        self._boot_id = files.boot_id
        self.now = Start()
        self._unsaved = False
        self.same_boot = False
        """The machine has not been restarted since the broker's last start."""
        self.may_have_lost = False
        """The end of the log, and of the journals, may be missing."""

    def load(self, *, start: int = 0, generation: int = 0, ours: bool = False) -> None:
        """Read what was known before this start.

        `start` and `generation` are the highest that other files know: higher ones than in this
        file show that it is an older copy, or missing. Of a directory that is `ours` it must not
        be missing, unless the others know.

        Raises:
            StoreError: it is missing, and nothing tells which epochs were given out.
        """
        known = self._file.load(self._decode)
        path = self._file.path
        if ours and not known and not start:
            raise StoreError(
                f"{path} is missing, and no journal of owners tells which epochs were given out: "
                f"restore it from a copy, or write a higher number than any before into it, as "
                f"with `echo '{{\"start\":'$(date +%s)'}}' > {path}`"
            )
        doubtful = (ours and not known) or self._file.took_backup or start > self.now.start
        if doubtful:
            log.error(
                "%s is missing, damaged or an older copy: this start counts on from the highest "
                "epoch and generation in the other files, and takes the last stop for a crash of "
                "the machine", path,
            )  # fmt: skip
            self.now = msgspec.structs.replace(
                self.now, start=max(self.now.start, start), boot_id="", clean=False
            )
            known = True
        self.now = msgspec.structs.replace(
            self.now, generation=max(self.now.generation, generation)
        )
        boot_id = self._boot_id()
        before = self.now
        self.same_boot = known and bool(boot_id) and before.boot_id == boot_id
        self.may_have_lost = known and not before.clean and not self.same_boot
        self.now = Start(
            before.start + 1,
            boot_id,
            clean=False,
            generation=before.generation + self.may_have_lost,
            longest_ms=before.longest_ms,
            waits=before.waits or self.may_have_lost,
            waits_until_ms=before.waits_until_ms if self.same_boot else 0,
        )

    def _decode(self, data: bytes) -> None:
        try:
            self.now = msgspec.json.decode(data, type=Start)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not a start: {error}") from None

    def begin(self, longest_ms: int) -> None:
        """Count this start; `longest_ms` is that of the leases that are known.

        Raises:
            OSError: it is not on disk, so the broker must not start.
        """
        if self.now.waits:
            longest_ms = max(longest_ms, self.now.longest_ms)
        self._save(msgspec.structs.replace(self.now, longest_ms=longest_ms))

    def lost_tail(self) -> None:
        """Take note that the end of the log is missing, whatever the last stop was like."""
        if not self.may_have_lost:
            self.may_have_lost = True
            self.next_generation()

    def wait(self, now_ms: int) -> int:
        """Return when all that was granted and is not known has run out; `begin` saves it."""
        until_ms = deadline_after_start(
            self.now.waits_until_ms, self.now.longest_ms, now_ms, same_boot=self.same_boot
        )
        self.now = msgspec.structs.replace(self.now, waits_until_ms=until_ms)
        return until_ms

    def leases_unknown(self) -> None:
        """Take note that the journal does not say all that was granted: nobody gets a queue yet."""
        self.now = msgspec.structs.replace(self.now, waits=True)

    def waited(self) -> None:
        """Note that all that was granted and is not known has run out."""
        self._save(msgspec.structs.replace(self.now, waits=False, waits_until_ms=0))

    def raise_longest(self, ms: int) -> None:
        """Return when it is on disk that leases of this length are granted.

        Raises:
            OSError: it is not, so none may be granted.
        """
        if ms > self.now.longest_ms:
            self._save(msgspec.structs.replace(self.now, longest_ms=ms))

    def next_generation(self) -> int:
        """Return a new generation; `save_unsaved` puts it on disk."""
        self.now = msgspec.structs.replace(self.now, generation=self.now.generation + 1)
        self._unsaved = True
        return self.now.generation

    def save_unsaved(self) -> None:
        """Put on disk what is not; OSError if that fails."""
        if self._unsaved or self._file.in_doubt:
            self._save(self.now)

    def end(self) -> None:
        """Note a clean stop: the log, and what is kept of leases and commits, is on disk."""
        self._save(msgspec.structs.replace(self.now, clean=True))

    def _save(self, content: Start) -> None:
        self._file.save(msgspec.json.encode(content))
        self.now = content
        self._unsaved = False
