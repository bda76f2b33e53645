"""From the bytes of a pull answer to Arrow columns: equal to what the record codec says."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from inorder import accelerated  # noqa: E402
from inorder.errors import CorruptRecord  # noqa: E402
from inorder.spark.source import columns  # noqa: E402
from inorder.spark.source.columns import Records  # noqa: E402
from inorder.spark.source.options import COLUMNS, arrow_schema  # noqa: E402
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body  # noqa: E402
from inorder.wire.ids import offset_message_id, pack_host  # noqa: E402
from inorder.wire.properties import parse  # noqa: E402
from inorder.wire.record import Record, decode_all, encode  # noqa: E402


@pytest.fixture(scope="module", params=["compiled", "pure"], autouse=True)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run everything with the compiled module and without."""
    if request.param == "compiled" and accelerated.native is None:
        pytest.skip(f"compiled module: {accelerated.reason}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(columns, "native", None)
            patch.setattr(columns, "native", None)
        yield


V4, V6 = pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911)

texts = st.text(st.characters(exclude_characters="\x01\x02\0", exclude_categories=("Cs",)))
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY", "WAIT", "a", "TAGSX", "é"])
properties = st.lists(st.tuples(names, texts), max_size=6).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
records = st.builds(
    Record,
    topic=st.sampled_from(["orders", "t" * 200, "Ωmega"]),
    queue_id=st.integers(0, 7),
    queue_offset=st.integers(0, 2**40),
    position=st.integers(0, 2**40),
    body=st.binary(max_size=40),
    properties=properties,
    born_at_ms=st.integers(0, 2**41),
    stored_at_ms=st.integers(0, 2**41),
    born_host=st.sampled_from([V4, V6]),
    store_host=st.sampled_from([V4, V6]),
    redeliveries=st.integers(0, 20),
)


