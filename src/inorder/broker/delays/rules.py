"""Delayed messages: when they are due, and how far each delay level has been delivered.

A delayed message waits in the queue of its level in SCHEDULE_TOPIC_XXXX. The queue entry holds the
due time in place of the tag hash. A level is delivered in the order of its queue:

    settled ≤ next            offsets in the queue of one level
      │         └ the next message to take; those before it are being stored
      └ everything before is delivered and stored for good

`settled` is in RocketMQ's file `delayOffset.json`, with one more field that RocketMQ ignores: the
end of the log at the time of the save. Every later delivery lies after that position and carries a
mark (`mark`). So a start after a crash finds in the log what the file lacks, and delivers nothing
twice (`storage.py`). Why: decision 23.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from inorder.model import DataVersion
from inorder.wire import fastjson, shapes
from inorder.wire.extensions import FORWARDED, SCHEDULED, SEND_PROPERTIES
from inorder.wire.names import delay_ms
from inorder.wire.properties import append, get
from inorder.wire.record import Record
from inorder.wire.requests.topics import data_version_from_json, data_version_to_json

SKEW_MS_MAX: Final = 1000
"""A message may be due this much later than its level says, if the clock was set back a little."""
VERSION_STEP: Final = 200
POSITION: Final = "inorderPosition"

_ENTRY: Final = struct.Struct(">qiq")
_FILLER_BYTES: Final = 0x7FFFFFFF
_SEND_PROPERTIES: Final = frozenset(name.encode() for name in SEND_PROPERTIES)
_REAL_QUEUE_MAX: Final = 65_536


class Due(NamedTuple):
    """A message to deliver now: its offset in the level's queue, and its record in the log."""

    offset: int
    position: int
    size: int


class Scan(NamedTuple):
    """The result of reading a level: due messages, the next offset, when the next one is due."""

    due: list[Due]
    next_offset: int
    wake_ms: int | None
    """None: unknown, because all entries that were read are due."""


class Delays:
    """The delay levels and their progress."""

    def __init__(self, delays_ms: Sequence[int], *, now_ms: int) -> None:
        self.delays_ms = tuple(delays_ms)
        self.data_version = DataVersion(timestamp_ms=now_ms)
        self.revision = 0
        """Grows with every change: a saver compares it with the one it saved."""
        self.position: int | None = 0
        """The end of the log when the file was saved; None if RocketMQ saved it."""
        self._settled: dict[int, int] = {}
        self._next: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Delays({len(self.delays_ms)} levels, settled {self._settled})"

    def clamp_level(self, level: int) -> int:
        """Return an existing level: the highest one for a level above it."""
        return min(level, len(self.delays_ms))

    def due_ms(self, level: int, stored_at_ms: int) -> int:
        """Return when a message of a level is due."""
        return stored_at_ms + delay_ms(self.delays_ms, level)

    # Delivery.

    def next_offset(self, level: int) -> int:
        """Return the offset of the next message to take."""
        return self._next.get(level, 0)

    def settled_offset(self, level: int) -> int:
        """Return the offset before which everything is delivered for good."""
        return self._settled.get(level, 0)

    def settled(self) -> dict[int, int]:
        """Return the settled offsets of the levels that have some."""
        return dict(sorted(self._settled.items()))

    def scan(self, level: int, entries: bytes | bytearray, now_ms: int) -> Scan:
        """Return what is due among a level's entries, which begin with the next one to take.

        An entry may be due later than a whole delay of its level from now: it was stored under a
        longer delay, or before the clock was set back. As in RocketMQ such an entry is due now, so
        that nothing waits for ever. A difference up to `SKEW_MS_MAX` does not count, or the message
        would come early.
        """
        # hot: 0.4 µs an entry
        offset = self.next_offset(level)
        latest_ms = now_ms + delay_ms(self.delays_ms, level) + SKEW_MS_MAX
        due: list[Due] = []
        for position, size, due_ms in _ENTRY.iter_unpack(entries):
            if now_ms < due_ms <= latest_ms:
                return Scan(due, offset, due_ms)
            if 0 < size < _FILLER_BYTES:  # otherwise the log has no such message
                due.append(Due(offset, position, size))
            offset += 1
        return Scan(due, offset, None)

    def take(self, level: int, until: int) -> None:
        """Record that the messages before an offset are being stored."""
        assert until >= self.next_offset(level), "a level is delivered in its order"
        self._next[level] = until

    def give_back(self, level: int, start: int) -> None:
        """Take the messages from an offset on once more, because they were not stored."""
        self._next[level] = max(min(start, self.next_offset(level)), self.settled_offset(level))

    def settle(self, level: int, until: int, now_ms: int) -> None:
        """Record that the messages before an offset are delivered for good."""
        assert until <= self.next_offset(level), "what is stored was taken"
        if until > self.settled_offset(level):
            self._settled[level] = until
            self.revision += 1
            if self.revision % VERSION_STEP == 0:
                self.data_version.next(now_ms)

    def advance(self, level: int, until: int) -> bool:
        """Skip messages that are delivered already or gone; tell whether that moved the level."""
        if until <= self.next_offset(level):
            return False
        self._next[level] = self._settled[level] = until
        self.revision += 1
        return True

    def cut(self, level: int, end: int) -> bool:
        """Move a level back to the end of its queue; tell whether it was beyond."""
        if self.next_offset(level) <= end:
            return False
        self._next[level] = self._settled[level] = end
        self.revision += 1
        return True

    # The file.

    def encode(self, *, position: int | None = None, pretty: bool = True) -> bytes:
        """Return the content of `delayOffset.json`; without `position`, as RocketMQ answers it."""
        table: dict[str, object] = {
            "dataVersion": data_version_to_json(self.data_version),
            "offsetTable": self.settled(),
        }
        if position is not None:
            table[POSITION] = position
        return fastjson.dumps(table, pretty=pretty)

    def decode(self, data: bytes) -> None:
        """Load the content of `delayOffset.json`. Raises RemoteProtocolError if it is malformed."""
        content = shapes.as_object(fastjson.loads(data), "delay offsets")
        table = shapes.as_object(content.get("offsetTable"), "offsetTable")
        settled = {
            shapes.as_integer(level, "level", 32): max(0, shapes.as_integer(offset, "offset"))
            for level, offset in table.items()
        }
        version = content.get("dataVersion")
        if version is not None:
            self.data_version = data_version_from_json(shapes.as_object(version, "dataVersion"))
        position = content.get(POSITION)
        self.position = None if position is None else shapes.as_integer(position, POSITION)
        self._settled = settled
        self._next = dict(settled)


