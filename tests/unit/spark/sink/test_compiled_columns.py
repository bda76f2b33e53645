"""Columns by the compiled module and by Arrow: the same rows, the same bodies of requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inorder.spark.sink.options import parse

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")

from inorder.accelerated import native, reason  # noqa: E402
from inorder.errors import ConfigError, CorruptRecord  # noqa: E402
from inorder.ordering.keymap import queue_for_key  # noqa: E402
from inorder.spark.sink import packing  # noqa: E402
from inorder.spark.sink import sender as packedsink  # noqa: E402

# DROPPED
from inorder.spark.sink.options import LINEAGE  # noqa: E402
from inorder.spark.source import columns  # noqa: E402
from inorder.spark.source.columns import Records  # noqa: E402
from inorder.wire.ids import pack_host  # noqa: E402
from inorder.wire.record import Record, encode  # noqa: E402

pytestmark = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")

T = TypeVar("T")
V4, V6 = pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911)
FEW = ("queue", "offset", "key", "tag", "body", "topic", "born_at", "stored_at", "redeliveries")
PROPERTIES = st.lists(
    st.sampled_from(
        [b"__SHARDINGKEY\x01k", b"TAGS\x01a", b"TAGS\x01b", b"x\x01\x01y", b"\x02", b"\x01",
         b"KEYS", b"KEYS\x01", b"\xc3\xa9\x01v", b"TAGS\x01\xff", b"WAIT\x01true"]
    ),
    max_size=4,
).map(b"\x02".join)  # fmt: skip
RECORDS = st.lists(
    st.builds(
        Record, topic=st.sampled_from(["orders", "t" * 200]), queue_id=st.integers(0, 7),
        queue_offset=st.integers(0, 2**40), position=st.integers(0, 2**40),
        body=st.binary(max_size=40) | st.just(b"long" * 400), properties=PROPERTIES,
        born_host=st.sampled_from([V4, V6]), store_host=st.sampled_from([V4, V6]),
        redeliveries=st.integers(0, 20), stored_at_ms=st.integers(0, 2**41),
    ),
    max_size=6,
)  # fmt: skip


def both(what: Callable[[], T]) -> tuple[T | str, T | str]:
    """Return what comes out, or the error, compiled and without."""
    found: list[Any] = []
    for module in (native, None):
        with pytest.MonkeyPatch.context() as patch:
            for user in (columns, packedsink, columns, packing):
                patch.setattr(user, "native", module)
            try:
                found.append(what())
            except (CorruptRecord, ConfigError) as error:
                found.append(f"{type(error).__name__}: {error}")
    return found[0], found[1]


@settings(max_examples=150, deadline=None)
@given(found=RECORDS, damage=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2))
@example(found=[Record("t", 0, 0, 0, body=b"x" * 5000)], damage=[])
def test_columns_of_an_answer_are_the_same(
    found: list[Record], damage: list[tuple[int, int]]
) -> None:
    """Plain or strange properties, hosts of both kinds, damaged bytes: rows or errors are equal."""
    data = bytearray(b"".join(map(encode, found)))
    for place, value in damage if data else ():
        data[place % len(data)] = value
    whole = bytes(data)
    compiled, pure = both(lambda: Records(whole).batch(FEW, broker="b"))
    assert compiled == pure
    compiled, pure = both(lambda: Records(whole, check_crc=False).batch(FEW, broker="b"))
    assert compiled == pure


@settings(max_examples=60, deadline=None)
@given(found=RECORDS, cut=st.integers(0, 2000))
def test_a_cut_answer_is_refused_alike(found: list[Record], cut: int) -> None:
    """Wherever it ends."""
    whole = b"".join(map(encode, found))[:cut]
    compiled, pure = both(lambda: Records(whole).batch(FEW, broker="b"))
    assert compiled == pure


TEXTS = st.none() | st.sampled_from(["", "k", "key-7", "é", "a\x01b", "a\x02", "x" * 300])


@st.composite
def rows(draw: st.DrawFn) -> Any:
    """Return rows as a sink gets them."""
    count = draw(st.integers(1, 12))
    bodies = st.binary(min_size=1, max_size=30)
    if draw(st.integers(0, 5)) == 0:
        bodies = st.none() | st.binary(max_size=1)
    values = draw(st.lists(bodies, min_size=count, max_size=count))
    made: dict[str, Any] = {"body": pa.array(values, pa.binary())}
    texts = TEXTS if draw(st.booleans()) else st.none() | st.sampled_from(["", "k", "é", "key-7"])
    for name in draw(st.sets(st.sampled_from(["tag", "keys", "key"]))):
        values = draw(st.lists(texts, min_size=count, max_size=count))
        made[name] = pa.array(values, pa.string())
    batch = pa.RecordBatch.from_pydict(made)
    return batch.slice(draw(st.integers(0, count - 1)))


@settings(max_examples=200, deadline=None)
@given(
    batch=rows(), own=st.booleans(), step=st.sampled_from([1, 9, 1 << 20]),
    first=st.sampled_from([0, 9, 10, 99, 1 << 40, 10**17]), before=st.sampled_from([-1, 0, 8]),
    most=st.sampled_from([1, 2, 5, 1024]), bytes_max=st.sampled_from([1, 300, 1 << 20]),
    every=st.sampled_from([1, 2, 3]),
    sender=st.sampled_from([
        packing.Sender("spark:sink:t:b:0", "spark:sink:t:b:0@2"), packing.Sender("id", ""),
        packing.Sender("id:q", "id", named=False),
    ]),
)  # fmt: skip
def test_requests_of_rows_are_the_same(  # noqa: PLR0917 - drawn
    batch: Any, own: bool, step: int, first: int, before: int, most: int, bytes_max: int,
    every: int, sender: packing.Sender,
) -> None:  # fmt: skip
    """Bodies, where they are cut, and what is refused: nulls, separators, bodies without bytes."""
    chosen = np.arange(0, batch.num_rows, every)
    numbers = first + step * np.arange(len(chosen), dtype=np.int64)
    properties = None
    if own:
        properties = pa.array([b"p\x01%d\x02" % at for at in range(batch.num_rows)], pa.binary())

    def packed() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "CHUNK_MESSAGES", most)
            patch.setattr(packing, "CHUNK_BYTES", bytes_max)
            return packing.pack_some(batch, properties, chosen, sender, numbers, before)

    compiled, pure = both(packed)
    assert compiled == pure


@settings(max_examples=100, deadline=None)
@given(
    keys=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=20),
    queues=st.integers(1, 9),
    every=st.sampled_from([1, 2]),
)
@example(keys=["polygenelubricants", "k"], queues=7, every=1)  # the hash that has no absolute value
def test_keys_go_to_the_same_queues(keys: list[str], queues: int, every: int) -> None:
    """Compiled, by a dictionary of keys, and by the rule itself."""
    options = parse({"namesrv": "n:1", "topic": "t", "sinkId": "s"}, ["body", "key", *LINEAGE])
    rows = np.arange(0, len(keys), every)
    column = pa.array(["x", *keys]).slice(1)
    compiled, pure = both(
        lambda: packedsink.PackedSink(options)._by_key(column, rows, queues).tolist()
    )
    assert compiled == pure == [queue_for_key(keys[row], queues) for row in rows]


def test_a_row_with_too_many_properties_is_refused_alike() -> None:
    """Their length has two bytes, one bit of which is not ours."""
    for size in (32_000, 32_600, 33_000):
        batch = pa.RecordBatch.from_pydict({"body": [b"x"], "key": ["k" * size]})
        sender = packing.Sender("n", "p")
        compiled, pure = both(
            lambda: packing.pack_some(batch, None, np.arange(1), sender, np.arange(1), -1)  # noqa: B023 - called at once
        )
        assert compiled == pure


def test_places_outside_of_the_data_are_refused() -> None:
    """Who calls it with wrong bounds gets an error, not somebody's memory."""
    assert native is not None
    inside, outside = np.array([0], np.int64), np.array([11], np.int64)
    before = np.array([-1], np.int64)
    for starts, ends in ((inside, outside), (outside, outside), (before, inside)):
        with pytest.raises(ValueError, match="outside"):
            native.gather(b"0123456789", starts, ends)
        with pytest.raises(ValueError, match="outside"):
            native.property_bounds(b"0123456789", starts, ends, b"name")
    with pytest.raises(ValueError, match="as many"):
        native.gather(b"0123456789", inside, np.array([1, 2], np.int64))
    body = (b"", 1, 0, None, np.array([0, 50], np.int32), b"short")
    words = (b"", b"", b"", b"")
    with pytest.raises(ValueError, match="outside"):
        native.pack_rows([body], inside, inside, -1, words, 10, 1000)
    with pytest.raises(ValueError, match="follows none"):
        native.pack_rows([body], inside, inside, -1, (b"", b"", b"", b"x"), 10, 1000)
    with pytest.raises(ValueError, match="no such row"):
        native.pack_rows([body], np.array([1], np.int64), inside, -1, words, 10, 1000)
    with pytest.raises(ValueError, match="bounds"):
        native.pack_rows([(b"", 2, 0, *body[3:])], inside, inside, -1, words, 10, 1000)


def test_many_random_answers_are_read_alike() -> None:
    """Bytes that are no records at all."""
    dice = random.Random(7)
    for _ in range(200):
        data = dice.randbytes(dice.randrange(400))
        compiled, pure = both(lambda: Records(data).count)  # noqa: B023 - called at once
        assert compiled == pure
