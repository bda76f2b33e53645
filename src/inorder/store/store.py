"""The store: log, queues and key index behind one facade. One thread owns it.

A tick, as the broker drives it:

    at = store.log.reserve(size)                     pack the record into store.log.pending at `at`
    offset = queue.append(position, size, tag)       position = store.log.pending_base + at
    store.note_keys(topic, properties, position, stored_at_ms)
    tick = store.write_tick()                        one pwrite; or an error, and nothing happened
    store.publish(tick)                              now (async flush) or after sync() (sync flush)

Everything else follows later, in `housekeep`: the log is the truth, and queues and index are made
from it again after a crash.

A `FlushPlan` is one flush of the derived files. The owner prepares it, and any thread may run it:
it holds values only and opens files of its own, so the store goes on meanwhile. Its order is the
guarantee: first the log, then queues and index, then the notes that say so. After a kill the files
that the process had written and not synced are unknown; `walk` is the part of the log whose records
name them. Only `sync` and a `FlushPlan` may run in another thread than the owner's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from inorder.clock import Clock
from inorder.config import StoreConfig
from inorder.disk import DiskUsage, Files
from inorder.errors import AlreadyClosed, NoDescriptors, StoreError, StoreFailed, StoreLocked
from inorder.logs import get_logger
from inorder.store import reader, retention
from inorder.store.checkpoints import Checkpoint, Positions, PositionsFile, run_of
from inorder.store.commitlog import CommitLog
from inorder.store.consumequeue import QueueFiles, QueueIndex
from inorder.store.dispatcher import Dispatcher
from inorder.store.ends import Begun, Clean, Dropped, Emptied, EndsFile, Firsts, Kept, Notes, Row
from inorder.store.faults import NO_DESCRIPTORS, NO_ROOM, Kind, Meaning, Step, judge
from inorder.store.keyindex import WRITE_ALL, KeyHits, KeyIndex, query
from inorder.store.layout import ENTRY_BYTES, LOCK_CONTENT, Layout, file_name
from inorder.store.mending import Mended, Wanted, mend
from inorder.store.queues import QueueTable
from inorder.store.reader import Reader
from inorder.store.recovery import Recovery, RecoveryReport, read_abort
from inorder.store.retention import CleanReport
from inorder.store.scan import LogScan, record_at
from inorder.store.segments import Segments
from inorder.wire.names import parse_delay_levels

log = get_logger(__name__)

WRITE_BACK_FILES: Final = 64


@dataclass(slots=True)
class FlushPlan:
    """One flush: the files to sync, and the notes that are true afterwards."""

    files: Files
    layout: Layout
    log: CommitLog
    positions_file: PositionsFile
    paths: list[Path]
    directories: list[Path]
    positions: Positions
    checkpoint: Checkpoint
    walk: tuple[int, int] | None = None
    queue_file_bytes: int = 0
    sync_ends: Callable[[], None] = lambda: None
    done: bool = False

    def run(self) -> None:
        """Sync everything, then note it. May run in any thread, one plan at a time.

        Raises:
            StoreFailed: a sync failed; the store takes no more writes.
            NoDescriptors: not all files could be opened; the next plan has them, too.
        """
        self.finish(self.log.sync())

    def finish(self, durable: int) -> None:
        """Sync the derived files and note it: the log has been synced up to `durable`."""
        try:
            self._sync_files()
            self.sync_ends()
        except OSError as error:
            self._fail("syncing queues and index", error)
        self.positions = self.positions.moved(log=durable)
        try:
            self.positions_file.write_synced(self.positions)
            self.checkpoint.save(self.files, self.layout)
        except OSError as error:
            if error.errno in NO_ROOM | NO_DESCRIPTORS:  # the notes stay at their older position
                return
            self._fail("writing the checkpoint", error)
        self.done = True

    def _sync_files(self) -> None:
        if self.walk is not None:
            self._add_walked(*self.walk)
        if len(self.paths) > WRITE_BACK_FILES:
            self.files.write_back()
        for path in self.paths:
            try:
                file = self.files.open(path)
            except FileNotFoundError:  # deleted meanwhile
                continue
            try:
                file.fdatasync()
            finally:
                file.close()
        for directory in self.directories:
            if self.files.is_dir(directory):
                self.files.fsync_dir(directory)

    def _add_walked(self, start: int, end: int) -> None:
        """Add the queue files and directories of the records in a part of the log."""
        size = self.queue_file_bytes
        seen: dict[tuple[str, int, int], None] = {}
        for record in LogScan(self.log.segments, start):
            if record.position >= end:
                break
            at = record.queue_offset * ENTRY_BYTES
            seen[record.topic, record.queue_id, at - at % size] = None
        directories = dict.fromkeys(self.directories)
        for topic, queue_id, base in seen:
            directory = self.layout.queue(topic, queue_id)
            self.paths.append(directory / file_name(base))
            directories[directory] = directories[directory.parent] = None
        directories[self.layout.consumequeue] = directories[self.layout.index] = None
        self.directories = list(directories)

    def _fail(self, name: str, error: OSError) -> None:
        if judge(Kind.LOG, Step.SYNC, error.errno) is Meaning.RETRY:
            raise NoDescriptors(f"{name} is not done yet: {error}") from error
        self.log.fail(f"{name} failed: {error}; restart to recover")
        raise StoreFailed(self.log.failed) from error


QUEUES_PER_HOUSEKEEP: Final = 256
RECORDS_PER_QUEUE: Final = 4
HOLD_MS: Final = 1
"""How long one call of `housekeep` may take, less a portion of each kind: below 2 ms in all."""
BACKLOG_MAX: Final = 65_536
"""Records above this number are indexed whatever the time: what waits in memory is bounded."""
REGIONS_PER_HOUSEKEEP: Final = 32


class Companion(Protocol):
    """A table that follows the log: it keeps what is written and rolls back the rest."""

    def settle(self) -> None:
        """Keep the changes of the tick: the log has them."""
        ...

    def roll_back(self) -> None:
        """Undo the changes of the tick: the log has none of them."""
        ...


class WrittenTick:
    """What one write made permanent: the log's end and the queues with their next offsets."""

    __slots__ = ("end_position", "queues", "stored_at_ms")

    def __init__(
        self, end_position: int, stored_at_ms: int, queues: list[tuple[QueueIndex, int]]
    ) -> None:
        self.end_position = end_position
        self.stored_at_ms = stored_at_ms
        self.queues = queues


