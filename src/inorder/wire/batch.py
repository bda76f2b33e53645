"""The body of a batch: messages for one topic and queue, one after the other.

Each item: i32 size (22 + body + properties), i32 magic, i32 crc (both 0 and ignored), i32 flag,
i32 length and body, i16 length and properties.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from inorder.errors import LocalProtocolError, MessageIllegal
from inorder.wire.properties import PROPERTIES_BYTES_MAX

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES: Final = struct.Struct(">h")
_OVERHEAD_BYTES: Final = 22


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes


def decode_batch(body: bytes | memoryview) -> list[BatchItem]:
    """Return the messages of a batch, in order.

    Raises:
        MessageIllegal: the body is empty, or its lengths do not add up.
    """
    # hot: 0.9 us per message.
    data = bytes(body)
    at, end = 0, len(data)
    items: list[BatchItem] = []
    head, properties_length = _HEAD.unpack_from, _PROPERTIES.unpack_from
    while at < end:
        if end - at < _OVERHEAD_BYTES:
            raise MessageIllegal(f"batch ends inside of message {len(items)}")
        size, _, _, flag, body_bytes = head(data, at)
        if not 0 <= body_bytes <= size - _OVERHEAD_BYTES or size > end - at:
            raise MessageIllegal(f"batch message {len(items)} has impossible lengths")
        body_at = at + _HEAD.size
        properties_at = body_at + body_bytes
        (properties_bytes,) = properties_length(data, properties_at)
        if properties_bytes != size - _OVERHEAD_BYTES - body_bytes:
            raise MessageIllegal(f"batch message {len(items)} has impossible lengths")
        properties_at += _PROPERTIES.size
        at += size
        items.append(BatchItem(flag, data[body_at : properties_at - 2], data[properties_at:at]))
    if not items:
        raise MessageIllegal("batch without messages")
    return items


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the body of a batch.

    Raises:
        LocalProtocolError: the properties of a message are too long.
    """
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"properties of {len(properties)} bytes are above {PROPERTIES_BYTES_MAX}"
            )
        size = _OVERHEAD_BYTES + len(body) + len(properties)
        parts += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _PROPERTIES.pack(len(properties)),
            properties,
        )
    return b"".join(parts)
