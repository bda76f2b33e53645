"""RocketMQ's wheel of timers, which a start takes over.

    timerwheel     slots of a second; not read
    timerlog       one unit of 52 bytes for each timer that was put into the wheel: when, and where
                   its record lies. A timer of more than two days is put in for an earlier time, and
                   stored again then; so a unit whose time has passed is over, whatever its record
                   says
    timercheck     up to when the wheel was delivered, and which entries of the queue are in it

Those units that are not over yet, and entries of the queue that are not in the wheel, still wait.
RocketMQ's queue entries hold the hash of the tag. `take_over` writes the code there that inorder's
entries have; should it be killed, the next start does it again. Then the wheel is removed, because
RocketMQ would believe it and not the queue. Why: decision 52.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.broker.delays.rules import destination
from inorder.broker.timers import records
from inorder.broker.timers.rules import Saved, TimerTable
from inorder.disk import Files
from inorder.errors import CorruptRecord, StoreError
from inorder.logs import get_logger
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.record import Record, decode
from inorder.wire.timers import code_of, entry_code, is_recall

if TYPE_CHECKING:
    from inorder.store.consumequeue import QueueIndex
    from inorder.store.store import Store

log = get_logger(__name__)

CHECKPOINT: Final = "timercheck"
WHEEL: Final = "timerwheel"
WHEEL_LOG: Final = "timerlog"
_BLOCK_BYTES: Final = records.UNIT.size * 20_000


def has_wheel(files: Files, root: Path) -> bool:
    """Return whether RocketMQ was the last to use the timers of a directory."""
    return files.exists(root / WHEEL)


def refuse_unknown(files: Files, root: Path) -> None:
    """Refuse a directory whose wheel cannot be understood.

    Raises:
        StoreError: its checkpoint is missing; nothing was changed.
    """
    used = has_wheel(files, root) and next(_units(files, root), None) is not None
    if used and checkpoint_of(files, root) is None:
        raise StoreError(
            f"{root} holds timer messages of Apache RocketMQ, and {root}/config/{CHECKPOINT}, "
            "which says which of them are delivered, is missing; nothing was changed. Start "
            f"RocketMQ on the directory and stop it cleanly, or delete {WHEEL} and {WHEEL_LOG} to "
            "drop those messages"
        )


def checkpoint_of(files: Files, root: Path) -> records.RocketCheck | None:
    """Return what the checkpoint says; None if there is none."""
    path = root / "config" / CHECKPOINT
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return records.read_checkpoint(file.pread(records.CHECKPOINT.size, 0))
    finally:
        file.close()


def remove_wheel(files: Files, root: Path) -> None:
    """Remove the wheel; RocketMQ makes a new one from the queue, as its checkpoint says."""
    files.remove_tree(root / WHEEL_LOG)
    files.remove(root / WHEEL)
    files.fsync_dir(root)


def take_over(
    files: Files, root: Path, store: Store, table: TimerTable, *, now_ms: int
) -> list[tuple[int, str]]:
    """Fill an empty table with the timers that wait in RocketMQ's wheel and queue.

    Returns their offsets, with the topics that they wait for.
    """
    found: list[tuple[int, int, str]] = []
    queue, said = store.find_queue(TIMER_TOPIC, 0), checkpoint_of(files, root)
    end = 0 if queue is None else queue.visible_offset
    saved = Saved(end=end)
    if said is not None and queue is not None:
        saved.frontier = (code_of(said.read_ms) + 1, 0)  # its second was delivered to its end
        taking = _Taking(store, queue, saved)
        for time_ms, position in _units(files, root):
            taking.unit(position, over=time_ms < said.read_ms)
        for offset in range(max(said.offset, taking.last + 1, queue.min_offset), end):
            entry = queue.entry(offset)
            if entry is not None:
                taking.waits(entry[0])
        taking.sync()
        found = taking.found
    table.restore(saved)
    for offset, code, topic in found:
        table.take_up(offset, code)
        if not is_recall(code):
            table.count(topic, 1, now_ms)
    return [(offset, topic) for offset, _, topic in found]


def _units(files: Files, root: Path) -> Iterator[tuple[int, int]]:
    for name in files.listdir(root / WHEEL_LOG):
        file = files.open(root / WHEEL_LOG / name)
        try:
            for at in range(0, file.size(), _BLOCK_BYTES):
                yield from records.units(file.pread(_BLOCK_BYTES, at))
        finally:
            file.close()


class _Taking:
    """The timers that were found to wait."""

    def __init__(self, store: Store, queue: QueueIndex, saved: Saved) -> None:
        self._store = store
        self._queue = queue
        self._saved = saved
        self._seen = bytearray(saved.end // 8 + 1)
        self.found: list[tuple[int, int, str]] = []
        self.last = -1
        """The last offset that is in the wheel."""

    def unit(self, position: int, *, over: bool) -> None:
        """Take a unit of the wheel."""
        record = self._record(position)
        if record is None:
            if not over:
                log.error("a timer of RocketMQ is not in the log position=%d", position)
            return
        self.last = max(self.last, record.queue_offset)
        if not over:
            self._take(record)
            return
        code, offset = entry_code(record.properties), record.queue_offset
        if code is not None and (code, offset) >= self._saved.frontier:
            self._saved.done[offset] = code  # it was stored again for its time, in another unit

    def waits(self, position: int) -> None:
        """Take an entry of the queue that is not in the wheel."""
        record = self._record(position)
        if record is not None:
            self._take(record)

    def _record(self, position: int) -> Record | None:
        raw = self._store.record_at(position)
        try:
            record = None if raw is None else decode(raw)
        except CorruptRecord:
            record = None
        return None if record is None or record.topic != TIMER_TOPIC else record

    def _take(self, record: Record) -> None:
        offset, code = record.queue_offset, entry_code(record.properties)
        entry, home = self._queue.entry(offset), destination(record.properties)
        if code is None or entry is None or home is None or entry[0] != record.position:
            log.error("a timer of RocketMQ cannot be taken over offset=%d", offset)
            return
        if self._seen[offset // 8] & 1 << offset % 8:
            return
        self._seen[offset // 8] |= 1 << offset % 8
        if entry[2] != code:  # else the entry was just made from the log
            self._queue.set_tag_code(offset, code)
        self.found.append((offset, code, home[0]))

    def sync(self) -> None:
        """Return when the new codes are on disk."""
        self._queue.sync_tag_codes()
