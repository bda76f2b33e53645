"""Parked keys of a topic that is resized: they move to the queues where the new map places them.

A move has three steps, and each may be repeated:

1. The broker of the old queue marks the key as moved (`leave`).
2. The broker of the new queue installs the key with a pointer to the old list (`come`).
3. The group is released into the new map (`broker/resizing/release.py`).

So the owner of the new queue knows the key before its first message arrives. It parks new messages,
and drains the old list first when the key is redriven.

A key never moves back to a queue that still holds an older list of the same key, because the newest
messages would then join the oldest. The broker checks this before it marks the key as moved. Until
an operator redrives or drops the older list, the key stays where it is and the group is not
released. The same holds for a key of which a rewound group has reached some messages but not all:
those must be redriven first.

`RedriveScope` answers which parked messages may be redriven now. After a rewind a key may have
lists and messages of versions that its group has not reached again; those must wait. The rule
itself is `eligibility` in `broker/resizing/rules.py`. Why: decisions 14, 21 and 22.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inorder.broker.parking.records import Installed, Moved
from inorder.broker.parking.rules import ParkedKey, ParkingTable
from inorder.broker.resizing import rules
from inorder.broker.resizing.rules import Eligibility
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.wire.requests.parking import Move, QueuePlace

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.parking.service import Parking
    from inorder.broker.resizing.rules import Versions
    from inorder.ordering.keymap import KeyMap

log = get_logger(__name__)

LeftAt = Callable[[QueuePlace], Awaitable[frozenset[str]]]
"""Returns the keys that moved away from a queue of another broker and still have a list there."""


@dataclass(slots=True)
class Leaving:
    """The keys that move: what to tell each broker, and how many keys cannot move yet."""

    coming: dict[str, list[Move]] = field(default_factory=dict)
    busy: int = 0


class ParkMoves:
    """Moves the parked keys of a broker."""

    def __init__(self, parking: Parking, broker_name: str) -> None:
        self._parking = parking
        self._name = broker_name
        self._logged: dict[tuple[str, str], set[tuple[GroupQueue, str]]] = {}
        self._crowded: set[str] = set()

    async def leave(self, group: str, topic: str, key_map: KeyMap, left_at: LeftAt) -> Leaving:
        """Mark the keys that a new map places elsewhere, and return what to tell the other brokers.

        A repeated call returns the same, since the other brokers may not know yet.
        """
        here, result = self._name, Leaving()
        left: dict[QueuePlace, frozenset[str]] = {}
        returning: set[tuple[GroupQueue, str]] = set()
        entries = [one for one in self._parking.table.entries(group) if one[0].topic == topic]
        for place, one in entries:
            if not one.sharding_key:
                continue  # no map placed it
            to = QueuePlace(*key_map.queue(one.sharding_key))
            scope = self._parking.redrive_scope.of(place, one)
            if to == (here, place.queue_id) or not scope.eligible:
                continue
            if scope.blocked:
                result.busy += 1
                returning.add((place, one.key))
                continue
            if to not in left and to.broker == here:
                there = GroupQueue(group, topic, to.queue_id)
                left[to] = self._parking.table.left(there, key_map.version)
            elif to not in left:
                left[to] = await left_at(to)
            async with self._parking.exclusive(place):
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
        self._log_waiting(group, topic, returning)
        return result

    def _log_waiting(self, group: str, topic: str, waiting: set[tuple[GroupQueue, str]]) -> None:
        """Log once each key for which a resize waits for an operator."""
        logged = self._logged.pop((group, topic), set())
        if waiting:
            self._logged[group, topic] = waiting
        for place, key in sorted(waiting - logged):
            log.error(
                "the group waits for a parked key whose newer messages would pass older ones: "
                "redrive or drop it group=%s topic=%s queue=%d key=%s", *place, key,
            )  # fmt: skip

    async def come(self, group: str, topic: str, moves: Iterable[Move]) -> int:
        """Install keys that were parked in other queues; return how many cannot come yet."""
        busy, crowded = 0, False
        for move in moves:
            place = GroupQueue(group, topic, move.queue_id)
            async with self._parking.exclusive(place):
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
    """Which parked messages of a broker may be redriven now."""

    _broker: Broker
    _table: ParkingTable

    def _versions(self, place: GroupQueue) -> Versions | None:
        return self._broker.resizing.topics.get(place.topic)

    def of(self, place: GroupQueue, one: ParkedKey) -> Eligibility:
        """Return whether a key may be redriven now, and whether its group waits for that."""
        now = self._versions(place)
        if now is None:
            return Eligibility(True, False)
        queue = (self._broker.config.name, place.queue_id)
        return rules.eligibility(now, place.group, queue, one)

    def end(self, place: GroupQueue) -> int | None:
        """Return the offset up to which a group may read a queue; None: without a bound."""
        now = self._versions(place)
        return None if now is None else rules.end_for(now, place.group, place.queue_id)

    def is_home(self, place: GroupQueue, one: ParkedKey) -> bool:
        """Return whether this queue's owner redrives a key: it did not move, or not before that."""
        return one.moved_to is None or self.of(place, one).blocked

    def redrive_of(self, place: GroupQueue, one: ParkedKey) -> int:
        """Return the redrive that an operator wants of a key; 0: none, elsewhere, or not yet."""
        if not one.redrive or not self.is_home(place, one):
            return 0
        return one.redrive if self.of(place, one).eligible else 0

    def older(self, place: GroupQueue, one: ParkedKey) -> list[QueuePlace]:
        """Return the older lists of a key that may be redriven, oldest first."""
        now = self._versions(place)
        return one.older_until(None if now is None else rules.reading(now, place.group))

    def held(self, place: GroupQueue, floor: int) -> int | None:
        """Return the offset from which parked messages wait for a replay; None: none wait.

        `floor` is the committed offset.
        """
        parked = self._table.places.get(place)
        queue = self._broker.store.find_queue(place.topic, place.queue_id)
        if parked is None or queue is None:
            return None
        return floor if floor < min(parked.replay_until, queue.visible_offset) else None

    def came_back(self, place: GroupQueue, one: ParkedKey) -> bool:
        """Return whether the rest of a list belongs to a version in which the key lives here again.

        This happens if an operator forces a release before the key has moved back.
        """
        held = self.end(place)
        return (
            one.moved_to is not None and held is not None and bool(one.messages)
            and one.messages[0].origin >= held and not self.older(place, one)
            and not self._broker.resizing.rewinding.is_paused(place.topic, place.group)
        )  # fmt: skip

    def queues_left(self, topic: str, groups: Collection[str]) -> int:
        """Return how many queues of a topic, counted from 0, hold parked keys that need an owner.

        Those are all keys of `groups`. For other groups they are the keys that have not moved: an
        operator forced their release.
        """
        left = (
            place.queue_id + 1 for place, queue in self._table.places.items()
            if place.topic == topic and any(
                place.group in groups or one.moved_to is None for one in queue.keys.values()
            )
        )  # fmt: skip
        return max(left, default=0)
