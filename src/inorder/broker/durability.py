"""Saving the tables of names, topics and groups, without stopping the loop for the disk.

    a change      the table is marked, and a save of it begins unless one runs
    a save        the text is made on the loop, a large one over several turns; a thread writes it
    a request     that changed a table is answered when a save that covers the change has ended
                  (`Router` waits on `saved`), unless names are made so fast that saves wait for
                  one another; sends and pulls that make a name never wait

So a topic may hold acknowledged messages before `topics.json` has it. A kill would leave the
messages and forget how many queues the topic had, on which the order of keys depends. So every
change of a topic is put into `topics.json.new` at once (`TopicNotes`), as safe as a message is by
the flush mode, and done again at the next start if `topics.json` does not have it.

Telling a log from another: the checksum of the bytes before a position.

What is saved beside the log names the position that it depends on and this checksum, so that a log
that lost its end and grew again, or was put there from elsewhere, is not taken for the same.

What stops a broker that still runs: files of `inorder/` whose sync has failed.

Owners, commits, generations and versions rest on these files. While one of them is in doubt the
broker takes no messages, grants, renews and frees no queue under an epoch and takes no commit:
whatever it acknowledged might be gone after a restart. What was stored before can be read. Each
file is written anew, whole, until a new one is on disk (`store/faults.py`); then all goes on.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from inorder.errors import RemoteProtocolError, StoreFailed
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.broker.offload import Offload
    from inorder.clock import Clock
    from inorder.net.fairness import Turns
    from inorder.store.commitlog import CommitLog
    from inorder.store.snapshot import Snapshot

log = get_logger(__name__)

TEXTS_AT_ONCE: Final = 400
SLOW_SAVE_MS: Final = 10
SAVE_WAIT_MS_MAX: Final = 2000


class Table(Protocol):
    """What can be saved."""

    def prepare(self, count: int) -> bool:
        """Make the text of up to `count` entries that have none; True when all have."""
        ...

    def encode(self) -> bytes:
        """Return the whole text."""
        ...


class Saving:
    """Saves tables: one save of a file at a time, the next one after it if there was a change."""

    def __init__(self, clock: Clock, turns: Turns, offload: Offload) -> None:
        self._clock = clock
        self._turns = turns
        self._offload = offload
        self._wanted: dict[Snapshot, Table] = {}
        self._running: set[Snapshot] = set()
        self._pausing: set[Snapshot] = set()
        self._failed: dict[Snapshot, Table] = {}
        self._waiting: list[tuple[Snapshot, int, asyncio.Future[None]]] = []
        self._marks: dict[Snapshot, int] = {}
        self._stopped = False
        self.asked = 0
        """How often a save was asked for: who changed a table sees it move."""

    def __repr__(self) -> str:
        return f"Saving(wanted={len(self._wanted)}, running={len(self._running)})"

    def save(self, file: Snapshot, table: Table) -> None:
        """Save a table soon; while the disk takes nothing it is tried again."""
        self.asked += 1
        self._marks[file] = self.asked
        self._wanted[file] = table
        self._failed.pop(file, None)
        if file not in self._running:
            self._begin(file)

    def save_again(self) -> None:
        """Save what the disk did not take."""
        for file, table in list(self._failed.items()):
            self.save(file, table)

    def covers(self, file: Snapshot) -> bool:
        """Tell whether the file holds all changes of its table."""
        if file in self._wanted or file in self._failed:
            return False
        return file not in self._running or file in self._pausing

    async def saved(self, *, always: bool = False) -> None:
        """Return when the changes up to now were saved, or the disk refused.

        Where saves wait for one another, at once, unless `always`.
        """
        futures = []
        for file in {*self._wanted, *self._running}:
            if file in self._pausing and not (always and file in self._wanted):
                continue  # it is saved and rests, or the caller need not wait for its next save
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((file, self._marks[file], future))
            futures.append(future)
        if futures:
            await asyncio.wait(futures)

    def stop(self) -> None:
        """Begin no more saves; whoever waits goes on."""
        self._stopped = True
        self._release(None, self.asked)

    def _begin(self, file: Snapshot) -> None:
        if not self._stopped:
            self._running.add(file)
            self._prepare(file)

    def _prepare(self, file: Snapshot) -> None:
        if self._stopped:
            return
        table = self._wanted[file]
        if not table.prepare(TEXTS_AT_ONCE):
            self._turns.later(lambda: self._prepare(file))
            return
        began_ms = self._clock.monotonic_ms()
        del self._wanted[file]
        covered, content = self._marks[file], table.encode()

        def ended(_: None) -> None:
            self._end(file, covered, began_ms)

        def failed(error: BaseException) -> None:
            log.error("not saved yet, will be tried again file=%s error=%s", file.path, error)
            self._failed.setdefault(file, table)
            self._end(file, covered, began_ms)

        self._offload.run(lambda: file.save(content), ended, failed)

    def _end(self, file: Snapshot, covered: int, began_ms: int) -> None:
        """Tell who waits; after a slow save pause, so that names by the thousand cost a tenth."""
        self._release(file, covered)
        took_ms = self._clock.monotonic_ms() - began_ms
        if took_ms < SLOW_SAVE_MS:
            self._go_on(file)
        else:
            self._pausing.add(file)
            pause_ms = min(9 * took_ms, SAVE_WAIT_MS_MAX)
            asyncio.get_running_loop().call_later(pause_ms / 1000, self._go_on, file)

    def _go_on(self, file: Snapshot) -> None:
        self._pausing.discard(file)
        if file in self._wanted:
            self._begin(file)
        else:
            self._running.discard(file)

    def _release(self, file: Snapshot | None, covered: int) -> None:
        rest = []
        for entry in self._waiting:
            if (file is None or entry[0] is file) and entry[1] <= covered:
                if not entry[2].done():
                    entry[2].set_result(None)
            else:
                rest.append(entry)
        self._waiting = rest


FINGERPRINT_BYTES: Final = 256


def fingerprint(commit_log: CommitLog, position: int) -> int:
    """Return the checksum of the bytes before a position."""
    segment = commit_log.segments.find(position - 1) if position else None
    if segment is None:
        return 0
    start = max(segment.position, position - FINGERPRINT_BYTES)
    return zlib.crc32(segment.read(position - start, start))


def check_fits(commit_log: CommitLog, depends_on: int, log_crc: int) -> None:
    """Raise RemoteProtocolError unless the log is the one that something depends on."""
    if depends_on > commit_log.end_position:
        raise RemoteProtocolError(
            f"it depends on the log up to {depends_on}, which was lost: it ends at "
            f"{commit_log.end_position}"
        )
    if depends_on > commit_log.min_position and log_crc != fingerprint(commit_log, depends_on):
        raise RemoteProtocolError(f"the log before {depends_on} is another one")


class Safety:
    """The files in doubt, by name. Each is said once when it breaks and once when it is mended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broken: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Safety(broken={sorted(self._broken)})"

    @property
    def broken(self) -> bool:
        """Tell whether a file is in doubt."""
        return bool(self._broken)

    @property
    def reason(self) -> str | None:
        """Return why nothing is acknowledged, None if all is well."""
        for name, why in list(self._broken.items()):
            return f"{self._folder / name} is in doubt and being written anew: {why}"
        return None

    def is_broken(self, name: str) -> bool:
        """Tell whether this file is in doubt."""
        return name in self._broken

    def require(self) -> None:
        """Refuse what rests on these files.

        Raises:
            StoreFailed: one of them is in doubt.
        """
        if self._broken:
            raise StoreFailed(self.reason or "")

    def broke(self, name: str, error: object) -> None:
        """Take note of a failed sync; for any thread."""
        if name not in self._broken:
            log.critical(
                "a sync failed: the broker takes no more messages and commits and grants no queues "
                "until the file is written anew and that is on disk; that is tried every few "
                "seconds, reads go on. Look at the disk. file=%s error=%s",
                self._folder / name,
                error,
            )
        self._broken[name] = str(error)

    def mended(self, name: str) -> None:
        """Take note that all that the file must hold is in a new one, on disk; for any thread."""
        if self._broken.pop(name, None) is not None:
            more = ": commits and grants are taken again, and messages unless the log has failed"
            log.warning(
                "written anew and on disk file=%s%s",
                self._folder / name,
                "" if self._broken else more,
            )
