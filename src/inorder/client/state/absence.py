"""Brokers that are in a topic's route no more, though nobody took the topic from them for sure.

A broker that is restarted is out of the route for a moment, and so is one that a name server has
not heard of yet. Everyone shares out the queues that the route has; but who holds queues of such a
broker under a lock keeps them for a while: they are in nobody's share, its broker gives them to
nobody while the lock lasts, and most often it is back before that.
"""

from __future__ import annotations

from typing import Final

from inorder.wire.requests.routes import TopicRoute

ABSENT_MS: Final = 60_000
"""A broker that is away for longer has left the topic."""
ASK_AGAIN_MS: Final = 1000
ASK_AGAIN_MAX_MS: Final = 5000
"""How soon a route that has lost a broker is asked for again, at first and at last."""


class Absences:
    """The absent brokers of all topics, with the time since when."""

    def __init__(self) -> None:
        self._since_ms: dict[str, dict[str, int]] = {}

    def note(self, topic: str, before: TopicRoute | None, after: TopicRoute, now_ms: int) -> bool:
        """Compare two routes of a topic; tell whether a broker is absent that was not."""
        here = _serving(after)
        since_ms = self._since_ms.setdefault(topic, {})
        for broker in here & since_ms.keys():
            del since_ms[broker]
        gone = (frozenset() if before is None else _serving(before)) - here
        since_ms.update(dict.fromkeys(gone, now_ms))
        if not since_ms:
            del self._since_ms[topic]
        return bool(gone)

    def of(self, topic: str, now_ms: int) -> frozenset[str]:
        """Return the brokers of a topic that may come back."""
        return frozenset(
            broker
            for broker, since_ms in self._since_ms.get(topic, {}).items()
            if now_ms - since_ms < ABSENT_MS
        )

    def forget(self, topic: str) -> None:
        """Wait for nobody: the topic was deleted."""
        self._since_ms.pop(topic, None)


def _serving(route: TopicRoute) -> frozenset[str]:
    """Return the brokers that have queues of the topic, readable or not."""
    return frozenset(data.broker_name for data in route.queues)
