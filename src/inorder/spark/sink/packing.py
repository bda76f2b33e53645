"""Rows into the body of a batch, all at once; `wire/requests/sends.py` does it one by one.

An item is `i32 size, i32 magic, i32 crc, i32 flag, i32 body length, body, i16 length, properties`.
Each part is a column. Arrow joins the columns row by row, and the joined rows lie one behind the
other, as the body of the request needs them. Why: decision 34.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.accelerated import native
from inorder.errors import ConfigError
from inorder.wire.extensions import PREDECESSOR, PRODUCER_ID, SEQUENCE
from inorder.wire.properties import PROPERTIES_BYTES_MAX

Array = np.ndarray[Any, np.dtype[Any]]

ITEM_BYTES: Final = 22
CHUNK_MESSAGES: Final = 4096
CHUNK_BYTES: Final = 1 << 20
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
_PROPERTY_OF: Final = (("tag", "TAGS"), ("keys", "KEYS"), ("key", "__SHARDINGKEY"))
_FORBIDDEN: Final = "[\x01\x02]"


class Chunk(NamedTuple):
    """The body of one request, and which of the rows it holds."""

    body: Any
    start: int
    end: int


class Sender(NamedTuple):
    """The sender of rows: `name` makes their ids, `producer` is the broker's name for it.

    Without a producer, rows carry no numbers. `named`: each row names the number before its own.
    """

    name: str
    producer: str
    named: bool = True


def pack_some(  # noqa: PLR0917 - called in one place
    batch: pa.RecordBatch,
    properties: Any | None,
    rows: Array,
    sender: Sender,
    numbers: Array,
    before: int,
) -> list[Chunk]:
    """Return some rows, of one producer and for one queue, as requests, in their order.

    `properties` are the users' own, joined already (`join_properties`); `numbers` ascend, and
    `before` is the number that the broker knows as the last.
    """
    if native is not None:
        found = native.pack_rows(
            _columns(batch, properties),
            np.ascontiguousarray(rows, np.int64),
            np.ascontiguousarray(numbers, np.int64),
            before,
            _words(sender),
            CHUNK_MESSAGES,
            CHUNK_BYTES,
        )
        if found is not None:
            return [Chunk(*one) for one in found]
    index = pa.array(rows)
    own = None if properties is None else properties.take(index)
    return pack(batch.take(index), own, sender, numbers, before)


def _words(sender: Sender) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the property bytes around the numbers, the same for all rows of a sender."""
    return (
        b"UNIQ_KEY\x01" + _id_head(sender.name),
        b"\x02WAIT\x01true\x02",
        *_number_words(sender),
    )


def _number_words(sender: Sender) -> tuple[bytes, bytes]:
    """Return the bytes before a row's number and before that of its predecessor, empty if none."""
    if not sender.producer:
        return b"", b""
    head = f"{PRODUCER_ID}\x01{sender.producer}\x02{SEQUENCE}\x01".encode()
    return head, f"\x02{PREDECESSOR}\x01".encode() if sender.named else b""


def _columns(batch: pa.RecordBatch, properties: Any | None) -> list[Any]:
    """Return bodies and properties of all rows as the compiled module takes them."""
    given = [(b"", batch["body"].cast(pa.binary()))]
    if properties is not None:
        given.append((b"", properties))
    for column, name in _PROPERTY_OF:
        if column in batch.schema.names:
            given.append((f"{name}\x01".encode(), batch[column].cast(pa.string())))
    return [as_column(head, values) for head, values in given]


def as_column(head: bytes, values: Any) -> tuple[bytes, int, int, Any, Any, Any]:
    """Return texts as the compiled module takes them, with the bytes before each."""
    return (head, len(values), values.offset, *values.buffers())


def pack(
    batch: pa.RecordBatch, properties: Any | None, sender: Sender, numbers: Array, before: int
) -> list[Chunk]:
    """Return all rows of a batch as `pack_some` does, column by column."""
    bodies = batch["body"].cast(pa.binary())
    if bodies.null_count or (bodies.is_valid() and pc.min(pc.binary_length(bodies)).as_py() == 0):
        raise ConfigError("a row has no body; a message needs at least one byte")
    texts = _properties(batch, properties, sender, numbers, before)
    text_sizes = pc.binary_length(texts).to_numpy(False)
    if len(text_sizes) and int(text_sizes.max()) > PROPERTIES_BYTES_MAX:
        raise ConfigError(f"properties of a row have more than {PROPERTIES_BYTES_MAX} bytes")
    body_sizes = pc.binary_length(bodies).to_numpy(False)
    heads = np.zeros(len(numbers), _HEAD)
    heads["size"] = ITEM_BYTES + body_sizes + text_sizes
    heads["body"] = body_sizes
    items = pc.binary_join_element_wise(
        _fixed(heads), bodies, _fixed(text_sizes.astype(">i2")), texts, b""
    )
    return list(_chunks(items))


