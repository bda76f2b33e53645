"""Requests of a broker to a consumer, on its own (40) or for an operator (220, 221, 307, 309).

40    the members of the group changed, or a route: rebalance
220   an offset was reset: continue there
221   which offsets does the consumer have?
307   what does the consumer do? (`running_info`)
309   handle one message now, and say how that went
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from inorder.client.consume.assignment import Member
from inorder.client.consume.messages import receive
from inorder.client.consume.registrations import HandlerRegistration
from inorder.client.consume.rules.outcomes import Handled, Outcome, Reject, Retry
from inorder.client.consume.rules.pulls import restore_topic
from inorder.client.consume.workers import Run
from inorder.errors import InorderError
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.net.connection import Connection
from inorder.wire import shapes
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.fastjson import loads
from inorder.wire.fields import decode_fields
from inorder.wire.header import Command
from inorder.wire.record import decode
from inorder.wire.requests.connections import (
    CR_COMMIT,
    CR_LATER,
    CR_ROLLBACK,
    CR_SUCCESS,
    CR_THROW_EXCEPTION,
    ConsumeDirectly,
    DirectResult,
    GetConsumerStatus,
    QueueRunning,
    ResetClientOffset,
    RunningInfo,
    TopicRunning,
    encode_consumer_status,
)
from inorder.wire.requests.leases import queue_from_json
from inorder.wire.requests.offsets import decode_queue_offsets

log = get_logger(__name__)

MIB = 1024 * 1024
Direct = Callable[[ReceivedMessage], Awaitable[tuple[Run, HandlerRegistration]]]

_RESULTS = {
    Outcome.SUCCESS: CR_SUCCESS,
    Outcome.COMMIT: CR_COMMIT,
    Outcome.ROLLBACK: CR_ROLLBACK,
    Outcome.SUSPEND: CR_LATER,
}


class ConsumerRequests:
    """Takes the requests of brokers to one consumer; see `Session.join`."""

    def __init__(
        self,
        member: Member,
        *,
        subscriptions: Callable[[], tuple[Subscription, ...]],
        properties: Callable[[], dict[str, str]],
        direct: Direct,
    ) -> None:
        self._member = member
        self._subscriptions = subscriptions
        self._properties = properties
        self._direct = direct

    def request_received(self, connection: Connection, command: Command) -> None:
        """Answer a broker's request to the group."""
        match command.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._changed(command.fields.get("topic", ""))
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset(command)
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                topic = decode_fields(GetConsumerStatus, command.fields).topic
                offsets = {q: at for q, at in self._member.offsets().items() if q.topic == topic}
                connection.send(command.reply(body=encode_consumer_status(offsets)))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                connection.send(command.reply(body=self.running_info().encode()))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                work = self._consume(connection, command)
                self._member.tasks.start(work, name="direct message")
            case _:
                raise AssertionError(f"code {command.code} is not for consumers")

    def connected(self, address: str) -> None:
        """Renew leases and locks, and rebalance: the broker may have forgotten this member."""
        if not self._member.stopping:
            self._member.tasks.start(self._renew(), name=f"renew at {address}")

    def lost(self, address: str) -> None:
        """Start no handler under that broker's locks until it confirms them."""
        self._member.renewer.connection_lost(address)

    def route_changed(self, topic: str) -> None:
        """Rebalance, and renew unconfirmed leases and locks: their broker may be back."""
        member = self._member
        member.changed.set()
        unconfirmed = any(
            one.unconfirmed_since_ms is not None for one in member.assigned_queues.values()
        )
        if unconfirmed and not member.stopping:
            member.tasks.start(member.renewer.reconnected(), name=f"renew {topic}")

    async def _renew(self) -> None:
        await self._member.renewer.reconnected()
        self._member.changed.set()
        await self._member.committer.all()

    def _changed(self, topic: str) -> None:
        """Rebalance; refresh the route of the topic first if one is named."""
        if topic and not self._member.stopping:
            self._member.tasks.start(self._reroute(topic), name=f"route of {topic}")
        else:
            self._member.changed.set()

    async def _reroute(self, topic: str) -> None:
        await self._member.session.try_refresh_route(topic)
        self._member.changed.set()

    def _reset(self, command: Command) -> None:
        request = decode_fields(ResetClientOffset, command.fields)
        for queue, offset in _offsets(command.body).items():
            assigned = self._member.assigned_queues.get(queue)
            if assigned is None or not assigned.live or queue.topic != request.topic:
                continue
            log.info("offset of %s is reset to %d by the broker", queue, offset)
            if assigned.leased:
                self._member.renewer.renew_now()  # its epoch has ended: it is begun again
                continue
            self._member.tasks.start(self._member.move(queue, offset), name=f"reset {queue}")

    async def _consume(self, connection: Connection, command: Command) -> None:
        """Handle one message and report the result; nothing is committed."""
        member = self._member
        try:
            request = decode_fields(ConsumeDirectly, command.fields)
            limit = member.session.config.message_bytes_max
            found = receive(request.broker_name or "", decode(command.body), limit)
            run, registration = await self._direct(restore_topic(found, member.group))
        except InorderError as error:
            connection.send(command.reply(ResponseCode.SYSTEM_ERROR, str(error)))
            return
        result, remark = _result(run, registration)
        direct = DirectResult(
            result, run.spent_ms, remark, registration.ordered, registration.auto_commit
        )
        connection.send(command.reply(body=direct.encode()))

    def running_info(self) -> RunningInfo:
        """Return the state of the consumer and its queues, for operators."""
        member = self._member
        clock = member.session.clock
        seconds = max(clock.monotonic_ms() - member.counts.since_ms, 1) / 1000
        wall_ms = clock.now_ms() - clock.monotonic_ms()
        return RunningInfo(
            self._properties(),
            self._subscriptions(),
            {queue: self._queue(queue, wall_ms) for queue in sorted(member.assigned_queues)},
            {
                topic: TopicRunning(
                    counts.handled / seconds,
                    counts.failed / seconds,
                    counts.handling_ms / max(counts.handled + counts.failed, 1),
                    counts.failed,
                    counts.pulled / seconds,
                    counts.pulling_ms / max(counts.pulls, 1),
                )
                for topic, counts in sorted(member.counts.topics.items())
            },
        )

    def _queue(self, queue: TopicQueue, wall_ms: int) -> QueueRunning:
        assigned = self._member.assigned_queues[queue]
        progress, lease = assigned.progress, assigned.lease
        return QueueRunning(
            progress.offset,
            progress.lowest if progress.count else 0,
            progress.lowest + progress.span if progress.count else 0,
            progress.count,
            progress.size_bytes // MIB,
            progress.taken,
            lease.locked,
            lease.lock_sent_ms + wall_ms if lease.locked else 0,
            lease.pulled_at_ms + wall_ms,
            0 if progress.handled_at_ms is None else progress.handled_at_ms + wall_ms,
            not assigned.live,
        )


