"""The records of a pull answer as messages: checked at once, their fields read on first use.

Most consumers read the body of a message and perhaps its key. So a message keeps its record as it
came, and reads a field, or parses the properties, on first use. A record that is not plain
(compressed or large body, long topic, IPv6 host) becomes an ordinary message at once.

A damaged message, or one with a compression that this process lacks, does not hide the messages
before it in the same answer: they are returned, and the next pull begins with it and fails.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from inorder.errors import CorruptRecord, InorderError, LocalProtocolError
from inorder.model import Fence, Fencing, ReceivedMessage, TopicQueue
from inorder.wire import properties as names
from inorder.wire.compression import COMPRESSED, decompress_body
from inorder.wire.ids import offset_message_id
from inorder.wire.properties import parse
from inorder.wire.record import (
    BODY_AT,
    BORN_HOST_V6,
    HEAD,
    MAGIC_V1,
    OVERHEAD_V1,
    SHORT,
    STORE_HOST_V6,
    Buffer,
    Record,
    crc32,
    decode,
)

_NOT_PLAIN: Final = COMPRESSED | BORN_HOST_V6 | STORE_HOST_V6
_PLAIN_BODY_MAX: Final = 4096  # every access to a body copies it
# The fields of HEAD that are checked: size, magic, checksum, queue, offset, flags, body size.
_CHECKED: Final = struct.Struct(">iiii4xq8xi44xi")
# Indexes into the tuple that HEAD unpacks.
_FLAG, _POSITION, _BORN, _STORED, _HOST, _REDELIVERIES = 4, 6, 8, 10, 11, 12
assert _CHECKED.size == HEAD.size == BODY_AT


class _Lazy(ReceivedMessage):
    """A message that reads its fields from its record.

    `_record` is (record, queue, size of the body, gap after the body, fences). The offset is read
    at once, because a consumer needs it often. Calling the class, as `replace` does, returns an
    ordinary message.
    """

    __slots__ = ("_parsed", "_record")

    _record: tuple[bytes, TopicQueue, int, int, Fencing | None]
    _parsed: dict[str, str]

    def __new__(cls, *values: Any, **named: Any) -> ReceivedMessage:  # type: ignore[misc]
        return ReceivedMessage(*values, **named)

    def _head(self, index: int) -> Any:
        return HEAD.unpack_from(self._record[0])[index]

    @property
    def topic(self) -> str:
        return self._record[1].topic

    @property
    def queue(self) -> TopicQueue:
        return self._record[1]

    @property
    def body(self) -> bytes:
        record, _, body_bytes, _, _ = self._record
        return record[BODY_AT : BODY_AT + body_bytes]

    @property
    def properties(self) -> dict[str, str]:
        try:
            return self._parsed
        except AttributeError:
            record, _, body_bytes, gap, _ = self._record
            parsed = parse(record[BODY_AT + body_bytes + gap :])
            _set_parsed(self, parsed)
            return parsed

    @property
    def message_id(self) -> str:
        unique = self.properties.get(names.UNIQ_KEY)
        return unique or offset_message_id(self._head(_HOST), self._head(_POSITION))

    @property
    def born_at_ms(self) -> int:
        return int(self._head(_BORN))

    @property
    def stored_at_ms(self) -> int:
        return int(self._head(_STORED))

    @property
    def redeliveries(self) -> int:
        return int(self._head(_REDELIVERIES))

    @property
    def position(self) -> int:
        return int(self._head(_POSITION))

    @property
    def flag(self) -> int:
        return int(self._head(_FLAG))

    @property
    def fencing(self) -> Fence | Fencing | None:
        return self._record[4]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]  # like every message: properties are not hashable

    def __reduce__(self) -> tuple[type[ReceivedMessage], tuple[Any, ...]]:
        return ReceivedMessage, (*_values(self), self.fence)

    def __repr__(self) -> str:
        return repr(ReceivedMessage(*_values(self)))


# A frozen class forbids assignment; its slots do not.
_set_record: Final[Any] = vars(_Lazy)["_record"].__set__
_set_parsed: Final[Any] = vars(_Lazy)["_parsed"].__set__
_set_offset: Final[Any] = vars(ReceivedMessage)["offset"].__set__


class Received(NamedTuple):
    """The messages of a pull answer, and the offset of the next pull."""

    messages: tuple[ReceivedMessage, ...]
    next_offset: int


def receive_from(
    queue: TopicQueue,
    offset: int,
    buffer: Buffer,
    next_offset: int,
    *,
    body_bytes_max: int,
    fencing: Fencing | None = None,
) -> Received:
    """Return the messages of an answer to a pull at `offset`, up to the first damaged one.

    The next pull begins at the broker's `next_offset`, or at the damaged message.

    Raises:
        CorruptRecord: The first message is damaged.
        LocalProtocolError: The first message is compressed, and the package for it is missing.
    """
    found, error = receive_whole(queue.broker, buffer, body_bytes_max, fencing)
    if error is None:
        return Received(found, next_offset)
    if found:
        return Received(found, found[-1].offset + 1)
    if isinstance(error, CorruptRecord):
        raise CorruptRecord(
            f"the message of {queue} at offset {offset}, or the next one with a wanted tag, is "
            f"damaged: {error}; to skip it, seek behind it or reset the group's offset"
        ) from error
    raise error


def receive_all(
    broker: str, buffer: Buffer, body_bytes_max: int, fencing: Fencing | None = None
) -> tuple[ReceivedMessage, ...]:
    """Return the messages of a pull answer, with bodies decompressed up to the limit.

    `fencing` gives their fences. Raises CorruptRecord if a message is damaged.
    """
    found, error = receive_whole(broker, buffer, body_bytes_max, fencing)
    if error is not None:
        raise error
    return found


def receive_whole(
    broker: str, buffer: Buffer, body_bytes_max: int, fencing: Fencing | None = None
) -> tuple[tuple[ReceivedMessage, ...], InorderError | None]:
    """Return the messages before the first unreadable one, and its error."""
    # hot: 0.85 us a message of 200 bytes (bench/decoding.py).
    data = bytes(buffer)
    unpack, short, checksum = _CHECKED.unpack_from, SHORT.unpack_from, crc32
    new, lazy, put, plain, head_bytes = object.__new__, _Lazy, _set_record, MAGIC_V1, BODY_AT
    put_offset = _set_offset
    found: list[ReceivedMessage] = []
    append, is_at = found.append, data.startswith
    at, stop = 0, len(data)
    last = stop - OVERHEAD_V1
    queue = TopicQueue("", broker, -1)
    queue_before, topic, gap = -1, b"", 0  # of the previous message: length byte and name
    while at < stop:
        if at <= last:
            size, magic, crc, queue_id, offset, flags, body_bytes = unpack(data, at)
            end, body_at = at + size, at + head_bytes
            topic_at = body_at + body_bytes
            if (
                magic == plain
                and not flags & _NOT_PLAIN
                and 0 < body_bytes <= _PLAIN_BODY_MAX
                and topic_at < end <= stop
            ):
                if queue_id != queue_before or not is_at(topic, topic_at):
                    topic = data[topic_at : topic_at + 1 + data[topic_at]]
                    queue_before, gap = queue_id, len(topic) + 2
                    queue = TopicQueue(str(topic[1:], "utf-8", "replace"), broker, queue_id)
                begin = topic_at + gap
                if (
                    begin <= end
                    and short(data, begin - 2)[0] == end - begin
                    and checksum(data[body_at:topic_at]) & 0x7FFFFFFF == crc
                ):
                    message: Any = new(lazy)
                    put(message, (data[at:end], queue, body_bytes, gap, fencing))
                    put_offset(message, offset)
                    append(message)
                    at = end
                    continue
        try:
            record = decode(data, at)
            append(receive(broker, record, body_bytes_max, fencing))
        except (CorruptRecord, LocalProtocolError) as error:
            return tuple(found), error
        at += record.size
    return tuple(found), None


def receive(
    broker: str, record: Record, body_bytes_max: int, fencing: Fencing | None = None
) -> ReceivedMessage:
    """Return a record as a message, with its body decompressed up to the limit."""
    properties = parse(record.properties)
    return ReceivedMessage(
        record.topic,
        TopicQueue(record.topic, broker, record.queue_id),
        record.queue_offset,
        decompress_body(record.sys_flag, record.body, limit=body_bytes_max),
        properties,
        properties.get(names.UNIQ_KEY) or offset_message_id(record.store_host, record.position),
        record.born_at_ms,
        record.stored_at_ms,
        record.redeliveries,
        record.position,
        record.flag,
        fencing,
    )


def _values(message: ReceivedMessage) -> tuple[Any, ...]:
    return (
        message.topic,
        message.queue,
        message.offset,
        message.body,
        message.properties,
        message.message_id,
        message.born_at_ms,
        message.stored_at_ms,
        message.redeliveries,
        message.position,
        message.flag,
    )
