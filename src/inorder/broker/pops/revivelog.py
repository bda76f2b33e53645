"""RocketMQ's revive topic, which a start takes over.

RocketMQ stores a check point for each pop and a record for each acknowledgement in the topic
`rmq_sys_REVIVE_LOG_<cluster>`. Both are timers first and come to the topic when the time of the pop
is over; a service of RocketMQ then compares them. It has worked off what lies below the offset of
its group. A group's own offset lies behind what is in flight, so whoever ignores check points loses
those messages.

A start that finds RocketMQ's wheel of timers reads both topics: check points without all their
acknowledgements are in flight from now on, for what is left of their time by the wall clock. The
group's offset goes back to the first of them. This is on disk before the wheel is removed; a kill
before that repeats it. Why: decision 54.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from inorder.broker.pops.records import popped
from inorder.broker.pops.rules import CheckPoint
from inorder.errors import CorruptRecord, RemoteProtocolError
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.wire import fastjson, shapes
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.properties import get
from inorder.wire.record import Record, decode

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

log = get_logger(__name__)

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_BITS: Final = 32


class Place(NamedTuple):
    """What a check point and its acknowledgements have in common."""

    key: GroupQueue
    start: int
    pop_ms: int


@dataclass(slots=True)
class Found:
    """A check point, and what was acknowledged of it."""

    invisible_ms: int
    offsets: list[int]
    acked: set[int] = field(default_factory=set)


def read(records: Iterable[Record]) -> dict[Place, Found]:
    """Return the check points of RocketMQ's records, with their acknowledgements."""
    points: dict[Place, Found] = {}
    acks: list[tuple[Place, list[int]]] = []
    for record in records:
        tag = get(record.properties, b"TAGS")
        try:
            fields = shapes.as_object(fastjson.loads(record.body), "a record of pops")
            place = Place(
                GroupQueue(
                    shapes.text(fields, "c"), shapes.text(fields, "t"),
                    shapes.integer(fields, "q", 0, 32),
                ),
                shapes.integer(fields, "so", 0),
                shapes.integer(fields, "pt", 0),
            )  # fmt: skip
            if tag == b"ck":
                points.setdefault(place, _point(fields, place.start))
            elif tag == b"ack":
                acks.append((place, [shapes.integer(fields, "ao", -1)]))
            elif tag == b"bAck":
                offsets = shapes.as_list(fields.get("aol"), "aol")
                acks.append((place, [shapes.as_integer(one, "aol") for one in offsets]))
        except RemoteProtocolError as error:
            log.error("a record of RocketMQ's pops cannot be read offset=%d: %s",
                      record.queue_offset, error)  # fmt: skip
    for place, offsets in acks:
        if place in points:
            points[place].acked.update(offsets)
    return points


def _point(fields: dict[Any, Any], start: int) -> Found:
    steps = [shapes.as_integer(one, "d", 32) for one in shapes.as_list(fields.get("d"), "d")]
    count = min(max(shapes.integer(fields, "n", 0, 32), 0), _BITS)
    offsets = [start + step for step in steps or range(count)]
    done = shapes.integer(fields, "bm", 0)
    acked = {one for bit, one in enumerate(offsets[:_BITS]) if done >> bit & 1}
    return Found(max(0, shapes.integer(fields, "it", 0)), offsets, acked)


def take_over(broker: Broker, timers: Iterable[int]) -> int:
    """Put in flight what RocketMQ had in flight; return how many messages.

    `timers` are the offsets of RocketMQ's timers that wait for the revive topic.
    """
    table, end = broker.pop_table, broker.store.log.end_position
    now_ms, wall_ms = broker.clock.monotonic_ms(), broker.clock.now_ms()
    records, count = [], 0
    for place, found in read(_records(broker, timers)).items():
        key = place.key
        least = broker.store.min_offset(key.topic, key.queue_id)
        last = broker.store.end_offset(key.topic, key.queue_id)
        left = [one for one in found.offsets if one not in found.acked and least <= one < last]
        if not left:
            continue
        left_ms = min(max(place.pop_ms + found.invisible_ms - wall_ms, 0), found.invisible_ms)
        point = CheckPoint(
            place.pop_ms, found.invisible_ms, now_ms + left_ms, place.start, dict.fromkeys(left)
        )
        cursor = max(broker.offsets.query(*key), left[-1] + 1)
        records.append(popped(key, point, cursor, end))
        table.take(key, point, cursor, now_ms)
        count += len(left)
    for key in table.queues:
        floor = table.floor(key)
        if floor is not None and table.in_flight(key) and broker.offsets.query(*key) != floor:
            broker.offsets.commit(*key, floor, wall_ms)
    for topic in _topics(broker):
        for queue in broker.store.queues_of(topic):
            if queue.visible_offset:
                last_read = queue.visible_offset - 1  # RocketMQ goes on behind it
                broker.offsets.commit(REVIVE_GROUP, topic, queue.queue_id, last_read, wall_ms)
    if count:
        broker.lease_journal.write(records)
        broker.offset_snapshot.save_here()
        log.warning("took over popped messages of Apache RocketMQ in flight=%d", count)
    return count


def _topics(broker: Broker) -> list[str]:
    return [name for name in broker.store.queues.topics() if name.startswith(REVIVE_PREFIX)]


def _records(broker: Broker, timers: Iterable[int]) -> Iterator[Record]:
    """Yield what RocketMQ has not worked off of its revive topic, then the timers."""
    store = broker.store
    for topic in _topics(broker):
        for queue in store.queues_of(topic):
            read_to = broker.offsets.query(REVIVE_GROUP, topic, queue.queue_id)
            for offset in range(max(read_to + 1, queue.min_offset), queue.visible_offset):
                yield from _record(broker, queue.entry(offset))
    waiting = store.find_queue(TIMER_TOPIC, 0)
    if waiting is not None:
        for offset in timers:
            yield from _record(broker, waiting.entry(offset))


def _record(broker: Broker, entry: tuple[int, int, int] | None) -> Iterator[Record]:
    raw = None if entry is None else broker.store.record_at(entry[0])
    if raw is not None:
        try:
            yield decode(raw)
        except CorruptRecord as error:
            log.error("a record of RocketMQ's pops is damaged: %s", error)
