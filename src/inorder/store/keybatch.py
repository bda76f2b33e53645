"""The index keys of many records at once: found, cut and hashed as arrays, without a loop.

The properties of a batch are joined and searched for `UNIQ_KEY` and `KEYS` by one `split` each; the
rest is arithmetic on positions. What is not plain (several words in KEYS, a name given twice, very
long keys, letters beyond ASCII) is left to `keys_of`, record by record: the two ways give the same
rows, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from inorder.store.keyindex import hash_pure, keys_of, powers, prefix_hash
from inorder.store.pieces import pieces, rows_of_bytes

SEPARATOR: Final = 2
SPACE: Final = 32
ASCII_MAX: Final = 127
SIGN: Final = 0x80000000
JOIN: Final = b"\x02"
KEY_BYTES_MAX: Final = 256


class KeyRows:
    """Rows of the index: which record each belongs to, and the hash of its key."""

    __slots__ = ("hashes", "owners")

    def __init__(self, owners: Any, hashes: Any) -> None:
        self.owners = owners
        self.hashes = hashes


# hot: 0.4 µs a record with one key, 1.0 µs with two, however long its other properties are
def key_rows(topics: Sequence[str], properties: Sequence[bytes]) -> KeyRows:
    """Return the rows of a batch, in the order of the records: the id first, then the words."""
    blob = JOIN.join(properties) + JOIN
    data: Any = np.frombuffer(blob, np.uint8)
    ends = np.cumsum(np.fromiter(map(len, properties), np.int64, len(properties)) + 1)
    places = _Places(blob, data, ends)
    strange = np.zeros(len(properties), bool)
    found = [places.find(name, strange) for name in (b"UNIQ_KEY\x01", b"KEYS\x01")]
    if topics.count(topics[0]) == len(topics):
        prefixes = np.full(len(topics), prefix_hash(topics[0]), np.uint32)
    else:
        prefixes = np.fromiter(map(prefix_hash, topics), np.uint32, len(topics))
    rows = [_hashed(group, strange, prefixes) for groups in found for group in groups]
    if len(rows) == 1 and not strange.any():
        return KeyRows(*rows[0])
    slow_owners: list[int] = []
    slow_hashes: list[int] = []
    for owner in np.flatnonzero(strange).tolist():
        keys = keys_of(properties[owner])
        slow_owners += [owner] * len(keys)
        slow_hashes += hash_pure([int(prefixes[owner])] * len(keys), keys)
    rows.append((np.array(slow_owners, np.int64), np.array(slow_hashes, np.int32)))
    owners = np.concatenate([one[0] for one in rows])
    hashes = np.concatenate([one[1] for one in rows])
    order = np.argsort(owners, kind="stable")
    return KeyRows(owners[order], hashes[order])


class _Group:
    """Values of one name that have the same length: whose they are, and their bytes."""

    __slots__ = ("owners", "units")

    def __init__(self, owners: Any, units: Any) -> None:
        self.owners = owners
        self.units = units


class _Places:
    """Positions in the joined properties."""

    __slots__ = ("_blob", "_data", "_ends")

    def __init__(self, blob: bytes, data: Any, ends: Any) -> None:
        self._blob = blob
        self._data = data
        self._ends = ends

    def find(self, mark: bytes, strange: Any) -> list[_Group]:
        """Find the values of a name; tell which records are not plain."""
        if mark not in self._blob:
            return []
        in_line = self._in_line(mark)
        if in_line is not None:
            _tell_strange(in_line, strange)
            return [in_line]
        parts = self._blob.split(mark)
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))[:-1]
        starts = np.cumsum(lengths + len(mark))
        before = starts - len(mark) - 1  # -1 is the last byte, a separator too
        starts = starts[self._data[before] == SEPARATOR]
        separators = np.flatnonzero(self._data == SEPARATOR)
        ends = separators[np.searchsorted(separators, starts)]
        filled = ends > starts
        starts, ends = starts[filled], ends[filled]
        owners = np.searchsorted(self._ends, starts, side="right")
        strange[owners[1:][owners[1:] == owners[:-1]]] = True
        sizes = ends - starts
        strange[owners[sizes > KEY_BYTES_MAX]] = True
        groups = []
        for size in np.unique(sizes).tolist():
            if size > KEY_BYTES_MAX:
                break
            chosen = sizes == size
            units = rows_of_bytes(pieces(self._blob, starts[chosen], size))
            groups.append(_Group(owners[chosen], units))
            _tell_strange(groups[-1], strange)
        return groups

    def _in_line(self, mark: bytes) -> _Group | None:
        """Return the values if every record begins with the name, and all are of one length."""
        count = len(self._ends)
        starts = np.concatenate(([0], self._ends[:-1])) + len(mark)
        size = self._blob.find(JOIN, len(mark)) - len(mark)
        if not 0 < size <= KEY_BYTES_MAX or (starts + size >= self._ends).any():
            return None
        if pieces(self._blob, starts - len(mark), len(mark)).tobytes() != mark * count:
            return None
        if self._blob.count(mark) != count or (self._data[starts + size] != SEPARATOR).any():
            return None
        units = rows_of_bytes(pieces(self._blob, starts, size))
        return None if (units == SEPARATOR).any() else _Group(np.arange(count), units)


def _tell_strange(group: _Group, strange: Any) -> None:
    """Note the records whose values are several words, or not plain letters."""
    units = group.units
    if int(units.max()) > ASCII_MAX or (units == SPACE).any():
        odd = ((units == SPACE) | (units > ASCII_MAX)).any(axis=1)
        strange[group.owners[odd]] = True


def _hashed(group: _Group, strange: Any, prefixes: Any) -> tuple[Any, Any]:
    plain = ~strange[group.owners]
    owners, units = group.owners, group.units
    if not plain.all():
        owners, units = owners[plain], units[plain]
    length = units.shape[1]
    value = (units * np.array(powers(length), np.uint32)).sum(axis=1, dtype=np.uint32)
    value += prefixes[owners] * np.uint32(pow(31, length, 1 << 32))
    signed = value.view(np.int32)
    return owners, np.where(signed == -SIGN, 0, np.abs(signed)).astype(np.int32)
