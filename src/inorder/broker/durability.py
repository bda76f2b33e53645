"""How the log and the tables become durable without blocking the loop, and what a failure stops.

**SharedSync** is one sync for many: everyone who waits while one runs shares the next one.
**LogSync** makes the log durable in this way, for sends, parked messages, flushes and tables.

**DurableTable** saves a table that depends on the log, in an order that holds for all of them: the
table is encoded, the log becomes durable, then the file is written. So no file knows of a message
that a power cut has taken.

**Saving** saves the tables of names (topics and groups):

    a change    marks the table, and starts a save unless one runs
    a save      encodes on the loop, a large table over several turns; a thread writes the file
    a request   that changed a table is answered when a save that covers the change has ended (the
                router awaits `saved`). Sends and pulls that create a name never wait, and no
                request waits while so many names are created that saves queue up

So a topic may hold acknowledged messages before `topics.json` lists it. After a kill the number of
its queues would be unknown, and the order of keys depends on that number. Therefore every change of
a topic is also appended to `topics.json.new` at once (`TopicNotes`), as safely as a message by the
flush mode. The next start applies the changes that `topics.json` lacks.

**fingerprint** and **check_fits** tie a file to the log: the file names the log position that it
depends on, and the checksum of the log bytes before it. So a log that lost its end and grew again,
or a log from elsewhere, is not mistaken for the right one.

**Safety** tracks the files of `inorder/` whose sync has failed. Leases, commits, generations and
key map versions depend on these files. While one of them is untrusted, the broker accepts no
messages and no commits, and grants, renews and releases no leases: whatever it acknowledged might
be gone after a restart. Reads continue. Each file is rewritten as a whole until a new one is on
disk (`store/faults.py`); then the broker continues.

Why: decisions 4 (failed syncs) and 7 (tables and files).
"""

from __future__ import annotations

import abc
import asyncio
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from inorder.clock import stopwatch_s
from inorder.errors import RemoteProtocolError, StoreError, StoreFailed
from inorder.logs import get_logger
from inorder.store.snapshot import Snapshot

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.offload import Offload
    from inorder.clock import Clock
    from inorder.net.fairness import Turns
    from inorder.store.commitlog import CommitLog
    from inorder.store.store import Store

T = TypeVar("T")
Done = Callable[[T], None]
Failed = Callable[[BaseException], None]

log = get_logger(__name__)

TEXTS_AT_ONCE: Final = 400
SLOW_SAVE_MS: Final = 10
SAVE_WAIT_MS_MAX: Final = 2000
SAVE_INTERVAL_MS: Final = 30_000
RETRY_MS: Final = 10_000
FINGERPRINT_BYTES: Final = 256


def _ignore(_: object) -> None:
    """Take no notice of an outcome."""


