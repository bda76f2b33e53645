r"""From the bytes of a pull reply to Arrow columns, all records at once.

A pull reply is records one after the other, as they lie in the log. Only the walk from record to
record and the checksums are loops, or the compiled module. numpy and Arrow do the rest on columns:

    heads       the fixed parts of all records, gathered into one table of big-endian numbers
    bodies      one array over the reply itself, cut where bodies begin and end; every second piece
                is wanted, and `take` copies just those. Topics and properties likewise
    properties  maps, or one property of all records. Most replies are *regular*: every entry is
                `name \x01 value \x02`, and none is empty. Then one sweep over all bytes finds the
                separators, and names and values are the bytes between them. Most regular replies
                are *uniform* too: the records have the same names in the same order, as one
                producer writes them, and a property is every n-th value. Everything else that is
                allowed goes the long way, with the same result

Compressed bodies are unpacked one by one, never beyond the limit. Why columns: decision 33.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.accelerated import native
from inorder.errors import CorruptRecord
from inorder.spark.source.options import arrow_schema
from inorder.wire.compression import COMPRESSED, decompress_body
from inorder.wire.ids import offset_message_id
from inorder.wire.record import BORN_HOST_V6, MAGIC_V1, MAGIC_V2, OVERHEAD_V1, STORE_HOST_V6, crc32

_NAMES_MAX: Final = 256
_END_OF_NAME: Final = 1
_END_OF_VALUE: Final = 2


def pieces(data: Any, starts: Array, ends: Array) -> Any:
    """Return the stretches of some bytes between pairs of bounds, copied by Arrow."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    if native is not None:
        places = (np.ascontiguousarray(some, np.int64) for some in (starts, ends))
        taken = map(pa.py_buffer, native.gather(data, *places))
        return pa.Array.from_buffers(pa.binary(), count, [None, *taken])
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    cut = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return cut.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


class Properties:
    """Names and values of all entries, and the row of each; of a name that comes twice the last."""

    def __init__(self, names: Any, values: Any, rows: Array, count: int) -> None:
        self._names, self._values, self._rows = _last_of_each(names, values, rows, count)
        self._count = count

    def values_of(self, name: str) -> Any:
        """Return one property of all records; null where it is missing."""
        places = np.flatnonzero(pc.equal(self._names, name).to_numpy(False))
        index = np.full(self._count, -1, np.int64)
        index[self._rows[places]] = places
        return self._values.take(pa.array(index, mask=index < 0))

    def maps(self) -> Any:
        """Return all properties of all records."""
        counts = np.bincount(self._rows, minlength=self._count)
        ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(ends), self._names, self._values)


class UniformProperties(Properties):
    """The same names, in the same order, in all records."""

    def __init__(self, names: list[str], values: Any, count: int) -> None:
        self._uniform, self._values, self._count = names, values, count

    def values_of(self, name: str) -> Any:
        """Return one property of all records."""
        if name not in self._uniform:
            return pa.nulls(self._count, pa.string())
        width = len(self._uniform)
        first = self._uniform.index(name)
        return self._values.take(pa.array(np.arange(first, self._count * width, width)))

    def maps(self) -> Any:
        """Return all properties of all records."""
        width = len(self._uniform)
        encoded = [name.encode() for name in self._uniform]
        lengths = np.tile([len(name) for name in encoded], self._count)
        ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        names = pa.StringArray.from_buffers(
            self._count * width, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded) * self._count)
        )
        bounds = pa.array(np.arange(0, (self._count + 1) * width, width, dtype=np.int32))
        return pa.MapArray.from_arrays(bounds, names, self._values)


def split_properties(texts: Any) -> Properties:
    """Take the properties of records apart; `texts` are theirs, one string a record."""
    return _regular(texts) or _any(texts)


