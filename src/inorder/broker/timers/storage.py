"""The snapshot of timers, the deliveries in the log after it, and RocketMQ's files of timers.

`TimerSnapshot` saves the table every few seconds, after the log is durable. Timers that were
delivered after the last save lie in the log after the position in the file, each with its mark
(`records.py`). A start loads the file, reads those marks, and notes what the queue holds beyond.
Any client can send a message with such a property, so a mark counts only if its message equals the
timer that waited. Without a file that fits the log, the whole queue and the whole log are read.

A directory that RocketMQ had last has its wheel of timers; `wheel.py` takes them over.
Why: decision 52.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.broker.delays.rules import destination, is_delivery
from inorder.broker.durability import DurableTable, check_fits, fingerprint
from inorder.broker.pops import revivelog
from inorder.broker.pops.revivelog import REVIVE_PREFIX
from inorder.broker.timers import records
from inorder.broker.timers.records import File, mark
from inorder.broker.timers.rules import CHUNK, Saved, TimerTable
from inorder.broker.timers.wheel import (
    CHECKPOINT,
    checkpoint_of,
    has_wheel,
    remove_wheel,
    take_over,
)
from inorder.disk import Files
from inorder.errors import CorruptRecord, RemoteProtocolError
from inorder.logs import get_logger
from inorder.store.intact import is_intact
from inorder.store.layout import ENTRY, ENTRY_BYTES
from inorder.store.scan import marked_records
from inorder.store.snapshot import Snapshot
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.record import Record, decode
from inorder.wire.timers import due_of, is_recall

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.store.consumequeue import QueueIndex
    from inorder.store.store import Store

log = get_logger(__name__)

NAME: Final = "inorderTimers.json"
ENTRIES_AT_ONCE: Final = 4096


class _Checkpointed(Snapshot):
    """The snapshot, with RocketMQ's checkpoint after it."""

    def __init__(self, files: Files, path: Path) -> None:
        super().__init__(files, path)
        self.checkpoint = b""
        self.held_back = False
        self._other = Snapshot(files, path.with_name(CHECKPOINT))

    def save(self, content: bytes) -> None:
        super().save(content)
        if not self.held_back:
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write the checkpoint that belongs to the snapshot saved last."""
        self.held_back = False
        self._other.save(self.checkpoint.ljust(records.CHECKPOINT_BYTES, b"\0"))


class TimerSnapshot(DurableTable):
    """Saves and restores the timers."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, NAME, "the progress of timers was not saved")
        self.file: _Checkpointed = _Checkpointed(broker.files, self.file.path)

    @property
    def revision(self) -> int:
        """Return the revision of the table."""
        return self._broker.timer_table.revision

    @property
    def settled_position(self) -> int:
        """Return a log position after which all unsettled deliveries lie."""
        return self._broker.timers.settled_position

    def encode(self, covered: int) -> Iterator[bytes]:
        """Encode the table in one step."""
        table, store = self._broker.timer_table, self._broker.store
        depends_on = store.log.end_position
        self.file.checkpoint = records.checkpoint(
            due_of(table.frontier[0]), first_waiting(store, table), table.version
        )
        yield records.encode(
            File(table.snapshot(), covered, depends_on, fingerprint(store.log, depends_on))
        )

    def load(self) -> None:
        """Restore the table from the file and from the log after it."""
        broker = self._broker
        store, table = broker.store, broker.timer_table
        queue = store.find_queue(TIMER_TOPIC, 0)
        if has_wheel(broker.files, broker.config.data_path):  # RocketMQ had the directory
            self._take_over(queue)
            return
        saved, start = self._find(queue)
        table.restore(saved)
        if queue is not None:
            now_ms = broker.clock.now_ms()
            found = recover(store, table, start, counted_to=saved.counted_to, now_ms=now_ms)
            log.info("timers waiting=%d delivered_after_the_save=%d", table.total, found)
        self._covered = start

    def _take_over(self, queue: QueueIndex | None) -> None:
        broker = self._broker
        files, root, table = broker.files, broker.config.data_path, broker.timer_table
        self.file.held_back = True
        taken = take_over(files, root, broker.store, table, now_ms=broker.clock.now_ms())
        revivelog.take_over(
            broker, (offset for offset, topic in taken if topic.startswith(REVIVE_PREFIX))
        )
        self.save_here(broker.store.log.end_position)
        remove_wheel(files, root)
        self.file.write_checkpoint()  # last: until then RocketMQ's counts, should this end here
        if table.total:
            log.warning("took over timers of Apache RocketMQ count=%d", table.total)

    def save_at_stop(self) -> None:
        """Save what has changed.

        Raises:
            OSError, StoreError: the old file is kept.
        """
        if self.changed:
            self.save_here()

    def _find(self, queue: QueueIndex | None) -> tuple[Saved, int]:
        """Return the newest file that fits the log, and where its log begins."""
        store = self._broker.store
        for path, content in self.file.contents():
            try:
                file = records.decode(content)
                check_fits(store.log, file.depends_on, file.log_crc)
            except RemoteProtocolError as error:
                log.warning("dropped file=%s: %s", path, error)
                continue
            if queue is not None and file.saved.end <= queue.visible_offset:
                return file.saved, max(file.position, store.log.min_position)
        end = 0 if queue is None else queue.min_offset
        said = checkpoint_of(self._broker.files, self._broker.config.data_path)
        if said is not None and queue is not None and end < said.offset <= queue.visible_offset:
            end = said.offset
        return Saved(end=end, floor=end), store.log.min_position


