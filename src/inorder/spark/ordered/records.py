"""What a queue's state is after a batch: versions, how they build on each other, and how keys move.

A version is decided once. A task that repeats the batch takes the decided version, rows included,
and does not call the handler again. So a handler may answer differently the second time, and its
code may have changed. Most versions hold only the changes of their batch and build on the version
before. Now and then one is whole, so that a chain stays short; `chain` lists the batches that are
needed to read it.

Keys change their queue when a topic is resized. The source gives the messages of one key map
version, of all queues, before any message of the next version. So a state is final when its key
moves. The first batch of the new queue in the new version takes the state from the queue that had
the key in the last version in which that queue ran. The old queue's files keep the state, unused.
Messages that waited there are recorded as `left`, for the new queue to take. Why: decision 35.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from inorder.errors import InorderError
from inorder.ordering.keymap import KeyMap
from inorder.spark.ordered.rules import (
    Keys,
    Letter,
    Line,
    OrderedMessage,
    ParkedKeys,
    ParkedMessage,
    Redone,
)

CHAIN_MAX: Final = 32


class Version(msgspec.Struct, omit_defaults=True):
    """The state of a queue after a batch, as it is stored. New fields need defaults."""

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
    asides: list[ParkedMessage] = []
    """Messages that the batch parks; `asides` on disk."""
    redone: list[Redone] = []
    """The results of the batch's redrives of parked keys."""


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
    parked: ParkedKeys | None = None,
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
    if parked is not None:
        version.asides, version.redone = parked.items, list(parked.redone.values())
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
    """Return whether the next version may build on this one."""
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


Home = tuple[str, int]
"""A queue of the topic: broker and number."""


class CannotMove(InorderError):
    """Messages wait behind a message without a key, and their keys moved to several queues."""


@dataclass(frozen=True, slots=True)
class Past:
    """A queue as it was before this batch: its newest version, and its keys."""

    version: Version
    keys: Keys


def map_at(offset: int, spans: Iterable[tuple[int, int]], present: int) -> int:
    """Return the version of the map that placed a message; spans are (version, end)."""
    for version, end in sorted(spans):
        if offset < end:
            return version
    return present


def must_move(own: Version | None, others: Iterable[Version], map_version: int) -> bool:
    """Return whether this is the first batch of a queue in a version that is not the query's first.

    Queues without a map (version 0) never move keys.
    """
    if own is not None:
        return own.map_version < map_version
    return any(0 < version < map_version for one in others for version in one.ran)


def move(
    here: Home, keys: Keys, pasts: Mapping[Home, Past], maps: Mapping[int, KeyMap], new: int
) -> list[Line]:
    """Take over the keys that live here now; return the lines that wait here for other queues.

    `pasts` holds the queues of the topic, this one too if it ran before. `keys` are changed.
    """
    if keys.behind:
        raise CannotMove(
            f"the topic was resized while {len(keys.behind)} messages of queue {here[0]}/{here[1]} "
            "wait behind one without a key; give all messages keys, or begin with a new checkpoint"
        )
    home = maps[new].queue
    older = {version: one for version, one in maps.items() if version < new}
    names = {key for past in pasts.values() for key in past.keys.states}
    names |= {key for past in pasts.values() for key in past.keys.held if key is not None}
    names |= {line.messages[0].key or "" for past in pasts.values() for line in past.version.left}
    for name in sorted(names):
        if name and home(name) == here:
            _take_over(here, name, keys, pasts, older)
    before = pasts[here].version.map_version if here in pasts else 0
    leaving = [key for key in keys.held if key is not None and home(key) != here]
    lines = [keys.held.pop(key) for key in leaving]
    for line in lines:
        line.left_in = before
    return lines


def _take_over(
    here: Home,
    name: str,
    keys: Keys,
    pasts: Mapping[Home, Past],
    maps: Mapping[int, KeyMap],
) -> None:
    for version in sorted(maps, reverse=True):
        owner = maps[version].queue(name)
        past = pasts.get(owner)
        if past is None or version not in past.version.ran:
            continue  # it had no batch in this version: the key's last one is older
        line = _line(past, name, version)
        state = past.keys.states.get(name)
        if owner == here and past.version.map_version == version:
            return  # it stays where it is
        keys.held.pop(name, None)
        if line is not None:
            keys.held[name] = Line(list(line.messages), line.due_ms, line.cause)
        if state is None:
            keys.states.pop(name, None)
        else:
            keys.states[name] = state
        keys.changed.add(name)
        return


def _line(past: Past, name: str, version: int) -> Line | None:
    if past.version.map_version == version:
        return past.keys.held.get(name)
    for line in past.version.left:
        if line.messages[0].key == name and line.left_in == version:
            return line
    return None
