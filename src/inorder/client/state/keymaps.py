"""Which key map of a topic counts, given what name servers and brokers say. No I/O.

The brokers of a map decide: what one of them holds is so. Name servers only point to maps. The
highest version counts. A map that all of its brokers deny is void, whoever tells of it; while one
of them is away nobody knows, and its keys wait. Two maps of one version, each held by a broker,
contradict each other: no rule can say where a key is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inorder.errors import RemoteProtocolError
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import ResizeView


@dataclass(frozen=True, slots=True)
class Settled:
    """What was found: the map that counts, maps that are void, maps that contradict each other."""

    map: KeyMap | None
    void: frozenset[str] = frozenset()
    conflict: tuple[str, ...] = ()


def newest(texts: Iterable[str]) -> list[KeyMap]:
    """Return the readable maps of the highest version: one, or several that contradict."""
    found: dict[str, KeyMap] = {}
    for text in texts:
        try:
            key_map = KeyMap.decode(text)
        except RemoteProtocolError:
            continue
        found[key_map.encode()] = key_map
    highest = max((one.version for one in found.values()), default=0)
    return [found[text] for text in sorted(found) if found[text].version == highest]


def brokers_of(texts: Iterable[str]) -> set[str]:
    """Return the brokers of all these maps."""
    maps = [one for text in texts for one in newest([text])]
    return {broker for one in maps for broker, _ in one.queues}


def settle(told: Iterable[str], views: Mapping[str, ResizeView]) -> Settled:
    """Judge maps that were told of; `views` has what the brokers say that answered.

    A broker that knows no key maps holds none.
    """
    held = {view.map for view in views.values() if view.version and view.map}
    held_texts = {one.encode() for text in held for one in newest([text])}
    void: set[str] = set()
    left = set(held_texts)
    for text in told:
        for one in newest([text]):
            encoded = one.encode()
            if encoded in held_texts:
                continue
            if all(broker in views for broker, _ in one.queues):
                void.add(encoded)
            else:
                left.add(encoded)
    found = newest(left)
    contradicting = [one.encode() for one in found if one.encode() in held_texts]
    if len(contradicting) > 1:
        return Settled(None, frozenset(void), tuple(contradicting))
    if len(found) > 1:  # what a broker holds comes before what a name server remembers
        found = [one for one in found if one.encode() in held_texts] or found[:1]
    return Settled(found[0] if found else None, frozenset(void))
