"""The stored record: layout, codec, and the scan over a log.

The same bytes stand in the commit log, in the reply to a pull and between brokers:

     0 size i32 | 4 magic | 8 body crc | 12 queue id | 16 flag | 20 queue offset i64
    28 position i64 | 36 sys flag | 40 born at i64 | 48 born host 8 or 20 | stored at i64
    store host 8 or 20 | redeliveries i32 | prepared position i64 | i32 body
    u8 (version 2: i16) topic | i16 properties

Version 2 is for topics of more than 127 bytes. A log file that cannot hold the next record ends
with a blank: i32 bytes left, i32 magic.

The scan accepts a record if its lengths add up, its body matches its checksum, and it lies at the
position that it names. The checksum does not cover the properties, which follow the body. A write
that a power cut tore there leaves zeros, and no writer ends properties with a zero byte; the scan
therefore takes properties that end in a zero byte for torn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from inorder.errors import CorruptRecord, RecordTooLarge
from inorder.wire.ids import HOST_V4_BYTES, HOST_V6_BYTES, java_hash_bytes
from inorder.wire.properties import PROPERTIES_BYTES_MAX, get

try:
    from isal.isal_zlib import crc32 as crc32  # noqa: PLC0414
except ImportError:
    from zlib import crc32 as crc32  # noqa: PLC0414

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124

MULTI_TAGS: Final = 0x2
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""No record is larger, whatever the broker's settings."""

BLANK: Final = 0
INVALID: Final = -1
END: Final = -2

TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 32767
BODY_AT: Final = 88
OVERHEAD_V1: Final = 91
BLANK_BYTES: Final = 8

HEAD: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
HEADS: Final = {
    0: HEAD,
    BORN_HOST_V6: struct.Struct(">iiiiiqqiq20sq8siqi"),
    STORE_HOST_V6: struct.Struct(">iiiiiqqiq8sq20siqi"),
    BORN_HOST_V6 | STORE_HOST_V6: struct.Struct(">iiiiiqqiq20sq20siqi"),
}
TWO_INTS: Final = struct.Struct(">ii")
SHORT: Final = struct.Struct(">h")

STORED_AT_END: Final = 76
"""How much of a record the store time may need."""
_SYS_FLAG: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")

Buffer = bytes | bytearray | memoryview


class Sliced(Protocol):
    """Bytes of any kind, also a mapping."""

    def __getitem__(self, part: slice, /) -> Buffer:
        """Return a part."""
        ...


def body_crc(data: Buffer) -> int:
    """Return the CRC-32 of a stored body, in 31 bits as RocketMQ keeps it."""
    return crc32(data) & 0x7FFFFFFF


def stored_at_ms(data: Buffer, at: int = 0) -> int:
    """Return the store time of the record that begins at `at`."""
    (sys_flag,) = _SYS_FLAG.unpack_from(data, at + 36)
    found: int = _TIME.unpack_from(data, at + (68 if sys_flag & BORN_HOST_V6 else 56))[0]
    return found


_TOPICS_CACHED_MAX: Final = 4096


class ScannedRecord(NamedTuple):
    """The parts of a record that queues and indexes need."""

    position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    tag_hash: int
    stored_at_ms: int
    sys_flag: int
    properties: bytes


def check(
    buffer: Buffer,
    at: int,
    end: int,
    *,
    position: int | None = None,
    check_crc: bool = True,
) -> int:
    """Return the size of the record at an index, BLANK, INVALID, or END if nothing is left.

    With `position` the record must also say that it lies there.
    """
    if position is None:
        if end - at < OVERHEAD_V1:
            position = 0
        else:
            (position,) = struct.unpack_from(">q", buffer, at + 28)
    found = Scan(buffer, at, end, position_of_at=position, check_crc=check_crc)
    for record in found:
        return record.size
    return found.reason


def scan(
    buffer: Buffer,
    at: int,
    end: int,
    *,
    position_of_at: int,
    check_crc: bool = True,
) -> Scan:
    """Walk over the records from an index on; stop at the first bytes that are no record."""
    return Scan(buffer, at, end, position_of_at=position_of_at, check_crc=check_crc)


