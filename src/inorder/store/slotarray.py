"""The slots of one index file in memory, as an array: the twin of `IndexFile`'s pure way.

A batch of keys is chained, packed and entered by a handful of numpy calls instead of a loop, at a
fifth of the cost. The array (4 bytes a slot, 20 MB for RocketMQ's five million) is made by the
first large batch and dropped with the file or when the index has been quiet. Slots reach the file
region by region. They may then point at entries that the header does not count yet: `IndexFile`
follows such a slot through the entries, so nothing depends on when a region is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from inorder.accelerated import native
from inorder.store.layout import INDEX_ENTRY_BYTES

SECONDS_MAX: Final = 0x7FFFFFFF
ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert ENTRY.itemsize == INDEX_ENTRY_BYTES


class Chained(NamedTuple):
    """Entries ready to be written, and the slots that will point at them."""

    entries: bytes
    slots_used: int
    slots: Any
    numbers: Any


class SlotArray:
    """Slot to number of its newest entry."""

    __slots__ = ("_dirty", "_region_slots", "_values")

    def __init__(
        self, data: bytes, count: int, follow: Callable[[int], int], *, region_slots: int
    ) -> None:
        """Take over the slots of a file that counts entries below `count`.

        `follow` gives the right number for a slot that points elsewhere.
        """
        values: Any = np.frombuffer(data, ">i4").astype(np.int32)
        for slot in np.nonzero((values >= count) | (values < 0))[0].tolist():
            values[slot] = follow(slot)
        self._values = values
        self._region_slots = region_slots
        self._dirty: dict[int, None] = {}

    def get(self, slot: int) -> int:
        """Return the number of a slot's newest entry, 0 if it has none."""
        return int(self._values[slot])

    def set(self, slot: int, number: int) -> None:
        """Enter one entry."""
        self._values[slot] = number
        self._dirty[slot // self._region_slots] = None

    @property
    def dirty_regions(self) -> int:
        """Return how many regions the file does not have yet."""
        return len(self._dirty)

    # hot: once per batch of records
    def chain(self, hashes: Any, positions: Any, seconds: Any, first: int) -> Chained:
        """Make entries `first`, `first + 1`, ...; they count when `enter` is called."""
        slots = hashes % len(self._values)
        count = len(slots)
        numbers = np.arange(first, first + count, dtype=np.int32)
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        same = np.empty(count, bool)
        same[0] = False
        np.equal(ordered[1:], ordered[:-1], out=same[1:])
        before = self._values[ordered]
        previous_number = np.empty(count, np.int32)
        previous_number[0] = 0
        previous_number[1:] = numbers[order[:-1]]
        chained = np.where(same, previous_number, before)
        entries = np.empty(count, ENTRY)
        entries["hash"] = hashes
        entries["position"] = positions
        entries["seconds"] = np.clip(seconds, 0, SECONDS_MAX)
        previous = np.empty(count, np.int32)
        previous[order] = chained
        entries["previous"] = previous
        last = np.empty(count, bool)
        last[-1] = True
        np.logical_not(same[1:], out=last[:-1])
        return Chained(
            entries.tobytes(), int(np.count_nonzero(chained == 0)), ordered[last],
            numbers[order[last]],
        )  # fmt: skip

    def enter(self, chained: Chained) -> None:
        """Let the slots point at entries that are in the file."""
        self._values[chained.slots] = chained.numbers
        for region in np.unique(chained.slots // self._region_slots).tolist():
            self._dirty[region] = None

    def chain_packed(self, hashes: bytes, positions: bytes, seconds: bytes, first: int) -> Chained:
        """Make entries as `chain` does, by the compiled module."""
        assert native is not None, "it made the hashes"
        entries, used, slots = native.chain(self._values, hashes, positions, seconds, first)
        return Chained(entries, used, slots, None)

    def enter_packed(self, chained: Chained, first: int) -> None:
        """Let the slots point at entries of `chain_packed` that are in the file."""
        assert native is not None, "it made the entries"
        native.enter(self._values, chained.slots, first)
        regions = np.frombuffer(chained.slots, np.int32) // self._region_slots
        for region in np.unique(regions).tolist():
            self._dirty[region] = None

    def take_regions(self) -> Iterator[tuple[int, bytes]]:
        """Yield (first slot, bytes) of each region that changed, oldest change first.

        A region is clean once it has been yielded; `set_dirty` takes that back.
        """
        for region in list(self._dirty):
            first = region * self._region_slots
            data = self._values[first : first + self._region_slots].astype(">i4").tobytes()
            self._dirty.pop(region, None)
            yield first, data

    def set_dirty(self, first_slot: int) -> None:
        """Remember a region whose write failed."""
        self._dirty[first_slot // self._region_slots] = None
