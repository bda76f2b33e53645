"""Where the queues of a topic begin and end, and how far a group has committed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

Offsets = Callable[[int], int]
"""A queue's number to an offset."""


class Bounds:
    """What the rules of resizes ask about queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def committed(self, topic: str, group: str) -> Offsets:
        """Return how far a group has committed each queue; -1: not at all."""
        offsets = self._broker.offsets
        return lambda queue_id: offsets.query(group, topic, queue_id)

    def first(self, topic: str) -> Offsets:
        """Return where each queue begins."""

        def first(queue_id: int) -> int:
            queue = self._broker.store.find_queue(topic, queue_id)
            return 0 if queue is None else queue.min_offset

        return first

    def last(self, topic: str) -> Offsets:
        """Return where each queue ends."""

        def last(queue_id: int) -> int:
            queue = self._broker.store.find_queue(topic, queue_id)
            return 0 if queue is None else queue.visible_offset

        return last

    def left(self, topic: str, group: str) -> tuple[Offsets, Offsets]:
        """Return what tells how much a group has yet to finish: `committed` and `first`."""
        return self.committed(topic, group), self.first(topic)
