"""Bringing messages to their queues: places in line, attempts, pauses, another broker if need be.

Everything happens inside the time that the caller gave. A refusal that will not get better ends it
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from inorder.client.api import BrokerApi
from inorder.client.outgoing import Outgoing
from inorder.client.sending import Choice, Sending
from inorder.client.session import TEMPLATE_TOPIC, Session
from inorder.client.state.routes import publish_queues
from inorder.client.state.selection import FailedBrokers, RoundRobin, select_by_key
from inorder.client.turns import Turn, Turns
from inorder.errors import (
    BrokerError,
    ConnectFailed,
    InorderError,
    NoWritableQueue,
    RequestTimeout,
    TransportError,
)
from inorder.model import Message, TopicQueue
from inorder.tasks.backoff import Backoff
from inorder.wire.requests.send import SendMessage
from inorder.wire.routedata import TopicRoute

Group = tuple[TopicQueue, Turn, list[int]]


class Delivery:
    """What a producer does over its session. Lines of topics and of queues are in one `Turns`."""

    def __init__(self, session: Session, group: str, turns: Turns) -> None:
        self.session = session
        self.retries = 0
        self._group = group
        self._turns = turns
        self._round_robin = RoundRobin(session.identity.random32)
        self._failed = FailedBrokers(session.config.avoid_failed_ms)
        self._known: dict[str, tuple[TopicRoute, list[TopicQueue]]] = {}

    # Places.

    def place(self, message: Message, choice: Choice) -> tuple[Turn, TopicQueue | None]:
        """Take a place in the line of the queue; if it cannot be known yet, in the topic's."""
        topic = message.topic
        queues = None if topic in self._turns else self._queues_nowait(topic)
        if not queues:
            return self._turns.join(topic), None
        queue = self._choose(queues, message, choice)
        return self._turns.join(queue), queue

    async def group(
        self, messages: Sequence[Message], choice: Choice, deadline_ms: int
    ) -> list[Group]:
        """Group messages of one topic by queue and take a place for each group."""
        async with self._turns.join(messages[0].topic):
            queues = await self._queues(messages[0].topic, deadline_ms)
            together: TopicQueue | None = None
            found: dict[TopicQueue, list[int]] = {}
            for index, message in enumerate(messages):
                if choice.is_free(message):
                    together = queue = together or self._choose(queues, message, choice)
                else:
                    queue = self._choose(queues, message, choice)
                found.setdefault(queue, []).append(index)
            return [(queue, self._turns.join(queue), indexes) for queue, indexes in found.items()]

    def _choose(self, queues: Sequence[TopicQueue], message: Message, choice: Choice) -> TopicQueue:
        fixed = choice.fixed(queues, message)
        if fixed is not None:
            return fixed
        if message.key is not None:
            return select_by_key(queues, message.key)
        now_ms = self.session.clock.monotonic_ms()
        return self._round_robin.select(queues, self._failed.to_avoid(now_ms))

    def _queues_nowait(self, topic: str) -> list[TopicQueue] | None:
        route = self.session.known_route(topic)
        if route is None:
            return None
        known = self._known.get(topic)
        if known is None or known[0] is not route:
            known = self._known[topic] = (route, publish_queues(route, topic))
        return known[1]

    async def _queues(self, topic: str, deadline_ms: int) -> list[TopicQueue]:
        backoff = self._backoff()
        last: InorderError | None = None
        while True:
            try:
                queues = self._queues_nowait(topic)
                if queues is None:
                    queues = publish_queues(await self._route(topic, deadline_ms), topic)
                if not queues:
                    raise NoWritableQueue(
                        f"topic {topic} has no queue that may be written to; give it write "
                        "permission, or start its broker"
                    )
                return queues
            except InorderError as error:
                # What was wrong before says more than that the time is up.
                instead = last if isinstance(error, RequestTimeout) else None
                await self._pause(error, backoff, deadline_ms, instead=instead)
                last = error
                if isinstance(error, NoWritableQueue):
                    await self._refresh_route(topic, deadline_ms)

    async def _route(self, topic: str, deadline_ms: int) -> TopicRoute:
        try:
            async with asyncio.timeout(self._left_ms(deadline_ms) / 1000):
                return await self.session.route_for_send(topic)
        except TimeoutError as error:
            raise RequestTimeout(
                f"no name server said in time where topic {topic} is; nothing was sent"
            ) from error

    async def _refresh_route(self, topic: str, deadline_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._left_ms(deadline_ms) / 1000):
                await self.session.try_refresh_route(topic)

    # Attempts.

    async def deliver(self, sending: Sending, *, oneway: bool = False) -> None:
        """Bring all parts to the queue, in order; the receipts are in `sending`."""
        if sending.queue is None:
            await self._find_queue(sending)
        while True:
            await self._wait_turn(sending)
            async with sending.turn:
                moved = await self._deliver_here(sending, oneway)
            if moved is None:
                return
            sending.queue, sending.turn = moved, self._turns.join(moved)

    async def _find_queue(self, sending: Sending) -> None:
        """Leave the line of the topic for that of the queue."""
        await self._wait_turn(sending)
        async with sending.turn:
            queues = await self._queues(sending.topic, sending.deadline_ms)
            queue = self._choose(queues, sending.messages[0], sending.choice)
            turn = self._turns.join(queue)
        sending.queue, sending.turn = queue, turn

    async def _wait_turn(self, sending: Sending) -> None:
        turn = sending.turn
        if turn.is_first:
            return
        before = turn.before
        assert before is not None
        left_ms = self._left_ms(sending.deadline_ms)
        await asyncio.wait((before,), timeout=left_ms / 1000)
        if not turn.is_first:
            raise RequestTimeout(
                f"earlier sends to topic {sending.topic} took all the time; this one was not sent"
            )

    async def _deliver_here(self, sending: Sending, oneway: bool) -> TopicQueue | None:
        """Send the parts that are left; return another queue if they had better go there."""
        queue = sending.queue
        assert queue is not None
        while sending.sent_parts < len(sending.parts):
            part = sending.parts[sending.sent_parts]
            moved = await self._send_part(sending, queue, part, oneway)
            if moved is not None:
                return moved
        return None

    async def _send_part(
        self, sending: Sending, queue: TopicQueue, part: Outgoing, oneway: bool
    ) -> TopicQueue | None:
        request = self._request(queue, part)
        backoff = self._backoff()
        failure: InorderError | None = None
        while True:
            if self._left_ms(sending.deadline_ms) <= 0:
                raise (
                    sending.in_doubt
                    or failure
                    or RequestTimeout(f"no time was left for {queue}; the message was not sent")
                )
            try:
                await self._attempt(sending, queue, part, request, oneway)
            except InorderError as error:
                failure = error
            else:
                self._failed.worked(queue.broker)
                return None
            moved = await self._after_failure(sending, queue, failure)
            # A refusal of this try says nothing about an earlier one that was not answered.
            await self._pause(failure, backoff, sending.deadline_ms, instead=sending.in_doubt)
            if moved is not None:
                return moved

    async def _attempt(
        self, sending: Sending, queue: TopicQueue, part: Outgoing, request: SendMessage,
        oneway: bool,
    ) -> None:  # fmt: skip
        session = self.session
        left_ms = self._left_ms(sending.deadline_ms)
        api = session.master_nowait(queue) or await self._connect(queue, left_ms)
        if oneway:
            api.send_oneway(request, part.body)
            sending.sent_parts += 1
            return
        timeout_ms = min(left_ms, session.config.request_timeout_ms)
        reply = await api.send_message(request, part.body, timeout_ms=timeout_ms)
        where = TopicQueue(queue.topic, queue.broker, reply.queue_id)
        sending.confirm(part, where, reply.queue_offset)

    async def _connect(self, queue: TopicQueue, left_ms: int) -> BrokerApi:
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await self.session.master_of(queue)
        except TimeoutError as error:
            raise ConnectFailed(f"no connection to broker {queue.broker} in time") from error

    async def _after_failure(
        self, sending: Sending, queue: TopicQueue, failure: InorderError
    ) -> TopicQueue | None:
        """Draw conclusions; return another queue if any will do and there is a better one."""
        session = self.session
        if isinstance(failure, RequestTimeout):
            # It may hang in a connection that is half open; the next try gets a new one.
            session.drop_connection(queue, "a send was not answered in time")
        if isinstance(failure, ConnectFailed):
            await self._refresh_route(queue.topic, sending.deadline_ms)
        elif isinstance(failure, TransportError):
            sending.in_doubt = failure
        elif not isinstance(failure, BrokerError):
            return None
        if not failure.retriable:
            return None
        now_ms = session.clock.monotonic_ms()
        self._failed.failed(queue.broker, now_ms)
        queues = self._queues_nowait(queue.topic)
        if not queues or not sending.may_move:
            return None
        other = self._round_robin.select(queues, self._failed.to_avoid(now_ms))
        return other if other.broker != queue.broker else None

    async def _pause(
        self,
        error: InorderError,
        backoff: Backoff,
        deadline_ms: int,
        *,
        instead: InorderError | None = None,
    ) -> None:
        """Wait before the next try; if there is none raise the error, or `instead`."""
        pause_ms = backoff.next_ms()
        if not error.retriable or self._left_ms(deadline_ms) <= pause_ms:
            raise error if instead is None else instead
        self.retries += 1
        await asyncio.sleep(pause_ms / 1000)

    def _request(self, queue: TopicQueue, part: Outgoing) -> SendMessage:
        return SendMessage(
            self._group,
            queue.topic,
            TEMPLATE_TOPIC,
            self.session.config.default_topic_queues,
            queue.index,
            part.sys_flag,
            self.session.clock.now_ms(),
            part.flag,
            part.properties,
            batch=part.batch,
            broker_name=queue.broker,
        )

    def _left_ms(self, deadline_ms: int) -> int:
        return max(0, deadline_ms - self.session.clock.monotonic_ms())

    def _backoff(self) -> Backoff:
        config = self.session.config
        return Backoff(config.retry_first_ms, config.retry_max_ms)
