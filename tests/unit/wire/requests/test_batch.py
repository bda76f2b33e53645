"""Batch bodies."""

from __future__ import annotations

import struct

import pytest

from inorder.errors import LocalProtocolError, MessageIllegal
from inorder.wire.requests.sends import BatchItem, decode_batch, encode_batch

ITEMS = [BatchItem(0, b"one", b"a\x01b\x02"), BatchItem(-1, b"", b""), BatchItem(7, b"x" * 99, b"")]
GOOD = encode_batch(ITEMS)


def test_round_trip() -> None:
    """Messages come back in order, from bytes and from views."""
    assert decode_batch(GOOD) == decode_batch(memoryview(GOOD)) == ITEMS


def item(size: int, body: int, properties: int, tail: bytes) -> bytes:
    """Make one item with chosen lengths."""
    return struct.pack(">iiiii", size, 0, 0, 0, body) + struct.pack(">h", properties) + tail


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:21],
        item(22, -1, 0, b""),
        item(22, 1, 0, b""),
        item(22, 0, 1, b""),
        item(22, 0, -1, b""),
        item(21, 0, 0, b""),
        item(0, 0, 0, b""),
        item(-1, 0, 0, b""),
        item(0x7FFFFFFF, 0, 0, b""),
        item(23, 0x7FFFFFFF, 0, b"x"),
        item(23, 0, 0, b"x"),
    ],
    ids=range(15),
)
def test_lengths_that_do_not_add_up_are_refused(body: bytes) -> None:
    """A broken batch is answered MESSAGE_ILLEGAL, and nothing of it is stored."""
    with pytest.raises(MessageIllegal):
        decode_batch(body)


def test_properties_too_long_are_not_sent() -> None:
    """The length has 15 bits."""
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchItem(0, b"", bytes(32768))])