class SharedSync(Generic[T]):
    """Runs one sync at a time. All requests that arrive while it runs share the next one.

    `begin(done, failed)` starts a sync and reports its outcome, at once or later.
    """

    def __init__(self, begin: Callable[[Done[T], Failed], None]) -> None:
        self._begin = begin
        self._waiting: list[tuple[Done[T], Failed]] = []
        self._running = False
        self._stopped = False
        self._idle: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(running={self._running}, waiting={len(self._waiting)})"

    def start(self, done: Done[T] = _ignore, failed: Failed = _ignore) -> None:
        """Report the outcome of a sync that begins now or later to `done` or `failed`."""
        self._waiting.append((done, failed))
        self._next()

    async def synced(self) -> T:
        """Return when a sync that begins now or later has succeeded.

        Raises:
            StoreError: the sync failed.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T) -> None:
            if not future.done():  # otherwise the caller was cancelled
                future.set_result(result)

        def failed(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        self.start(done, failed)
        return await future

    @property
    def running(self) -> bool:
        """Return whether a sync runs."""
        return self._running

    async def idle(self) -> None:
        """Return when no sync runs."""
        while self._running:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def stop(self) -> None:
        """Begin no more syncs."""
        self._stopped = True

    def _next(self) -> None:
        if self._running or self._stopped or not self._waiting:
            return
        self._running = True
        served, self._waiting = self._waiting, []
        self._begin(
            lambda result: self._end([partial(done, result) for done, _ in served]),
            lambda error: self._end([partial(failed, error) for _, failed in served]),
        )

    def _end(self, reports: list[Callable[[], None]]) -> None:
        for report in reports:  # requests that callers make now share the next sync
            try:
                report()
            except Exception:  # one caller's failure must not keep the outcome from the others
                log.exception("the outcome of a sync could not be handled")
        self._running = False
        self._next()
        if self._idle is not None and not self._running:
            self._idle.set_result(None)
            self._idle = None


class LogSync(SharedSync[int]):
    """Makes the log durable up to its present end, and reports that position.

    A failed sync is final, and the result of a sync during which the log failed counts for
    nothing. Without a free descriptor no sync took place (NoDescriptors), so it can be retried.
    `trouble` is told of each failure before those who wait, `measure` how long each sync took.
    """

    def __init__(
        self,
        store: Store,
        offload: Offload,
        trouble: Callable[[StoreError], None],
        measure: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(self._sync)
        self._measure = measure
        self._store = store
        self._offload = offload
        self._trouble = trouble

    def _sync(self, done: Done[int], failed: Failed) -> None:
        began_s = 0.0 if self._measure is None else stopwatch_s()

        def synced(position: int) -> None:
            if self._measure is not None:
                self._measure(stopwatch_s() - began_s)
            reason = self._store.log.failed
            if reason is None:
                done(position)
            else:  # another sync failed meanwhile
                refused(StoreFailed(reason))

        def refused(error: BaseException) -> None:
            failure = error if isinstance(error, StoreError) else StoreFailed(str(error))
            self._trouble(failure)
            failed(failure)

        self._offload.run(self._store.sync, synced, refused, log_sync=True)


class DurableTable(abc.ABC):
    """A table in memory and its file in `config/`, which is written after the log is durable.

    One save runs at a time; changes made meanwhile are in the next one. If the log or the disk
    refuses, the old file is kept, which is logged, and a later save has the changes.
    """

    def __init__(self, broker: Broker, name: str, not_saved: str) -> None:
        self._broker = broker
        self.file = Snapshot(broker.files, broker.config.data_path / "config" / name)
        self._not_saved = not_saved
        self._task: asyncio.Task[Exception | None] | None = None
        self._covered = 0
        self._saved_revision = 0
        self._due_ms = broker.clock.monotonic_ms() + SAVE_INTERVAL_MS
        self._retry_ms = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(changed={self.changed}, saving={self.saving})"

    @property
    @abc.abstractmethod
    def revision(self) -> int:
        """Return a number that grows with every change of the table."""

    @property
    @abc.abstractmethod
    def settled_position(self) -> int:
        """Return a log position before which the table knows every record."""

    @abc.abstractmethod
    def encode(self, covered: int) -> Iterator[bytes]:
        """Encode the table in steps, between which other work may run; yield the content last.

        `covered` is the settled position at the beginning.
        """

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.file.path

    @property
    def changed(self) -> bool:
        """Return whether the table has changed since the last save."""
        return self.revision != self._saved_revision

    @property
    def keep_from(self) -> int | None:
        """Return the log position from which a replay would need the log; None: nowhere."""
        return self._covered if self.changed else None

    @property
    def saving(self) -> bool:
        """Return whether a save runs."""
        return self._task is not None and not self._task.done()

    def save_soon(self) -> None:
        """Start a save if the table has changed and none runs; not after the log has failed."""
        if self.changed:
            self._begin()

    def save_if_due(self) -> None:
        """Start such a save half a minute after the last one, or sooner after a failure."""
        if self._broker.clock.monotonic_ms() >= self._due_ms:
            self.save_soon()

    async def saved(self) -> None:
        """Return when the file holds every change made so far.

        Raises:
            OSError, StoreError: the file does not hold them.
        """
        wanted = self.revision
        while self._saved_revision < wanted:
            running = self._task if self._task is not None and self.saving else self._start()
            await self._end_of(running)

    def save_here(self, covered: int | None = None, *, copies: int = 1) -> None:
        """Save at a start or a stop, when nothing else runs.

        Raises:
            OSError, StoreError: the old file is kept.
        """
        revision = self.revision
        covered = self.settled_position if covered is None else covered
        *_, content = self.encode(covered)
        self._broker.store.sync()
        for _ in range(copies):
            self.file.save(content)
        self._covered, self._saved_revision = covered, revision

    def cancel(self) -> None:
        """Cancel a running save."""
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if not self.saving and self._broker.store.log.failed is None:
            self._start()

    def _start(self, copies: int = 1) -> asyncio.Task[Exception | None]:
        self._task = asyncio.get_running_loop().create_task(self._save(copies), name=self.path.name)
        return self._task

    async def _end_of(self, task: asyncio.Task[Exception | None]) -> None:
        error = await asyncio.shield(task)
        if error is not None:
            raise error

    async def _save(self, copies: int) -> Exception | None:
        broker, content = self._broker, b""
        revision, covered = self.revision, self.settled_position
        try:
            for step in self.encode(covered):
                content = step
                await asyncio.sleep(0)
            await broker.log_sync.synced()
            for _ in range(copies):
                await broker.offload.call(lambda: self.file.save(content))
        except (OSError, StoreError) as error:
            log.error("%s, the old file is kept error=%s", self._not_saved, error)
            self._due_ms = self._retry_ms = broker.clock.monotonic_ms() + RETRY_MS
            return error
        self._covered, self._saved_revision = covered, revision
        self._due_ms = broker.clock.monotonic_ms() + SAVE_INTERVAL_MS
        return None


class Table(Protocol):
    """A table that can be saved."""

    def prepare(self, count: int) -> bool:
        """Encode up to `count` entries that are not encoded yet; True when all are."""
        ...

    def encode(self) -> bytes:
        """Return the whole content of the file."""
        ...


class Saving:
    """Saves tables: one save per file at a time, and another one after it if the table changed."""

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
        """How often a save was requested; a caller that changed a table sees it grow."""

    def __repr__(self) -> str:
        return f"Saving(wanted={len(self._wanted)}, running={len(self._running)})"

    def save(self, file: Snapshot, table: Table) -> None:
        """Save a table soon; if the disk refuses, the save is retried."""
        self.asked += 1
        self._marks[file] = self.asked
        self._wanted[file] = table
        self._failed.pop(file, None)
        if file not in self._running:
            self._begin(file)

    def save_again(self) -> None:
        """Retry the saves that the disk refused."""
        for file, table in list(self._failed.items()):
            self.save(file, table)

    def covers(self, file: Snapshot) -> bool:
        """Return whether the file holds all changes of its table."""
        if file in self._wanted or file in self._failed:
            return False
        return file not in self._running or file in self._pausing

    async def saved(self, *, always: bool = False) -> None:
        """Return when all present changes were saved, or the disk refused.

        While saves queue up it returns at once, unless `always`.
        """
        futures = []
        for file in {*self._wanted, *self._running}:
            if file in self._pausing and not (always and file in self._wanted):
                continue  # saved and pausing, or the caller need not wait for the next save
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((file, self._marks[file], future))
            futures.append(future)
        if futures:
            await asyncio.wait(futures)

    def stop(self) -> None:
        """Start no more saves, and release all who wait."""
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
        """Wake the waiters, and start the next save.

        After a slow save, pause for nine times its duration (at most 2 s), so that saving takes at
        most a tenth of the time.
        """
        self._release(file, covered)
        took_ms = self._clock.monotonic_ms() - began_ms
        if took_ms < SLOW_SAVE_MS:
            self._next_save(file)
        else:
            self._pausing.add(file)
            pause_ms = min(9 * took_ms, SAVE_WAIT_MS_MAX)
            asyncio.get_running_loop().call_later(pause_ms / 1000, self._next_save, file)

    def _next_save(self, file: Snapshot) -> None:
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


def fingerprint(commit_log: CommitLog, position: int) -> int:
    """Return the checksum of the log bytes before a position."""
    segment = commit_log.segments.find(position - 1) if position else None
    if segment is None:
        return 0
    start = max(segment.position, position - FINGERPRINT_BYTES)
    return zlib.crc32(segment.read(position - start, start))


def check_fits(commit_log: CommitLog, depends_on: int, log_crc: int) -> None:
    """Raise RemoteProtocolError unless this log is the one that a file depends on."""
    if depends_on > commit_log.end_position:
        raise RemoteProtocolError(
            f"it depends on the log up to {depends_on}, which was lost: it ends at "
            f"{commit_log.end_position}"
        )
    if depends_on > commit_log.min_position and log_crc != fingerprint(commit_log, depends_on):
        raise RemoteProtocolError(f"the log before {depends_on} is another one")


class Safety:
    """The untrusted files by name. Each is logged when it breaks and when it is repaired."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broken: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Safety(broken={sorted(self._broken)})"

    @property
    def broken(self) -> bool:
        """Return whether any file is untrusted."""
        return bool(self._broken)

    @property
    def reason(self) -> str | None:
        """Return why the broker acknowledges nothing; None if all files are trusted."""
        for name, why in list(self._broken.items()):
            return f"{self._folder / name} is in doubt and being rewritten: {why}"
        return None

    def is_broken(self, name: str) -> bool:
        """Return whether this file is untrusted."""
        return name in self._broken

    def require(self) -> None:
        """Refuse a request that depends on these files.

        Raises:
            StoreFailed: one of them is untrusted.
        """
        if self._broken:
            raise StoreFailed(self.reason or "")

    def broke(self, name: str, error: object) -> None:
        """Record a failed sync. Any thread may call this."""
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
        """Record that a complete new file is on disk. Any thread may call this."""
        if self._broken.pop(name, None) is not None:
            more = ": commits and grants are taken again, and messages unless the log has failed"
            log.warning(
                "written anew and on disk file=%s%s",
                self._folder / name,
                "" if self._broken else more,
            )
