"""Opening a directory: find the end of the log, and bring queues and index to it.

Where the reading of the log starts, best first:

    closed      inorder closed the directory and nobody else used it: at the end; nothing is opened
    written     inorder was killed, the machine kept running: after the last entry written
    synced      the machine went down: after the last entry synced
    foreign     another broker stopped cleanly: after the last entry of any queue. (If the notes
                say that inorder had not stopped, someone may have removed `abort`: whole.)
    checkpoint  another broker crashed: at RocketMQ's choice, the segment that began before the
                time in `checkpoint`
    whole       nothing else fits, a record did not continue its queue, or an earlier `whole`
                recovery was interrupted: the whole log

The log ends before the first bytes that are no valid record (size, magic, checksum, own position).
If no valid record follows, these bytes are the torn end of the last write. Recovery clears them, so
that stale bytes do not come back later. If valid records follow, it depends on where the
invalid bytes are. A crash of the machine may lose any unsynced page, so in the unsynced part the
log is cut there, and the report says what was cut. Anywhere else the file is damaged, and the
records after the invalid bytes may have been acknowledged: the broker refuses the directory, unless
`cut_corrupt_log` allows it to continue without them.

Recovery may be killed at any write and started again: it updates the notes of
`store/checkpoints.py` only when all is done, and a repeated run writes the same bytes. Only `whole`
removes files on which the notes rely, so it makes the notes void first. Where recovery starts, and
why: decision 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from inorder.clock import Clock
from inorder.config import StoreConfig
from inorder.disk import Files
from inorder.errors import StoreError
from inorder.logs import get_logger
from inorder.store.checkpoints import Checkpoint, IndexState, Positions, PositionsFile, Tail, run_of
from inorder.store.commitlog import CommitLog
from inorder.store.consumequeue import QueueIndex
from inorder.store.dispatcher import Dispatcher, Mismatch
from inorder.store.ends import Notes
from inorder.store.intact import looks_intact
from inorder.store.keyindex import WRITE_ALL, KeyIndex
from inorder.store.layout import Layout
from inorder.store.mending import NOT_IN_LOG, Loss, Wanted, mend
from inorder.store.queues import NOTHING_CUT, QueueTable
from inorder.store.scan import LogScan, LogTail, is_boundary
from inorder.wire.record import ScannedRecord

log = get_logger(__name__)

WRITE_OUT_RECORDS: Final = 8192


@dataclass(slots=True)
class RecoveryReport:
    """The findings and actions of a recovery."""

    clean: bool = True
    method: str = ""
    started_at_position: int = 0
    end_position: int = 0
    scanned_records: int = 0
    truncated_bytes: int = 0
    duration_ms: int = 0
    problems: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    """Messages that are known to be lost."""
    uncertain: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, id and known end of queues that may have assigned offsets beyond that end."""
    noted_position: int = 0
    """The highest known end of the log. If the log ends before it, a tail is lost."""
    was_short: bool = False
    """A file of the log was short: a tail may be lost."""


@dataclass(frozen=True, slots=True)
class Start:
    """One place where reading the log can start (see the module's table)."""

    method: str
    queues_from: int
    index_from: int
    index_state: IndexState = field(default_factory=IndexState)
    log_synced: int = 0
    stored_at_ms: int = 0
    keys_after: int = -1  # the index has the keys up to this record, noted or not
    queues_synced: int = 0
    queue_count: int = 0  # how many queues have a directory


