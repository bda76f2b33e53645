"""Finding single messages: by id, by key, by offset, by time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from inorder.client.access import Access
from inorder.client.admin.cluster import Cluster
from inorder.client.api import BrokerApi
from inorder.client.consume.messages import Received, receive, receive_from
from inorder.client.consume.pulls import require_filter
from inorder.client.consume.rules.pulls import subscription_of
from inorder.client.rules.routes import Duration, broker_masters, moment_ms, subscribe_queues, to_ms
from inorder.client.rules.traces import TraceView, views_of
from inorder.errors import BrokerError, NotFound, OffsetOutOfRange, RemoteProtocolError
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire import properties
from inorder.wire.codes import ResponseCode
from inorder.wire.ids import parse_message_id, show_address
from inorder.wire.names import TRACE_TOPIC
from inorder.wire.record import Record
from inorder.wire.requests.pulls import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessage,
    QueryMessage,
)

GROUP: Final = "TOOLS_CONSUMER"
COUNT: Final = 64
FOREVER_MS: Final = 2**62
PULL_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many messages of a topic wait at a broker for their time (`deliver_at=`)."""

    topic: str
    broker: str
    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of a queue, and the offset of the next read."""

    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    end_offset: int


class Messages:
    """The messages of a cluster."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def waiting(self) -> list[Waiting]:
        """Return how many messages wait for their time, by topic and broker."""
        found = []
        session = await self._access.open()
        for node in await self._cluster.masters():
            counts = await (await session.broker_at(node.address)).timer_counts()
            found += [Waiting(topic, node.name, count) for topic, count in counts.items()]
        return sorted(found, key=lambda one: (one.topic, one.broker))

    async def by_id(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Return the messages of an id, the producer's or the broker's; several after a retry.

        Raises NotFound, TopicNotRouted.
        """
        found = await self._query(topic, message_id, unique=True)
        if not found:
            found = await self._at_position(message_id)
        if not found:
            raise NotFound(
                f"topic {topic} has no message {message_id}; it may be deleted by age, or the id "
                "may belong to another topic"
            )
        return found

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        count: int = COUNT,
    ) -> list[ReceivedMessage]:
        """Return messages that carry an index key, stored between two times, oldest first."""
        begin_ms, end_ms = _period_ms(since, until)
        return await self._query(
            topic, key, unique=False, begin_ms=begin_ms, end_ms=end_ms, count=count
        )

    async def traces(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[TraceView]:
        """Return what clients with `trace=True`, or RocketMQ's, have traced of a message, in time.

        Raises TopicNotRouted if no broker has the trace topic.
        """
        found = await self._query(topic, message_id, unique=False)
        views = [view for one in found for view in views_of(one.body, message_id)]
        return sorted(views, key=lambda view: view.at_ms)

    async def read(
        self,
        queue: TopicQueue,
        offset: int,
        *,
        tag: str = "*",
        sql: str | None = None,
        count: int = PULL_MAX,
        wait: Duration = 0,
    ) -> Batch:
        """Return messages from an offset on; wait for the first one for up to `wait` seconds.

        Nothing is committed. An offset that is not there leads to the nearest one that is.
        """
        subscription = subscription_of(queue.topic, tag, sql)
        wait_ms = to_ms(wait)
        flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0)
        request = PullMessage(
            GROUP, queue.topic, queue.index, offset, count, flags, 0, wait_ms, 0,
            subscription.expression, subscription.expression_type,
        )  # fmt: skip
        api = await self._api(queue)
        session = await self._access.open()
        await require_filter(session, api, queue.broker, GROUP, subscription)
        timeout_ms = wait_ms + self._access.config.request_timeout_ms
        pulled = await api.pull_message(request, timeout_ms=timeout_ms)
        whole, next_offset = Received((), pulled.reply.next_begin_offset)
        if pulled.code == ResponseCode.SUCCESS:
            limit = self._access.config.message_bytes_max
            whole, next_offset = receive_from(
                queue, offset, pulled.body, next_offset, body_bytes_max=limit
            )
        found = tuple(one for one in whole if not subscription.tags or one.tag in subscription.tags)
        return Batch(found, next_offset, pulled.reply.max_offset)

    async def by_offset(self, queue: TopicQueue, offset: int) -> ReceivedMessage:
        """Return the message at an offset. Raises OffsetOutOfRange."""
        found = (await self.read(queue, offset, count=1)).messages
        if not found or found[0].offset != offset:
            api = await self._api(queue)
            start, end = await api.min_offset(queue), await api.max_offset(queue)
            raise OffsetOutOfRange(
                f"queue {queue.index} of {queue.topic} on {queue.broker} has no message {offset}; "
                f"it goes from {start} to below {end}"
            )
        return found[0]

    async def by_time(
        self,
        topic: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        count: int = COUNT,
    ) -> list[ReceivedMessage]:
        """Return messages stored from `since` to before `until`, by time, `count` at most."""
        begin_ms, end_ms = _period_ms(since, until)
        found: list[ReceivedMessage] = []
        for queue in subscribe_queues(await self._cluster.route(topic), topic):
            api = await self._api(queue)
            offset = await api.search_offset(queue, begin_ms)
            end, taken = await api.max_offset(queue), 0
            while offset < end and taken < count:
                batch = await self.read(queue, offset, count=min(PULL_MAX, count - taken))
                if not batch.messages or batch.messages[0].stored_at_ms >= end_ms:
                    break
                fitting = [one for one in batch.messages if begin_ms <= one.stored_at_ms < end_ms]
                found += fitting
                taken += len(fitting)
                offset = batch.next_offset
        found.sort(key=lambda one: (one.stored_at_ms, one.queue, one.offset))
        return found[:count]

    async def _query(
        self,
        topic: str,
        key: str,
        *,
        unique: bool,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        count: int = COUNT,
    ) -> list[ReceivedMessage]:
        """Ask every broker's key index, and drop messages that only have the same hash."""
        request = QueryMessage(topic, key, count, begin_ms, end_ms, unique)
        found: list[ReceivedMessage] = []
        for broker, address in broker_masters(await self._cluster.route(topic)).items():
            api = await self._cluster.api(address)
            try:
                records = await api.query_message(request)
            except NotFound:
                continue
            found += self._received(broker, records)
        name = properties.UNIQ_KEY if unique else properties.KEYS
        matching = [
            one
            for one in found
            if one.topic == topic and _has(one.properties.get(name, ""), key, whole=unique)
        ]
        matching.sort(key=lambda one: (one.stored_at_ms, one.queue, one.offset))
        return matching[:count]

    async def _at_position(self, message_id: str) -> list[ReceivedMessage]:
        """Read the record that a broker's message id points to, if the broker is in the cluster."""
        try:
            ip, port, position = parse_message_id(message_id)
        except RemoteProtocolError:
            return []
        for node in await self._cluster.brokers():
            if node.address == show_address(ip, port):
                try:
                    record = await (await self._cluster.api(node.address)).view_message(position)
                except BrokerError:
                    return []
                return self._received(node.name, [record])
        return []

    async def _api(self, queue: TopicQueue) -> BrokerApi:
        return await (await self._access.open()).reader_of(queue)

    def _received(self, broker: str, records: Iterable[Record]) -> list[ReceivedMessage]:
        limit = self._access.config.message_bytes_max
        return [receive(broker, record, limit) for record in records]


def _period_ms(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    return (
        0 if since is None else moment_ms(since),
        FOREVER_MS if until is None else moment_ms(until),
    )


def _has(value: str, key: str, *, whole: bool) -> bool:
    return value == key if whole else key in value.split(" ")