def _chunks(items: Any) -> Iterator[Chunk]:
    """Cut joined items into requests of a bounded size."""
    _, offsets, data = items.buffers()
    ends = np.frombuffer(offsets, np.int32, len(items) + 1)
    view = memoryview(data)
    start = 0
    while start < len(items):
        fits = int(np.searchsorted(ends, int(ends[start]) + CHUNK_BYTES, "right")) - 1
        end = max(start + 1, min(fits, start + CHUNK_MESSAGES, len(items)))
        yield Chunk(bytes(view[int(ends[start]) : int(ends[end])]), start, end)
        start = end


def _properties(
    batch: pa.RecordBatch, own: Any | None, sender: Sender, numbers: Array, before: int
) -> Any:
    """Return the properties of all rows, as bytes."""
    columns = set(batch.schema.names)
    parts: list[Any] = [b"UNIQ_KEY\x01", message_ids(sender.name, numbers), b"\x02WAIT\x01true\x02"]
    if own is not None:
        parts.append(own)
    for column, property_name in _PROPERTY_OF:
        if column in columns:
            parts += _optional(batch[column], property_name, column)
    head, before_head = _number_words(sender)
    if head:
        parts += [head, _decimal(numbers)]
        if before_head:
            parts += [before_head, _decimal(np.concatenate(([before], numbers[:-1])))]
        parts.append(b"\x02")
    return pc.binary_join_element_wise(*parts, b"")


def _optional(values: Any, name: str, column: str) -> list[Any]:
    """Return the parts of a property that rows may have or not."""
    texts = values.cast(pa.string())
    if texts.null_count == len(texts):
        return []
    if pc.any(pc.match_substring_regex(texts, _FORBIDDEN)).as_py():
        raise ConfigError(f"the column {column} has a value with \\x01 or \\x02 in it")
    there = pc.fill_null(pc.not_equal(texts, ""), False)
    head, tail = f"{name}\x01".encode(), b"\x02"
    if pc.all(there).as_py():
        return [head, texts.cast(pa.binary()), tail]
    joined = pc.binary_join_element_wise(head, pc.fill_null(texts, "").cast(pa.binary()), tail, b"")
    return [pc.if_else(there, joined, pa.scalar(b"", pa.binary()))]


def join_properties(maps: Any, unwanted: frozenset[str], prefix: str) -> Any:
    """Return maps of properties as bytes, without the names that others set."""
    offsets = maps.offsets.to_numpy(False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    names, values = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    offsets = offsets - first
    skip = pc.or_(pc.is_in(names, pa.array(sorted(unwanted))), pc.starts_with(names, prefix))
    kept = np.flatnonzero(~skip.to_numpy(False))
    names, values = names.take(pa.array(kept)), values.take(pa.array(kept))
    for texts in (names, values):
        empty = pc.any(pc.equal(texts, "")).as_py()
        if texts.null_count or empty or pc.any(pc.match_substring_regex(texts, _FORBIDDEN)).as_py():
            raise ConfigError(
                "names and values of properties must not be empty or hold \\x01, \\x02"
            )
    entries = pc.binary_join_element_wise(
        names.cast(pa.binary()), values.cast(pa.binary()), b"\x01"
    )
    entries = pc.binary_join_element_wise(entries, b"\x02", b"")
    bounds = np.searchsorted(kept, offsets).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(bounds), entries)
    return pc.fill_null(pc.binary_join(lists, b""), b"")


def message_ids(name: str, numbers: Array) -> Any:
    """Return ids that stay the same when a row is sent again: from its producer and number."""
    producer = _id_head(name)
    raw = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    table = np.empty((len(numbers), 32), np.uint8)
    table[:, :16] = np.frombuffer(producer, np.uint8)
    table[:, 16::2] = _HEX[raw >> 4]
    table[:, 17::2] = _HEX[raw & 15]
    return _fixed(table)


def _id_head(name: str) -> bytes:
    """Return the 16 bytes that the ids of a producer's rows share."""
    return hashlib.sha256(name.encode()).hexdigest()[:16].upper().encode()


def _decimal(numbers: Array) -> Any:
    return pa.array(numbers).cast(pa.string()).cast(pa.binary())


def _fixed(table: Array) -> Any:
    """Return the rows of a table as byte strings of one size."""
    count = len(table)
    width = table.itemsize if table.ndim == 1 else table.shape[1]
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(table).tobytes())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
