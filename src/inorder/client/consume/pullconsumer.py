"""The public `PullConsumer`: assign or subscribe, poll, seek, commit, at the caller's own pace.

A pull consumer reads every queue that it is given. It is not a member of its group and shares no
queues; the group is the name under which offsets are committed, and nothing is committed without a
call. `Fetcher` reads ahead of one queue until enough messages are buffered. What a pull consumer
is: decision 28.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from inorder.client import registry
from inorder.client.access import Access
from inorder.client.api import BrokerApi
from inorder.client.consume.pulls import PullResult, pull
from inorder.client.consume.rules.pulls import Prefetched, PullStatus, subscription_of
from inorder.client.rules.routes import Duration, subscribe_queues, to_ms
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.errors import (
    AlreadyClosed,
    ConnectFailed,
    InorderError,
    NotFound,
    RequestTimeout,
    TopicNotRouted,
    UsageError,
)
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.tasks import Backoff, Tasks, periodic

log = get_logger(__name__)

_HELD_MS = 100
"""An answer "nothing new" that took this long was held by the broker."""

Locate = Callable[[TopicQueue], Awaitable[int]]


class Fetcher:
    """Reads ahead of one queue. `run` is its task; `arrived` is called when poll can go on."""

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
        self.ahead: Prefetched | None = None  # None: the first offset is not known yet
        self.committed: int | None = None
        self.failing: str = ""  # why the last pull failed; it is repeated
        self.error: InorderError | None = (
            None  # an error that a retry does not help; poll raises it
        )
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
        """Return the offset of the message that poll returns next."""
        if self.ahead is None:
            offset = await self._locate(self.queue)
            if self.ahead is None:  # no other task was faster
                self.ahead = Prefetched(offset)
        return self.ahead.position

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Return buffered messages."""
        if self.ahead is None or self.paused:
            return []
        taken = self.ahead.take(limit)
        if taken:
            self._room.set()
        return taken

    async def _step(self) -> bool:
        """Pull once; False if the broker had nothing new and did not hold the pull.

        A broker does so at its limit of held pulls; then the caller waits instead.
        """
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
                "offset %d of %s is not stored; continuing at %d (stored: %d to %d)",
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


ConsumeFrom = Literal["first", "last"] | datetime
Target = int | datetime | Literal["beginning", "end"]


@dataclass(frozen=True, slots=True)
class PullConsumerStatistics:
    """The queues, the buffered messages and the failing queues of a pull consumer."""

    queues: tuple[TopicQueue, ...]
    prefetched_messages: int
    prefetched_bytes: int
    failing: dict[TopicQueue, str]


