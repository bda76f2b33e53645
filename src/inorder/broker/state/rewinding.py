"""A group that is set back into a version that is past: first it rests, at all brokers.

    reset at one broker ──> it rests there, the offsets are set ──> it rests at all brokers, its
    queues are asked back ──> nobody handles what was given before ──> it reads on

A key of the replay may lie in another queue by a newer version of the map, at another broker, and
be handled there just now. So a group that rests gets nothing, nowhere, until every broker of the
topic has it rest in the same version and its queues were given back. Every broker where it rests
asks the others and tells them (`agree`); all of it may be repeated, and is on disk before it
counts.

The term says how often a group was set back. Whoever wants to let it go on names the term by which
it found it done: a broker that knows a newer one refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec.structs import replace

from inorder.broker.parking.rules import ParkedKey
from inorder.broker.state.resizing import (
    GROUPS_MAX,
    Reading,
    Versions,
    end_for,
    known_of,
    next_map,
    reading,
)
from inorder.errors import InvalidParameter
from inorder.ordering.keymap import KeyMap

TERM_MAX: Final = 1 << 53


class Standing(NamedTuple):
    """What one broker says of a group."""

    term: int
    version: int
    """The one that it may read, or, while it rests, will."""
    rests: bool
    quiet: bool


class Agreement(NamedTuple):
    """What is to be done."""

    term: int
    version: int
    behind: tuple[str, ...]
    """The brokers that have to be told to let it rest in that version."""
    over: bool
    """It may read on, everywhere."""


class Reach(NamedTuple):
    """How far a group has come with a parked key."""

    reached: bool
    """What it has come to of it may be handled, if there is any yet."""
    blocked: bool
    """It does not go on before that was done: newer messages of the key would pass those."""


def version_touched(
    now: Versions,
    targets: Mapping[int, int],
    committed: Callable[[int], int],
    first: Callable[[int], int],
) -> int | None:
    """Return the oldest version that is past of which new offsets bring back or skip something.

    Who skips the rest of a version lets the next one begin, while the last handler still runs.
    """
    for chapter in now.past:
        for queue_id, offset in targets.items():
            begin = first(queue_id)
            low, high = sorted((max(committed(queue_id), begin), max(offset, begin)))
            if low < min(high, chapter.ends.get(queue_id, 0)):
                return chapter.version
    return None


def term_of(now: Versions, group: str) -> int:
    """Return how often a group was set back, as far as is known."""
    return known_of(now, group).term


def next_term(now: Versions, group: str) -> int:
    """Return the term of a group that is set back."""
    return term_of(now, group) + 1


def rest(now: Versions, group: str, version: int, term: int) -> Versions:
    """Let a group rest, and read a version afterwards; what is older, or known, changes nothing."""
    known, before = known_of(now, group), back_to(now, group)
    if term < known.term or (term == known.term and (not known.rests or version >= before)):
        return now
    if group not in now.groups and len(now.groups) >= GROUPS_MAX:
        raise InvalidParameter(f"{GROUPS_MAX} groups of the topic are remembered; no more are")
    rested = Reading(min(version, before), known.member, term, rests=True)
    return replace(now, groups={**now.groups, group: rested})


def go_on(now: Versions, group: str, term: int) -> Versions:
    """Let a group read again that rested, if it was not set back once more."""
    known = known_of(now, group)
    if not known.rests or known.term != term:
        return now
    return replace(now, groups={**now.groups, group: replace(known, rests=False)})


def rests(now: Versions, group: str) -> bool:
    """Tell whether a group gets nothing."""
    return known_of(now, group).rests


def back_to(now: Versions, group: str) -> int:
    """Return the version that a group reads, or was set back into while it rests.

    That may be one of which nothing is left here.
    """
    known = known_of(now, group)
    return known.version if known.rests else reading(now, group)


def agree(standings: Mapping[str, Standing]) -> Agreement:
    """Return what to do about a group that rests at some broker, given what all say."""
    term = max(one.term for one in standings.values())
    version = min(one.version for one in standings.values())
    goes_on = any(one.term == term and not one.rests for one in standings.values())
    if goes_on and any(one.rests and one.term < term for one in standings.values()):
        # It was set back where earlier times are forgotten: so this is the newest.
        return Agreement(term + 1, version, tuple(sorted(standings)), over=False)
    if goes_on:  # all were agreed
        return Agreement(term, version, (), over=True)
    behind = tuple(
        sorted(name for name, one in standings.items() if one.term < term or one.version > version)
    )
    over = not behind and all(one.quiet for one in standings.values())
    return Agreement(term, version, behind, over)


def reach(now: Versions, group: str, queue: tuple[str, int], one: ParkedKey) -> Reach:
    """Tell how far a group has come with a parked key of a queue.

    A group that was set back may have reached some of a key's lists and messages and not others, or
    none: then it is not handled, and stays where it is. The same if the key belongs elsewhere.
    """
    if rests(now, group):
        return Reach(False, False)
    held, version = end_for(now, group, queue[1]), reading(now, group)
    if held is None:
        return Reach(True, False)
    begun = any(by <= version for by in one.older.values()) or (
        bool(one.messages) and one.messages[0].origin < held
    )
    later = any(by > version for by in one.older.values()) or (
        bool(one.messages) and one.messages[-1].origin >= held
    )
    if later and not begun:
        return Reach(False, False)
    if not one.sharding_key:
        return Reach(True, False)  # it was not put there by a map
    chapter = next(past for past in now.past if past.version >= version)
    if _map(chapter.map).queue(one.sharding_key) != queue:
        return Reach(False, False)
    next_version, text = next_map(now, group)
    to = _map(text).queue(one.sharding_key)
    elsewhere = one.moved_to is not None and (
        one.moved_to != to or one.moved_by not in (0, next_version)  # 0: nobody noted it
    )
    return Reach(True, begun and to != queue and (later or elsewhere))


@lru_cache(maxsize=64)
def _map(text: str) -> KeyMap:
    return KeyMap.decode(text)
