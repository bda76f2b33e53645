"""The numbers of the stored record: magic, flags, sizes, structs. See record.py for the diagram."""

from __future__ import annotations

import struct
from typing import Final

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = [
    "BLANK",
    "BLANK_BYTES",
    "BODY_AT",
    "BORN_HOST_V6",
    "END",
    "HEAD",
    "HEADS",
    "INVALID",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "MULTI_TAGS",
    "OVERHEAD_V1",
    "RECORD_BYTES_MAX",
    "SHORT",
    "STORE_HOST_V6",
    "TOPIC_BYTES_MAX",
    "TOPIC_BYTES_MAX_V1",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "TWO_INTS",
    "Buffer",
    "body_crc",
    "crc32",
]

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
"""No record is larger, whatever a broker is configured to take."""

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

Buffer = bytes | bytearray | memoryview


def body_crc(data: Buffer) -> int:
    """Return the CRC-32 of a stored body, in 31 bits as RocketMQ keeps it."""
    return crc32(data) & 0x7FFFFFFF