class PullConsumer:
    """Reads queues for a group, as fast as the caller polls.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876; or a Session.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
    `consume_from` says where to begin in a queue for which the group has committed
    nothing: at its end (`"last"`), its beginning (`"first"`), or a time.
    """

    def __init__(
        self,
        namesrv: str | Session | None = None,
        *,
        group: str,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        consume_from: ConsumeFrom = "last",
    ) -> None:
        if not group:
            raise UsageError("a consumer needs a group; offsets are committed under its name")
        if not (consume_from in ("first", "last") or isinstance(consume_from, datetime)):
            raise UsageError(f"consume_from={consume_from!r}: write 'first', 'last' or a datetime")
        self._access = Access(namesrv, config=config, tls=tls, credentials=credentials)
        self._config = self._access.config
        self._group = group
        self._consume_from = consume_from
        self._tasks = Tasks(f"consumer {group}")
        self._subscriptions: dict[str, Subscription] = {}
        self._fetchers: dict[TopicQueue, Fetcher] = {}
        self._following: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._next = 0
        self._closed = False
        registry.made(self, "reader", group)

    # One queue at a time, offsets kept by the caller.

    async def queues(self, topic: str, *, wait: Duration = 0) -> list[TopicQueue]:
        """Return the queues of a topic, as the name server knows them now.

        The name server learns of a new topic after a moment; `wait` says how long to ask again.
        """
        session = await self._session()
        deadline_ms = session.clock.monotonic_ms() + to_ms(wait)
        backoff = Backoff(self._config.retry_first_ms, self._config.retry_max_ms)
        while True:
            try:
                route = await session.refresh_route(topic)
                return subscribe_queues(route, topic, session.key_map(topic))
            except TopicNotRouted:
                pause_ms = backoff.next_ms()
                if deadline_ms - session.clock.monotonic_ms() <= pause_ms:
                    raise
                await asyncio.sleep(pause_ms / 1000)

    async def pull(
        self,
        queue: TopicQueue,
        offset: int,
        *,
        tag: str = "*",
        sql: str | None = None,
        messages_max: int | None = None,
        wait: Duration = 0,
    ) -> PullResult:
        """Ask for messages from an offset on; wait for the first one for up to `wait` seconds."""
        return await pull(
            await self._session(),
            self._group,
            queue,
            offset,
            subscription=subscription_of(queue.topic, tag, sql),
            messages_max=messages_max,
            suspend_ms=to_ms(wait),
        )

    async def pull_all(
        self,
        queue: TopicQueue,
        start: int | None = None,
        *,
        tag: str = "*",
        sql: str | None = None,
    ) -> AsyncIterator[ReceivedMessage]:
        """Return the messages of a queue from `start` (default: the oldest) to its present end."""
        api = await self._api(queue)
        end = await api.max_offset(queue)
        offset = await api.min_offset(queue) if start is None else start
        while offset < end:
            result = await self.pull(queue, offset, tag=tag, sql=sql)
            for message in result.messages:
                if message.offset < end:
                    yield message
            if result.status is PullStatus.NOTHING_NEW:
                return
            offset = result.next_offset

    # Subscribed and assigned queues.

    async def subscribe(self, topic: str, tag: str = "*", *, sql: str | None = None) -> None:
        """Read all queues of a topic, also those that the topic gains later.

        `tag` is `*`, a tag, or several as in `paid || shipped`; `sql` is an SQL92 expression
        instead. Raises TopicNotRouted if no broker serves the topic, SubscriptionParseFailed if
        the tags or the expression cannot be parsed.
        """
        if self._fetchers and not self._subscriptions:
            raise UsageError("this consumer has assigned queues; use another one to subscribe")
        if topic in self._subscriptions:
            raise UsageError(f"topic {topic} is subscribed already; unsubscribe it first")
        subscription = subscription_of(topic, tag, sql)
        session = await self._session()
        queues = await self.queues(topic, wait=self._config.request_timeout_ms / 1000)
        self._subscriptions[topic] = subscription
        for queue in queues:
            self._add(session, queue, subscription)
        if self._following is None:
            work = periodic(
                self._follow_routes, interval_ms=self._config.route_refresh_ms,
                clock=session.clock, name="queues",
            )  # fmt: skip
            self._following = self._tasks.start(work, name="queues")

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic, and drop its buffered messages."""
        if self._subscriptions.pop(topic, None) is None:
            raise UsageError(f"topic {topic} is not subscribed")
        await self._remove([queue for queue in self._fetchers if queue.topic == topic])

    async def assign(
        self, queues: Iterable[TopicQueue], tag: str = "*", *, sql: str | None = None
    ) -> None:
        """Read exactly these queues, instead of those assigned before."""
        if self._subscriptions:
            raise UsageError("this consumer subscribes; use another one to assign queues")
        wanted = {queue: subscription_of(queue.topic, tag, sql) for queue in queues}
        session = await self._session()
        kept = {
            queue
            for queue, fetcher in self._fetchers.items()
            if wanted.get(queue) == fetcher.subscription
        }
        await self._remove([queue for queue in self._fetchers if queue not in kept])
        for queue, subscription in wanted.items():
            if queue not in kept:
                self._add(session, queue, subscription)

    def assignment(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are read."""
        return tuple(sorted(self._fetchers))

    async def poll(
        self, timeout: Duration | None = 1.0, *, messages_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Return messages, of each queue in order; wait for the first one if there is none.

        An empty list means that no message came within `timeout` (None: no limit). Errors that a
        retry may help are retried, see `statistics().failing`; others are raised.
        """
        limit = self._config.poll_messages_max if messages_max is None else messages_max
        seconds = None if timeout is None else to_ms(timeout) / 1000
        taken = self._take(limit)
        if taken or seconds == 0:
            return taken
        try:
            async with asyncio.timeout(seconds):
                while not taken:
                    await self._arrived.wait()
                    taken = self._take(limit)
        except TimeoutError:
            pass
        return taken

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Return messages one by one until the consumer is closed."""
        while not self._closed:
            try:
                found = await self.poll(None, messages_max=1)
            except AlreadyClosed:
                return
            for message in found:
                yield message

    async def seek(self, queue: TopicQueue, to: Target) -> int:
        """Continue a queue at an offset, at a time, at its "beginning" or at its "end".

        Returns the offset. For a time it is that of the first message stored then or later.
        """
        fetcher = self._fetcher(queue)
        offset = await self._resolve(queue, to)
        await _stop(fetcher)
        fetcher.ahead = Prefetched(offset)
        fetcher.error = None
        self._run(fetcher)
        return offset

    async def position(self, queue: TopicQueue) -> int:
        """Return the offset after the last message of a queue that poll returned."""
        return await self._fetcher(queue).position()

    async def commit(self, queue: TopicQueue | None = None, offset: int | None = None) -> None:
        """Commit the group's offsets, and wait for the answers.

        Without arguments every message that poll has returned is done. With a queue, only messages
        of that queue are, or every message below `offset`; the queue need not be assigned.
        """
        if queue is not None:
            done = await self.position(queue) if offset is None else offset
            await self._commit(queue, done)
            return
        if offset is not None:
            raise UsageError("commit(offset=…) needs the queue too")
        for fetcher in list(self._fetchers.values()):
            if fetcher.ahead is not None and fetcher.ahead.position != fetcher.committed:
                await self._commit(fetcher.queue, fetcher.ahead.position)

    async def _commit(self, queue: TopicQueue, offset: int) -> None:
        await (await self._api(queue)).update_offset(self._group, queue, offset)
        fetcher = self._fetchers.get(queue)
        if fetcher is not None:
            fetcher.committed = offset

    async def committed(self, queue: TopicQueue) -> int | None:
        """Return the committed offset of the group; None if there is none."""
        api = await self._api(queue)
        try:
            return await api.query_offset(self._group, queue, set_zero_if_not_found=False)
        except NotFound:
            return None

    def pause(self, *queues: TopicQueue) -> None:
        """Return nothing of these queues (default: of all) until `resume`."""
        for queue in queues or tuple(self._fetchers):
            self._fetcher(queue).paused = True

    def resume(self, *queues: TopicQueue) -> None:
        """Return messages of these queues (default: of all) again."""
        for queue in queues or tuple(self._fetchers):
            self._fetcher(queue).paused = False
        self._arrived.set()

    def paused(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are paused."""
        return tuple(sorted(queue for queue, found in self._fetchers.items() if found.paused))

    async def close(self) -> None:
        """Stop reading and close the connections; nothing is committed."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        await self._tasks.stop()
        self._fetchers.clear()
        await self._access.close()

    async def __aenter__(self) -> PullConsumer:
        await self._session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def group(self) -> str:
        """Return the name of the consumer group."""
        return self._group

    def statistics(self) -> PullConsumerStatistics:
        """Return a snapshot of the counters."""
        ahead = [found.ahead for found in self._fetchers.values() if found.ahead is not None]
        return PullConsumerStatistics(
            queues=self.assignment(),
            prefetched_messages=sum(prefetched.messages for prefetched in ahead),
            prefetched_bytes=sum(prefetched.size_bytes for prefetched in ahead),
            failing={queue: f.failing for queue, f in self._fetchers.items() if f.failing},
        )

    def __repr__(self) -> str:
        return f"PullConsumer({self._group!r}, queues={len(self._fetchers)})"

    # Inside.

    async def _session(self) -> Session:
        if self._closed:
            raise AlreadyClosed("this consumer was closed; make a new one")
        return await self._access.open()

    async def _api(self, queue: TopicQueue) -> BrokerApi:
        session = await self._session()
        if session.known_route(queue.topic) is None:  # the topic may be new
            await self.queues(queue.topic, wait=self._config.request_timeout_ms / 1000)
        return await session.reader_of(queue)

    def _add(
        self, session: Session, queue: TopicQueue, subscription: Subscription, *, late: bool = False
    ) -> None:
        """Read a queue; a queue that the topic gained later is read from its beginning."""
        fetcher = Fetcher(
            session,
            self._group,
            queue,
            subscription=subscription,
            locate=self._locate_late if late else self._locate,
            arrived=self._arrived.set,
        )
        self._fetchers[queue] = fetcher
        self._run(fetcher)

    def _run(self, fetcher: Fetcher) -> None:
        fetcher.task = self._tasks.start(fetcher.run(), name=f"fetch {fetcher.queue}")

    async def _remove(self, queues: list[TopicQueue]) -> None:
        for queue in queues:
            await _stop(self._fetchers.pop(queue))

    async def _follow_routes(self) -> None:
        session = await self._session()
        for topic, subscription in list(self._subscriptions.items()):
            await session.try_refresh_route(topic)
            route = session.known_route(topic)
            key_map = session.key_map(topic)
            for queue in subscribe_queues(route, topic, key_map) if route is not None else ():
                if queue not in self._fetchers and topic in self._subscriptions:
                    self._add(session, queue, subscription, late=True)

    async def _locate(self, queue: TopicQueue) -> int:
        committed = await self.committed(queue)
        if committed is not None:
            return committed
        if isinstance(self._consume_from, datetime):
            return await self._resolve(queue, self._consume_from)
        return await self._resolve(queue, "end" if self._consume_from == "last" else "beginning")

    async def _locate_late(self, queue: TopicQueue) -> int:
        committed = await self.committed(queue)
        return await self._resolve(queue, "beginning") if committed is None else committed

    async def _resolve(self, queue: TopicQueue, to: Target) -> int:
        if isinstance(to, int) and not isinstance(to, bool):
            if to < 0:
                raise UsageError(f"offset {to}: offsets begin at 0")
            return to
        api = await self._api(queue)
        if isinstance(to, datetime):
            return await api.search_offset(queue, int(to.timestamp() * 1000))
        if to == "beginning":
            return await api.min_offset(queue)
        if to == "end":
            return await api.max_offset(queue)
        raise UsageError(f"{to!r}: seek to an offset, a datetime, 'beginning' or 'end'")

    def _fetcher(self, queue: TopicQueue) -> Fetcher:
        if queue not in self._fetchers:
            raise UsageError(f"{queue} is not read by this consumer; assign or subscribe it first")
        return self._fetchers[queue]

    def _take(self, limit: int) -> list[ReceivedMessage]:
        """Return buffered messages, beginning with another queue each time."""
        if self._closed:
            raise AlreadyClosed("this consumer was closed; make a new one")
        if not self._fetchers:
            raise UsageError("there is nothing to read; subscribe a topic or assign queues first")
        fetchers = list(self._fetchers.values())
        self._arrived.clear()
        self._next = (self._next + 1) % len(fetchers)
        taken: list[ReceivedMessage] = []
        for fetcher in fetchers[self._next :] + fetchers[: self._next]:
            taken += fetcher.take(limit - len(taken))
            if len(taken) >= limit:
                return taken
        if not taken:
            self._raise_errors(fetchers)
        return taken

    def _raise_errors(self, fetchers: list[Fetcher]) -> None:
        """Raise the error that ended a fetcher, and start the fetcher again."""
        for fetcher in fetchers:
            error, fetcher.error = fetcher.error, None
            if error is not None:
                self._run(fetcher)
                raise error


async def _stop(fetcher: Fetcher) -> None:
    task, fetcher.task = fetcher.task, None
    if task is not None:
        task.cancel()
        await asyncio.wait((task,))
