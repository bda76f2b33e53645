"""Messages that nobody acknowledged in time: they go to the POP retry topic of their group.

The alarm of the loop is set to the first deadline. A turn takes at most `TURN_RECORDS` messages.
Their copies go into the log as part of the loop's tick. When the tick is safe by the flush mode,
the journal notes that the messages are done, and the group's offset moves on. A kill between the
two repeats the copies; no message is lost. Why: decision 54.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.broker.pops.records import PopDone, revived
from inorder.broker.pops.rules import CheckPoint
from inorder.errors import BrokerError, CorruptRecord, StoreError, SystemError_
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.wire.record import Record, decode

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

log = get_logger(__name__)

TURN_RECORDS: Final = 256
PENDING_MAX: Final = 16 * TURN_RECORDS
RETRY_MS: Final = 200
UNWRITABLE_MS: Final = 1000
SAY_MS: Final = 10_000
_Due = list[tuple[GroupQueue, CheckPoint]]


class Copies:
    """The copies of one turn, until the tick reports their outcome."""

    __slots__ = ("_revival", "count", "done")

    def __init__(self, revival: Revival, done: _Due) -> None:
        self._revival = revival
        self.done = done
        self.count = 0

    def write(self) -> None:
        """The copies are stored, safe by the flush mode."""
        self._revival.stored(self)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """The copies are not stored."""
        self._revival.refused(self, remark)

    def write_late(self) -> bool:
        """Keep waiting: the outcome still matters."""
        return False


class Revival:
    """Stores messages in their retry topics when their time is over."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.pop_table
        self._pending = 0
        self._stopped = False
        self._say_ms = 0
        self.revived = 0
        self.gone = 0

    def __repr__(self) -> str:
        return f"Revival({self.revived} revived, {self._pending} being stored)"

    @property
    def idle(self) -> bool:
        """Return whether no copy is being stored."""
        return not self._pending

    def cancel(self) -> None:
        """Store no more."""
        self._stopped = True

    def on_deadline(self) -> int | None:
        """Store what is due; return when to look again."""
        now_ms = self._broker.clock.monotonic_ms()
        next_ms = self._table.next_deadline_ms()
        if self._stopped or next_ms is None or next_ms > now_ms:
            return None if self._stopped else next_ms
        if not self._broker.writable:
            return now_ms + UNWRITABLE_MS
        if self._pending >= PENDING_MAX:
            return now_ms + RETRY_MS
        due = self._table.due(now_ms, TURN_RECORDS)
        if due:
            self._read(due)
        return self._table.next_deadline_ms()

    def _read(self, due: _Due) -> None:
        """Read the messages: in a thread, if they may have to come from the disk."""
        store = self._broker.store
        places = [
            (key, point, offset, self._entry(key, offset))
            for key, point in due
            for offset in point.left
        ]
        known = [entry for *_, entry in places if entry is not None]
        coldest = min((position for position, _ in known), default=store.log.end_position)
        self._pending += len(places)

        def load() -> list[bytes | None]:
            return [None if entry is None else store.log.read_at(*entry) for *_, entry in places]

        def loaded(raws: list[bytes | None]) -> None:
            if not self._stopped:
                self._store(due, [
                    (key, point, offset, raw)
                    for (key, point, offset, _), raw in zip(places, raws, strict=True)
                ])  # fmt: skip

        def failed(error: BaseException) -> None:
            self._pending -= len(places)
            self._put_off(due, str(error))

        if store.log.end_position - coldest > store.reader.hot_bytes:
            self._broker.offload.run(load, loaded, failed)
        else:
            loaded(load())

    def _entry(self, key: GroupQueue, offset: int) -> tuple[int, int] | None:
        queue = self._broker.store.find_queue(key.topic, key.queue_id)
        entry = None if queue is None or offset < queue.min_offset else queue.entry(offset)
        return None if entry is None or entry[1] <= 0 else (entry[0], entry[1])

    def _store(
        self, due: _Due, found: list[tuple[GroupQueue, CheckPoint, int, bytes | None]]
    ) -> None:
        self._pending -= len(found)
        failed: dict[CheckPoint, str] = {}
        copies = Copies(self, due)
        for key, point, offset, raw in found:
            try:
                record = self._copy(key, point, offset, raw)
                if record is not None and offset in point.left:
                    target = self._broker.sends.target(record.topic, 0)
                    self._broker.sends.packer.put_record(target, record)
                    copies.count += 1
            except (BrokerError, StoreError, OSError) as error:
                # Copies in the log's buffer will be written, and come twice; none is lost.
                failed[point] = str(error)
        copies.done = [one for one in due if one[1] not in failed]
        for one in due:
            if one[1] in failed:
                self._put_off([one], failed[one[1]])
        self._pending += copies.count
        if copies.count:
            self._broker.ticks.take(copies)
        else:
            self.stored(copies)

    def _copy(
        self, key: GroupQueue, point: CheckPoint, offset: int, raw: bytes | None
    ) -> Record | None:
        """Return the copy of a message; None: it is gone."""
        try:
            record = None if raw is None else decode(raw)
        except CorruptRecord:
            record = None
        if record is None or (record.topic, record.queue_id, record.queue_offset) != (
            key.topic, key.queue_id, offset,
        ):  # fmt: skip
            self.gone += 1
            log.warning(
                "a popped message is gone and does not come again topic=%s queue=%d group=%s "
                "offset=%d", key.topic, key.queue_id, key.group, offset,
            )  # fmt: skip
            return None
        copy = revived(
            record, group=key.group, pop_ms=point.pop_ms, store_host=self._broker.store_host
        )
        self._ensure(key, copy.topic)
        copy.stored_at_ms = self._broker.clock.now_ms()
        return copy

    def _ensure(self, key: GroupQueue, topic: str) -> None:
        """Create a retry topic; its group reads it from the beginning."""
        broker = self._broker
        if topic not in broker.topics and len(broker.topics) >= broker.topics.topics_max:
            raise SystemError_(f"{topic} is not created: there are {len(broker.topics)} topics")
        broker.ensure_topic(topic, queues=1)
        if broker.offsets.query(key.group, topic, 0) < 0:
            first = broker.store.min_offset(topic, 0)
            broker.offsets.commit(key.group, topic, 0, first, broker.clock.now_ms())

    # -- outcome ---------------------------------------------------------------------------------

    def stored(self, copies: Copies) -> None:
        """Note that messages are done, since their copies are stored."""
        self._pending -= copies.count
        self.revived += copies.count
        done = [(key, point, list(point.left)) for key, point in copies.done if point.left]
        self._broker.lease_journal.write_later(
            [PopDone(*key, point.pop_ms, offsets) for key, point, offsets in done]
        )
        for key, point, offsets in done:
            self._broker.acks.finish(key, point.pop_ms, offsets)
        self._broker.housekeeping.pop_deadline(self._table.next_deadline_ms())

    def refused(self, copies: Copies, remark: str) -> None:
        """Store copies again later that could not be stored."""
        self._pending -= copies.count
        self._put_off(copies.done, remark)

    def _put_off(self, due: _Due, reason: str) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms >= self._say_ms:
            self._say_ms = now_ms + SAY_MS
            log.error("popped messages have to wait for their retry topic: %s", reason)
        until_ms = now_ms + RETRY_MS
        for key, point in due:
            self._table.put_off(key, point, until_ms)
        self._broker.housekeeping.pop_deadline(until_ms)
