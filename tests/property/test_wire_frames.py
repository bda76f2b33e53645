"""Frames and headers: any split gives the same frames, any bytes give frames or one error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.errors import LocalProtocolError, RemoteProtocolError
from inorder.wire import frame as frame_module
from inorder.wire.frame import FrameDecoder, RawFrame, encode_frame
from inorder.wire.header import Command, decode_command

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    """Any command that the protocol can carry."""
    serializer = draw(st.sampled_from([0, 1]))
    number = INT16 if serializer else INT32
    fields = draw(st.dictionaries(TEXT, TEXT, max_size=5))
    remark = draw(st.none() | TEXT)
    if serializer:
        # The binary header has no empty object and no empty remark.
        remark = remark or None
    return Command(
        draw(number),
        draw(INT32),
        draw(INT32),
        (fields or None) if serializer else draw(st.none() | st.just(fields)),
        remark,
        draw(st.binary(max_size=300)),
        language=draw(st.integers(0, 13)),
        version=draw(number),
        serializer=serializer,
    )


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at the given places, each taken modulo the length."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(commands(), min_size=1, max_size=6),
    st.lists(st.integers(0, 5000), max_size=20),
    st.sampled_from([16, 100, 1 << 16]),
    st.sampled_from([1, 4096]),
)
def test_commands_survive_any_split(
    sent: list[Command], cuts: list[int], large_bytes: int, small_bytes: int
) -> None:
    """What is encoded comes back, however the network cuts it, and however it is put together."""
    decoder = FrameDecoder()
    frames: list[RawFrame] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_module, "_LARGE_BYTES", large_bytes)
        patch.setattr(frame_module, "_SMALL_BYTES", small_bytes)
        for piece in split(b"".join(map(encode_frame, sent)), cuts):
            frames += decoder.receive_data(piece)
    assert [decode_command(frame) for frame in frames] == sent
    assert decoder.idle


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_split_anyhow_give_the_same_outcome(data: bytes, cuts: list[int]) -> None:
    """Frames, then perhaps an error: the same ones for every split."""

    def outcome(pieces: list[bytes]) -> tuple[bool, int]:
        decoder, received = FrameDecoder(1000), 0
        try:
            for piece in pieces:
                received += len(piece)
                decoder.receive_data(piece)
                assert decoder.pending_bytes <= received
        except RemoteProtocolError:
            return True, 0
        return False, decoder.pending_bytes

    assert outcome([data]) == outcome(split(data, cuts))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([0, 1]), st.binary(max_size=120))
def test_any_header_is_read_or_refused(serializer: int, header: bytes) -> None:
    """Garbage raises one kind of error; what is read can be written and read again."""
    try:
        command = decode_command((serializer, header, b""))
    except RemoteProtocolError:
        return
    try:
        written = encode_frame(command)
    except LocalProtocolError:
        return
    again = decode_command(FrameDecoder().receive_data(written)[0])
    assert (again.code, again.fields) == (command.code, command.fields)


@settings(max_examples=150, deadline=None)
@given(commands(), st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_never_escapes(command: Command, at: int, value: int) -> None:
    """A frame with one byte changed is read, refused or waited for."""
    data = bytearray(encode_frame(command))
    data[at % len(data)] = value
    try:
        for frame in FrameDecoder().receive_data(bytes(data)):
            decode_command(frame)
    except RemoteProtocolError:
        pass
