"""Parked keys whose topic is resized: they live in other queues from then on.

The broker of the old queue marks a key as moved, then the broker of the new one installs it with a
pointer to the old list, then the group is released into the new map (`broker/resizing/release.py`).
So the owner of the new queue knows the key before its first message, parks what comes, and drains
the old list first when the key is redriven. Every step can be said again.

A key does not come back to a queue where an older list of it lies: its newest messages would lie
with its oldest. That is asked before it is marked, so it stays where it can be redriven, and the
release waits until it was. The same if its group was set back and has reached some of a key's lists
and messages, not all (`broker/resizing/rules.py`, `reach`): those are to be redriven first.

How far groups have come with their parked keys, if they were set back to before a resize.

Rules: `broker/resizing/rules.py`. A key may then have lists and messages of versions that its group
has reached again, and others; only the former are handled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inorder.broker.parking.records import Installed, Moved
from inorder.broker.parking.rules import ParkedKey, ParkingTable, Place
from inorder.broker.resizing import rules
from inorder.broker.resizing.rules import Eligibility
from inorder.logs import get_logger
from inorder.wire.requests.parking import Move, QueuePlace

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.parking.service import Parking
    from inorder.broker.resizing.rules import Versions
    from inorder.ordering.keymap import KeyMap

log = get_logger(__name__)

LeftAt = Callable[[QueuePlace], Awaitable[frozenset[str]]]
"""Says which keys have left a queue of another broker while a list of theirs lies there."""


@dataclass(slots=True)
class Leaving:
    """Keys that move: what to tell which broker, and how many cannot move yet."""

    coming: dict[str, list[Move]] = field(default_factory=dict)
    busy: int = 0


class ParkMoves:
    """Moves the parked keys of a broker."""

    def __init__(self, parking: Parking, broker_name: str) -> None:
        self._parking = parking
        self._name = broker_name
        self._said: dict[tuple[str, str], set[tuple[Place, str]]] = {}
        self._crowded: set[str] = set()

    async def leave(self, group: str, topic: str, key_map: KeyMap, left_at: LeftAt) -> Leaving:
        """Mark the keys that belong elsewhere by a new map; return what to tell the others.

        Said again it returns the same: the others may not know yet.
        """
        here, result = self._name, Leaving()
        left: dict[QueuePlace, frozenset[str]] = {}
        returning: set[tuple[Place, str]] = set()
        entries = [one for one in self._parking.table.entries(group) if one[0].topic == topic]
        for place, one in entries:
            if not one.sharding_key:
                continue  # it was not put anywhere by the map
            to = QueuePlace(*key_map.queue(one.sharding_key))
            scope = self._parking.reach.of(place, one)
            if to == (here, place.queue_id) or not scope.eligible:
                continue
            if scope.blocked:
                result.busy += 1
                returning.add((place, one.key))
                continue
            if to not in left and to.broker == here:
                there = Place(group, topic, to.queue_id)
                left[to] = self._parking.table.left(there, key_map.version)
            elif to not in left:
                left[to] = await left_at(to)
            async with self._parking.alone(place):
                may = self._parking.table.may_leave(place, one.key, left[to])
                if may is False:
                    result.busy += 1
                    if one.key in left[to]:
                        returning.add((place, one.key))
                    continue
                if may:
                    moved = Moved(topic, place.queue_id, one.key, to, key_map.version)
                    await self._parking.note(group, moved)
            if one.moved_to == to:  # otherwise it moved before, and its queue there knows it
                result.coming.setdefault(to.broker, []).append(
                    Move(
                        to.queue_id, one.key, QueuePlace(here, place.queue_id), one.since_ms,
                        one.tries, one.first_error, one.sharding_key, key_map.version,
                    )
                )  # fmt: skip
        self._say(group, topic, returning)
        return result

    def _say(self, group: str, topic: str, waiting: set[tuple[Place, str]]) -> None:
        """Tell the log once of each key that a resize waits for an operator."""
        said = self._said.pop((group, topic), set())
        if waiting:
            self._said[group, topic] = waiting
        for place, key in sorted(waiting - said):
            log.error(
                "the group waits for a parked key, of which newer messages would pass older ones: "
                "redrive or drop it group=%s topic=%s queue=%d key=%s", *place, key,
            )  # fmt: skip

    async def come(self, group: str, topic: str, moves: Iterable[Move]) -> int:
        """Install keys that were parked elsewhere; return how many cannot come yet."""
        busy, crowded = 0, False
        for move in moves:
            place = Place(group, topic, move.queue_id)
            async with self._parking.alone(place):
                may = self._parking.table.may_come(place, move.key, move.other, move.version)
                if may and self._parking.table.is_crowded(group):
                    busy += 1
                    crowded = True
                elif may is False:
                    busy += 1
                    log.error(
                        "a parked key cannot come back onto its own older list: redrive or drop "
                        "it group=%s topic=%s queue=%d key=%s", *place, move.key,
                    )  # fmt: skip
                elif may:
                    await self._parking.note(
                        group,
                        Installed(
                            topic, move.queue_id, move.key, move.other, move.since_ms, move.error,
                            move.tries, move.sharding_key, move.version,
                        ),
                    )  # fmt: skip
        if crowded and group not in self._crowded:
            log.error("too many keys are parked for more to come: redrive some group=%s", group)
        (self._crowded.add if crowded else self._crowded.discard)(group)
        return busy


@dataclass(frozen=True, slots=True, repr=False)
class RedriveScope:
    """What may be handled of the parked keys of a broker."""

    _broker: Broker
    _table: ParkingTable

    def _versions(self, place: Place) -> Versions | None:
        return self._broker.resizing.topics.get(place.topic)

    def of(self, place: Place, one: ParkedKey) -> Eligibility:
        """Return whether a key may be redriven now, and whether its group waits for that."""
        now = self._versions(place)
        if now is None:
            return Eligibility(True, False)
        queue = (self._broker.config.name, place.queue_id)
        return rules.eligibility(now, place.group, queue, one)

    def end(self, place: Place) -> int | None:
        """Return the offset up to which a group may read a queue; None: without a bound."""
        now = self._versions(place)
        return None if now is None else rules.end_for(now, place.group, place.queue_id)

    def is_home(self, place: Place, one: ParkedKey) -> bool:
        """Tell whether the owner of a queue redrives a key: it has not moved, or has to before."""
        return one.moved_to is None or self.of(place, one).blocked

    def redrive_of(self, place: Place, one: ParkedKey) -> int:
        """Return which redrive of a key is wanted; 0: none, or not here, or not yet."""
        if not one.redrive or not self.is_home(place, one):
            return 0
        return one.redrive if self.of(place, one).eligible else 0

    def older(self, place: Place, one: ParkedKey) -> list[QueuePlace]:
        """Return the older lists of a key that are to be handled, the oldest first."""
        now = self._versions(place)
        return one.older_until(None if now is None else rules.reading(now, place.group))

    def held(self, place: Place, floor: int) -> int | None:
        """Return from which offset on what is parked waits for what a reset brings again.

        `floor` is the committed offset.
        """
        parked = self._table.places.get(place)
        queue = self._broker.store.find_queue(place.topic, place.queue_id)
        if parked is None or queue is None:
            return None
        return floor if floor < min(parked.replay_until, queue.visible_offset) else None

    def came_back(self, place: Place, one: ParkedKey) -> bool:
        """Tell whether what is left of a list is of a version by which the key lives here again.

        That is so if an operator let the group go on before it had moved back.
        """
        held = self.end(place)
        return (
            one.moved_to is not None and held is not None and bool(one.messages)
            and one.messages[0].origin >= held and not self.older(place, one)
            and not self._broker.resizing.rewinding.rests(place.topic, place.group)
        )  # fmt: skip

    def queues_left(self, topic: str, groups: Collection[str]) -> int:
        """Return how many queues of a topic hold parked keys of groups, from 0 to the last.

        Of other groups, those with keys that live there: an operator released them.
        """
        left = (
            place.queue_id + 1 for place, queue in self._table.places.items()
            if place.topic == topic and any(
                place.group in groups or one.moved_to is None for one in queue.keys.values()
            )
        )  # fmt: skip
        return max(left, default=0)
