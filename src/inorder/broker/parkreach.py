"""How far groups have come with their parked keys, if they were set back to before a resize.

Rules: `state/rewinding.py`. A key may then have lists and messages of versions that its group has
reached again, and others; only the former are handled.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from inorder.broker.state.parkedkeys import ParkedKey, Place
from inorder.broker.state.parking import ParkingTable
from inorder.wire.bodies.parking import QueuePlace

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

    def queues_left(self, topic: str, groups: Collection[str]) -> int:
        """Return how many queues of a topic hold parked keys of groups, from 0 to the last."""
        left = (
            place.queue_id + 1 for place, queue in self._table.places.items()
            if queue.keys and place.topic == topic and place.group in groups
        )  # fmt: skip
        return max(left, default=0)
