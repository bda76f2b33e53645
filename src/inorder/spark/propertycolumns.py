"""Properties of many records as columns: maps, and one property of all of them.

Most answers are *regular*: every entry is `name \\x01 value \\x02`, none is empty. Then the
separators are found in one sweep over all bytes, and names and values are the stretches between
them. Most of these are *uniform* too: the records have the same names in the same order, as one
producer writes them; then a property is every n-th value. Whatever else is allowed goes the long
way, with the same result.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.accelerated import native

Array = np.ndarray[Any, np.dtype[Any]]

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
    """Split whatever is allowed: entries without a name, a value or a separator do not count."""
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
