"""Records become messages by the compiled module and in Python: the same messages, the same end."""

from __future__ import annotations

import gc
import pickle
import sys
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.accelerated import native, reason
from inorder.client.consume import messages
from inorder.client.consume.messages import receive_whole
from inorder.model import Fence, TopicQueue
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body
from inorder.wire.ids import pack_host
from inorder.wire.record import Record, crc32, encode

needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
LIMIT = 1 << 20
FENCE = Fence(7, 3)
V6 = pack_host("::1", 10911)

_WORD = st.sampled_from(["", "a", "key-42", "Schlüssel", "\x01", "UNIQ_KEY", "x" * 300])
_NAME = st.sampled_from(
    ["UNIQ_KEY", "__SHARDINGKEY", "TAGS", "KEYS", "XUNIQ_KEY", "UNIQ_KEYX", "TAGSX", "", "\x01"]
)
_ENTRIES = st.lists(st.tuples(_NAME, _WORD), max_size=6)


def properties(entries: list[tuple[str, str]], unique: bool, tail: bytes) -> bytes:
    text = "UNIQ_KEY\x01C0A8\x02" if unique else ""
    text += "".join(f"{name}\x01{value}\x02" for name, value in entries)
    return text.encode() + tail


_RECORD = st.builds(
    lambda entries, unique, tail, body, topic, queue_id, kind, number: Record(
        topic,
        queue_id,
        number,
        number * 7,
        compress_body("zlib", body) if kind == "packed" else body,
        properties(entries, unique, tail),
        flag=number % 5 - 2,
        sys_flag=COMPRESSION_FLAGS["zlib"] if kind == "packed" else 0,
        born_at_ms=number - 5,
        stored_at_ms=number + 1,
        store_host=V6 if kind == "v6" else pack_host("127.0.0.1", 10911),
        redeliveries=number % 3,
        version=2 if kind == "wide" else 1,
    ),
    _ENTRIES,
    st.booleans(),
    st.sampled_from([b"", b"TAGS\x01last", b"\xff\xfe", b"TAGS\x01\xe2\x82"]),
    st.sampled_from([b"", b"body", b"y" * 1024, b"z" * 5000]),
    st.sampled_from(["orders", "orders2", "t", ""]),
    st.integers(0, 2),
    st.sampled_from(["plain", "plain", "plain", "packed", "v6", "wide"]),
    st.integers(0, 2**40),
)


def outcome(data: bytes, read: Any) -> tuple[list[Any], str]:
    """Return all that can be seen of an answer's messages, and its error."""
    before, messages._read_plain = messages._read_plain, read  # type: ignore[misc]
    try:
        found, error = receive_whole("broker-a", data, LIMIT, FENCE)
    finally:
        messages._read_plain = before  # type: ignore[misc]
    seen = [
        (asdict(one), one.key, one.tag, one.fence, one.queue.broker, repr(one), type(one).__name__)
        for one in found
    ]
    assert [pickle.loads(pickle.dumps(one)) for one in found] == list(found)
    return seen, repr(error)


@needs_compiled
@settings(max_examples=400, deadline=None)
@given(
    st.lists(_RECORD, max_size=6),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 255)), max_size=3),
    st.integers(0, 200),
)
def test_messages_are_the_same(
    records: list[Record], flips: list[tuple[int, int]], cut: int
) -> None:
    """Good and damaged ones, of every kind, with odd properties."""
    data = bytearray(b"".join(map(encode, records)))
    for at, mask in flips:
        if data:
            data[at % len(data)] ^= mask
    if cut < 100:
        del data[len(data) - min(cut, len(data)) :]
    whole = bytes(data)
    assert outcome(whole, messages._read_plain) == outcome(whole, None)


@needs_compiled
@settings(max_examples=200, deadline=None)
@given(st.lists(_RECORD, min_size=1, max_size=3), st.integers(0, 100_000))
def test_every_length_is_compared_with_what_is_left(records: list[Record], seed: int) -> None:
    """Sizes, body, topic and properties that say too much, at the end of the bytes."""
    data = bytearray(b"".join(map(encode, records)))
    last = len(data) - len(encode(records[-1]))
    places = (last, last + 1, last + 2, last + 3, last + 84, last + 85, last + 86, last + 87)
    data[places[seed % 8] % len(data)] = seed % 256
    whole = bytes(data)
    assert outcome(whole, messages._read_plain) == outcome(whole, None)


@needs_compiled
def test_nothing_is_leaked_or_freed_too_early() -> None:
    """Counts of references are as before, and a message outlives its answer."""
    assert native is not None
    one = Record("orders", 1, 5, 9, b"body" * 50, b"UNIQ_KEY\x01u\x02__SHARDINGKEY\x01k\x02")
    queue, fence = TopicQueue("orders", "broker-a", 1), Fence(1, 2)
    kept: list[Any] = []
    read = messages._read_plain
    assert read is not None
    gc.collect()
    before = sys.getrefcount(queue), sys.getrefcount(fence)
    of_class = sys.getrefcount(messages._Plain)
    for _ in range(100):
        data = encode(one) * 3
        found: list[Any] = []
        assert read(data, 0, found, lambda _topic, _id: queue, fence) == len(data)
        kept = found[:1]
    del data, found
    gc.collect()
    assert (kept[0].body, kept[0].key, kept[0].message_id) == (b"body" * 50, "k", "u")
    kept.clear()
    assert (sys.getrefcount(queue), sys.getrefcount(fence)) == before
    # Messages of other tests may be freed meanwhile; a fault here would count 300.
    assert abs(sys.getrefcount(messages._Plain) - of_class) < 100


@needs_compiled
def test_slots_are_checked() -> None:
    """A class of another shape is refused, not overwritten."""
    assert native is not None
    names = (*messages._SLOTS, "key", "tag")
    with pytest.raises(ValueError, match="slots"):
        native.Messages(messages._Plain, names[:-1], crc32)
    with pytest.raises(ValueError, match="no slot"):
        native.Messages(messages._Plain, (*names[:-1], "attempt"), crc32)
    with pytest.raises(ValueError, match="negative"):
        native.Messages(messages._Plain, names, crc32).read(b"", -1, [], lambda *_: None, None)
