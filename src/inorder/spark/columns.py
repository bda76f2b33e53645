"""From the bytes of a pull answer to Arrow columns, all records at once.

A pull answer is records one after the other, as they lie in the log. Only the walk from record to
record and the checksums are loops; the rest is done by numpy and Arrow on whole columns:

    heads       the fixed parts of all records gathered into one table of big-endian numbers
    bodies      one array over the answer itself, cut where bodies begin and end; every second piece
                is wanted, and `take` copies just those. Topics and properties likewise
    properties  split at their separators; one property is the entries that begin with its name

Compressed bodies are unpacked one by one, never beyond the limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.errors import CorruptRecord
from inorder.spark.schema import arrow_schema
from inorder.wire.compression import COMPRESSED, decompress_body
from inorder.wire.ids import offset_message_id
from inorder.wire.recordlayout import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    OVERHEAD_V1,
    STORE_HOST_V6,
    crc32,
)

Array = np.ndarray[Any, np.dtype[Any]]

_SIZE: Final = struct.Struct(">i").unpack_from
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
_NAMES_MAX: Final = 256
PROPERTY_OF: Final = {
    "key": "__SHARDINGKEY",
    "tag": "TAGS",
    "keys": "KEYS",
    "message_id": "UNIQ_KEY",
}


def _head(born_bytes: int, store_bytes: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue", ">i4"), ("flag", ">i4"),
            ("offset", ">i8"), ("position", ">i8"), ("sys_flag", ">i4"), ("born_at", ">i8"),
            ("born_host", f"V{born_bytes}"), ("stored_at", ">i8"),
            ("store_host", f"V{store_bytes}"), ("redeliveries", ">i4"), ("prepared", ">i8"),
            ("body_size", ">i4"),
        ]
    )  # fmt: skip


_HEADS: Final = {
    0: _head(8, 8),
    BORN_HOST_V6: _head(20, 8),
    STORE_HOST_V6: _head(8, 20),
    _HOST_BITS: _head(20, 20),
}


class Records:
    """The records of one pull answer, as columns."""

    def __init__(self, data: bytes, *, check_crc: bool = True, body_bytes_max: int = 1 << 26):
        """Find and check all records; CorruptRecord if the bytes are anything else."""
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._body_bytes_max = body_bytes_max
        self._starts = np.array(_walk(data), np.int64)
        self.count = len(self._starts)
        self._entries: tuple[Any, Array] | None = None
        if self.count:
            self._read_heads()
            self._find_parts()
            if check_crc:
                self._check_crc()

    # Heads.

    def _read_heads(self) -> None:
        plain = self._gather(self._starts, 0)
        self.queues = plain["queue"].astype(np.int32)
        self.offsets = plain["offset"].astype(np.int64)
        self.positions = plain["position"].astype(np.int64)
        self.sys_flags = plain["sys_flag"].astype(np.int32)
        self.born_at_ms = plain["born_at"].astype(np.int64)
        self.stored_at_ms = plain["stored_at"].astype(np.int64)
        self.redeliveries = plain["redeliveries"].astype(np.int32)
        self._sizes = plain["size"].astype(np.int64)
        self._magics = plain["magic"].astype(np.int32)
        self._crcs = plain["crc"].astype(np.int32)
        body_sizes = plain["body_size"].astype(np.int64)
        head_sizes = np.full(self.count, _HEADS[0].itemsize, np.int64)
        hosts = self.sys_flags & _HOST_BITS
        for kind in (BORN_HOST_V6, STORE_HOST_V6, _HOST_BITS):
            chosen = np.flatnonzero(hosts == kind)
            if not len(chosen):
                continue
            if (self._sizes[chosen] < _HEADS[kind].itemsize).any():
                raise CorruptRecord("a record of the answer is shorter than its hosts")
            wide = self._gather(self._starts[chosen], kind)
            self.stored_at_ms[chosen] = wide["stored_at"]
            self.redeliveries[chosen] = wide["redeliveries"]
            body_sizes[chosen] = wide["body_size"]
            head_sizes[chosen] = _HEADS[kind].itemsize
        self._body_starts = self._starts + head_sizes
        self._body_ends = self._body_starts + body_sizes
        self._hosts = hosts
        bad = (self._magics != MAGIC_V1) & (self._magics != MAGIC_V2)
        bad |= (body_sizes < 0) | (self._body_ends + 3 > self._starts + self._sizes)
        self._refuse(bad, "is not one: its magic number or the length of its body is wrong")

    def _gather(self, starts: Array, kind: int) -> Array:
        head = _HEADS[kind]
        table = self._bytes[starts[:, None] + np.arange(head.itemsize)]
        found: Array = table.view(head)[:, 0]
        return found

    def _find_parts(self) -> None:
        data, ends = self._bytes, self._starts + self._sizes
        wide = self._magics == MAGIC_V2
        at = self._body_ends
        self._refuse(wide & (at + 4 > ends), "has lengths that do not add up")
        sizes = data[at].astype(np.int64)
        sizes = np.where(wide, sizes << 8 | data[at + 1], sizes)
        self._topic_starts = at + 1 + wide
        self._topic_ends = self._topic_starts + sizes
        at = self._topic_ends
        self._refuse(at + 2 > ends, "has a topic that does not fit")
        self._property_starts = at + 2
        sizes = data[at].astype(np.int64) << 8 | data[at + 1]
        self._refuse(self._property_starts + sizes != ends, "has lengths that do not add up")
        self._property_ends = ends

    def _check_crc(self) -> None:
        view = memoryview(self._data)
        bounds = zip(self._body_starts.tolist(), self._body_ends.tolist(), strict=True)
        found = np.array([crc32(view[start:end]) for start, end in bounds], np.int64)
        wrong = (found & 0x7FFFFFFF) != self._crcs
        wrong &= self._body_ends > self._body_starts
        self._refuse(wrong, "has a body with a wrong checksum")

    def _refuse(self, bad: Array, why: str) -> None:
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise CorruptRecord(f"record {at} of the pull answer {why}; nothing of it is used")

    # Columns.

    def batch(self, columns: Sequence[str], *, broker: str) -> pa.RecordBatch:
        """Return the columns as an Arrow batch with the schema of the source."""
        schema = arrow_schema(columns)
        if not self.count:
            return _empty(schema)
        made = {
            "topic": self.topics,
            "broker": lambda: pa.repeat(broker, self.count),
            "queue": lambda: pa.array(self.queues),
            "offset": lambda: pa.array(self.offsets),
            "body": self.bodies,
            "properties": self.property_maps,
            "born_at": lambda: _timestamps(self.born_at_ms),
            "stored_at": lambda: _timestamps(self.stored_at_ms),
            "redeliveries": lambda: pa.array(self.redeliveries),
            "message_id": self.message_ids,
        }
        arrays = []
        for name in schema.names:
            make: Callable[[], Any] | None = made.get(name)
            arrays.append(self.property_values(PROPERTY_OF[name]) if make is None else make())
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def bodies(self) -> Any:
        """Return the bodies as their producers had them."""
        found = self._pieces(self._body_starts, self._body_ends, pa.binary())
        packed = (self.sys_flags & COMPRESSED) != 0
        if not packed.any():
            return found
        unpacked = [
            decompress_body(
                int(self.sys_flags[at]),
                self._data[self._body_starts[at] : self._body_ends[at]],
                limit=self._body_bytes_max,
            )
            for at in np.flatnonzero(packed)
        ]
        return pc.replace_with_mask(found, pa.array(packed), pa.array(unpacked, pa.binary()))

    def topics(self) -> Any:
        """Return the topics."""
        return _text(self._pieces(self._topic_starts, self._topic_ends, pa.binary()))

    def message_ids(self) -> Any:
        """Return the ids that producers gave; where there is none, that of the place in the log."""
        found = self.property_values(PROPERTY_OF["message_id"])
        if not found.null_count:
            return found
        values = found.to_pylist()
        for at, value in enumerate(values):
            if value is None:
                values[at] = offset_message_id(self._store_host(at), int(self.positions[at]))
        return pa.array(values, pa.string())

    def _store_host(self, at: int) -> bytes:
        head = _HEADS[int(self._hosts[at])]
        shift = head.fields["store_host"][1] if head.fields is not None else 0
        begin = int(self._starts[at]) + shift
        return self._data[begin : begin + (20 if self._hosts[at] & STORE_HOST_V6 else 8)]

    def property_values(self, name: str) -> Any:
        """Return one property of all records; null where it is missing."""
        entries, rows = self._split()
        places = np.flatnonzero(pc.starts_with(entries, name + "\x01").to_numpy(False))
        index = np.full(self.count, -1, np.int64)
        # An entry without a value is none; of several the last counts.
        values = pc.utf8_slice_codeunits(entries.take(pa.array(places)), len(name) + 1)
        good = pc.not_equal(values, "").to_numpy(False)
        index[rows[places[good]]] = np.flatnonzero(good)
        return values.take(pa.array(index, mask=index < 0))

    def property_maps(self) -> Any:
        """Return all properties of all records."""
        entries, rows = self._split()
        pairs = pc.split_pattern(entries, "\x01", max_splits=1)
        complete = np.flatnonzero(pc.list_value_length(pairs).to_numpy(False) == 2)
        pairs = pairs.take(pa.array(complete)).flatten()
        both = np.arange(len(complete), dtype=np.int64) * 2
        names, values = pairs.take(pa.array(both)), pairs.take(pa.array(both + 1))
        good = pc.and_(pc.not_equal(names, ""), pc.not_equal(values, "")).to_numpy(False)
        rows = rows[complete]
        if not good.all():
            kept = pa.array(np.flatnonzero(good))
            names, values, rows = names.take(kept), values.take(kept), rows[good]
        names, values, rows = _last_of_each(names, values, rows, self.count)
        counts = np.bincount(rows, minlength=self.count)
        ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(ends), names, values)

    def _split(self) -> tuple[Any, Array]:
        """Return all entries of all properties, and the row of each."""
        if self._entries is None:
            raw = _text(self._pieces(self._property_starts, self._property_ends, pa.binary()))
            lists = pc.split_pattern(raw, "\x02")
            counts = pc.list_value_length(lists).to_numpy(False)
            self._entries = lists.flatten(), np.repeat(np.arange(self.count), counts)
        return self._entries

    def _pieces(self, starts: Array, ends: Array, kind: pa.DataType) -> Any:
        """Return the stretches of the answer between pairs of bounds."""
        bounds = np.empty(2 * self.count, np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        cut = pa.Array.from_buffers(
            kind, 2 * self.count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        return cut.take(pa.array(np.arange(0, 2 * self.count, 2, dtype=np.int32)))


def _walk(data: bytes) -> list[int]:
    """Return where records begin."""
    # hot: 0.1 us a record; each says where the next one is, so this cannot be done at once.
    starts, at, end = [], 0, len(data)
    while at < end:
        if end - at < OVERHEAD_V1:
            raise CorruptRecord(f"{end - at} bytes at the end of the pull answer are no record")
        (size,) = _SIZE(data, at)
        if not OVERHEAD_V1 <= size <= end - at:
            raise CorruptRecord(f"no record at {at} of the pull answer: size {size}")
        starts.append(at)
        at += size
    return starts


def _text(found: Any) -> Any:
    """Return bytes as text; what is not UTF-8 becomes U+FFFD, as in Java."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(value, "utf-8", "replace") for value in found.to_pylist()])


def _timestamps(values_ms: Array) -> Any:
    return pa.array(values_ms * 1000).cast(pa.timestamp("us", tz="UTC"))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _last_of_each(names: Any, values: Any, rows: Array, count: int) -> tuple[Any, Any, Array]:
    """Leave the last of the entries of a row that have the same name; mostly there is but one."""
    encoded = names.dictionary_encode()
    kinds = len(encoded.dictionary)
    if not kinds:
        return names, values, rows
    cells = rows.astype(np.int64) * kinds + encoded.indices.to_numpy(False)
    if kinds <= _NAMES_MAX:
        if np.bincount(cells, minlength=count * kinds).max() <= 1:
            return names, values, rows
    elif len(np.unique(cells)) == len(cells):
        return names, values, rows
    _, last = np.unique(cells[::-1], return_index=True)
    kept = np.sort(len(cells) - 1 - last)
    index = pa.array(kept)
    return names.take(index), values.take(index), rows[kept]