def _regular(texts: Any) -> Properties | None:
    """Split regular properties; None if some are not."""
    count = len(texts)
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32, count + 1, texts.offset * 4)
    first, last = int(bounds[0]), int(bounds[-1])
    if data is None or first == last or texts.null_count:
        return None
    raw = np.frombuffer(data, np.uint8, last - first, first)
    marks = np.flatnonzero(raw <= _END_OF_VALUE)
    if not len(marks) or len(marks) % 2 or len(np.flatnonzero(raw[bounds[1:] - 1 - first] != 2)):
        return None
    kinds = raw[marks].reshape(-1, 2)
    name_ends, value_ends = marks[0::2], marks[1::2]
    name_starts = np.concatenate(([0], value_ends[:-1] + 1))
    if (
        (kinds[:, 0] != _END_OF_NAME).any()
        or (kinds[:, 1] != _END_OF_VALUE).any()
        or (name_ends == name_starts).any()
        or (value_ends == name_ends + 1).any()
    ):
        return None
    entry_ends = np.searchsorted(value_ends, bounds[1:] - 1 - first, "right")
    view = raw.data
    values = pieces(view, name_ends + 1, value_ends).cast(pa.string())
    width, uneven = divmod(len(value_ends), count)
    if width and not uneven and (np.diff(entry_ends, prepend=0) == width).all():
        found = _same_names(raw, name_starts, name_ends, count)
        if found is not None:
            return UniformProperties(found, values, count)
    names = pieces(view, name_starts, name_ends).cast(pa.string())
    counts = np.diff(entry_ends, prepend=0)
    return Properties(names, values, np.repeat(np.arange(count), counts), count)


def _same_names(raw: Array, starts: Array, ends: Array, count: int) -> list[str] | None:
    """Return the names that all records have in the same order; None if they differ."""
    lengths = (ends - starts).reshape(count, -1)
    if (lengths != lengths[0]).any():
        return None
    width = lengths.shape[1]
    names = [raw[starts[at] : ends[at]].tobytes() for at in range(width)]
    together = pieces(raw.data, starts, ends).buffers()[2].to_pybytes()
    wanted = b"".join(names) * count
    if together[: len(wanted)] != wanted or len(set(names)) < width:
        return None
    return [name.decode() for name in names]


def _any(texts: Any) -> Properties:
    """Split any allowed text; entries without a name, a value or a separator do not count."""
    lists = pc.split_pattern(texts, "\x02")
    rows = np.repeat(np.arange(len(texts)), pc.list_value_length(lists).to_numpy(False))
    pairs = pc.split_pattern(lists.flatten(), "\x01", max_splits=1)
    complete = np.flatnonzero(pc.list_value_length(pairs).to_numpy(False) == 2)
    pairs = pairs.take(pa.array(complete)).flatten()
    both = np.arange(len(complete), dtype=np.int64) * 2
    names, values = pairs.take(pa.array(both)), pairs.take(pa.array(both + 1))
    good = pc.and_(pc.not_equal(names, ""), pc.not_equal(values, "")).to_numpy(False)
    rows = rows[complete]
    if not good.all():
        kept = pa.array(np.flatnonzero(good))
        names, values, rows = names.take(kept), values.take(kept), rows[good]
    return Properties(names, values, rows, len(texts))


def _last_of_each(names: Any, values: Any, rows: Array, count: int) -> tuple[Any, Any, Array]:
    """Keep the last of several entries with one name in a row; usually there is only one."""
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


Array = np.ndarray[Any, np.dtype[Any]]

