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
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from inorder.disk import File, Files
from inorder.errors import RemoteProtocolError
from inorder.logs import get_logger
from inorder.wire.requests.topics import decode_topic_config, encode_topic_config

if TYPE_CHECKING:
    from inorder.broker.offload import Offload
    from inorder.broker.state.topics import TopicChange, TopicTable
    from inorder.clock import Clock
    from inorder.net.fairness import Turns
    from inorder.store.snapshot import Snapshot

log = get_logger(__name__)

TEXTS_AT_ONCE: Final = 400
SLOW_SAVE_MS: Final = 10
SAVE_WAIT_MS_MAX: Final = 2000
NOTES_BYTES_MAX: Final = 64 * 1024 * 1024


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


_DELETED: Final = b"null"


class _Note(msgspec.Struct):
    counter: int
    name: str
    config: msgspec.Raw


class TopicNotes:
    """Changes of topics since `topics.json` was last saved, a line each: `topics.json.new`.

    A line has the table's version after the change. One that is not above the version of the saved
    table is old, for the table has it.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self._size = 0

    def __repr__(self) -> str:
        return f"TopicNotes({str(self._path)!r}, bytes={self._size})"

    def add(self, changes: list[TopicChange], *, covered: bool, durable: bool) -> None:
        """Note changes; `covered` says that all before them are saved.

        If the disk does not take them they are in the next save.
        """
        try:
            self._add(changes, covered=covered, durable=durable)
        except OSError as error:
            log.error("changes of topics are not noted file=%s error=%s", self._path, error)

    def _add(self, changes: list[TopicChange], *, covered: bool, durable: bool) -> None:
        if self._file is None:
            self._files.makedirs(self._path.parent)
            self._file = self._files.open(self._path, create=True)
            self._file.truncate(0)
            self._size = 0
            if durable:
                self._files.fsync_dir(self._path.parent)
        elif covered:
            self._file.truncate(0)
            self._size = 0
        text = b"".join([_line(change) for change in changes])
        if self._size + len(text) > NOTES_BYTES_MAX:
            return  # the saves are far behind: the disk is in trouble
        self._file.pwrite(text, self._size)
        self._size += len(text)
        if durable:
            self._file.fdatasync()

    def close(self, *, remove: bool) -> None:
        """Close the file; after a clean stop it is not needed."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self._files.remove(self._path)

    def load(self, topics: TopicTable, now_ms: int) -> int:
        """Do the changes that the saved table does not have; return how many."""
        if not self._files.exists(self._path):
            return 0
        file = self._files.open(self._path)
        try:
            content = file.pread(min(file.size(), NOTES_BYTES_MAX), 0)
        finally:
            file.close()
        saved = topics.data_version.counter
        found = 0
        for line in content.split(b"\n"):
            try:
                note = msgspec.json.decode(line, type=_Note)
                text = bytes(note.config)
                config = None if text == _DELETED else decode_topic_config(text)
            except (msgspec.MsgspecError, UnicodeError, RemoteProtocolError):
                continue  # cut by a crash: a line that is not whole was not relied upon
            if note.counter > saved:
                found += 1
                if config is None:
                    topics.delete(note.name, now_ms)
                elif topics.get(note.name) != config:
                    topics.put(config, now_ms)
        if found:
            log.warning("changes of topics after the last save of topics.json: %d", found)
        return found


def _line(change: TopicChange) -> bytes:
    counter, name, config = change
    raw = _DELETED if config is None else encode_topic_config(config)
    return msgspec.json.encode(_Note(counter, name, msgspec.Raw(raw))) + b"\n"