class Store:
    """An open data directory."""

    def __init__(self, root: Path, config: StoreConfig, files: Files, clock: Clock) -> None:
        """Connect the parts. Callers use `Store.open`."""
        _check_config(config)
        self.config = config
        self.delays_ms = parse_delay_levels(config.delay_levels)
        self.layout = Layout(root)
        self._files = files
        self._clock = clock
        self.log = CommitLog(
            Segments(files, self.layout, config.segment_bytes), config.pending_bytes_max
        )
        self.queues = QueueTable(
            files,
            self.layout,
            QueueFiles(
                files,
                self.layout,
                size=config.queue_file_bytes,
                open_max=queue_files_max(config, files),
            ),
            self.log,
        )
        self.dirty = self.queues.dirty
        self.keys = KeyIndex(
            files, self.layout, slots=config.index_slots, entries=config.index_entries,
            enabled=config.index_enable,
        )  # fmt: skip
        self.reader = Reader(self.log)
        self.note_keys = self.keys.note
        self.companions: list[Companion] = []
        self.keep_from: int | None = None
        """The lowest log position that something still has to read; None: none."""
        self.recovery = RecoveryReport()
        self.checkpoint = Checkpoint()
        self._positions = Positions()
        self._positions_file = PositionsFile(files, self.layout)
        self.ends = EndsFile(files, self.layout)
        self._lock = contextlib.ExitStack()
        self._plan: FlushPlan | None = None
        self._flushed = 0
        self._walk: tuple[int, int] | None = None
        self._index_trouble: str | None = None
        self._disk_trouble: str | None = None
        self.dropped: dict[str, int] = {}
        """Topics that were deleted, with their records before a position of the log."""
        self.undisturbed = False
        """Whether no other broker has used the directory since its last inorder run."""
        self.was_ours = False
        """Whether the directory holds messages and an inorder broker has opened it before."""
        self._kept = 0  # where the log begins, as noted
        self._run = 0  # stands for the token
        self._tail_noted = True  # where the log ends; not, if that failed
        self._closed = False

    @classmethod
    def open(
        cls,
        root: Path,
        config: StoreConfig,
        files: Files,
        clock: Clock,
        *,
        first: Callable[[], None] | None = None,
    ) -> Store:
        """Lock, load and recover a directory. The file `abort` stays in it until a clean close.

        `first` is called once the directory is locked, before the store writes its own notes into
        a directory that has none. A start that is killed meanwhile leaves what `first` wrote.

        Raises:
            StoreLocked: another process, or this one, has the directory open.
            StoreError: the files are not what the settings say, or damaged.
        """
        store = cls(root, config, files, clock)
        store._make_root()
        try:
            store._lock.enter_context(files.lock(store.layout.lock, LOCK_CONTENT))
        except BlockingIOError as error:
            raise StoreLocked(
                f"{root} is in use by another broker: stop it, or choose another directory"
            ) from error
        try:
            known = store._positions_file.exists()
            notes = store._load_notes()
            store._make_directories()
            if first is not None and not known:
                first()
            store._recover(notes)
            store.was_ours = known and store.log.end_position > 0
        except BaseException:
            store.abandon()
            raise
        return store

    def _make_root(self) -> None:
        """Create the directory and make its name durable.

        Its parents are synced until the notes are there: an earlier start may have made some of
        them and failed, or died, before they were durable.
        """
        root = self.layout.root
        self._files.makedirs(root)
        if not self._positions_file.exists():
            for parent in root.parents:
                with contextlib.suppress(PermissionError):  # then another program made it
                    self._files.fsync_dir(parent)

    def _load_notes(self) -> Notes | None:
        """Return the noted ends of queues, if no other broker has used the directory since."""
        notes = self.ends.load()
        if notes is None:
            return None
        if notes.damaged:
            log.error("%s: the ends of queues are taken from the log and the queues", notes.damaged)
        abort = read_abort(self._files, self.layout)
        checkpoint = Checkpoint.load(self._files, self.layout)
        if notes.fit(abort, checkpoint.crc(), self.config.queue_file_bytes):
            return notes
        log.warning("the noted ends of queues are not of the last run; they do not count")
        return None

    def _make_directories(self) -> None:
        layout = self.layout
        if self._positions_file.exists() and not self._files.exists(layout.consumequeue):
            # An operator removed it to have it rebuilt, so its notes are void. Before the
            # directory is there again, or a kill in between would hide that it was gone.
            Checkpoint.load(self._files, layout).without_derived().save(self._files, layout)
            self._positions_file.remove()
        for directory in (layout.commitlog, layout.consumequeue, layout.index, layout.own):
            self._files.makedirs(directory)
        self._files.fsync_dir(layout.root)

    def _recover(self, notes: Notes | None) -> None:
        recovery = Recovery(
            self._files, self.layout, self.config, self._clock, log=self.log, queues=self.queues,
            keys=self.keys, positions_file=self._positions_file, notes=notes,
        )  # fmt: skip
        self.recovery = recovery.run(Dispatcher(self.queues, self.keys, self.delays_ms))
        self.checkpoint = recovery.checkpoint
        self._positions = recovery.positions
        token = self._positions.token
        if not token:
            token = f"inorder {os.getpid()} {self._clock.now_ms()}"
        self._run = run_of(token)
        known_end = max(self.recovery.noted_position, self.log.end_position)
        self._positions_file.write_tail(known_end, self._run)  # until it is dealt with
        self.undisturbed = notes is not None
        self._begin_notes(notes, token)
        if not self._positions.token:
            self._begin_run(token)
        self._write_positions()
        if not self.log.segments.items:
            self._make_first_segment()
        if recovery.unsynced_from is None:
            self.flush_indexes()
        else:
            self._walk = (recovery.unsynced_from, self.log.end_position)
            self._flushed = recovery.unsynced_from
            self.sync()

    def _make_first_segment(self) -> None:
        """Make the log's first file durable before anything is derived from it.

        Otherwise a power cut might keep a queue's directory and lose the log's first file, and
        the next start could not tell that from a log that somebody removed.
        """
        try:
            self.log.segments.extend_to(self.log.end_position)
        except OSError as error:
            raise StoreError(
                f"the first file of {self.layout.commitlog} cannot be made: {error}"
            ) from error

    def _begin_notes(self, notes: Notes | None, token: str) -> None:
        """Note where all queues end now, before one of them gets a message."""
        if notes is None or not self.queues.trusting:
            notes = Notes() if notes is None else notes
            there = {(queue.topic, queue.queue_id) for queue in self.queues.load_all()}
            notes.without_lost(self.log.end_position, there)
        notes.kept = self._kept = self.log.min_position
        notes.without_gone(self.log.min_position)
        for queue in self.queues.loaded():
            if queue.first_file:
                notes.firsts[queue.topic, queue.queue_id] = queue.first_file
        self.queues.on_first = self._note_first
        self.dropped = notes.dropped
        self.ends.begin(
            notes, Begun(token, self.config.queue_file_bytes),
            [(queue.topic, queue.queue_id, queue.tail_offset) for queue in self.queues.loaded()],
            self.log.end_position,
        )  # fmt: skip
        self.queues.to_note.clear()

    def _begin_run(self, token: str) -> None:
        """Mark the directory as used by an inorder broker, and in use.

        The notes come first, void until `abort` names them, and still say that all is clean if it
        is: a kill here costs the next start nothing.
        """
        self._positions = self._positions.moved(token=token)
        self._positions_file.write(self._positions)
        # Void but for the sizes, which tell a file cut short by a crash from a wrong setting.
        config = self.config
        self._positions_file.write_synced(
            Positions(segment_bytes=config.segment_bytes, queue_file_bytes=config.queue_file_bytes)
        )
        self._positions_file.sync_directory()
        self._write_abort(token)
        self._positions = self._positions.moved(clean=False)
        self._positions_file.write(self._positions)

    def _write_abort(self, token: str) -> None:
        content = token.encode()
        file = self._files.open(self.layout.abort, create=True, size=len(content))
        try:
            file.pwrite(content, 0)
            file.fdatasync()
        finally:
            file.close()
        self._files.fsync_dir(self.layout.root)

    # ---- queues

    def queue(self, topic: str, queue_id: int) -> QueueIndex:
        """Return a queue, new if it does not exist."""
        return self.queues.get(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> QueueIndex | None:
        """Return a queue if it exists."""
        return self.queues.find(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's oldest message; 0 for an unknown queue."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def end_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last message that readers may see; 0 for an unknown queue."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.visible_offset

    def queues_of(self, topic: str) -> list[QueueIndex]:
        """Return the queues of a topic, by id."""
        return self.queues.of_topic(topic)

    # ---- the tick

    # hot: 21 µs for 112 records of 376 bytes in 8 queues, of which 16 the pwrite, 2 the tail
    def write_tick(self) -> WrittenTick | None:
        """Write everything appended since the last tick; None if there was nothing.

        Raises:
            DiskFull: nothing of it happened; a later tick may succeed.
            StoreFailed: nothing of it happened, and nothing will.
        """
        commit_log = self.log
        try:
            if not commit_log.write():
                return None
        except StoreError:
            self.queues.roll_back()
            self.keys.roll_back()
            for companion in self.companions:
                companion.roll_back()
            raise
        end = commit_log.end_position
        self._note_tail()
        self.keys.settle(end)
        for companion in self.companions:
            companion.settle()
        return WrittenTick(end, commit_log.stored_at_ms, self.queues.settle())

    def _note_tail(self) -> None:
        """Note where the log ends, before readers see it: after a kill its end may be missing."""
        try:
            self.settle_tail()
        except OSError as error:  # the log has it all; `housekeep` tries again
            self._tail_noted = False
            if self._index_trouble is None:
                log.error("cannot note the end of the log error=%s", error)
            self._index_trouble = f"the end of the log cannot be noted: {error}"

    def settle_tail(self) -> None:
        """Note where the log ends now, also if it ended further on before this start.

        Call it when a lost end is dealt with: a start that is broken off before leaves the next
        one to find the same. The first write does it, too.

        Raises:
            OSError: it is not noted.
        """
        self._positions_file.write_tail(self.log.end_position, self._run)
        self._tail_noted = True

    def publish(self, tick: WrittenTick) -> None:
        """Let readers see what a tick wrote."""
        for queue, offset in tick.queues:
            queue.visible_offset = max(offset, queue.visible_offset)

    def sync(self) -> int:
        """Make the log durable; return up to where it is. May run in another thread.

        Raises:
            StoreFailed: it failed; final.
        """
        return self.log.sync()

    # ---- derived files, a little later

    def housekeep(
        self, now_ms: int, *, budget: int = QUEUES_PER_HOUSEKEEP, keys_only: bool = False
    ) -> bool:
        """Write out queue entries and keys: of up to `budget` queues and 4 times as many records.

        Where many queues wait, a share of them is written a call: so each gathers entries between
        two writes, and thirty-two calls write all. A call ends after `HOLD_MS` and a portion of
        each kind, so that the owner can serve others; the next one goes on there. Returns whether
        more is waiting. Trouble with the disk makes the store unwritable until a later call
        succeeds; the log has everything meanwhile.
        """
        if self._closed:
            raise AlreadyClosed("the store is closed")
        keys = self.keys
        # The more waits, the more a call does: this bounds what waits.
        records = max(budget * RECORDS_PER_QUEUE, keys.settled_count // 8)
        clock = self._clock
        ends_ms = clock.monotonic_ms() + HOLD_MS

        def late() -> bool:
            return clock.monotonic_ms() >= ends_ms

        try:
            if not keys_only:
                self.queues.write_out(max(budget, len(self.queues.unwritten) // 32), late)
            keys.build(min(records, keys.settled_count - BACKLOG_MAX), now_ms)
            keys.build(records, now_ms, late)
            keys.write(now_ms, regions_max=REGIONS_PER_HOUSEKEEP, late=late)
            self._write_positions()
        except OSError as error:
            if self._index_trouble is None:
                log.error("cannot write queues or index error=%s", error)
            full = "the disk is full: " if error.errno in NO_ROOM else ""
            self._index_trouble = f"{full}queues or index cannot be written: {error}"
            return False
        self._index_trouble = None
        return bool(self.queues.unwritten) or keys.settled_count > 0

    def release_memory(self) -> None:
        """Give back memory that only a busy store needs; call it when nothing has come lately."""
        self.keys.release_memory()

    def _note_ends(self) -> None:
        """Note the ends of the queues written since the last time, and where the log begins."""
        to_note = self.queues.to_note
        if self._kept != self.log.min_position:
            self.ends.note([Kept(self.log.min_position)])
            self._kept = self.log.min_position
        if to_note:
            rows: list[Row] = [(one.topic, one.queue_id, one.tail_offset) for one in to_note]
            self.ends.note_ends(rows, self.log.end_position)
            to_note.clear()

    def _note_first(self, queue: QueueIndex, base: int) -> None:
        """Note that files of a queue are deleted. If that fails, its next use finds it damaged."""
        try:
            self.ends.note([Firsts([(queue.topic, queue.queue_id, base)])])
        except OSError as error:
            log.error("not noted which files of a queue retention took error=%s", error)

    def _write_positions(self) -> None:
        self._note_ends()
        if not self._tail_noted:
            self.settle_tail()
        moved = self._positions.moved(
            queues=self.queues.written_position,
            index=self.keys.written_position,
            index_state=self.keys.state,
            queue_count=self.queues.queue_files.queue_count,
        )
        if moved != self._positions:
            self._positions = moved
            self._positions_file.write(moved)

    def plan_flush(self) -> FlushPlan:
        """Return a plan of what to sync now. Any thread may run it, one plan at a time."""
        queue_files = self.queues.queue_files
        unsynced = [queue_files.path(key) for key in queue_files.unsynced]
        unsynced += self.keys.unsynced
        directories = list(queue_files.created)
        if self.keys.unsynced:
            directories.append(self.layout.index)
        if self._plan is not None and not self._plan.done:
            unsynced = list(dict.fromkeys(self._plan.paths + unsynced))
            directories = list(dict.fromkeys(self._plan.directories + directories))
            self._walk = self._plan.walk
        self._flushed = self.flushed_position
        queue_files.unsynced.clear()
        queue_files.created.clear()
        self.keys.unsynced.clear()
        written = self.queues.written_position
        self._note_times(written)
        self._plan = FlushPlan(
            self._files, self.layout, self.log, self._positions_file, unsynced, directories,
            self._positions.moved(
                queues=written, index=self.keys.added_position, index_state=self.keys.state
            ),
            self.checkpoint.copy(), self._walk, self.config.queue_file_bytes,
            self.ends.plan_flush(),
        )  # fmt: skip
        self._walk = None
        return self._plan

    def _note_times(self, written: int) -> None:
        """Set the checkpoint's times: what a flush begun now makes durable."""
        self.checkpoint.log_ms = self.log.stored_at_ms
        first = record_at(self.log, written)
        self.checkpoint.queues_ms = self.log.stored_at_ms if first is None else first.stored_at_ms
        if len(self.keys.files) > 1:
            self.checkpoint.index_ms = self.keys.files[-2].header.end_ms

    def flush_indexes(self) -> None:
        """Sync log, queues and index and note it, all in this thread."""
        self.plan_flush().run()

    # ---- reading

    def record_at(self, position: int) -> memoryview | None:
        """Return the record that begins at `position`, None if none does."""
        found = record_at(self.log, position, check_crc=True)
        return None if found is None else self.log.view_at(position, found.size)

    def visible_record(self, position: int) -> memoryview | None:
        """Return a record, None if it has yet to become durable under sync flush."""
        record = self.record_at(position)
        if record is None:
            return None
        if self.config.sync_flush and position + len(record) > self.log.durable_position:
            return None
        return record

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message, -1 if it is not there."""
        queue = self.find_queue(topic, queue_id)
        return -1 if queue is None else reader.stored_at(self.log, queue, offset)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of a queue's first message, -1 if it has none."""
        queue = self.find_queue(topic, queue_id)
        return -1 if queue is None else reader.stored_at(self.log, queue, queue.min_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "LOWER"
    ) -> int:
        """Return LOWER: the first offset stored at or after; UPPER: the last at or before."""
        queue = self.find_queue(topic, queue_id)
        return 0 if queue is None else reader.search(self.log, queue, timestamp_ms, boundary)

    def query_keys(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> KeyHits:
        """Return where messages with a key lie, also those written just now."""
        self.keys.build(WRITE_ALL, self._clock.now_ms())
        return query(
            self.log, self.keys, topic, key, count_max=max_count, begin_ms=begin_ms, end_ms=end_ms
        )

    # ---- lifecycle

    @property
    def writable(self) -> bool:
        """Return whether messages can be taken."""
        return self.unwritable_reason is None

    @property
    def unwritable_reason(self) -> str | None:
        """Return why no messages can be taken, None if they can."""
        return self.log.failed or self._disk_trouble or self._index_trouble

    @property
    def flushed_position(self) -> int:
        """Return the position below which log and queue entries are on disk, and noted so."""
        if self._plan is not None and self._plan.done:
            self._flushed = max(self._flushed, self._plan.positions.queues)
        return self._flushed

    @property
    def disk_trouble(self) -> str | None:
        """Return why the disk is too full for writes, None if it is not."""
        return self._disk_trouble

    def modified_ms(self, path: Path) -> int:
        """Return when a file was last changed."""
        return self._files.info(path).modified_ms

    def clean(
        self, now_ms: int, local_hour: int, usage: DiskUsage, *, asked: bool = False
    ) -> CleanReport:
        """Delete what has expired or what must go to free space, and judge the free space.

        Expired segments go in the configured hours; if an operator has `asked` for it, at any hour.
        """
        report = retention.clean(self, now_ms, local_hour, usage, asked=asked)
        self._disk_trouble = report.disk_full
        return report

    def clean_queues(self, topic: str) -> int:
        """Begin a topic's queues where the log begins; return how many files were deleted.

        A queue without messages goes on where it ended (`note_taken`).
        """
        removed = 0
        for queue in self.queues.of_topic(topic):
            before = queue.first_file
            self.queues.set_min_offset(queue)
            removed += (queue.first_file - before) // self.config.queue_file_bytes
        return removed

    def note_taken(self, kept: int) -> None:
        """Note that the log begins at a position, and which queues have no message left.

        On a full disk retention still frees space, and the note follows a little later.
        """
        rows: list[Row] = [
            (queue.topic, queue.queue_id, queue.tail_offset)
            for queue in self.queues.loaded()
            if 0 < queue.min_offset == queue.tail_offset == queue.next_offset
        ]
        try:
            self.ends.note([Kept(kept)])
            self._kept = kept
            if rows:
                self.ends.note([Emptied(self.log.end_position, rows)])
        except OSError as error:
            log.error("not noted yet what retention took error=%s", error)

    def plan_mending(self, queues: list[QueueIndex]) -> Callable[[], list[Mended]]:
        """Return a function that compares queues with the log and corrects them; for any thread.

        `QueueTable.take_over` brings what it did into memory.
        """
        wanted = []
        for queue in queues:
            self.queues.queue_files.forget_queue(queue.topic, queue.queue_id)
            since = self.dropped.get(queue.topic, 0)
            wanted.append(Wanted(queue.topic, queue.queue_id, queue.tail_offset, since))
        return partial(
            mend, self._files, self.layout, self.log.segments, wanted, self.delays_ms,
            log_end=self.log.end_position, queue_file_bytes=self.config.queue_file_bytes,
        )  # fmt: skip

    def mend_now(self, queue: QueueIndex) -> None:
        """Compare a queue with the log and correct it, in this thread: at a start."""
        (mended,) = self.plan_mending([queue])()
        self.queues.take_over(mended)
        log.warning(
            "a damaged queue was compared with the log topic=%s queue=%d corrected=%d lost=%d",
            mended.topic, mended.queue_id, mended.changed,
            sum(high - low for low, high in mended.lost),
        )  # fmt: skip

    def extend(self, topic: str, queue_id: int, end: int) -> int:
        """Continue a queue at `end`, after fillers; return where it ended before."""
        queue = self.queue(topic, queue_id)
        before = queue.next_offset
        if not before:
            queue.start_with_filler(end)
        else:
            queue.fill_to(end)
            self.queues.unwritten.pop(queue, None)
        self.queues.to_note[queue] = None
        self._write_positions()
        return before

    def drop_topic(self, topic: str, *, flush: bool = True) -> None:
        """Remove a topic's queues. Its records stay in the log until retention takes them.

        The positions move behind them at once, so that no recovery takes them up again; without
        `flush` the caller sees to it that a flush follows, or a power cut brings them back.
        """
        self.queues.write_out(WRITE_ALL)
        self.keys.write_all(self._clock.now_ms())
        files = self.queues.queue_files
        # First, or a kill in between would look as if somebody had removed queues.
        count = files.queue_count - files.count_of_topic(topic)
        self._positions = self._positions.moved(queue_count=count)
        self._positions_file.write(self._positions)
        self._note_ends()
        self.ends.note([Dropped(topic, self.log.end_position)])
        self.dropped[topic] = self.log.end_position
        self.queues.drop_topic(topic)
        self._write_positions()
        if flush:
            self.flush_indexes()

    def close(self) -> None:
        """Write, sync and note everything; then the directory is as after RocketMQ's clean stop.

        Raises:
            StoreFailed: not everything could be written; `abort` stays, the next start recovers.
        """
        if self._closed:
            return
        try:
            self.write_tick()
            self.queues.write_out(WRITE_ALL)
            self.keys.write_all(self._clock.now_ms())
            self.log.segments.drop_after(max(self.log.end_position, 1))
            self._write_positions()
            self.flush_indexes()
            self._finish_clean()
        except OSError as error:
            raise StoreFailed(f"closing {self.layout.root} failed: {error}") from error
        finally:
            self.abandon()

    def _finish_clean(self) -> None:
        checksums = [self.checkpoint.crc(), self.checkpoint.without_derived().crc()]
        self.ends.note([Clean(self.log.end_position, checksums)])
        self.ends.plan_flush()()
        positions = self._positions.moved(
            clean=True,
            checkpoint_crc=self.checkpoint.crc(),
            queues=self.log.end_position,
            index=self.keys.written_position,
            log=self.log.end_position,
            stored_at_ms=self.log.stored_at_ms,
            queue_count=self.queues.count_on_disk(),
        )
        self._positions_file.write(positions)
        self._positions_file.write_synced(positions)
        self._files.remove(self.layout.abort)
        self._files.fsync_dir(self.layout.root)

    def abandon(self) -> None:
        """Close everything without writing anything, as a kill would."""
        if self._closed:
            return
        self._closed = True
        self.log.close()
        self.queues.queue_files.close()
        self.keys.close()
        self._positions_file.close()
        self.ends.close()
        self._lock.close()

    def __repr__(self) -> str:
        return f"Store({str(self.layout.root)!r}, {self.log!r})"


def queue_files_max(config: StoreConfig, files: Files) -> int:
    """Return how many files of queues are kept open."""
    return min(config.open_files_max, files.descriptors_max() // 4)


def _check_config(config: StoreConfig) -> None:
    if config.queue_file_bytes <= 0 or config.queue_file_bytes % 20:
        raise StoreError(
            f"mappedFileSizeConsumeQueue={config.queue_file_bytes} is not a multiple of 20"
        )
    if config.segment_bytes < 1024:
        raise StoreError(f"mappedFileSizeCommitLog={config.segment_bytes} is below 1024")
    if config.index_slots < 1 or config.index_entries < 2:
        raise StoreError("maxHashSlotNum must be at least 1 and maxIndexNum at least 2")