_SIZE: Final = struct.Struct(">i").unpack_from
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
RUN_MIN: Final = 8
BODY_BYTES_MAX: Final = 1 << 26
_NATIVE_COLUMNS: Final = (
    "_starts", "queues", "offsets", "positions", "sys_flags", "born_at_ms", "stored_at_ms",
    "redeliveries", "_magics", "_crcs", "_sizes", "_hosts", "_body_starts", "_body_ends",
    "_topic_starts", "_topic_ends", "_property_starts",
)  # fmt: skip
_NARROW: Final = frozenset({"queues", "sys_flags", "redeliveries", "_magics", "_crcs", "_hosts"})
_OF_THE_ANSWER: Final = frozenset({"_bytes"})
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
    """The records of one pull reply, as columns."""

    def __init__(
        self, data: bytes, *, check_crc: bool = True, body_bytes_max: int = BODY_BYTES_MAX
    ):
        """Find and check all records; CorruptRecord if the bytes are anything else."""
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._body_bytes_max = body_bytes_max
        self._split: Properties | None = None
        if native is not None and self._read_compiled(native.read_records(data, check_crc, crc32)):
            return
        self._starts = np.array(_walk(data), np.int64)
        self.count = len(self._starts)
        if self.count:
            self._read_heads()
            self._find_parts()
            if check_crc:
                self.check_crc()

    def _read_compiled(self, found: bytes | None) -> bool:
        """Take the heads that the compiled module read; errors are found and raised in Python."""
        if found is None:
            return False
        table = np.frombuffer(found, np.int64).reshape(len(_NATIVE_COLUMNS), -1)
        self.count = table.shape[1]
        for name, column in zip(_NATIVE_COLUMNS, table, strict=True):
            setattr(self, name, column.astype(np.int32) if name in _NARROW else column)
        self._property_ends = self._starts + self._sizes
        return True

    def with_keys(self, keys: Sequence[str]) -> Records:
        """Return the records of some keys, found in the bytes before anything is decoded."""
        name = PROPERTY_OF["key"]
        places = [at for key in keys for at in _all_places(self._data, f"{name}\x01{key}".encode())]
        if not self.count or not places:
            return self._only(np.zeros(0, np.int64))
        rows = np.unique(np.searchsorted(self._starts, np.sort(places), "right") - 1)
        found = self._only(rows)
        exact = pc.is_in(found.property_values(name), pa.array(keys, pa.string()))
        return self._only(rows[exact.to_numpy(False)])

    def _only(self, rows: Array) -> Records:
        found = copy(self)
        found.count = len(rows)
        found._split = None
        for name, values in vars(self).items():
            if name not in _OF_THE_ANSWER and isinstance(values, np.ndarray):
                setattr(found, name, values[rows])
        return found

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
        """Return the heads of records as a table, copied together by Arrow."""
        head = _HEADS[kind]
        if int(starts[-1]) + head.itemsize > len(self._data):
            raise CorruptRecord("the last record of the pull answer is shorter than its head")
        together = pieces(self._data, starts, starts + head.itemsize).buffers()[2]
        found: Array = np.frombuffer(together, head, len(starts))
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

    def check_crc(self) -> None:
        """Refuse bodies whose checksums are wrong."""
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
        if "properties" in columns:
            self._properties()  # all of them are wanted: one sweep finds the single ones, too
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
        found = self._pieces(self._body_starts, self._body_ends)
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
        return _text(self._pieces(self._topic_starts, self._topic_ends))

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
        if native is not None and self._split is None:
            starts, ends = self._property_starts, self._property_ends
            found = native.property_bounds(
                self._data, np.ascontiguousarray(starts), np.ascontiguousarray(ends), name.encode()
            )
            if found is not None:
                return _values_between(self._data, found)
        return self._properties().values_of(name)

    def property_maps(self) -> Any:
        """Return all properties of all records."""
        return self._properties().maps()

    def _properties(self) -> Properties:
        if self._split is None:
            raw = self._pieces(self._property_starts, self._property_ends)
            self._split = split_properties(_text(raw))
        return self._split

    def _pieces(self, starts: Array, ends: Array) -> Any:
        return pieces(self._data, starts, ends)


def _values_between(data: bytes, bounds: bytes) -> Any:
    """Return the texts between bounds as `native.property_bounds` gives them."""
    starts, ends = np.frombuffer(bounds, np.int64).reshape(2, -1)
    missing = starts < 0
    if not missing.any():
        return pieces(data, starts, ends).cast(pa.string())
    found = pieces(data, np.where(missing, 0, starts), np.where(missing, 0, ends))
    mask = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(starts), [mask, *found.buffers()[1:]])


def _all_places(data: bytes, needle: bytes) -> Iterator[int]:
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + len(needle))


def _walk(data: bytes) -> list[int]:
    """Return where records begin. Each says where the next one is."""
    # hot: 0.13 us a record; where many of one size follow each other they are found at once.
    starts: list[int] = []
    at, end, last = 0, len(data), -1
    while at < end:
        if end - at < OVERHEAD_V1:
            raise CorruptRecord(f"{end - at} bytes at the end of the pull answer are no record")
        (size,) = _SIZE(data, at)
        if not OVERHEAD_V1 <= size <= end - at:
            raise CorruptRecord(f"no record at {at} of the pull answer: size {size}")
        if size == last and (run := _alike(data, at, size)) > RUN_MIN:
            starts.extend(range(at, at + run * size, size))
            at += run * size
            last = -1
            continue
        starts.append(at)
        at += size
        last = size
    return starts


def _alike(data: bytes, at: int, size: int) -> int:
    """Return how many records of this size follow each other from here on."""
    count = (len(data) - at) // size
    if count <= RUN_MIN or _SIZE(data, at + RUN_MIN * size) != (size,):
        return 0
    table = np.frombuffer(data, np.uint8, count * size, at).reshape(count, size)[:, :4]
    other = np.flatnonzero(np.ascontiguousarray(table).view(">i4")[:, 0] != size)
    return int(other[0]) if len(other) else count


def _text(found: Any) -> Any:
    """Return bytes as text; bytes that are not UTF-8 become U+FFFD, as in Java."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(value, "utf-8", "replace") for value in found.to_pylist()])


def _timestamps(values_ms: Array) -> Any:
    return pa.array(values_ms * 1000).cast(pa.timestamp("us", tz="UTC"))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
