"""Looking out for brokers that a route has lost: asking soon again, until they are back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inorder.client.state.absence import ASK_AGAIN_MAX_MS, ASK_AGAIN_MS, Absences
from inorder.clock import Clock
from inorder.tasks import Backoff, Tasks
from inorder.wire.requests.routes import TopicRoute


class RouteWatch:
    """Asks for the routes that have lost a broker, until it is back or is waited for no more."""

    def __init__(
        self,
        clock: Clock,
        tasks: Tasks,
        *,
        refresh: Callable[[str], Awaitable[None]],
        interval_ms: int,
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._refresh = refresh
        self._first_ms = min(ASK_AGAIN_MS, interval_ms)
        self._max_ms = min(ASK_AGAIN_MAX_MS, interval_ms)
        self._absences = Absences()
        self._asking: dict[str, asyncio.Task[None]] = {}

    def note(self, topic: str, before: TopicRoute | None, after: TopicRoute) -> None:
        """Take in a new route; one that lost a broker is asked for again soon."""
        if self._absences.note(topic, before, after, self._clock.monotonic_ms()):
            asking = self._asking.get(topic)
            if asking is not None:
                asking.cancel()  # it waits long by now, for another broker
            self._asking[topic] = self._tasks.start(self._ask(topic), name=f"watch {topic}")

    def absent(self, topic: str) -> frozenset[str]:
        """Return the brokers that the route has lost and that may come back."""
        return self._absences.of(topic, self._clock.monotonic_ms())

    def forget(self, topic: str) -> None:
        """Wait for nobody: the topic was deleted."""
        self._absences.forget(topic)

    async def _ask(self, topic: str) -> None:
        backoff = Backoff(self._first_ms, self._max_ms)
        try:
            while self.absent(topic):
                await asyncio.sleep(backoff.next_ms() / 1000)
                if self.absent(topic):
                    await self._refresh(topic)
        finally:
            if self._asking.get(topic) is asyncio.current_task():
                del self._asking[topic]
