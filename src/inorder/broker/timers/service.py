"""Timers: stored in the queue of timers, recalled there, delivered at their millisecond.

One alarm of the loop is set to the time when the next timer is due, or when the next part of the
queue has to be read; none is set while none waits. A turn delivers at most `TURN_RECORDS` timers
in the order of their times, as part of the loop's tick. Their records go into the log's buffer like
those of clients, each with a mark of its origin, and count as delivered when the tick is safe by
the flush mode. If the write fails, they are delivered again later.

A recall is a record in the same queue. While it is being stored, its message is held back, so a
message whose recall was acknowledged never comes. Why: decision 52.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from inorder.broker.delays.rules import destination
from inorder.broker.delays.storage import NOT_DELIVERED_TO
from inorder.broker.timers import rules
from inorder.broker.timers.records import delivered_properties
from inorder.broker.timers.rules import CHUNK, LATE_MAX, Point, TimerTable, wanted_ms
from inorder.broker.timers.storage import first_waiting, first_wrong, read_chunk
from inorder.errors import BrokerError, CorruptRecord, StoreError
from inorder.logs import get_logger
from inorder.store.intact import is_intact
from inorder.wire.names import RETRY_PREFIX, TIMER_TOPIC
from inorder.wire.properties import PROPERTIES_BYTES_MAX, get, join, parse
from inorder.wire.record import Record, decode
from inorder.wire.timers import (
    PRECISION_MS,
    RECALLED_KEY,
    Handle,
    code_of,
    due_ms,
    due_of,
    entry_code,
    is_recall,
    recalled_key,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from inorder.broker.broker import Broker
    from inorder.broker.sends.packing import Target
    from inorder.store.consumequeue import QueueIndex

log = get_logger(__name__)

TURN_RECORDS: Final = 256
TURN_BYTES: Final = 4 * 1024 * 1024
PENDING_MAX: Final = 16 * TURN_RECORDS
TURN_GAP_MS: Final = 5
RETRY_MS: Final = 100
UNWRITABLE_MS: Final = 1000
CLOCK_STEP_MS: Final = 20
RECALL_HOLD_MS: Final = 5
ROOM_BYTES: Final = 1024
"""Bytes of properties that a timer leaves free for those of its delivery."""


class Arrivals:
    """The timers of one tick, which count when it is safe by the flush mode."""

    __slots__ = ("_timers", "found", "tick")

    def __init__(self, timers: Timers, tick: int) -> None:
        self._timers = timers
        self.tick = tick
        self.found: list[tuple[int, int, str]] = []

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self.found)

    def write(self) -> None:
        """The records are stored, safe by the flush mode."""
        self._timers.arrived(self)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """The records are not stored: forget them."""
        self._timers.refused_arrivals(self)

    def write_late(self) -> bool:
        """Keep waiting: the outcome still matters."""
        return False


class Delivery:
    """The timers of one turn, until the tick reports their outcome."""

    __slots__ = ("_timers", "count", "points", "position", "topics")

    def __init__(self, timers: Timers, position: int) -> None:
        self._timers = timers
        self.position = position
        """Its records lie at or after this log position."""
        self.count = 0
        self.points: list[Point] = []
        self.topics: list[str] = []

    def write(self) -> None:
        """The records are stored, safe by the flush mode."""
        self._timers.stored(self)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """The records are not stored."""
        self._timers.refused(self, remark)

    def write_late(self) -> bool:
        """Keep waiting: the outcome still matters."""
        return False


class Held:
    """A timer whose recall is being stored."""


class Astray:
    """A timer whose queue entry does not lead to it."""


class Later(NamedTuple):
    """A timer whose queue entry named a wrong time, and the code of the right one."""

    code: int


class Timers:
    """Stores timers, recalls them and delivers them."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._table: TimerTable = broker.timer_table
        self._store = broker.store
        self._clock = broker.clock
        self._loop = loop
        self._arrivals: Arrivals | None = None
        self._recalling: dict[str, int] = {}  # recalls that are being stored, and how many of each
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._not_before_ms = 0
        self._skew_ms = 0
        self._open: dict[Delivery, None] = {}  # being stored, oldest first
        self._pending = 0
        self._reading = False
        self._stopped = False
        self.delivered = 0
        self.recalled = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"Timers({self._table!r}, {self.delivered} delivered)"

    def start(self) -> None:
        """Deliver what is due, and set the alarm."""
        self._arm()

    def cancel(self) -> None:
        """Stop delivering."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    @property
    def settled_position(self) -> int:
        """Return a log position after which all unsettled deliveries lie."""
        for delivery in self._open:
            return delivery.position
        return self._store.log.end_position

    @property
    def keep_from(self) -> int | None:
        """Return the position of the first timer that waits: retention keeps it."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None or not self._table.waiting:
            return None
        entry = queue.entry(first_waiting(self._store, self._table))
        return None if entry is None else entry[0]

    # -- store -----------------------------------------------------------------------------------

    def place(self, target: Target, properties: str, now_ms: int) -> tuple[Target, str, int | None]:
        """Return where to store a message, its properties there, and its code if it is a timer."""
        if "TIMER_D" not in properties:
            return target, properties, None
        found = parse(properties)
        if not rules.asks_for_a_time(found):
            return target, properties, None
        store = self._broker.config.store
        if not store.timer_enable:
            raise rules.not_enabled()
        due = wanted_ms(found, target.topic, now_ms, store.timer_max_delay_sec)
        if due is None:
            return target, properties, None
        recall = RECALLED_KEY in found
        if not recall and self._table.total >= store.timers_max:
            raise rules.too_many(self._table.total, store.timers_max)
        if self._table.late_count >= LATE_MAX and self._table.is_over(due):
            raise rules.too_many_late()
        rules.waiting_properties(found, target.topic, target.queue_id, due)
        text = join(found)
        if len(text.encode()) > PROPERTIES_BYTES_MAX - ROOM_BYTES:
            raise rules.too_long(PROPERTIES_BYTES_MAX - ROOM_BYTES)
        return self._broker.sends.target(TIMER_TOPIC, 0), text, code_of(due, recall=recall)

    def packed(self, offset: int, code: int, properties: str) -> str | None:
        """Note a timer that was packed into the queue in this tick; return its handle."""
        found = parse(properties)
        topic = found["REAL_TOPIC"]
        arrivals, tick = self._arrivals, self._broker.ticks.ticks
        if arrivals is None or arrivals.tick != tick:
            arrivals = self._arrivals = Arrivals(self, tick)
        key = ""
        if is_recall(code):
            key = _recall_key(found[RECALLED_KEY], topic)
            self._recalling[key] = self._recalling.get(key, 0) + 1
        arrivals.found.append((offset, code, key or topic))
        if len(arrivals.found) == 1:
            self._broker.ticks.take(arrivals)
        if topic.startswith(RETRY_PREFIX) or "UNIQ_KEY" not in found:
            return None
        return Handle(topic, self._broker.config.name, due_of(code), found["UNIQ_KEY"]).encode()

    def handle_at(self, position: int) -> str | None:
        """Return the handle of a timer that was stored earlier at a position of the log."""
        raw = self._store.record_at(position)
        if raw is None:
            return None
        record = decode(raw)
        found = parse(record.properties)
        due, topic = due_ms(record.properties), found.get("REAL_TOPIC", "")
        if record.topic != TIMER_TOPIC or due is None or topic.startswith(RETRY_PREFIX):
            return None
        return Handle(topic, self._broker.config.name, due, found.get("UNIQ_KEY", "")).encode()

    def arrived(self, arrivals: Arrivals) -> None:
        """Take up the timers of a tick."""
        table, now_ms = self._table, self._clock.now_ms()
        for offset, code, name in arrivals.found:
            if is_recall(code):
                self._recall_ended(name)
            else:
                table.count(name, 1, now_ms)
            table.note(offset, code)
        self._arm()

    def refused_arrivals(self, arrivals: Arrivals) -> None:
        """Forget the timers of a tick that was not written."""
        for _, code, name in arrivals.found:
            if is_recall(code):
                self._recall_ended(name)

    def _recall_ended(self, key: str) -> None:
        left = self._recalling.pop(key) - 1
        if left:
            self._recalling[key] = left

    # -- deliver ---------------------------------------------------------------------------------

    def check_clock(self) -> None:
        """Set the alarm anew if the wall clock was moved, which the loop's timers do not notice."""
        skew_ms = self._clock.now_ms() - int(self._loop.time() * 1000)
        if abs(skew_ms - self._skew_ms) > CLOCK_STEP_MS and self._table.waiting:
            self._not_before_ms = 0
            self._set_alarm()

    def check_all(self) -> None:
        """Look again, because a damaged queue was repaired."""
        self._not_before_ms = 0
        self._arm()

    def _next_ms(self) -> int | None:
        wake_ms = self._table.wake_ms()
        return None if wake_ms is None else max(wake_ms, self._not_before_ms)

    def _arm(self) -> None:
        """Set the alarm to the time when there is something to do."""
        if self._stopped or self._reading or self._pending >= PENDING_MAX:
            return
        at_ms = self._next_ms()
        if at_ms is not None and (self._alarm is None or at_ms < self._alarm_ms):
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        at_ms = self._next_ms()
        if at_ms is None or self._stopped:
            return
        now_ms = self._clock.now_ms()
        self._skew_ms = now_ms - int(self._loop.time() * 1000)
        self._alarm_ms = at_ms
        self._alarm = self._loop.call_later(max(0, at_ms - now_ms) / 1000, self._turn)

    def _turn(self) -> None:
        """Read a part of the queue if it is time, and deliver what is due."""
        self._alarm = None
        now_ms = self._clock.now_ms()
        self._not_before_ms = now_ms + TURN_GAP_MS
        table = self._table
        if table.begin_pass(now_ms):
            self._loop.call_soon(self._read_on)
        if not self._reading and self._pending < PENDING_MAX:
            self._deliver_due(now_ms)
        self._arm()

    def _read_on(self) -> None:
        """Read one chunk of the queue for the pass that runs."""
        table, queue = self._table, self._store.find_queue(TIMER_TOPIC, 0)
        if self._stopped or queue is None:
            return
        first = table.next_chunk()
        if first is None:
            self._not_before_ms = 0
            self._arm()
            return
        start = max(first, queue.min_offset)
        end = min(first + CHUNK, table.next_offset)
        data = read_chunk(queue, start, end)
        wrong = None if queue.damaged else first_wrong(data, start, end)
        if queue.damaged or wrong is not None:
            if wrong is not None:
                self._broker.mending.found(queue, wrong)
            self._loop.call_later(RETRY_MS / 1000, self._read_on)
            return
        table.read_chunk(start, data)
        self._loop.call_later(0, self._read_on)

    def _deliver_due(self, now_ms: int) -> None:
        broker = self._broker
        if (
            not broker.writable
            or broker.ticks.unsettled_bytes > self._store.config.pending_bytes_max
        ):
            self._not_before_ms = now_ms + (RETRY_MS if broker.writable else UNWRITABLE_MS)
            return
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        points = [] if queue is None else self._table.take(now_ms, TURN_RECORDS)
        if not points or queue is None:
            return
        if queue.damaged:
            self._table.give_back(points)
            self._not_before_ms = now_ms + RETRY_MS
            return
        if len(points) == TURN_RECORDS:
            self._not_before_ms = 0  # work is left: continue at once, after other work
        ranges = self._ranges(queue, points)
        coldest = min((position for position, _ in ranges), default=0)
        if self._store.log.end_position - coldest > self._store.reader.hot_bytes:
            self._read_apart(points, ranges)
        else:
            self._deliver(points, [self._view(*one) for one in ranges])

    def _ranges(self, queue: QueueIndex, points: list[Point]) -> list[tuple[int, int]]:
        ranges = []
        for _, offset in points:
            entry = queue.entry(offset)
            ranges.append((0, 0) if entry is None else entry[:2])
        return ranges

    def _view(self, position: int, size: int) -> memoryview | None:
        return self._store.log.view_at(position, size) if size else None

    def _read_apart(self, points: list[Point], ranges: list[tuple[int, int]]) -> None:
        """Read old timers in a thread, since they may have to come from the disk."""
        self._reading = True
        commit_log = self._store.log

        def load() -> list[bytes | None]:
            return [
                commit_log.read_at(position, size) if size else None for position, size in ranges
            ]

        def loaded(parts: list[bytes | None]) -> None:
            self._reading = False
            if not self._stopped:
                self._deliver(points, parts)
                self._arm()

        def failed(error: BaseException) -> None:
            log.error("timers cannot be read error=%s", error)
            self._reading = False
            self._table.give_back(points)
            self._not_before_ms = self._clock.now_ms() + RETRY_MS
            self._arm()

        self._broker.offload.run(load, loaded, failed)

    def _deliver(self, points: list[Point], records: Sequence[bytes | memoryview | None]) -> None:
        # hot: 20 us a message
        now_ms = self._clock.now_ms()
        delivery = Delivery(self, self._store.log.end_position)
        packer, room, held, done, counted = self._broker.sends.packer, TURN_BYTES, False, 0, 0
        try:
            for point, raw in zip(points, records, strict=True):
                if room <= 0:
                    break
                found = self._rebuild(point, raw, now_ms, delivery)
                if isinstance(found, Held):
                    held = True
                    break
                if isinstance(found, Astray):
                    self._not_before_ms = now_ms + RETRY_MS
                    break
                if isinstance(found, Later):
                    self._move(point, found.code)
                    done += 1
                    continue
                if found is not None:
                    target, record = found
                    room -= len(record.body) + len(record.properties)
                    packer.put_record(target, record)
                    delivery.count += 1
                delivery.points.append(point)
                done += 1
                counted = len(delivery.topics)
        except (BrokerError, StoreError, OSError) as error:
            del delivery.topics[counted:]
            log.error("timers have to wait error=%s", error)
            self._not_before_ms = now_ms + RETRY_MS
        finally:  # records in the log's buffer will be written, whatever stopped the rest
            rest = points[done:]
            self._table.give_back(rest)
            if held:
                self._not_before_ms = max(self._not_before_ms, now_ms + RECALL_HOLD_MS)
            elif rest and self._not_before_ms <= now_ms + TURN_GAP_MS:
                self._not_before_ms = 0
            self._hand_over(delivery)

    def _move(self, point: Point, code: int) -> None:
        """Let a timer wait for its own time, and correct its queue entry."""
        _, offset = point
        log.error("a queue entry names a wrong time of a timer offset=%d", offset)
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        entry = None if queue is None else queue.entry(offset)
        if queue is not None and entry is not None and entry[2] != code:
            queue.set_tag_code(offset, code)
        self._table.move(point, code)

    def _hand_over(self, delivery: Delivery) -> None:
        if not delivery.points:
            return
        self._open[delivery] = None
        self._pending += len(delivery.points)
        if delivery.count:
            self._broker.ticks.take(delivery)
        else:
            self.stored(delivery)

    def _rebuild(
        self, point: Point, raw: bytes | memoryview | None, now_ms: int, delivery: Delivery
    ) -> tuple[Target, Record] | Held | Astray | Later | None:
        """Return a message in its delivered form and its target; None: it is not to be delivered.

        Held: nobody knows yet, because its recall is being stored. Astray: its queue is repaired
        first.
        """
        code, offset = point
        try:
            record = None if raw is None else decode(raw)
        except CorruptRecord:
            record = None
        if record is not None and (record.topic, record.queue_offset) != (TIMER_TOPIC, offset):
            record = None
        if record is None and self._is_astray(offset):
            return Astray()
        home = None if record is None else destination(record.properties)
        if record is None or home is None or home[0] in NOT_DELIVERED_TO or home[0] == TIMER_TOPIC:
            self.dropped += 1
            log.error("a timer cannot be delivered offset=%d home=%s", offset, home)
            return None
        own = entry_code(record.properties)
        if own is not None and own != code:
            return Later(own)
        topic = home[0]
        if is_recall(code):
            said = get(record.properties, RECALLED_KEY.encode()) or b""
            key = _recall_key(said.decode("utf-8", "replace"), topic)
            # RocketMQ's handles are for the beginning of the second in which the message comes.
            self._table.recalled[key] = due_of(code) + PRECISION_MS
            return None
        unique = (get(record.properties, b"UNIQ_KEY") or b"").decode("utf-8", "replace")
        key = recalled_key(topic, unique)
        if key in self._recalling:
            return Held()
        delivery.topics.append(topic)
        if key in self._table.recalled:
            self.recalled += 1
            return None
        record.properties = delivered_properties(
            record.properties, offset, record.stored_at_ms, now_ms
        )
        record.stored_at_ms = now_ms
        record.prepared_position = 0
        record.version = 1
        broker, queue_id = self._broker.resizing.placement.home(*home, record.properties)
        if broker != self._broker.config.name:
            return self._broker.forwarding.place(record, topic, broker), record
        return self._broker.delayed.target_for(topic, queue_id), record

    def _is_astray(self, offset: int) -> bool:
        """Return whether an entry does not lead to its record; then the queue is repaired."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None or is_intact(self._store.log, queue, offset):
            return False
        self._broker.mending.found(queue, offset)
        return True

    # -- outcome ---------------------------------------------------------------------------------

    def stored(self, delivery: Delivery) -> None:
        """Count timers as delivered."""
        now_ms = self._clock.now_ms()
        self._table.settle(delivery.points)
        for topic in delivery.topics:
            self._table.count(topic, -1, now_ms)
        self.delivered += delivery.count
        self._ended(delivery)

    def refused(self, delivery: Delivery, remark: str) -> None:
        """Deliver timers again that could not be stored."""
        log.error("timers were not delivered count=%d: %s", delivery.count, remark)
        self._table.give_back(delivery.points)
        self._not_before_ms = self._clock.now_ms() + RETRY_MS
        self._ended(delivery)

    def _ended(self, delivery: Delivery) -> None:
        del self._open[delivery]
        self._pending -= len(delivery.points)
        self._arm()


def _recall_key(said: str, topic: str) -> str:
    """Return what names a recalled message; old clients give its id alone."""
    return said if said.startswith(f"{topic}+") else recalled_key(topic, said)
