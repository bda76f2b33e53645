"""Delayed messages: stored in the queue of their level, delivered when they are due.

One timer is set to the time when the next message is due; no timer is set while none waits. A turn
delivers at most `TURN_RECORDS` messages, oldest first, as part of the loop's tick. Their records go
into the log's buffer like those of clients, and count as delivered when the tick is safe by the
flush mode. If the write fails, the messages are delivered again later. Each record carries a mark,
by which a start after a crash knows that it was delivered (`storage.py`).

Two turns are at least `TURN_GAP_MS` apart unless work is left, so that many messages share a write.
A message whose key moved to another broker goes through `forwarding.py`. Why: decision 23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.broker.delays.rules import Due, delivered_properties, destination, scheduled_properties
from inorder.broker.delays.storage import NOT_DELIVERED_TO, levels_of
from inorder.broker.sends.packing import Target
from inorder.broker.sends.rules import delay_level
from inorder.errors import BrokerError, CorruptRecord, StoreError
from inorder.logs import get_logger
from inorder.store.intact import count_intact
from inorder.store.layout import ENTRY, ENTRY_BYTES
from inorder.wire.names import SCHEDULE_TOPIC
from inorder.wire.properties import join, parse
from inorder.wire.record import Record, decode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from inorder.broker.broker import Broker
    from inorder.store.consumequeue import QueueIndex

log = get_logger(__name__)

TURN_RECORDS: Final = 256
TURN_BYTES: Final = 4 * 1024 * 1024
TURN_GAP_MS: Final = 10
PENDING_MAX: Final = 16 * TURN_RECORDS
NOT_VISIBLE_YET_MS: Final = 5
RETRY_MS: Final = 100
UNWRITABLE_MS: Final = 1000
CLOCK_STEP_MS: Final = 20


class Delivery:
    """The records of one turn, until the tick reports their outcome."""

    __slots__ = ("_delayed", "count", "position", "spans")

    def __init__(self, delayed: Delayed, position: int) -> None:
        self._delayed = delayed
        self.position = position
        """Its records lie at or after this log position."""
        self.count = 0
        self.spans: dict[int, tuple[int, int]] = {}

    def write(self) -> None:
        """The records are stored, safe by the flush mode."""
        self._delayed.stored(self)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """The records are not stored."""
        self._delayed.refused(self, remark)

    def write_late(self) -> bool:
        """Keep waiting: the outcome still matters."""
        return False


class Delayed:
    """Stores delayed messages and delivers them."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._delays = broker.delays
        self._store = broker.store
        self._clock = broker.clock
        self._loop = loop
        self._heads: dict[int, int] = {}  # level -> when its next message is due
        self._reading: set[int] = set()  # levels whose next messages are read in a thread
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._ran_ms = 0
        self._skew_ms = 0
        self._open: dict[Delivery, None] = {}  # being stored, oldest first
        self._pending = 0
        self._stopped = False
        self.delivered = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"Delayed(next due {self._heads}, {self.delivered} delivered)"

    def start(self) -> None:
        """Check all levels."""
        now_ms = self._clock.now_ms()
        self._heads = dict.fromkeys(levels_of(self._store), now_ms)
        longest_ms = max(self._delays.delays_ms)
        if longest_ms >= self._store.config.retention_hours * 3_600_000:
            log.warning(
                "messages may be removed before they are due: the longest delay is %d h, "
                "fileReservedTime %d h",
                longest_ms // 3_600_000,
                self._store.config.retention_hours,
            )
        self._arm()

    def cancel(self) -> None:
        """Stop delivering."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def settled_position(self) -> int:
        """Return a log position after which all unsettled deliveries lie."""
        for delivery in self._open:
            return delivery.position
        return self._store.log.end_position

    # -- store -----------------------------------------------------------------------------------

    def place(self, target: Target, properties: str, now_ms: int) -> tuple[Target, str, int | None]:
        """Return where to store a message, its properties there, and its tag code if delayed."""
        level = delay_level(properties)
        if not level:
            return self._broker.timers.place(target, properties, now_ms)
        found = parse(properties)
        level = self._delays.clamp_level(level)
        scheduled_properties(found, target.topic, target.queue_id, level)
        waiting, due_ms = self._expect(level, now_ms)
        return waiting, join(found), due_ms

    def put(self, target: Target, record: Record, level: int) -> None:
        """Store a record that the broker built, for `target` when it is due."""
        packer = self._broker.sends.packer
        if level <= 0:
            packer.put_record(target, record)
            return
        level = self._delays.clamp_level(level)
        found = parse(record.properties)
        scheduled_properties(found, target.topic, target.queue_id, level)
        record.properties = join(found).encode()
        waiting, due_ms = self._expect(level, record.stored_at_ms)
        packer.put_record(waiting, record, due_ms)

    def _expect(self, level: int, now_ms: int) -> tuple[Target, int]:
        due_ms = self._delays.due_ms(level, now_ms)
        if level not in self._heads and level not in self._reading:
            self._heads[level] = due_ms
            self._arm()
        return self._broker.sends.target(SCHEDULE_TOPIC, level - 1), due_ms

    # -- deliver ---------------------------------------------------------------------------------

    def check_clock(self) -> None:
        """Reset the timer if the wall clock was moved, which the loop's timers do not notice."""
        skew_ms = self._clock.now_ms() - int(self._loop.time() * 1000)
        if abs(skew_ms - self._skew_ms) > CLOCK_STEP_MS and self._heads:
            self._ran_ms = 0
            self._set_timer()

    def _arm(self) -> None:
        """Set the timer to the time when the next message is due."""
        if self._stopped or not self._heads or self._pending >= PENDING_MAX:
            return
        at_ms = max(min(self._heads.values()), self._ran_ms + TURN_GAP_MS)
        if self._timer is None or at_ms < self._timer_ms:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_ms = self._clock.now_ms()
        self._skew_ms = now_ms - int(self._loop.time() * 1000)
        self._timer_ms = max(min(self._heads.values()), self._ran_ms + TURN_GAP_MS)
        wait_ms = max(0, self._timer_ms - now_ms)
        self._timer = self._loop.call_later(wait_ms / 1000, self._turn)

    def _turn(self) -> None:
        """Deliver what is due, up to the share of one turn."""
        self._timer = None
        broker, now_ms = self._broker, self._clock.now_ms()
        unsettled_max = self._store.config.pending_bytes_max
        if not broker.writable or broker.ticks.unsettled_bytes > unsettled_max:
            self._ran_ms = now_ms + (RETRY_MS if broker.writable else UNWRITABLE_MS)
            self._arm()
            return
        self._ran_ms = now_ms
        delivery = Delivery(self, self._store.log.end_position)
        room = TURN_RECORDS
        for due_ms, level in sorted((due_ms, level) for level, due_ms in self._heads.items()):
            if due_ms > now_ms or room <= 0:
                break
            try:
                room -= self._take(level, now_ms, room, delivery)
            except (BrokerError, StoreError, OSError) as error:
                log.error("delayed messages have to wait level=%d error=%s", level, error)
                self._heads[level] = now_ms + RETRY_MS
        if any(due_ms <= now_ms for due_ms in self._heads.values()):
            self._ran_ms = now_ms - TURN_GAP_MS  # work is left: continue at once, after other work
        self._hand_over(delivery)
        self._arm()

    def _hand_over(self, delivery: Delivery) -> None:
        if delivery.count:
            self._open[delivery] = None
            self._pending += delivery.count
            self._broker.ticks.take(delivery)

    def _take(self, level: int, now_ms: int, room: int, delivery: Delivery) -> int:
        """Take the due messages of one level; return how many entries were read."""
        delays, queue = self._delays, self._queue(level)
        if queue is None:
            self._wait_for_visible(level, None, now_ms)
            return 0
        offset = delays.next_offset(level)
        if offset < queue.min_offset:
            log.error(
                "delayed messages were removed before they were due level=%d from=%d to=%d",
                level, offset, queue.min_offset,
            )  # fmt: skip
            delays.advance(level, queue.min_offset)
            offset = queue.min_offset
        count = min(room, queue.visible_offset - offset)
        if count <= 0:
            self._wait_for_visible(level, queue, now_ms)
            return 0
        data = self._intact(queue, offset, queue.read(offset, count))
        if not data:
            self._broker.mending.found(queue, offset)
            self._heads[level] = now_ms + RETRY_MS
            return 0
        found = delays.scan(level, data, now_ms)
        due, until = _share(found.due), found.next_offset
        if len(due) < len(found.due):
            until = due[-1].offset + 1
            self._heads[level] = now_ms
        elif found.wake_ms is not None:
            self._heads[level] = found.wake_ms
        elif until < queue.visible_offset:
            self._heads[level] = now_ms
        else:
            self._wait_for_visible(level, queue, now_ms)
        if due and self._store.log.end_position - due[0].position > self._store.reader.hot_bytes:
            self._read_apart(level, due, until)
        else:
            views = [self._store.log.view_at(one.position, one.size) for one in due]
            self._deliver(level, due, views, until, now_ms=now_ms, delivery=delivery)
        return until - offset

    def _intact(self, queue: QueueIndex, offset: int, data: bytes | bytearray) -> bytes | bytearray:
        """Return the entries up to the first one that does not lead to its message."""
        if queue.damaged:
            return b""
        cold = self._store.log.end_position - self._store.reader.hot_bytes
        if data and ENTRY.unpack_from(data)[0] < cold:
            return data
        return data[: count_intact(self._store.log, queue, data, offset) * ENTRY_BYTES]

    def check_all(self) -> None:
        """Check all levels, because a damaged queue was repaired."""
        now_ms = self._clock.now_ms()
        for level in self._heads:
            self._heads[level] = min(self._heads[level], now_ms)
        self._arm()

    def _wait_for_visible(self, level: int, queue: QueueIndex | None, now_ms: int) -> None:
        """Wait: the level is empty, or its last messages are not safe yet."""
        if queue is not None and queue.next_offset > queue.visible_offset:
            self._heads[level] = now_ms + NOT_VISIBLE_YET_MS
        else:
            self._heads.pop(level, None)

    def _read_apart(self, level: int, due: list[Due], until: int) -> None:
        """Read old messages in a thread, since they may have to come from the disk."""
        self._heads.pop(level, None)
        self._reading.add(level)
        start = self._delays.next_offset(level)
        ranges, reader = [(one.position, one.size) for one in due], self._store.reader

        def loaded(parts: list[bytes] | None) -> None:
            self._reading.discard(level)
            now_ms = self._clock.now_ms()
            self._heads[level] = now_ms
            moved = self._delays.next_offset(level) != start
            if (
                not self._stopped and parts is not None and not moved
            ):  # otherwise the level is read again
                delivery = Delivery(self, self._store.log.end_position)
                self._deliver(level, due, parts, until, now_ms=now_ms, delivery=delivery)
                self._hand_over(delivery)
            self._arm()

        def failed(error: BaseException) -> None:
            log.error("delayed messages cannot be read level=%d error=%s", level, error)
            self._reading.discard(level)
            self._heads[level] = self._clock.now_ms() + RETRY_MS
            self._arm()

        self._broker.offload.run(lambda: reader.load(ranges), loaded, failed)

    def _deliver(
        self,
        level: int,
        due: list[Due],
        records: Sequence[bytes | memoryview | None],
        until: int,
        *,
        now_ms: int,
        delivery: Delivery,
    ) -> None:
        # hot: 11 µs a message
        delays = self._delays
        start = done = delays.next_offset(level)
        packer = self._broker.sends.packer
        try:
            for one, raw in zip(due, records, strict=True):
                found = self._rebuild(level, one, raw, now_ms)
                if found is not None:
                    packer.put_record(*found)
                    delivery.count += 1
                done = one.offset + 1
            done = until
        finally:  # records in the log's buffer will be written, whatever stopped the rest
            delays.take(level, done)
            delivery.spans[level] = (start, done)

    def _rebuild(
        self, level: int, one: Due, raw: bytes | memoryview | None, now_ms: int
    ) -> tuple[Target, Record] | None:
        """Return a message in its delivered form and its target; None if it cannot be delivered."""
        try:
            record = None if raw is None else decode(raw)
        except CorruptRecord:
            record = None
        home = None if record is None else destination(record.properties)
        if record is None or home is None or home[0] in NOT_DELIVERED_TO:
            self.dropped += 1
            log.error(
                "a delayed message cannot be delivered level=%d offset=%d position=%d home=%s",
                level, one.offset, one.position, home,
            )  # fmt: skip
            return None
        record.properties = delivered_properties(record.properties, level, one.offset)
        record.stored_at_ms = now_ms
        record.prepared_position = 0
        record.version = 1
        broker, queue_id = self._broker.resizing.placement.home(*home, record.properties)
        if broker != self._broker.config.name:
            return self._broker.forwarding.place(record, home[0], broker), record
        return self.target_for(home[0], queue_id), record

    def target_for(self, topic: str, queue_id: int) -> Target:
        """Return the queue of a message that the broker kept back; create a deleted topic again."""
        if topic not in self._broker.topics:
            # The topic was deleted, but the message was acknowledged, so it must not be lost.
            log.warning("topic=%s is created again for a message that waited", topic)
            try:
                self._broker.ensure_topic(topic, queues=queue_id + 1)
            except BrokerError as error:
                log.error("topic=%s is not created again: %s", topic, error)
        return self._broker.sends.target(topic, queue_id)

    # -- outcome ---------------------------------------------------------------------------------

    def stored(self, delivery: Delivery) -> None:
        """Count messages as delivered."""
        now_ms = self._clock.now_ms()
        for level, (_, until) in delivery.spans.items():
            self._delays.settle(level, until, now_ms)
        self.delivered += delivery.count
        del self._open[delivery]
        self._pending -= delivery.count
        self._arm()

    def refused(self, delivery: Delivery, remark: str) -> None:
        """Deliver messages again that could not be stored."""
        retry_ms = self._clock.now_ms() + RETRY_MS
        log.error("delayed messages were not stored count=%d: %s", delivery.count, remark)
        for level, (start, _) in delivery.spans.items():
            self._delays.give_back(level, start)
            self._heads[level] = retry_ms
        del self._open[delivery]
        self._pending -= delivery.count
        self._arm()

    def _queue(self, level: int) -> QueueIndex | None:
        return self._store.find_queue(SCHEDULE_TOPIC, level - 1)


def _share(due: list[Due]) -> list[Due]:
    """Return as many as one turn may deliver, at least one."""
    total = 0
    for index, one in enumerate(due):
        total += one.size
        if total > TURN_BYTES and index:
            return due[:index]
    return due
