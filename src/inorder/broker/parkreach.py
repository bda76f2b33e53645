"""How far groups have come with their parked keys, if they were set back to before a resize.

Rules: `state/rewinding.py`. A key may then have lists and messages of versions that its group has
reached again, and others; only the former are handled.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from inorder.broker.state.parkedkeys import ParkedKey, Place
from inorder.broker.state.parking import ParkingTable
from inorder.wire.requests.parking import QueuePlace

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.rewinding import Rewinding
    from inorder.broker.state.rewinding import Reach


class ParkReach:
    """What may be handled of the parked keys of a broker."""

    def __init__(self, broker: Broker, table: ParkingTable) -> None:
        self._broker = broker
        self._table = table

    def __repr__(self) -> str:
        return f"ParkReach({self._table!r})"

    @property
    def _rewinding(self) -> Rewinding:
        return self._broker.resizing.rewinding

    def of(self, place: Place, one: ParkedKey) -> Reach:
        """Tell how far a group has come with a key."""
        return self._rewinding.reach(place, one)

    def is_home(self, place: Place, one: ParkedKey) -> bool:
        """Tell whether the owner of a queue redrives a key: it has not moved, or has to before."""
        return one.moved_to is None or self.of(place, one).blocked

    def redrive_of(self, place: Place, one: ParkedKey) -> int:
        """Return which redrive of a key is wanted; 0: none, or not here, or not yet."""
        if not one.redrive or not self.is_home(place, one):
            return 0
        return one.redrive if self.of(place, one).reached else 0

    def older(self, place: Place, one: ParkedKey) -> list[QueuePlace]:
        """Return the older lists of a key that are to be handled, the oldest first."""
        return self._rewinding.older(place, one)

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
        held = self._rewinding.end_for(place)
        return (
            one.moved_to is not None and held is not None and bool(one.messages)
            and one.messages[0].origin >= held and not self.older(place, one)
            and not self._rewinding.rests(place.topic, place.group)
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
