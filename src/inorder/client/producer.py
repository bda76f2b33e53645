"""Sending: one queue per key, one unconfirmed send per queue, in the order of the calls.

The outcome of a send is known before the next message of that queue leaves, so what is stored is in
order, and a retry (same message id, same queue) can only leave a second copy behind the first: at
least once. A send without a key goes to the queues in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inorder.client.session import TEMPLATE_TOPIC, Session
from inorder.client.state.routes import publish_queues
from inorder.client.state.selection import RoundRobin, select_by_key
from inorder.client.turns import Turn, Turns
from inorder.errors import (
    AlreadyClosed,
    ConnectFailed,
    InorderError,
    MessageIllegal,
    NoWritableQueue,
    RequestTimeout,
    TransportError,
    UsageError,
)
from inorder.model import SendReceipt, TopicQueue
from inorder.tasks.backoff import Backoff
from inorder.wire import properties as names
from inorder.wire.properties import format_properties
from inorder.wire.requests.send import SendMessage

GROUP: Final = "DEFAULT_PRODUCER"
_OURS: Final = frozenset({names.KEYS, names.TAGS, names.UNIQ_KEY, names.SHARDING_KEY, names.WAIT})


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer did so far."""

    sent: int
    failed: int
    retries: int
    waiting: int


class Producer:
    """Sends messages over a session."""

    def __init__(self, session: Session, *, group: str = GROUP) -> None:
        self._session = session
        self._group = group
        self._turns = Turns()
        self._round_robin = RoundRobin(session.identity.random32)
        self._closed = False
        self._sent = self._failed = self._retries = self._waiting = 0
        session.add_producer(group)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Store a message and return where it is.

        Messages of one key are stored in the order of the calls. Raises TransportError when the
        time is up and the outcome is unknown; a BrokerError when the broker refused the message.
        """
        if self._closed:
            raise AlreadyClosed("this producer was closed; make a new one")
        self._check_size(body)
        message_id = self._session.message_ids.next()
        text = _properties(message_id, key=key, tag=tag, keys=keys, more=properties or {})
        limit_ms = self._session.config.send_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._session.clock.monotonic_ms() + limit_ms
        self._waiting += 1
        try:
            turn, queue = await self._line_up(topic, key, deadline_ms)
            async with turn:
                receipt = await self._send(queue, body, message_id, text, deadline_ms=deadline_ms)
        except BaseException:
            self._failed += 1
            raise
        finally:
            self._waiting -= 1
        self._sent += 1
        return receipt

    async def close(self) -> None:
        """Take no more messages; those on their way go on."""
        if not self._closed:
            self._closed = True
            self._session.remove_producer(self._group)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot."""
        return ProducerStatistics(self._sent, self._failed, self._retries, self._waiting)

    def __repr__(self) -> str:
        return f"Producer({self._group!r}, sent={self._sent}, waiting={self._waiting})"

    def _check_size(self, body: bytes) -> None:
        limit = self._session.config.message_bytes_max
        if not body:
            raise MessageIllegal("the body is empty; a message needs at least one byte")
        if len(body) > limit:
            raise MessageIllegal(
                f"the body has {len(body)} bytes, the limit is {limit} (message_bytes_max)"
            )

    async def _line_up(
        self, topic: str, key: str | None, deadline_ms: int
    ) -> tuple[Turn, TopicQueue]:
        """Choose the queue and take a place in its line, in the order of the calls."""
        async with self._turns.gate(topic):
            queues = await self._queues(topic, deadline_ms)
            if key is None:
                queue = self._round_robin.select(queues)
            else:
                queue = select_by_key(queues, key)
            return self._turns.join(queue), queue

    async def _queues(self, topic: str, deadline_ms: int) -> list[TopicQueue]:
        backoff = self._backoff()
        while True:
            try:
                route = await self._session.route_for_send(topic)
                queues = publish_queues(route, topic)
                if not queues:
                    raise NoWritableQueue(f"topic {topic} has no queue that may be written to")
                return queues
            except InorderError as error:
                await self._pause(error, backoff, deadline_ms)

    async def _send(
        self, queue: TopicQueue, body: bytes, message_id: str, text: str, *, deadline_ms: int
    ) -> SendReceipt:
        request = SendMessage(
            self._group,
            queue.topic,
            TEMPLATE_TOPIC,
            self._session.config.default_topic_queues,
            queue.index,
            0,
            self._session.clock.now_ms(),
            0,
            text,
            broker_name=queue.broker,
        )
        backoff = self._backoff()
        in_doubt: TransportError | None = None
        while True:
            try:
                return await self._attempt(queue, request, body, message_id, deadline_ms)
            except InorderError as error:
                failure = error
            if isinstance(failure, RequestTimeout):
                # It may hang in a connection that is half open; the next try gets a new one.
                self._session.drop_connection(queue, "a send was not answered in time")
            if isinstance(failure, ConnectFailed):
                await self._session.try_refresh_route(queue.topic)
            elif isinstance(failure, TransportError):
                in_doubt = failure
            # A refusal of this try says nothing about an earlier one that was not answered.
            await self._pause(failure, backoff, deadline_ms, instead=in_doubt)

    async def _attempt(
        self,
        queue: TopicQueue,
        request: SendMessage,
        body: bytes,
        message_id: str,
        deadline_ms: int,
    ) -> SendReceipt:
        session = self._session
        left_ms = deadline_ms - session.clock.monotonic_ms()
        if left_ms <= 0:
            raise RequestTimeout(f"no time left to send to {queue}")
        api = await session.master_of(queue)
        reply = await api.send_message(
            request, body, timeout_ms=min(left_ms, session.config.request_timeout_ms)
        )
        where = TopicQueue(queue.topic, queue.broker, reply.queue_id)
        return SendReceipt(message_id, where, reply.queue_offset)

    async def _pause(
        self,
        error: InorderError,
        backoff: Backoff,
        deadline_ms: int,
        *,
        instead: InorderError | None = None,
    ) -> None:
        """Wait before the next try; if there is none raise the error, or `instead`."""
        left_ms = deadline_ms - self._session.clock.monotonic_ms()
        pause_ms = backoff.next_ms()
        if not error.retriable or left_ms <= pause_ms:
            raise error if instead is None else instead
        self._retries += 1
        await asyncio.sleep(pause_ms / 1000)

    def _backoff(self) -> Backoff:
        config = self._session.config
        return Backoff(config.retry_first_ms, config.retry_max_ms)


def _properties(
    message_id: str,
    *,
    key: str | None,
    tag: str | None,
    keys: Sequence[str],
    more: Mapping[str, str],
) -> str:
    reserved = sorted(_OURS & more.keys())
    if reserved:
        raise UsageError(f"properties {', '.join(reserved)} are set by key=, tag= and keys=")
    if isinstance(keys, str):
        raise UsageError("keys= takes a list of words; for one word write keys=[word]")
    found = {names.UNIQ_KEY: message_id, names.WAIT: "true", **more}
    if tag is not None:
        found[names.TAGS] = tag
    if keys:
        found[names.KEYS] = " ".join(keys)
    if key is not None:
        found[names.SHARDING_KEY] = key
    return format_properties(found)