class Recovery:
    """One opening of a directory."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        config: StoreConfig,
        clock: Clock,
        *,
        log: CommitLog,
        queues: QueueTable,
        keys: KeyIndex,
        positions_file: PositionsFile,
        notes: Notes | None,
    ) -> None:
        self._files = files
        self._layout = layout
        self._config = config
        self._clock = clock
        self._log = log
        self._queues = queues
        self._keys = keys
        self._positions_file = positions_file
        self.notes = notes
        """The noted ends of queues; None: there are no valid notes."""
        self._abort = read_abort(files, layout)
        self.checkpoint = Checkpoint.load(files, layout)
        self.unsynced_from: int | None = None  # entries after it may not be on disk
        self.report = RecoveryReport(clean=self._abort is None)
        self.positions = Positions(
            boot_id=files.boot_id(),
            segment_bytes=config.segment_bytes,
            queue_file_bytes=config.queue_file_bytes,
        )

    def run(self, dispatcher: Dispatcher) -> RecoveryReport:
        """Recover; afterwards log, queues and index are ready and `positions` describes them.

        Raises:
            StoreError: the files do not fit the settings, or are damaged.
        """
        began_ms = self._clock.monotonic_ms()
        if self.notes is not None:
            self._queues.noted = self.notes.ends
            self._queues.firsts = self.notes.firsts
            self.report.noted_position = known_end(self.notes, self._positions_file.load_tail())
        written, synced = self._positions_file.load()
        unfinished = any(
            slot is not None
            and self._sizes_fit(slot)
            and (self._abort is not None or not slot.clean)
            for slot in (written, synced)
        )
        self._log.segments.load(short_allowed=unfinished)
        self.report.was_short = self._log.segments.completed
        self._queues.short_allowed = unfinished
        if not self._log.segments.items:
            self._refuse_queues_without_log()
        for start in self._starts(written, synced):
            try:
                self._try(start, dispatcher, short_allowed=unfinished)
            except Mismatch as mismatch:
                log.warning("recovery goes back method=%s reason=%s", start.method, mismatch)
                continue
            break
        self._mend(dispatcher.delays_ms)
        self.report.duration_ms = self._clock.monotonic_ms() - began_ms
        self.report.problems += dispatcher.problems
        self.report.losses += (Loss(*gap, NOT_IN_LOG) for gap in dispatcher.gaps)
        self._log_report()
        return self.report

    def _sizes_fit(self, noted: Positions) -> bool:
        return (noted.segment_bytes, noted.queue_file_bytes) == (
            self._config.segment_bytes,
            self._config.queue_file_bytes,
        )

    def _refuse_queues_without_log(self) -> None:
        self._queues.discover()
        for queue in self._queues.load_all():
            if queue.next_offset > queue.min_offset:
                raise StoreError(
                    f"{self._layout.commitlog} is empty but there are queues: restore the log, or "
                    "remove consumequeue and index to begin with nothing"
                )

    def _starts(self, written: Positions | None, synced: Positions | None) -> Iterator[Start]:
        """Yield the possible starts, best first."""
        segments = self._log.segments
        low = segments.min_position
        if self._abort is None:
            if (
                written is not None
                and written.clean
                and self._sizes_fit(written)
                and written.checkpoint_crc == self.checkpoint.crc()
                and is_boundary(segments, written.queues)
            ):
                noted = self.positions
                self.positions = written.moved(token="", boot_id=noted.boot_id)
                yield self._from_slot("closed", written, synced)
                self.positions = noted  # the queues are not those of the last stop
            elif written is None or written.clean:
                yield Start("foreign", low, low)
        else:
            for slot, method in ((written, "written"), (synced, "synced")):
                if slot is None or slot.token != self._abort or not self._sizes_fit(slot):
                    continue
                boot_id = self._files.boot_id()
                if method == "written" and (not boot_id or slot.boot_id != boot_id):
                    continue
                if low <= slot.queues and is_boundary(segments, slot.queues):
                    self.positions = self.positions.moved(token=slot.token)
                    yield self._from_slot(method, slot, synced)
            yield self._by_checkpoint()
        self.positions = self.positions.moved(token="")
        yield Start("whole", low, low)

    def _from_slot(self, method: str, slot: Positions, synced: Positions | None) -> Start:
        if synced is None or synced.token != slot.token:
            low = self._log.min_position
            synced = Positions(queues=low, log=low)
        # Retention may have taken records that were not in the key index yet.
        index_from = max(slot.index, self._log.min_position)
        return Start(
            method, slot.queues, index_from, slot.index_state, synced.log, slot.stored_at_ms,
            queues_synced=max(synced.queues, self._log.min_position), queue_count=slot.queue_count,
        )  # fmt: skip

    def _by_checkpoint(self) -> Start:
        """Choose as RocketMQ: the last segment whose first record is older than the checkpoint."""
        self.positions = self.positions.moved(token="")
        for segment in reversed(self._log.segments.items):
            first = next(iter(LogScan(self._log.segments, segment.position)), None)
            if first is not None and 0 < first.stored_at_ms <= self.checkpoint.min_ms:
                return Start("checkpoint", segment.position, segment.position)
        low = self._log.min_position
        return Start("whole", low, low)

    def _try(self, start: Start, dispatcher: Dispatcher, *, short_allowed: bool) -> None:
        """Recover from one start."""
        if start.method != "closed" and not self.positions.token:
            self._positions_file.write(self.positions)  # with the sizes, before anything is cut
        if start.method == "whole":
            self._void_notes()
        segments = self._log.segments
        self._log.end_position = segments.items[-1].end if segments.items else 0
        dispatcher.dropped = {} if self.notes is None else self.notes.dropped
        start = self._prepare_queues(start)
        found = self._queues.queue_files.queue_count
        if not self._queues.trusting:
            if start.method == "closed" and found != self.positions.queue_count:
                raise Mismatch(f"{found} queues, not {self.positions.queue_count}")
            if found < start.queue_count:  # an operator removed some, to have them rebuilt
                raise Mismatch(f"{found} queues, of {start.queue_count} that there were")
        start = self._prepare_index(start, short_allowed=short_allowed)
        dispatcher.strict = start.method != "whole"
        dispatcher.problems.clear()
        dispatcher.gaps.clear()
        report = self.report
        report.method = start.method
        report.started_at_position = start.queues_from
        report.scanned_records = 0
        report.problems.clear()
        first = start.queues_from
        if self._keys.enabled:
            first = min(first, start.index_from)
        last, end = self._dispatch(first, start, dispatcher)
        self._judge_end(start, end)
        self._finish(start, end, last)

    def _void_notes(self) -> None:
        """Make the notes void before queues and index are emptied, for a kill in between."""
        self._positions_file.write_synced(self.positions)
        self.checkpoint.without_derived().save(self._files, self._layout)

    def _prepare_queues(self, start: Start) -> Start:
        queues = self._queues
        queues.queue_files.close()
        queues.verifying = queues.cutting = queues.thorough = False
        queues.limit = NOTHING_CUT
        queues.trusting = self._trusts(start)
        queues.discover()
        if start.method == "foreign":
            queues.verifying = True
            queues.limit = self._log.end_position
            ends = [queue.end_position for queue in queues.load_all()]
            position = max([self._log.min_position, *ends])
            queues.discover()
            start = Start("foreign", position, position)
        queues.limit = start.queues_from
        queues.cutting = start.method != "closed"
        queues.thorough = queues.cutting and start.method != "written"
        if queues.thorough:
            queues.load_all()
        return start

    def _trusts(self, start: Start) -> bool:
        """Return whether queues end where the notes say; notes may be older than the files."""
        notes = self.notes
        if notes is None or notes.damaged or start.method not in ("closed", "written"):
            return False
        return notes.position >= start.queues_from

    def _mend(self, delays_ms: Sequence[int]) -> None:
        """Repair, from the log, the queues that a quick check finds damaged."""
        damaged = [queue for queue in self._suspects() if queue.damaged or self._is_short(queue)]
        self._look_at_first_segment()
        if damaged:
            self._correct(damaged, delays_ms)
        self._queues.on_damage = lambda _queue: None

    def _suspects(self) -> list[QueueIndex]:
        """Return the queues that can be damaged, loaded."""
        queues, notes = self._queues, self.notes
        if not queues.trusting:
            if notes is None and self.report.method not in ("closed", "written"):
                return []  # another broker wrote them, or they were just made from the log
            found = queues.load_all()
            for queue in found:
                queue.damaged = queue.damaged or not looks_intact(self._log, queue)
            return found
        size = self._config.queue_file_bytes
        for topic, queue_id in () if notes is None else notes.ends:
            if not queues.has_last_file(topic, queue_id, size):
                queues.get(topic, queue_id)
        return list(queues.loaded())

    def _is_short(self, queue: QueueIndex) -> bool:
        """Return whether a queue ends before its noted end although the log is complete."""
        noted = None if self.notes is None else self.notes.ends.get((queue.topic, queue.queue_id))
        if noted is None or noted.position > self._log.end_position:
            return False
        return queue.settled_offset < noted.end

    def _correct(self, damaged: list[QueueIndex], delays_ms: Sequence[int]) -> None:
        notes = self.notes
        dropped = {} if notes is None else notes.dropped
        ends = {} if notes is None else notes.ends
        wanted = []
        for queue in damaged:
            key = (queue.topic, queue.queue_id)
            noted = ends.get(key)
            end = None if noted is None else max(noted.end, queue.settled_offset)
            wanted.append(Wanted(*key, end, dropped.get(queue.topic, 0)))
        clean = notes is not None and notes.clean and not notes.damaged
        done = mend(
            self._files, self._layout, self._log.segments, wanted, delays_ms,
            log_end=self._log.end_position, queue_file_bytes=self._config.queue_file_bytes,
        )  # fmt: skip
        for mended in done:
            key = (mended.topic, mended.queue_id)
            noted = ends.get(key)
            self._queues.take_over(mended)
            certain = mended.holds_last or clean or (noted is not None and noted.emptied)
            if mended.end and not certain:
                self.report.uncertain.append((*key, mended.end))
            self.report.losses += (Loss(*key, low, high, NOT_IN_LOG) for low, high in mended.lost)
            what = f"{mended.topic}/{mended.queue_id} was damaged: {mended.changed} entries"
            self.report.problems.append(f"{what} up to offset {mended.end} made again from the log")

    def _look_at_first_segment(self) -> None:
        """Report a missing beginning of the log that retention did not remove."""
        notes, oldest = self.notes, self._log.min_position
        if notes is None or notes.damaged or oldest <= notes.kept:
            return
        self.report.losses.append(
            Loss("", -1, notes.kept, oldest, "files of commitlog are missing at its beginning")
        )

    def _prepare_index(self, start: Start, *, short_allowed: bool) -> Start:
        """Bring the index files to a state that can be continued; return from which position."""
        keys = self._keys
        keys.close()
        if not keys.enabled:
            keys.start_at(start.index_from)
            return start
        keys.load(short_allowed=short_allowed)
        index_from = start.index_from
        keys_after = -1
        whole = self._log.min_position
        names = [int(file.path.name) for file in keys.files]
        if start.method in ("closed", "written"):
            number = start.index_state.file_number
            if number and number not in names:
                index_from = whole
            else:
                index_from = max(index_from, keys.end_position)  # both are starts of records
                keys_after = keys.end_position
        elif start.method == "synced":
            if not keys.restore(start.index_state):
                index_from = whole
        elif start.method == "foreign":
            if not names:
                index_from = whole
        else:
            index_from = self._keep_safe_index_files()
        if index_from == whole:
            keys.remove_after(0)
        keys.start_at(index_from)
        return Start(
            start.method, start.queues_from, index_from, start.index_state, start.log_synced,
            start.stored_at_ms, keys_after, start.queues_synced,
        )  # fmt: skip

    def _keep_safe_index_files(self) -> int:
        """Keep index files that another broker completed and synced; continue after the last."""
        keys = self._keys
        kept = 0
        while kept < len(keys.files):
            header = keys.files[kept].header
            if header.next_entry <= 1 or header.end_ms > self.checkpoint.index_ms:
                break
            kept += 1
        keys.remove_after(kept)
        return max(keys.end_position, self._log.min_position)

    def _dispatch(
        self, first: int, start: Start, dispatcher: Dispatcher
    ) -> tuple[ScannedRecord | None, int]:
        """Feed queues and index with the records from `first` on; return the last, and the end."""
        found = LogScan(self._log.segments, first)
        last: ScannedRecord | None = None
        for record in found:
            if record.position >= start.queues_from:
                dispatcher.to_queue(record)
            if record.position >= start.index_from and record.position > start.keys_after:
                dispatcher.to_keys(record)
            last = record
            self.report.scanned_records += 1
            if self.report.scanned_records % WRITE_OUT_RECORDS == 0:
                self._write_out(found.end)
        self._log.end_position = found.end
        self._write_out(found.end)
        return last, found.end

    def _write_out(self, end: int) -> None:
        """Write the entries and keys of the records up to `end`.

        The end of the log stays where it is: a queue is loaded with the first record that it lacks,
        and its last entry may lead to a record that lies behind this one, if the index has fewer
        records than the queues. With an earlier end the queue would look damaged.
        """
        self._queues.settle()
        self._queues.write_out(WRITE_ALL)
        self._keys.settle(end)
        self._keys.build(WRITE_ALL, self._clock.now_ms())

    def _judge_end(self, start: Start, end: int) -> None:
        """Tell a torn end from damage."""
        if start.method == "closed":
            return
        tail = LogTail(self._log.segments, end)
        report = self.report
        report.truncated_bytes = tail.last_byte - end
        first = tail.first
        if first is not None:
            segment = self._log.segments.find(end)
            where = "the log" if segment is None else str(segment.path)
            what = (
                f"{where} is damaged at position {end}, but valid records follow at position "
                f"{first.position}"
            )
            if self._is_damage(start, end, first) and not self._config.cut_corrupt_log:
                raise StoreError(
                    f"{what}: restore the file from a copy, or start once with "
                    "cut_corrupt_log=true to end the log there and lose what follows"
                )
            report.problems.append(f"{what}; {report.truncated_bytes} bytes were cut")
        elif end < start.log_synced:
            report.problems.append(
                f"the log ends at position {end} although it was synced up to {start.log_synced}"
            )

    def _is_damage(self, start: Start, end: int, first: ScannedRecord) -> bool:
        if start.method == "written":
            return True
        if start.method == "foreign":  # RocketMQ does not clear what it cuts
            return False
        if start.log_synced:
            return end < start.log_synced
        return first.stored_at_ms <= self.checkpoint.log_ms

    def _finish(self, start: Start, end: int, last: ScannedRecord | None) -> None:
        commit_log, queues, keys = self._log, self._queues, self._keys
        stored_at_ms = start.stored_at_ms or self.checkpoint.log_ms
        if last is not None:
            stored_at_ms = last.stored_at_ms
            self.checkpoint.confirm_position = last.position
        if start.method != "closed":
            self._cut_log(end)
        commit_log.start_at(end, stored_at_ms)
        self.unsynced_from = None
        if start.method != "closed":
            commit_log.forget_synced(min(start.log_synced, start.queues_from, end))
        if start.method == "written":
            self.unsynced_from = start.queues_synced
            keys.unsynced.update(dict.fromkeys(file.path for file in keys.files))
        elif start.method != "closed":
            queues.queue_files.doubt_names()
        if keys.enabled and keys.end_position >= end:
            self._reindex(end)
        for queue in queues.loaded():
            queue.visible_offset = queue.settled_offset
            if start.method != "closed":
                queues.set_min_offset(queue)
        keys.write_all(self._clock.now_ms())
        self.report.end_position = end

    def _cut_log(self, end: int) -> None:
        """Clear everything after the end."""
        segments = self._log.segments
        segments.drop_after(max(end, 1))
        segment = segments.find(end)
        if segment is not None and end < segment.end:
            segment.clear_from(end)

    def _reindex(self, end: int) -> None:
        """Rebuild the whole index: it held records that the log no longer has."""
        self._keys.remove_after(0)
        self._keys.start_at(self._log.min_position)
        for record in LogScan(self._log.segments, self._log.min_position):
            self._keys.note(record.topic, record.properties, record.position, record.stored_at_ms)
        self._keys.settle(end)
        self._keys.build(WRITE_ALL, self._clock.now_ms())

    def _log_report(self) -> None:
        report = self.report
        for problem in report.problems:
            log.error("recovery problem=%s", problem)
        log.info(
            "opened root=%s clean=%s method=%s from=%d end=%d records=%d cut_bytes=%d ms=%d",
            self._layout.root, report.clean, report.method, report.started_at_position,
            report.end_position, report.scanned_records, report.truncated_bytes,
            report.duration_ms,
        )  # fmt: skip


def known_end(notes: Notes, tail: Tail | None) -> int:
    """Return how far the log is known to have been written when its last run ended.

    The notes follow the log within a batch of queue entries, the tail with every write. It counts
    if it is from the same run as the notes: another run's log may have ended elsewhere.
    """
    if tail is None or tail.run != run_of(notes.token):
        return notes.position
    return max(notes.position, tail.position)


def read_abort(files: Files, layout: Layout) -> str | None:
    """Return the content of `abort`, None if there is none."""
    try:
        file = files.open(layout.abort)
    except FileNotFoundError:
        return None
    try:
        return file.pread(256, 0).rstrip(b"\0").decode("ascii", "replace")
    finally:
        file.close()