class Scan:
    """The records between two indexes of a buffer, in order.

    After the walk `reason` is END (all read), BLANK (end mark) or INVALID, and `stopped_at` is the
    index after the last record. A record whose own position is not where it lies is invalid.
    """

    __slots__ = ("_records", "reason", "stopped_at")

    def __init__(
        self, buffer: Buffer, at: int, end: int, *, position_of_at: int, check_crc: bool
    ) -> None:
        self.reason = END
        self.stopped_at = at
        self._records = self._walk(memoryview(buffer), at, end, position_of_at - at, check_crc)

    def __iter__(self) -> Iterator[ScannedRecord]:
        return self._records

    def __next__(self) -> ScannedRecord:
        return next(self._records)

    def _walk(
        self, view: memoryview, at: int, end: int, shift: int, check_crc: bool
    ) -> Iterator[ScannedRecord]:
        # hot: 2.3 us per record of 200 bytes, checksum included.
        unpack, short, crc_of, tag_of = HEAD.unpack_from, SHORT.unpack_from, crc32, get
        topics: dict[bytes, str] = {}
        while True:
            self.stopped_at = at
            available = end - at
            if available < OVERHEAD_V1:
                self.reason = _why(view, at, end)
                return
            (
                size,
                magic,
                crc,
                queue_id,
                _,
                queue_offset,
                position,
                sys_flag,
                _,
                _,
                stored_at_ms,
                _,
                _,
                _,
                body_bytes,
            ) = unpack(view, at)
            if (
                (magic != MAGIC_V1 and magic != MAGIC_V2)  # noqa: PLR1714 - faster than `in`
                or size > available
                or size < OVERHEAD_V1
                or position != at + shift
            ):
                self.reason = _why(view, at, end)
                return
            body_at = at + BODY_AT
            hosts = sys_flag & 0x30
            if hosts:
                head = HEADS[hosts]
                if size < head.size:
                    break
                values = head.unpack_from(view, at)
                stored_at_ms, body_bytes = values[10], values[14]
                body_at = at + head.size
            record_end = at + size
            topic_at = body_at + body_bytes + 1
            if magic == MAGIC_V2:
                topic_at += 1
            if body_bytes < 0 or topic_at + 2 > record_end:
                break
            topic_bytes = view[topic_at - 1] if magic == MAGIC_V1 else short(view, topic_at - 2)[0]
            properties_at = topic_at + topic_bytes + 2
            if (
                topic_bytes < 0
                or (topic_bytes > 127 and magic == MAGIC_V1)
                or properties_at > record_end
                or short(view, properties_at - 2)[0] != record_end - properties_at
            ):
                break
            if (
                check_crc
                and body_bytes
                and crc_of(view[body_at : body_at + body_bytes]) & 0x7FFFFFFF != crc
            ):
                break
            raw_topic = bytes(view[topic_at : properties_at - 2])
            topic = topics.get(raw_topic)
            if topic is None:
                if len(topics) >= _TOPICS_CACHED_MAX:
                    topics.clear()
                topic = topics[raw_topic] = raw_topic.decode("utf-8", "replace")
            properties = bytes(view[properties_at:record_end])
            if properties and not properties[-1]:
                break
            tag = tag_of(properties, b"TAGS")
            yield ScannedRecord(
                position,
                size,
                topic,
                queue_id,
                queue_offset,
                java_hash_bytes(tag) if tag else 0,
                stored_at_ms,
                sys_flag,
                properties,
            )
            at = record_end
        self.reason = INVALID


def _why(view: memoryview, at: int, end: int) -> int:
    """Return BLANK, INVALID or END for an index without a record."""
    if at >= end:
        return END
    if end - at < BLANK_BYTES:
        return INVALID
    size, magic = TWO_INTS.unpack_from(view, at)
    return BLANK if magic == MAGIC_BLANK and BLANK_BYTES <= size <= end - at else INVALID


_LOOPBACK: Final = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


@dataclass(slots=True)
class Record:
    """One message as it is stored. `properties` are raw; `body` is compressed if the flags say so.

    `body_crc` None: computed when encoded. `size` is known after decoding and encoding only.
    """

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_at_ms: int = 0
    born_host: bytes = _LOOPBACK
    stored_at_ms: int = 0
    store_host: bytes = _LOOPBACK
    redeliveries: int = 0
    prepared_position: int = 0
    body_crc: int | None = None
    version: int = 1
    size: int = 0


def record_size(
    topic_bytes: int,
    body_bytes: int,
    properties_bytes: int,
    *,
    born_v6: bool = False,
    store_v6: bool = False,
    version: int = 1,
) -> int:
    """Return the size of a record with these lengths."""
    wide = version != 1 or topic_bytes > TOPIC_BYTES_MAX_V1
    hosts = (HOST_V6_BYTES - HOST_V4_BYTES) * (born_v6 + store_v6)
    return OVERHEAD_V1 + wide + hosts + topic_bytes + body_bytes + properties_bytes


def encode(record: Record) -> bytes:
    """Return the bytes of a record. The host bits of the flags follow the hosts.

    Raises:
        RecordTooLarge: a length or number does not fit its field.
    """
    topic = record.topic.encode()
    body, properties = record.body, record.properties
    hosts = BORN_HOST_V6 if len(record.born_host) == HOST_V6_BYTES else 0
    if len(record.store_host) == HOST_V6_BYTES:
        hosts |= STORE_HOST_V6
    wide = record.version != 1 or len(topic) > TOPIC_BYTES_MAX_V1
    head = HEADS[hosts]
    size = head.size + len(body) + 1 + wide + len(topic) + 2 + len(properties)
    if (
        len(properties) > PROPERTIES_BYTES_MAX
        or len(topic) > TOPIC_BYTES_MAX
        or size > RECORD_BYTES_MAX
    ):
        raise RecordTooLarge(
            f"record of {size} bytes for the topic {record.topic[:128]} "
            f"({len(properties)} bytes of properties) is too large"
        )
    sys_flag = record.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6) | hosts
    try:
        data = b"".join(
            (
                head.pack(
                    size,
                    MAGIC_V2 if wide else MAGIC_V1,
                    body_crc(body) if record.body_crc is None else record.body_crc,
                    record.queue_id,
                    record.flag,
                    record.queue_offset,
                    record.position,
                    sys_flag,
                    record.born_at_ms,
                    record.born_host,
                    record.stored_at_ms,
                    record.store_host,
                    record.redeliveries,
                    record.prepared_position,
                    len(body),
                ),
                body,
                SHORT.pack(len(topic)) if wide else len(topic).to_bytes(1, "big"),
                topic,
                SHORT.pack(len(properties)),
                properties,
            )
        )
    except struct.error as error:
        raise RecordTooLarge(f"a number of the record does not fit its field: {error}") from None
    record.size = size
    return data