def scheduled_properties(found: dict[str, str], topic: str, queue_id: int, level: int) -> None:
    """Turn the properties of a message into those of a delayed message for a queue."""
    for name in ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"):
        found.pop(name, None)
    found["DELAY"] = str(level)
    found["REAL_TOPIC"] = topic
    found["REAL_QID"] = str(queue_id)


def destination(properties: bytes) -> tuple[str, int] | None:
    """Return the topic and queue of a delayed message; None if it names none."""
    topic, queue_id = get(properties, b"REAL_TOPIC"), get(properties, b"REAL_QID")
    if topic is None or queue_id is None or not queue_id.isdigit():
        return None
    number = int(queue_id[:10])
    return (topic.decode("utf-8", "replace"), number) if number < _REAL_QUEUE_MAX else None


def delivered_properties(properties: bytes, level: int, offset: int) -> bytes:
    """Return the properties of a message on delivery: the original ones and the mark.

    As in RocketMQ, DELAY, REAL_TOPIC and REAL_QID stay. The sequence number of its producer goes:
    it belongs to the send.
    """
    if b"INORDER_" in properties:
        properties = without(properties, _SEND_PROPERTIES)
    return append(properties, b"%s\x01%d:%d\x02" % (SCHEDULED.encode(), level, offset))


def mark(properties: bytes) -> tuple[int, int] | None:
    """Return the level and offset from which a message was delivered; None without a mark."""
    value = get(properties, SCHEDULED.encode())
    if value is None:
        return None
    level, colon, offset = value.partition(b":")
    if not (colon and level.isdigit() and offset.isdigit() and len(value) <= 32):
        return None
    return int(level), int(offset)


def is_delivery(delivered: Record, scheduled: Record) -> bool:
    """Return whether a record is the delivery of a scheduled one; any client can forge a mark.

    The record may lie in another queue than the one it was sent to, if the topic was resized
    meanwhile, or be on its way to another broker.
    """
    home = destination(scheduled.properties)
    forwarded = get(delivered.properties, FORWARDED.encode())
    topic = delivered.topic.encode() if forwarded is None else forwarded.partition(b":")[2]
    return (
        home is not None
        and home[0].encode() == topic
        and get(delivered.properties, b"UNIQ_KEY") == get(scheduled.properties, b"UNIQ_KEY")
        and (delivered.born_at_ms, delivered.redeliveries, delivered.body_crc)
        == (scheduled.born_at_ms, scheduled.redeliveries, scheduled.body_crc)
        and len(delivered.body) == len(scheduled.body)
    )


def without(properties: bytes, names: Iterable[bytes]) -> bytes:
    """Return properties without some of them."""
    unwanted = frozenset(names)
    kept = [
        entry
        for entry in properties.split(b"\x02")
        if entry and entry.partition(b"\x01")[0] not in unwanted
    ]
    return b"".join(entry + b"\x02" for entry in kept)
