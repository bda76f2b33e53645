"""What a producer knows of a topic, and who waits in line until its route is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from inorder.client.queuelane import QueueLane
from inorder.client.sending import Choice, Sending
from inorder.client.state.routes import publish_queues
from inorder.errors import InorderError
from inorder.model import Message, TopicQueue
from inorder.ordering.keymap import KeyMap, queue_for_key
from inorder.wire.requests.routes import TopicRoute
from inorder.wire.requests.sendframes import by_map


class BatchCall(Protocol):
    """Messages that wait to be grouped by queue, some at each turn."""

    topic: str
    choice: Choice
    deadline_ms: int
    resume: Callable[[], None]
    """Is called when there may be a further turn."""
    stalled: bool
    """No further turn before that."""
    together: TopicQueue | None
    """Where its messages without a key go."""

    @property
    def wanted(self) -> bool:
        """Tell whether somebody still waits for it."""
        ...

    @property
    def placed(self) -> bool:
        """Tell whether all messages have their places."""
        ...

    def turn(self) -> Sequence[Message]:
        """Return the messages of this turn; none if those before must be settled first."""
        ...

    def place(self, targets: list[tuple[TopicQueue, int]]) -> list[tuple[TopicQueue, int, Sending]]:
        """Return their requests, given the queue of each and the version of its map."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the call: nothing of the messages without a place is sent."""
        ...


class TopicLine:
    """What is known of a topic, and who waits until something is."""

    __slots__ = (
        "draining", "early", "error", "finding", "key_map", "keyed", "keyed_lanes", "lanes", "name",
        "placed", "previous", "queues", "route", "settling",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.route: TopicRoute | None = None
        self.key_map: KeyMap | None = None
        self.queues: list[TopicQueue] = []  # that may be written
        self.lanes: list[QueueLane | None] = []  # theirs
        self.keyed: list[TopicQueue] = []  # where keys go
        self.keyed_lanes: list[QueueLane | None] = []
        self.placed = b""  # what a send says whose key chose its queue
        self.previous: list[
            list[TopicQueue]
        ] = []  # keyed lists that gave way, until all is drained
        self.draining: list[QueueLane] = []
        self.early: deque[Sending | BatchCall] = deque()
        self.finding = False
        self.settling = False  # brokers are asked which key map counts
        self.error: InorderError | None = None

    def adopt(self, route: TopicRoute, key_map: KeyMap | None) -> bool:
        """Use a route and a key map; True if keys may have left queues by that.

        Also the first map of a topic that had none takes keys along, and one that was void.
        """
        old, before, self.route, self.key_map = self.key_map, self.keyed, route, key_map
        self.placed = b"" if key_map is None else by_map(key_map.version, key_map.digest)
        queues = publish_queues(route, self.name)
        if key_map is not None:  # a route may still have queues that were taken away
            mapped = set(key_map.queues)
            queues = [one for one in queues if (one.broker, one.index) in mapped] or queues
        if queues != self.queues:
            self.queues, self.lanes = queues, [None] * len(queues)
        keyed = self.queues
        if key_map is not None:
            keyed = [TopicQueue(self.name, broker, index) for broker, index in key_map.queues]
        if keyed != self.keyed:
            self.keyed, self.keyed_lanes = keyed, [None] * len(keyed)
        if old == key_map or not before:
            return False
        self.previous.append(before)
        return True

    def holder(self, sending: Sending) -> QueueLane | None:
        """Return the lane that a key has left, if it is not drained yet."""
        assert sending.key is not None
        for old in self.previous:
            place = old[queue_for_key(sending.key, len(old))]
            for lane in self.draining:
                if lane.queue == place:
                    return None if lane is sending.lane else lane
        return None
