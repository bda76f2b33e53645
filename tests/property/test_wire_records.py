"""Records, batches, properties, ids: round trips, and garbage that only raises what it should."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inorder.errors import CorruptRecord, MessageIllegal, RemoteProtocolError
from inorder.wire import record
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body, decompress_body
from inorder.wire.ids import offset_message_id, pack_host, parse_message_id
from inorder.wire.properties import append, format_properties, get, parse
from inorder.wire.requests.sends import BatchItem, decode_batch, encode_batch

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOST = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
TOPIC = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=9
)

RECORDS = st.builds(
    record.Record,
    TOPIC,
    INT32,
    INT64,
    INT64,
    st.binary(max_size=50),
    # A zero byte at the end is what a torn write leaves: no record is taken in with one.
    st.binary(max_size=50).map(lambda text: text.rstrip(b"\0")),
    INT32,
    INT32,
    INT64,
    HOST,
    INT64,
    HOST,
    INT32,
    INT64,
    st.none(),
    st.sampled_from([1, 2]),
)


@settings(max_examples=100, deadline=None)
@given(RECORDS)
def test_records_come_back(value: record.Record) -> None:
    """Every field, in both versions, with both kinds of hosts."""
    data = record.encode(value)
    read = record.decode(data)
    assert record.encode(read) == data
    for name in ("topic", "body", "properties", "born_host", "store_host", "position", "flag"):
        assert getattr(read, name) == getattr(value, name)
    assert record.check(data, 0, len(data), position=value.position) == len(data)


@settings(max_examples=200, deadline=None)
@given(RECORDS, st.integers(0, 400), st.integers(0, 255))
def test_decode_check_and_scan_agree_on_damage(value: record.Record, at: int, byte: int) -> None:
    """A changed byte is refused by all three, or by none.

    But for properties that end in a zero byte: a scan takes them for a torn write.
    """
    data = bytearray(record.encode(value))
    data[at % len(data)] = byte
    assume(not value.properties or data[-1])
    try:
        size = record.decode(bytes(data)).size
    except CorruptRecord:
        size = record.INVALID
    found = record.check(bytes(data), 0, len(data))
    assert found == size or (size == record.INVALID and found == record.BLANK)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_no_record(data: bytes) -> None:
    """Only CorruptRecord, and a scan ends without any error."""
    assume(data[4:8] != b"\xda\xa3\x20\xa7")
    with pytest.raises(CorruptRecord):
        record.decode(data)
    assert list(record.scan(data, 0, len(data), position_of_at=0)) == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(BatchItem, INT32, st.binary(max_size=30), st.binary(max_size=30)), min_size=1
    )
)
def test_batches_come_back(items: list[BatchItem]) -> None:
    """In order, byte for byte."""
    assert decode_batch(encode_batch(items)) == items


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=100)
    | st.lists(st.integers(-2, 70), max_size=12).map(
        lambda numbers: b"".join((number & 0xFFFFFFFF).to_bytes(4, "big") for number in numbers)
    )
)
def test_garbage_batches_are_illegal_or_equal(data: bytes) -> None:
    """What is taken for a batch has exactly its length."""
    try:
        items = decode_batch(data)
    except MessageIllegal:
        return
    assert len(encode_batch(items)) == len(data)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAME, NAME, max_size=8))
def test_properties_come_back(mapping: dict[str, str]) -> None:
    """All at once and one by one, with and without the last separator."""
    text = format_properties(mapping)
    assert parse(text) == parse(text.encode()) == mapping
    assert parse(text[:-1]) == mapping
    for name, value in mapping.items():
        assert get(text.encode(), name.encode()) == value.encode()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"b", b"aa", b"\x01", b"\x02", b"\xc3\xa4"]), max_size=16))
def test_get_agrees_with_parse_on_anything(pieces: list[bytes]) -> None:
    """The fast way and the full way read the same rules."""
    raw = b"".join(pieces)
    found = parse(raw)
    for name in ("a", "b", "aa", "ab", "ä"):
        value = get(raw, name.encode())
        assert (None if value is None else value.decode()) == found.get(name)
    assert parse(append(raw, b"z\x01y\x02")) == {**found, "z": "y"}


@settings(max_examples=50, deadline=None)
@given(st.ip_addresses(), st.integers(0, 65535), INT64)
def test_message_ids_come_back(ip: object, port: int, position: int) -> None:
    """Address, port and position."""
    text = offset_message_id(pack_host(str(ip), port), position)
    assert parse_message_id(text) == (str(ip), port, position)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40) | st.text("0123456789abcdefABCDEF", min_size=32, max_size=32))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    """One kind of error."""
    try:
        ip, port, position = parse_message_id(text)
    except RemoteProtocolError:
        return
    assert offset_message_id(pack_host(ip, port), position) == text.upper()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["zlib", "lz4", "zstd"]), st.binary(max_size=500))
def test_bodies_come_back_from_every_compression(algorithm: str, body: bytes) -> None:
    """Whatever the body."""
    packed = compress_body(algorithm, body)
    assert decompress_body(COMPRESSION_FLAGS[algorithm], packed, limit=len(body)) == body


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["zlib", "lz4", "zstd"]),
    st.binary(min_size=1, max_size=80),
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_damaged_bodies_raise_one_error(algorithm: str, body: bytes, at: int, byte: int) -> None:
    """Refused, or within the limit."""
    packed = bytearray(compress_body(algorithm, body))
    packed[at % len(packed)] = byte
    try:
        read = decompress_body(COMPRESSION_FLAGS[algorithm], bytes(packed), limit=1000)
    except CorruptRecord:
        return
    assert len(read) <= 1000


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 0xFFFF), st.binary(max_size=100))
def test_garbage_bodies_raise_one_error(flags: int, body: bytes) -> None:
    """Any flags, any bytes."""
    try:
        assert len(decompress_body(flags, body, limit=1000)) <= 1000
    except CorruptRecord:
        pass
