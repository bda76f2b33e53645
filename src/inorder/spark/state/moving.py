"""Keys that change their queue when a topic is resized: who takes over which state, and from where.

A version of the topic's key map says where each key lives. The source gives the messages of one
version, of all queues, before any of the next, so a state is final when its key moves. It is taken
over by the first batch that its new queue has in the new version, from the queue that had the key
in the last version in which that queue ran. What a queue has given away stays in its files, and is
not used any more; keys that waited there are set down as `left`, for their new queue to pick up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inorder.errors import InorderError
from inorder.ordering.keymap import KeyMap
from inorder.spark.state.lines import Keys
from inorder.spark.state.messages import Line
from inorder.spark.state.versions import Version

Home = tuple[str, int]
"""A queue of the topic: broker and number."""


class CannotMove(InorderError):
    """Messages wait behind one without a key, and their keys now belong to several queues."""


@dataclass(frozen=True, slots=True)
class Past:
    """A queue as it was before this batch: its newest version, and its keys."""

    version: Version
    keys: Keys


def map_at(offset: int, chapters: Iterable[tuple[int, int]], present: int) -> int:
    """Return the version of the map that placed a message; chapters are (version, end)."""
    for version, end in sorted(chapters):
        if offset < end:
            return version
    return present


def must_move(own: Version | None, others: Iterable[Version], map_version: int) -> bool:
    """Tell whether this is the first batch of a queue in a version that is not the query's first.

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
