"""Reading ahead of one queue: pull, keep, pull on, until enough is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inorder.client.pulling import pull
from inorder.client.session import Session
from inorder.client.state.prefetch import Prefetched
from inorder.client.state.pulldecisions import PullStatus
from inorder.errors import ConnectFailed, InorderError, RequestTimeout
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.tasks import Backoff

log = get_logger(__name__)

_HELD_MS = 100
"""An answer that took this long was held by the broker."""

Locate = Callable[[TopicQueue], Awaitable[int]]


class Fetcher:
    """One queue of a consumer. `run` is its task; `arrived` is called when poll has something."""

    def __init__(
        self,
        session: Session,
        group: str,
        queue: TopicQueue,
        *,
        subscription: Subscription,
        locate: Locate,
        arrived: Callable[[], None],
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.paused = False
        self.ahead: Prefetched | None = None  # None: where to begin is not known yet
        self.committed: int | None = None
        self.failing: str = ""  # why the last attempt failed; it is tried again
        self.error: InorderError | None = None  # what a retry does not help; poll raises it
        self.task: asyncio.Task[None] | None = None
        self._session = session
        self._group = group
        self._locate = locate
        self._arrived = arrived
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Read ahead until cancelled, or until an error that a retry does not help."""
        config = self._session.config
        backoff = Backoff(config.retry_first_ms, config.retry_max_ms)
        while True:
            try:
                if not await self._step():
                    await asyncio.sleep(backoff.next_ms() / 1000)
                    continue
            except InorderError as error:
                if not error.retriable:
                    self.error = error
                    self._arrived()
                    return
                await self._recover(error)
                await asyncio.sleep(backoff.next_ms() / 1000)
            else:
                self.failing = ""
                backoff.reset()

    async def position(self) -> int:
        """Return the offset that poll hands out next."""
        if self.ahead is None:
            offset = await self._locate(self.queue)
            if self.ahead is None:  # nobody else was faster
                self.ahead = Prefetched(offset)
        return self.ahead.position

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Return messages that are here."""
        if self.ahead is None or self.paused:
            return []
        taken = self.ahead.take(limit)
        if taken:
            self._room.set()
        return taken

    async def _step(self) -> bool:
        """Pull once; False if the broker had nothing and did not wait for more, as it does at its
        limit of held pulls: then we wait here."""
        await self.position()
        ahead = self.ahead
        assert ahead is not None
        await self._wait_room(ahead)
        offset = ahead.fetch_offset
        asked_ms = self._session.clock.monotonic_ms()
        result = await pull(
            self._session,
            self._group,
            self.queue,
            offset,
            subscription=self.subscription,
            suspend_ms=self._session.config.pull_suspend_ms,
        )
        if result.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "offset %d of %s is not stored; going on at %d (stored: %d to %d)",
                offset, self.queue, result.next_offset, result.min_offset, result.max_offset,
            )  # fmt: skip
        ahead.add(result.messages, result.next_offset)
        if result.messages:
            self._arrived()
        waited_ms = self._session.clock.monotonic_ms() - asked_ms
        return result.status is not PullStatus.NOTHING_NEW or waited_ms >= _HELD_MS

    async def _wait_room(self, ahead: Prefetched) -> None:
        config = self._session.config
        while (
            ahead.messages >= config.prefetch_messages_max
            or ahead.size_bytes >= config.prefetch_bytes_max
        ):
            self._room.clear()
            await self._room.wait()

    async def _recover(self, error: InorderError) -> None:
        if str(error) != self.failing:
            log.warning("pull failed, trying again queue=%s error=%s", self.queue, error)
        self.failing = str(error) or type(error).__name__
        if isinstance(error, RequestTimeout):
            self._session.drop_connection(self.queue, "a pull was not answered in time")
        elif isinstance(error, ConnectFailed):
            await self._session.try_refresh_route(self.queue.topic)