def recover(store: Store, table: TimerTable, start: int, *, counted_to: int, now_ms: int) -> int:
    """Bring the table to the state of the log; return how many deliveries it lacked."""
    found, queue = 0, store.queue(TIMER_TOPIC, 0)
    segments, end = store.log.segments, store.log.end_position
    for head in marked_records(segments, start, end, records.MARK):
        offset = mark(head.properties)
        known = offset is not None and queue.min_offset <= offset < queue.visible_offset
        if offset is not None and known and not is_intact(store.log, queue, offset):
            store.mend_now(queue)  # or the timer would be delivered again
        entry = None if offset is None else queue.entry(offset)
        if offset is None or entry is None or entry[0] >= head.position:
            continue
        delivered, waited = _record(store, head.position, head.size), _record(store, *entry[:2])
        if (
            delivered is None
            or waited is None
            or not _is_timer(waited, offset)
            or not is_delivery(delivered, waited)
            or delivered.stored_at_ms < due_of(entry[2])
            or not table.was_delivered(offset, entry[2])
        ):
            continue
        found += 1
        if offset < counted_to:
            table.count(_home(waited), -1, now_ms)
    table.next_offset = max(table.next_offset, queue.min_offset)
    for offset, position, size, code in entries(queue, table.next_offset, queue.visible_offset):
        waits = offset >= counted_to and not is_recall(code) and not table.is_done(offset)
        table.note(offset, code)
        if waits:
            waited = _record(store, position, size)
            if waited is not None:
                table.count(_home(waited), 1, now_ms)
    return found


def entries(queue: QueueIndex, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Give the entries of a queue: offset, position, size, code."""
    offset = start
    while offset < end:
        data = queue.read(offset, min(ENTRIES_AT_ONCE, end - offset))
        if not data:
            return
        for position, size, code in ENTRY.iter_unpack(data):
            yield offset, position, size, code
            offset += 1


def read_chunk(queue: QueueIndex, first: int, end: int) -> bytes:
    """Return the entries of a chunk, which may lie in two files."""
    data = b""
    while first + len(data) // ENTRY_BYTES < end:
        at = first + len(data) // ENTRY_BYTES
        more = queue.read(at, end - at)
        if not more:
            break
        data += more
    return data


def first_wrong(data: bytes, start: int, end: int) -> int | None:
    """Return the first offset whose entry is missing or empty; None: all lead somewhere."""
    for offset, (position, size, _) in enumerate(ENTRY.iter_unpack(data), start):
        if size <= 0 or position < 0:
            return offset
    last = start + len(data) // ENTRY_BYTES
    return last if last < end else None


def first_waiting(store: Store, table: TimerTable) -> int:
    """Return the offset of the first timer that waits; the end of the queue if none does."""
    queue, chunk = store.find_queue(TIMER_TOPIC, 0), table.first_chunk()
    if queue is None:
        return 0
    if chunk is None:
        return table.next_offset
    start = max(chunk, queue.min_offset)
    for offset, _, _, code in entries(queue, start, min(chunk + CHUNK, table.next_offset)):
        if table.still_waits(offset, code):
            return offset
    return start


def _is_timer(record: Record, offset: int) -> bool:
    return record.topic == TIMER_TOPIC and record.queue_offset == offset


def _home(record: Record) -> str:
    home = destination(record.properties)
    return "" if home is None else home[0]


def _record(store: Store, position: int, size: int) -> Record | None:
    view = store.log.view_at(position, size)
    try:
        return None if view is None else decode(view)
    except CorruptRecord:
        return None