def _offsets(body: bytes | memoryview) -> dict[TopicQueue, int]:
    """Read a ResetOffsetBody, or the list form that C++ clients get."""
    value = shapes.as_object(loads(body), "offsets") if body else {}
    table: Any = value.get("offsetTable")
    if isinstance(table, list):
        return {
            queue_from_json(item): shapes.integer(item, "offset", 0)
            for item in shapes.objects(value, "offsetTable")
        }
    return decode_queue_offsets(body) if body else {}


def _result(run: Run, registration: HandlerRegistration) -> tuple[str, str | None]:
    """Return the result of a handler in RocketMQ's words, and the reason."""
    if isinstance(run.error, Retry | Reject):
        return CR_LATER, str(run.error)
    if run.error is not None:
        return CR_THROW_EXCEPTION, f"{type(run.error).__name__}: {run.error}"
    if isinstance(run.result, Handled):
        return CR_LATER, None
    if run.result is None:
        return CR_SUCCESS, None
    if not registration.ordered:
        failed = run.result in (Outcome.SUSPEND, Outcome.ROLLBACK)
        return (CR_LATER if failed else CR_SUCCESS), None
    return _RESULTS[run.result], None


async def run_directly(submit: Callable[[Run], None], message: ReceivedMessage) -> Run:
    """Call the handler with one message and wait for its end."""
    ended: asyncio.Future[Run] = asyncio.get_running_loop().create_future()

    def settle(run: Run) -> None:
        if not ended.done():
            ended.set_result(run)

    submit(Run(((message,),), may_start=lambda _: True, ended=settle))
    return await ended
