"""The stored record: the same bytes in the commit log, in a pull answer and between brokers.

     0 size i32 | 4 magic | 8 body crc | 12 queue id | 16 flag | 20 queue offset i64
    28 position i64 | 36 sys flag | 40 born at i64 | 48 born host 8 or 20 | stored at i64
    store host 8 or 20 | redeliveries i32 | prepared position i64 | i32 body
    u8 (version 2: i16) topic | i16 properties

Version 2 is for topics of more than 127 bytes. A log file that cannot hold the next record ends
with a blank: i32 bytes left, i32 magic.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from inorder.errors import CorruptRecord, RecordTooLarge
from inorder.wire.compression import COMPRESSED, COMPRESSION_FLAGS, compress_body, decompress_body
from inorder.wire.hosts import HOST_V4_BYTES, HOST_V6_BYTES, pack_host, unpack_host
from inorder.wire.properties import PROPERTIES_BYTES_MAX
from inorder.wire.recordlayout import (
    BLANK,
    BORN_HOST_V6,
    END,
    HEAD,
    HEADS,
    INVALID,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MULTI_TAGS,
    OVERHEAD_V1,
    RECORD_BYTES_MAX,
    SHORT,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    TWO_INTS,
    Buffer,
    body_crc,
    crc32,
)
from inorder.wire.recordscan import Scan, ScannedRecord, check, scan

__all__ = [
    "BLANK",
    "BORN_HOST_V6",
    "COMPRESSED",
    "COMPRESSION_FLAGS",
    "END",
    "INVALID",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "MULTI_TAGS",
    "RECORD_BYTES_MAX",
    "STORE_HOST_V6",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "Record",
    "Scan",
    "ScannedRecord",
    "blank",
    "body_crc",
    "check",
    "compress_body",
    "crc32",
    "decode",
    "decode_all",
    "decompress_body",
    "encode",
    "pack_host",
    "record_size",
    "scan",
    "unpack_host",
]

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
