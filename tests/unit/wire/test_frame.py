"""Frames out of a byte stream."""

from __future__ import annotations

import struct

import pytest

from inorder.errors import LocalProtocolError, RemoteProtocolError
from inorder.wire.frame import (
    FRAME_BYTES_MAX,
    FrameDecoder,
    encode_frame,
    encode_head,
    frame,
)
from inorder.wire.header import HEADER_BYTES_MAX, Command

ONE = frame(0, b"{}", b"body")
TWO = frame(1, b"", b"")


def test_whole_frames_come_out_at_once() -> None:
    """All frames of one read are returned in order."""
    decoder = FrameDecoder()
    assert decoder.receive_data(ONE + TWO + ONE) == [
        (0, b"{}", b"body"),
        (1, b"", b""),
        (0, b"{}", b"body"),
    ]
    assert decoder.idle


def test_bytes_one_by_one_make_the_same_frames() -> None:
    """A frame comes out with its last byte, not before."""
    decoder = FrameDecoder()
    frames = []
    for at in range(len(ONE)):
        assert decoder.pending_bytes == at
        frames += decoder.receive_data(ONE[at : at + 1])
    assert frames == [(0, b"{}", b"body")]
    assert decoder.pending_bytes == 0


def test_a_large_frame_in_many_pieces() -> None:
    """Small and large pieces of one frame are put together; the rest waits."""
    body = bytes(range(256)) * 4096
    data = frame(0, b"h", body) + ONE[:5]
    decoder = FrameDecoder()
    frames = []
    at = 0
    for step in (3, 5, 100, 5000, 70_000, 1, 2, 400_000, 10, 10_000_000):
        frames += decoder.receive_data(data[at : at + step])
        at += step
    assert frames == [(0, b"h", body)]
    assert decoder.pending_bytes == 5
    assert not decoder.idle
    assert decoder.receive_data(ONE[5:]) == [(0, b"{}", b"body")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">i", -1), "frame length -1"),
        (struct.pack(">i", 3), "frame length 3"),
        (struct.pack(">iI", 3, 0), "frame length 3"),
        (struct.pack(">i", 0x7FFFFFFF), "frame length"),
        (struct.pack(">i", FRAME_BYTES_MAX - 3), "frame length"),
        (struct.pack(">iI", 8, 2 << 24), "unknown serializer 2"),
        (struct.pack(">iI", 8, 0xFF << 24), "unknown serializer 255"),
        (struct.pack(">iI", 8, 5), "does not fit"),
        (struct.pack(">iI", 4, 0xFFFFFF), "above the limit"),
        (struct.pack(">iI", 2 * HEADER_BYTES_MAX, HEADER_BYTES_MAX + 1), "above the limit"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame length"),
    ],
)
def test_impossible_beginnings_are_refused_at_once(data: bytes, words: str) -> None:
    """What can never become a frame is refused before its body is awaited."""
    with pytest.raises(RemoteProtocolError, match=words):
        FrameDecoder().receive_data(data)


def test_frames_before_an_impossible_one_are_lost_with_it() -> None:
    """The connection is closed anyway."""
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().receive_data(ONE + struct.pack(">iI", 1, 1))


def test_the_limit_counts_the_length_field() -> None:
    """A frame of exactly the limit passes, one byte more does not."""
    data = frame(0, b"h", bytes(91))
    assert len(data) == 100
    assert len(FrameDecoder(100).receive_data(data)) == 1
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(99).receive_data(data)


def test_head_and_body_are_the_frame() -> None:
    """A body written apart follows the head."""
    command = Command.request(11, {"topic": "T"}, b"12345")
    assert encode_head(command, 5) + b"12345" == encode_frame(command)
    assert encode_frame(Command.request(11, {"topic": "T"}, memoryview(b"12345"))) == encode_frame(
        command
    )


@pytest.mark.parametrize(
    "command",
    [
        Command.request(1, {"k": "v" * HEADER_BYTES_MAX}),
        Command.request(1, body=bytes(FRAME_BYTES_MAX)),
    ],
    ids=["header", "body"],
)
def test_too_large_frames_are_not_made(command: Command) -> None:
    """We refuse to send what every peer would refuse to read."""
    with pytest.raises(LocalProtocolError, match="above the limit"):
        encode_frame(command)


@pytest.mark.parametrize("step", [1, 7, 1000, 100_000])
def test_a_body_that_nobody_wants_is_passed_over(step: int) -> None:
    """The frame comes at its end, without the body, which is not kept; the next ones are whole."""
    data = frame(0, b"header", b"x" * 50_000) + ONE + TWO
    decoder = FrameDecoder()
    assert decoder.begun() is None
    frames = decoder.receive_data(data[:11])
    assert (decoder.begun(), decoder.needed_bytes) == (None, 50_014)
    frames += decoder.receive_data(data[11:20])
    assert decoder.begun() == (0, b"header", b"")
    decoder.pass_over()
    for at in range(20, len(data), step):
        assert sum(map(len, decoder._chunks)) <= len(ONE)
        frames += decoder.receive_data(data[at : at + step])
    assert frames == [(0, b"header", b""), (0, b"{}", b"body"), (1, b"", b"")]
    assert decoder.idle
