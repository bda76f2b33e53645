"""Which queue a message goes to: by its key, or in turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inorder.model import TopicQueue
from inorder.ordering.keymap import queue_for_key


def select_by_key(queues: Sequence[TopicQueue], key: str) -> TopicQueue:
    """Return the queue of a key; the list must be the topic's full one, sorted."""
    return queues[queue_for_key(key, len(queues))]


class RoundRobin:
    """Takes queues in turn, and passes over brokers that just failed while there are others."""

    __slots__ = ("_next",)

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def select(self, queues: Sequence[TopicQueue], avoid: Collection[str] = ()) -> TopicQueue:
        """Return the next queue; of an avoided broker only if all are."""
        return queues[self.index(queues, avoid)]

    def index(self, queues: Sequence[TopicQueue], avoid: Collection[str] = ()) -> int:
        """Return its place in the list."""
        start, self._next = self._next, self._next + 1
        if avoid:
            for step in range(len(queues)):
                index = (start + step) % len(queues)
                if queues[index].broker not in avoid:
                    self._next = start + step + 1
                    return index
        return start % len(queues)


class FailedBrokers:
    """The brokers that failed a short while ago."""

    __slots__ = ("_until_ms", "avoid_ms")

    def __init__(self, avoid_ms: int) -> None:
        self.avoid_ms = avoid_ms
        self._until_ms: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Tell whether there may be one."""
        return bool(self._until_ms)

    def failed(self, broker: str, now_ms: int) -> None:
        """Avoid a broker for a while, from now on."""
        self._until_ms[broker] = now_ms + self.avoid_ms

    def worked(self, broker: str) -> None:
        """Avoid a broker no more."""
        self._until_ms.pop(broker, None)

    def to_avoid(self, now_ms: int) -> Collection[str]:
        """Return whom to avoid now."""
        if not self._until_ms:
            return ()
        self._until_ms = {b: until for b, until in self._until_ms.items() if until > now_ms}
        return self._until_ms.keys()