def blank(remaining_bytes: int) -> bytes:
    """Return the end mark of a log file with so many bytes left."""
    return TWO_INTS.pack(remaining_bytes, MAGIC_BLANK)


_TO_BODY: Final = struct.Struct(">i28xi44xi")


# hot: 0.5 us
def properties_at(view: memoryview, source: Sliced, at: int, size: int) -> bytes:
    """Return the properties of an intact record, without decoding the rest of it.

    `view` and `source` are the same bytes: a small slice of a mapping is cheaper than one of its
    view. What is no record has no properties.
    """
    if size < OVERHEAD_V1:
        return b""
    magic, flags, body = _TO_BODY.unpack_from(view, at + 4)
    begin, end = at + BODY_AT, at + size
    hosts = flags & (BORN_HOST_V6 | STORE_HOST_V6)
    if hosts:
        begin = at + HEADS[hosts].size
        (body,) = _SYS_FLAG.unpack_from(view, begin - 4)
    begin += body
    if body < 0 or begin > end - 3:
        return b""
    if magic == MAGIC_V1:
        return bytes(source[begin + view[begin] + 3 : end])
    return bytes(source[begin + SHORT.unpack_from(view, begin)[0] + 4 : end])


def decode(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> Record:
    """Return the record that begins at an index of the buffer.

    Raises:
        CorruptRecord: there is none.
    """
    # hot: 2.3 us for 200 bytes.
    available = len(buffer) - at
    if at < 0 or available < OVERHEAD_V1:
        raise CorruptRecord(f"{available} bytes at {at} are too few for a record")
    head = HEAD
    (
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        position,
        sys_flag,
        born_at_ms,
        born_host,
        stored_at_ms,
        store_host,
        redeliveries,
        prepared_position,
        body_bytes,
    ) = head.unpack_from(buffer, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or not OVERHEAD_V1 <= size <= available:
        raise CorruptRecord(f"no record at {at}: size {size}, magic {magic & 0xFFFFFFFF:#x}")
    hosts = sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)
    if hosts:
        head = HEADS[hosts]
        if size < head.size:
            raise CorruptRecord(f"record at {at} of {size} bytes is shorter than its hosts")
        (
            born_host,
            stored_at_ms,
            store_host,
            redeliveries,
            prepared_position,
            body_bytes,
        ) = head.unpack_from(buffer, at)[9:]
    wide = magic == MAGIC_V2
    body_at = at + head.size
    topic_at = body_at + body_bytes + 1 + wide
    end = at + size
    if body_bytes < 0 or topic_at + 2 > end:
        raise CorruptRecord(f"record at {at}: a body of {body_bytes} bytes does not fit {size}")
    topic_bytes = SHORT.unpack_from(buffer, topic_at - 2)[0] if wide else buffer[topic_at - 1]
    properties_at = topic_at + topic_bytes + 2
    if not 0 <= topic_bytes <= (32767 if wide else 127) or properties_at > end:
        raise CorruptRecord(f"record at {at}: a topic of {topic_bytes} bytes does not fit {size}")
    if SHORT.unpack_from(buffer, properties_at - 2)[0] != end - properties_at:
        raise CorruptRecord(f"record at {at}: its lengths do not add up to {size}")
    body = bytes(buffer[body_at : body_at + body_bytes])
    if check_crc and body and crc32(body) & 0x7FFFFFFF != crc:
        raise CorruptRecord(f"record at {at}: the body's checksum is wrong")
    return Record(
        str(buffer[topic_at : properties_at - 2], "utf-8", "replace"),
        queue_id,
        queue_offset,
        position,
        body,
        bytes(buffer[properties_at:end]),
        flag,
        sys_flag,
        born_at_ms,
        born_host,
        stored_at_ms,
        store_host,
        redeliveries,
        prepared_position,
        crc,
        2 if wide else 1,
        size,
    )


def decode_all(buffer: Buffer, *, check_crc: bool = True) -> list[Record]:
    """Return the records of a pull answer.

    Raises:
        CorruptRecord: the buffer is anything but whole records.
    """
    records = []
    at = 0
    while at < len(buffer):
        record = decode(buffer, at, check_crc=check_crc)
        records.append(record)
        at += record.size
    return records
