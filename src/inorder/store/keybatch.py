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

from inorder.store.keyhash import hash_pure, powers, prefix_hash
from inorder.store.keywords import keys_of

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


# hot: the key index as a whole takes 1.35 µs a record with two keys (bench/hotpath.py)
def key_rows(topics: Sequence[str], properties: Sequence[bytes]) -> KeyRows:
    """Return the rows of a batch, in the order of the records: the id first, then the words."""
    blob = JOIN.join(properties) + JOIN
    data: Any = np.frombuffer(blob, np.uint8)
    ends = np.cumsum(np.fromiter(map(len, properties), np.int64, len(properties)) + 1)
    places = _Places(blob, data, ends)
    ids = places.find(b"UNIQ_KEY\x01")
    words = places.find(b"KEYS\x01")
    strange = places.strange(ids, words)
    prefixes = np.array([prefix_hash(topic) for topic in topics], np.uint32)
    rows = [_hashed(data, found, strange, prefixes) for found in (ids, words)]
    slow_owners: list[int] = []
    slow_hashes: list[int] = []
    for owner in np.flatnonzero(strange).tolist():
        keys = keys_of(properties[owner])
        slow_owners += [owner] * len(keys)
        slow_hashes += hash_pure([int(prefixes[owner])] * len(keys), keys)
    rows.append((np.array(slow_owners, np.int64), np.array(slow_hashes, np.int32)))
    owners = np.concatenate([found[0] for found in rows])
    hashes = np.concatenate([found[1] for found in rows])
    order = np.argsort(owners, kind="stable")
    return KeyRows(owners[order], hashes[order])


class _Found:
    """Values of one name: where they begin and end, and whose they are."""

    __slots__ = ("ends", "owners", "starts")

    def __init__(self, starts: Any, ends: Any, owners: Any) -> None:
        self.starts = starts
        self.ends = ends
        self.owners = owners


class _Places:
    """Positions in the joined properties."""

    __slots__ = ("_blob", "_data", "_ends", "_separators")

    def __init__(self, blob: bytes, data: Any, ends: Any) -> None:
        self._blob = blob
        self._data = data
        self._ends = ends
        self._separators = np.flatnonzero(data == SEPARATOR)

    def find(self, mark: bytes) -> _Found:
        """Find the values of a name."""
        parts = self._blob.split(mark)
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))[:-1]
        starts = np.cumsum(lengths + len(mark))
        before = starts - len(mark) - 1  # -1 is the last byte, a separator too
        starts = starts[self._data[before] == SEPARATOR]
        ends = self._separators[np.searchsorted(self._separators, starts)]
        filled = ends > starts
        starts, ends = starts[filled], ends[filled]
        return _Found(starts, ends, np.searchsorted(self._ends, starts, side="right"))

    def strange(self, ids: _Found, words: _Found) -> Any:
        """Tell which records are not plain."""
        strange = np.zeros(len(self._ends), bool)
        special = np.cumsum((self._data == SPACE) | (self._data > ASCII_MAX))
        for found in (ids, words):
            odd = special[found.ends - 1] != special[found.starts - 1]
            odd |= found.ends - found.starts > KEY_BYTES_MAX
            strange[found.owners[odd]] = True
            twice = found.owners[1:] == found.owners[:-1]
            strange[found.owners[1:][twice]] = True
        return strange


def _hashed(data: Any, found: _Found, strange: Any, prefixes: Any) -> tuple[Any, Any]:
    plain = ~strange[found.owners]
    starts, owners = found.starts[plain], found.owners[plain]
    lengths = found.ends[plain] - starts
    hashes = np.empty(len(starts), np.int32)
    for length in np.unique(lengths).tolist():
        chosen = lengths == length
        units = data[starts[chosen][:, None] + np.arange(length)]
        value = (units * np.array(powers(length), np.uint32)).sum(axis=1, dtype=np.uint32)
        value += prefixes[owners[chosen]] * np.uint32(pow(31, length, 1 << 32))
        signed = value.view(np.int32)
        hashes[chosen] = np.where(signed == -SIGN, 0, np.abs(signed))
    return owners, hashes
