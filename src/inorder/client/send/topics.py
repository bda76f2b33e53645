"""What a producer knows of a topic: its route, its key map, and where its keys go."""

from __future__ import annotations

from collections import deque

from inorder.client.rules.routes import publish_queues
from inorder.client.send.batches import Batch
from inorder.client.send.queues import Send, SendQueue, compiled
from inorder.errors import InorderError
from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap, queue_for_key
from inorder.wire.requests.routes import TopicRoute
from inorder.wire.requests.sendframes import by_map


class TopicSends:
    """The route and key map that a producer uses for a topic, and sends that wait for a route."""

    __slots__ = (
        "by_key", "draining", "error", "finding", "key_map", "keyed", "keyed_send_queues", "name",
        "placed", "previous", "queues", "route", "send_queues", "settling", "unrouted",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.route: TopicRoute | None = None
        self.key_map: KeyMap | None = None
        self.queues: list[TopicQueue] = []  # with write permission
        self.send_queues: list[SendQueue | None] = []  # of `queues`
        self.keyed: list[TopicQueue] = []  # where keys go
        self.keyed_send_queues: list[SendQueue | None] = []  # of `keyed`
        self.by_key: dict[str, SendQueue] = {}  # the send queues of keys, as far as remembered
        self.placed = b""  # header fields of a send whose key chose its queue
        self.previous: list[list[TopicQueue]] = []  # older `keyed` lists, until all is drained
        self.draining: list[SendQueue] = []
        self.unrouted: deque[Send | Batch] = deque()
        self.finding = False  # name servers are asked for the route
        self.settling = False  # brokers are asked which key map counts
        self.error: InorderError | None = None

    def adopt(self, route: TopicRoute, key_map: KeyMap | None) -> bool:
        """Use a route and a key map; True if keys may have left queues by that.

        Keys may also leave when a topic gets its first map, and when a map turns out to be void.
        """
        old, before, self.route, self.key_map = self.key_map, self.keyed, route, key_map
        self.placed = b"" if key_map is None else by_map(key_map.version, key_map.digest)
        queues = publish_queues(route, self.name)
        if key_map is not None:  # a route may still have queues that were taken away
            mapped = set(key_map.queues)
            queues = [one for one in queues if (one.broker, one.index) in mapped] or queues
        if queues != self.queues:
            self.queues, self.send_queues = queues, [None] * len(queues)
        keyed = self.queues
        if key_map is not None:
            keyed = [TopicQueue(self.name, broker, index) for broker, index in key_map.queues]
        if keyed != self.keyed:
            self.by_key.clear()
            self.keyed, self.keyed_send_queues = keyed, [None] * len(keyed)
        if old == key_map or not before:
            return False
        self.previous.append(before)
        return True

    def put_known(
        self, sends: list[Send], at: int, due_ms: int, touched: dict[SendQueue, None]
    ) -> tuple[int, int]:
        """Give messages from an index on to the queues of their keys, as far as those are known.

        Return the index of the first that is left, and the earliest deadline. It does what
        `SendRouter._put_keyed` does one by one.
        """
        assert compiled is not None
        groups: dict[SendQueue, list[Send]] = {}
        at, due_ms = compiled.place(sends, at, self.name, self.by_key, self.placed, groups, due_ms)
        for queue, group in groups.items():
            queue.sender.pending += len(group)
            queue.waiting.extend(group)
            touched[queue] = None
        return at, due_ms

    def previous_queue(self, send: Send) -> SendQueue | None:
        """Return the queue that the send's key has left, if that queue is not drained yet."""
        assert send.key is not None
        for old in self.previous:
            left = old[queue_for_key(send.key, len(old))]
            for queue in self.draining:
                if queue.topic_queue == left:
                    return None if queue is send.queue else queue
        return None
