"""The records of a pull answer as messages: checked at once, their properties read on first use.

Most consumers read the body of a message and its key. So a message has the fields of its record's
head and its body at once, and keeps its properties as they came. Key and tag are found there
without parsing the others. A record that is not plain (compressed, no body, no unique id, long
topic, IPv6 host) becomes an ordinary message. The compiled module makes the plain messages;
`_plain` is its twin.

A damaged message, or one with a compression that this process lacks, does not hide the messages
before it in the same answer: they are returned, and the next pull begins with it and fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from inorder.accelerated import native
from inorder.errors import CorruptRecord, InorderError, LocalProtocolError
from inorder.model import Fencing, ReceivedMessage, TopicQueue
from inorder.wire import properties as names
from inorder.wire.compression import COMPRESSED, decompress_body
from inorder.wire.ids import offset_message_id
from inorder.wire.properties import get, parse
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
_NAMES: Final = {
    "message_id": names.UNIQ_KEY.encode(),
    "key": names.SHARDING_KEY.encode(),
    "tag": names.TAGS.encode(),
}
_UNIQUE: Final = re.compile(rb"(?:^|\x02)UNIQ_KEY\x01[^\x02]", re.DOTALL)

QueueOf = Callable[[bytes, int], TopicQueue]


class _Plain(ReceivedMessage):
    """A message whose properties, and what comes from them, are read from `_raw` on first use.

    Every other field is set when the message is made; the compiled module sets `key` and `tag` too.
    Calling the class, as `replace` does, returns an ordinary message.
    """

    __slots__ = ("_raw", "key", "tag")

    _raw: bytes
    """The properties as they came; a unique id is among them."""
    key: str | None
    tag: str | None

    def __new__(cls, *values: Any, **named: Any) -> ReceivedMessage:  # type: ignore[misc]
        return ReceivedMessage(*values, **named)

    def __getattr__(self, name: str) -> Any:
        """Return a field that is not set yet, and set it."""
        if name == "properties":
            value: Any = parse(self._raw)
        elif name in _NAMES:
            found = get(self._raw, _NAMES[name])
            value = None if found is None else str(found, "utf-8", "replace")
        else:
            raise AttributeError(f"a message has no {name!r}")
        object.__setattr__(self, name, value)
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]  # like every message: properties are not hashable

    def __reduce__(self) -> tuple[type[ReceivedMessage], tuple[Any, ...]]:
        return ReceivedMessage, (*_values(self), self.fence)

    def __repr__(self) -> str:
        return repr(ReceivedMessage(*_values(self)))


_SLOTS: Final = (
    "topic", "queue", "offset", "body", "born_at_ms", "stored_at_ms", "redeliveries", "position",
    "flag", "fencing", "_raw",
)  # fmt: skip
"""What is set at once."""
# A frozen class forbids assignment; its slots do not.
_SETTERS: Final[Any] = tuple(getattr(_Plain, name).__set__ for name in _SLOTS)
_read_plain: Final = (
    None if native is None else native.Messages(_Plain, (*_SLOTS, "key", "tag"), crc32).read
)


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
    # hot: 0.3 us a message of 200 bytes, 2 us without the compiled module (bench/decoding.py).
    data = bytes(buffer)
    found: list[ReceivedMessage] = []
    read = _plain if _read_plain is None else _read_plain

    def queue_of(topic: bytes, queue_id: int) -> TopicQueue:
        return TopicQueue(str(topic, "utf-8", "replace"), broker, queue_id)

    at, stop = read(data, 0, found, queue_of, fencing), len(data)
    while at < stop:
        try:
            record = decode(data, at)
            found.append(receive(broker, record, body_bytes_max, fencing))
        except (CorruptRecord, LocalProtocolError) as error:
            return tuple(found), error
        at = read(data, at + record.size, found, queue_of, fencing)
    return tuple(found), None


def _plain(
    data: bytes, at: int, found: list[Any], queue_of: QueueOf, fencing: Fencing | None
) -> int:
    """Add the plain messages from an index on; return the index of the first other record.

    `queue_of` returns the queue of a topic and a queue id.
    """
    unpack, short, is_unique, checksum = HEAD.unpack_from, SHORT.unpack_from, _UNIQUE.search, crc32
    (
        put_topic, put_queue, put_offset, put_body, put_born, put_stored, put_redeliveries,
        put_position, put_flag, put_fencing, put_raw,
    ) = _SETTERS  # fmt: skip
    stop = len(data)
    topic: bytes | None = None  # of the previous message
    queue, queue_before = TopicQueue("", "", -1), -1
    while at + OVERHEAD_V1 <= stop:
        (
            size, magic, crc, queue_id, flag, offset, position, flags, born_at_ms, _, stored_at_ms,
            _, redeliveries, _, body_bytes,
        ) = unpack(data, at)  # fmt: skip
        end, body_at = at + size, at + BODY_AT
        topic_at = body_at + body_bytes
        if magic != MAGIC_V1 or flags & _NOT_PLAIN or body_bytes <= 0 or not topic_at < end <= stop:
            return at
        begin = topic_at + data[topic_at] + 3
        if begin > end or short(data, begin - 2)[0] != end - begin:
            return at
        body, raw = data[body_at:topic_at], data[begin:end]
        if checksum(body) & 0x7FFFFFFF != crc or is_unique(raw) is None:
            return at
        if queue_id != queue_before or topic != data[topic_at + 1 : begin - 2]:
            topic, queue_before = data[topic_at + 1 : begin - 2], queue_id
            queue = queue_of(topic, queue_id)
        message = object.__new__(_Plain)
        put_topic(message, queue.topic)
        put_queue(message, queue)
        put_offset(message, offset)
        put_body(message, body)
        put_born(message, born_at_ms)
        put_stored(message, stored_at_ms)
        put_redeliveries(message, redeliveries)
        put_position(message, position)
        put_flag(message, flag)
        put_fencing(message, fencing)
        put_raw(message, raw)
        found.append(message)
        at = end
    return at


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
