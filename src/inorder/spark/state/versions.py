"""What is known of a queue after a batch: its versions, how they build on each other.

A version is decided once: whoever repeats the batch takes what was decided, rows and all, and does
not ask the handler again. So it does not matter whether a handler gives the same answer twice, nor
whether its code has changed in between.

Most versions hold only what the batch changed, and build on the one before; now and then one is
whole, so that a chain stays short. `chain` lists the batches that are needed to read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from inorder.spark.state.lines import Keys
from inorder.spark.state.messages import Letter, Line, OrderedMessage
from inorder.spark.state.parking import Aside, Asides, Redone

CHAIN_MAX: Final = 32


class Version(msgspec.Struct, omit_defaults=True):
    """A queue after a batch, as it is kept. New fields need defaults."""

    batch: int
    first: int
    """The first offset of the batch."""
    last: int
    next_offset: int
    chain: list[int]
    """The batches to read it from, itself the last; the first of them is whole."""
    states: dict[str, bytes] = {}
    """By key: all, or those that changed."""
    gone: list[str] = []
    """Keys whose state was removed since the one before."""
    held: list[Line] = []
    behind: list[OrderedMessage] = []
    letters: list[Letter] = []
    missing: int = 0
    """Offsets of the batch that were left out by a filter, or lost."""
    whole_bytes: int = 0
    part_bytes: int = 0
    map_version: int = 0
    """The version of the topic's key map that placed these messages; 0: it has none."""
    ran: list[int] = []
    """The versions of the map in which this queue had batches."""
    left: list[Line] = []
    """Keys that waited here when a resize moved them: for their new queue to pick up."""
    asides: list[Aside] = []
    """Messages that the batch sets aside."""
    redone: list[Redone] = []
    """What the batch made of parked keys that are to be handled again."""


def restored(parts: Sequence[Version]) -> Keys:
    """Return the keys from a chain of versions, the whole one first."""
    states: dict[str, bytes] = {}
    for part in parts:
        for key in part.gone:
            states.pop(key, None)
        states.update(part.states)
    newest = parts[-1]
    held: dict[str | None, Line] = {line.messages[0].key: line for line in newest.held}
    return Keys(states, held, list(newest.behind), newest.next_offset)


def following(
    before: Version | None,
    keys: Keys,
    letters: list[Letter],
    asides: Asides | None = None,
    *,
    batch: int,
    first: int,
    last: int,
    missing: int = 0,
    map_version: int = 0,
    left: Sequence[Line] = (),
) -> Version:
    """Return the version that a batch leads to: whole if that is cheaper in the long run."""
    part = {key: keys.states[key] for key in keys.changed if key in keys.states}
    size_bytes = sum(len(key) + len(state) + 4 for key, state in part.items())
    assert keys.next_offset is not None, "a batch has messages"
    version = Version(
        batch, first, last, keys.next_offset, [batch], part, [], list(keys.held.values()),
        list(keys.behind), letters, missing, map_version=map_version,
        ran=sorted({*(before.ran if before is not None else ()), map_version}),
        left=[*(before.left if before is not None else ()), *left],
    )  # fmt: skip
    if asides is not None:
        version.asides, version.redone = asides.items, list(asides.redone.values())
    if before is not None and is_part(before, size_bytes):
        version.chain = [*before.chain, batch]
        version.gone = [key for key in keys.changed if key not in keys.states]
        version.whole_bytes = before.whole_bytes
        version.part_bytes = before.part_bytes + size_bytes
    else:
        version.states = dict(keys.states)
        version.whole_bytes = sum(len(key) + len(state) + 4 for key, state in keys.states.items())
    return version


def is_part(before: Version, size_bytes: int) -> bool:
    """Tell whether the next version may build on this one."""
    if len(before.chain) >= CHAIN_MAX:
        return False
    return before.part_bytes + size_bytes <= before.whole_bytes


def newest_below(batches: Iterable[int], batch: int) -> int | None:
    """Return the batch that this one builds on; idle queues have no version of every batch."""
    return max((one for one in batches if one < batch), default=None)


def removable(batches: Iterable[int], kept: Iterable[Sequence[int]], newest: int) -> list[int]:
    """Return the versions that no chain to be kept needs; those after the newest stay."""
    needed = {batch for chain in kept for batch in chain}
    return sorted(batch for batch in batches if batch < newest and batch not in needed)


def producer_name(kind: str, query: str, place: str, digest: str) -> str:
    """Return the name of the producer of a source queue: of one query, so of its batch numbers.

    A name has 128 characters at most, of which the sink may add ten; a place that is too long is
    named by its digest.
    """
    name = f"{kind}:{query}:{place}"
    return name if len(name) <= 118 and name.isascii() else f"{kind}:{query}:{digest}"