@settings(deadline=None)
@given(st.lists(records, max_size=8))
def test_columns_equal_the_record_codec(found: list[Record]) -> None:
    """Every column of every record is what the codec reads."""
    data = b"".join(map(encode, found))
    batch = Records(data).batch(COLUMNS, broker="broker-a")
    assert batch.schema == arrow_schema()
    rows = batch.to_pylist()
    assert len(rows) == len(found)
    for row, record in zip(rows, decode_all(data), strict=True):
        expected = parse(record.properties)
        assert dict(row["properties"]) == expected
        assert len(row["properties"]) == len(expected)
        assert (row["key"], row["tag"]) == (expected.get("__SHARDINGKEY"), expected.get("TAGS"))
        assert row["keys"] == expected.get("KEYS")
        assert row["message_id"] == (
            expected.get("UNIQ_KEY") or offset_message_id(record.store_host, record.position)
        )
        assert (row["topic"], row["broker"]) == (record.topic, "broker-a")
        assert (row["queue"], row["offset"]) == (record.queue_id, record.queue_offset)
        assert (row["body"], row["redeliveries"]) == (record.body, record.redeliveries)
        assert int(row["born_at"].timestamp() * 1000 + 0.5) == record.born_at_ms
        assert int(row["stored_at"].timestamp() * 1000 + 0.5) == record.stored_at_ms


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_damage_is_noticed_or_harmless(found: list[Record], data: st.DataObject) -> None:
    """Cut or flipped bytes never become anything but an error or other values of the same shape."""
    whole = bytearray(b"".join(map(encode, found)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        batch = Records(cut).batch(COLUMNS, broker="b")
    except CorruptRecord:
        return
    batch.validate(full=True)


def test_compressed_bodies_are_unpacked() -> None:
    """A body comes out as its producer had it, beside plain ones."""
    body = b"much of the same " * 100
    packed = Record("t", 0, 0, 0, compress_body("zlib", body), sys_flag=COMPRESSION_FLAGS["zlib"])
    plain = Record("t", 0, 1, 0, b"plain")
    data = encode(plain) + encode(packed)
    batch = Records(data).batch(["body"], broker="b")
    assert batch.to_pydict() == {"body": [b"plain", body]}


def test_a_bomb_is_refused() -> None:
    """A body that unpacks beyond the limit is an error, not memory."""
    packed = compress_body("zlib", bytes(1 << 20))
    data = encode(Record("t", 0, 0, 0, packed, sys_flag=COMPRESSION_FLAGS["zlib"]))
    with pytest.raises(CorruptRecord, match="more than"):
        Records(data, body_bytes_max=1 << 16).bodies()


def test_a_wrong_checksum_is_refused() -> None:
    """A body that is not what was stored is never handed out."""
    data = bytearray(encode(Record("t", 0, 0, 0, b"body")))
    data[88] ^= 1
    with pytest.raises(CorruptRecord, match="checksum"):
        Records(bytes(data))


def test_a_lying_size_is_refused() -> None:
    """The walk from record to record stays inside the answer."""
    data = bytearray(encode(Record("t", 0, 0, 0, b"body")) * 2)
    struct.pack_into(">i", data, 0, 1 << 30)
    with pytest.raises(CorruptRecord, match="no record at 0"):
        Records(bytes(data))


def test_fewer_columns_cost_nothing_else() -> None:
    """Only the columns that were asked for are made, in the order of the schema."""
    data = encode(Record("t", 3, 4, 0, b"body"))
    batch = Records(data).batch(["offset", "queue"], broker="b")
    assert batch.to_pydict() == {"queue": [3], "offset": [4]}


def _alike(count: int) -> list[Record]:
    """Return records as one producer writes them: the same names, mostly the same size."""
    return [
        Record("orders", 1, at, at * 400, b"x" * 50,
               f"__SHARDINGKEY\x01k{at % 7}\x02UNIQ_KEY\x01{at:032X}\x02TAGS\x01t\x02".encode(),
               born_at_ms=at, stored_at_ms=at)
        for at in range(count)
    ]  # fmt: skip


_ODD = [
    b"",
    b"TAGS\x01only\x02",
    b"__SHARDINGKEY\x01order-1\x02UNIQ_KEY\x01a\x01b\x02TAGS\x01t\x02",
    b"__SHARDINGKEY\x01order-1\x02UNIQ_KEY\x01x\x02TAGS\x01t",
    b"__SHARDINGKEY\x01order-1\x02__SHARDINGKEY\x01order-2\x02TAGS\x01t\x02",
    b"__SHARDINGKEZ\x01order-1\x02UNIQ_KEY\x01x\x02TAGS\x01t\x02",
    b"\x01v\x02UNIQ_KEY\x01\x02TAGS\x01t\x02",
    b"nothing here",
]


@pytest.mark.parametrize("odd", [None, *_ODD])
@pytest.mark.parametrize("place", [0, 20, 39])
def test_many_records_alike_and_one_that_is_not(odd: bytes | None, place: int) -> None:
    """Whatever stands between records of one producer, all are read as the codec reads them."""
    found = _alike(40)
    if odd is not None:
        found[place] = replace(found[place], properties=odd)
    data = b"".join(map(encode, found))
    rows = Records(data).batch(COLUMNS, broker="broker-a").to_pylist()
    for row, record in zip(rows, decode_all(data), strict=True):
        expected = parse(record.properties)
        assert dict(row["properties"]) == expected
        assert (row["key"], row["tag"]) == (expected.get("__SHARDINGKEY"), expected.get("TAGS"))
        assert (row["offset"], row["body"]) == (record.queue_offset, record.body)


@pytest.mark.parametrize("size", [0, 90, 1 << 20])
def test_a_wrong_size_among_records_alike_is_noticed(size: int) -> None:
    """Records that are found all at once are checked like others."""
    one = encode(_alike(1)[0])
    data = bytearray(one * 30)
    struct.pack_into(">i", data, 17 * len(one), size)
    with pytest.raises(CorruptRecord):
        Records(bytes(data))
