"""The answers of handlers to messages that ask for a reply.

A handler answers by returning a Reply. The reply is sent before the message counts as done, so that
the replies of a key leave in the key's order, and a consumer that is killed in between handles the
message again and replies again; the requester takes the first. What becomes of a reply decides
nothing about the message: a requester that is gone must not hold up a key.

The broker of the message gets the reply first, because the requester has sent the message there and
is known there. The other brokers of the cluster follow. Why: decision 51.
"""

from __future__ import annotations

from typing import Final

from inorder.client.consume.rules.outcomes import Reply
from inorder.client.consume.workers import Batch, Counts
from inorder.client.rules.routes import broker_masters
from inorder.client.session import Session
from inorder.errors import BrokerError, InorderError, RequestTimeout
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire import properties as names
from inorder.wire.names import AUTO_CREATE_TOPIC
from inorder.wire.requests.replies import REPLY_TYPE, reply_topic
from inorder.wire.requests.sends import SendMessage

log = get_logger(__name__)

REPLY_QUEUE: Final = 0
"""The reply topic of a cluster has one queue per broker."""


class Replier:
    """Sends the replies of one consumer's handlers."""

    def __init__(self, session: Session, group: str, counts: Counts) -> None:
        self._session = session
        self._group = group
        self._counts = counts

    async def answer(self, batch: Batch, reply: Reply) -> None:
        """Send a reply; a failure is counted and logged, and raises nothing."""
        message = batch[0]
        if len(batch) > 1:
            self._warn_once(
                message,
                "a Reply cannot say which message of a list it answers; register with batch=1",
            )
            return
        if not message.asks_reply:
            self._warn_once(message, "a Reply to a message that asks for none is not sent")
            return
        cluster = message.properties.get(names.CLUSTER)
        if not cluster:
            self._warn_once(message, "a message without the name of its cluster gets no reply")
            return
        failure = await self._send(message, reply, reply_topic(cluster))
        if failure is None:
            self._counts.replied += 1
        else:
            self._counts.unreplied += 1
            log.info(
                "a reply did not reach its requester topic=%s offset=%d requester=%s: %s",
                message.topic, message.offset, message.properties[names.REPLY_TO_CLIENT], failure,
            )  # fmt: skip

    def _warn_once(self, message: ReceivedMessage, text: str) -> None:
        self._session.say_once(f"{text} {message.topic}", "topic=%s %s", message.topic, text)

    async def _send(
        self, message: ReceivedMessage, reply: Reply, topic: str
    ) -> InorderError | None:
        """Send a reply by the first broker that can push it; return the error of the last one."""
        session = self._session
        began_ms = session.clock.monotonic_ms()
        limit_ms = session.config.request_timeout_ms
        request = self._request(message, reply, topic)
        failure: InorderError | None = None
        tried: set[str] = set()
        while (broker := await self._next_broker(topic, message.queue.broker, tried)) is not None:
            tried.add(broker)
            left_ms = limit_ms - (session.clock.monotonic_ms() - began_ms)
            if left_ms <= 0:
                break
            try:
                api = await session.master_of(TopicQueue(topic, broker, REPLY_QUEUE))
                await api.send_reply(request, reply.body, timeout_ms=left_ms)
            except RequestTimeout as error:
                return error  # it may have been pushed
            except InorderError as error:
                failure = error
                if isinstance(error, BrokerError) and not error.retriable and error.code != 1:
                    break
            else:
                return None
        return failure or RequestTimeout("no time was left for another broker")

    async def _next_broker(self, topic: str, first: str, tried: set[str]) -> str | None:
        """Return the broker of the message, then the others of its cluster."""
        if first not in tried:
            return first
        try:
            route = await self._session.route(topic)
        except InorderError:
            return None  # the error of the first broker says more
        return next((one for one in sorted(broker_masters(route)) if one not in tried), None)

    def _request(self, message: ReceivedMessage, reply: Reply, topic: str) -> SendMessage:
        session, asked = self._session, message.properties
        properties = dict(reply.properties)
        properties[names.UNIQ_KEY] = session.message_ids.next()
        properties[names.MSG_TYPE] = REPLY_TYPE
        for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL):
            if name in asked:
                properties[name] = asked[name]
        return SendMessage(
            self._group,
            topic,
            AUTO_CREATE_TOPIC,
            session.config.default_topic_queues,
            REPLY_QUEUE,
            0,
            session.clock.now_ms(),
            0,
            names.join(properties),
            0,
        )
