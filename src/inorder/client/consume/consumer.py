"""The public `Consumer`: handlers for topics, called as messages arrive.

A consumer is a member of its group: the members share the queues of a topic, and finished messages
are committed under the group's name. `order="queue"` calls one handler per queue at a time, in
order, while the consumer owns the queue. `order="key"` does the same per key. `order=None` calls
many handlers at a time, and gives failed messages back to the broker. `service.py` wires a running
consumer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Literal

from inorder.client import registry
from inorder.client.access import Access
from inorder.client.consume.hooks import Hook, Hooks, HooksWhen, ParkHook
from inorder.client.consume.pullconsumer import ConsumeFrom, Target
from inorder.client.consume.registrations import Handler, HandlerRegistration, Order, register
from inorder.client.consume.rules import commits
from inorder.client.consume.rules.assignment import Allocation, Average
from inorder.client.consume.rules.keyed import Keyless, KeyOf
from inorder.client.consume.rules.leases import GRACE_MIN_MS, Terms
from inorder.client.consume.rules.outcomes import Policy
from inorder.client.consume.service import ConsumerService
from inorder.client.consume.workers import WorkersFactory, in_handler
from inorder.client.rules.routes import Duration, moment_ms, to_ms
from inorder.client.session import Session
from inorder.client.traces import Tracer
from inorder.config import ClientConfig, ConsumerConfig
from inorder.credentials import Credentials
from inorder.disk import OsFiles
from inorder.errors import AlreadyClosed, NotStarted, UsageError
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.tasks import Patience
from inorder.wire.requests.leases import LEASE_MS_MAX, LEASE_MS_MIN

log = get_logger(__name__)

MessageModel = Literal["clustering", "broadcasting"]
BeginFrom = ConsumeFrom | Literal["timestamp"]
BROADCAST_INSTANCE = "DEFAULT"
"""RocketMQ's instance name, by which a broadcasting consumer finds its offset file again."""


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counters of a consumer, in messages, and what it holds now."""

    handled: int
    failed: int
    sent_back: int
    dead_lettered: int
    dropped: int
    pulled: int
    cached_messages: int
    cached_bytes: int
    running: int
    rebalances: int
    outlived: int
    """Handlers that ran longer than the lease of their queue."""
    parked: int
    """Messages that were parked with their keys."""
    queues: dict[TopicQueue, int]
    """The offset of every assigned queue; after `close`, its last offset."""
    replied: int = 0
    """Replies that reached the clients that had asked for them."""
    unreplied: int = 0
    """Replies that did not, or may not have."""


class Consumer:
    """Calls handlers for the messages of topics, as a member of a group.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876; or a Session.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
    `consume_from` says where to begin in a queue for which the group has committed nothing: at its
    end (`"last"`), its beginning (`"first"`), half an hour before now (`"timestamp"`), or a time.
    With `message_model="broadcasting"` every consumer gets every message, and offsets are kept in a
    file on this machine. `allocation` must be the same for all members of a group. `instance` tells
    two consumers of one group in one process apart. `before_handle` and `after_handle` get a
    HandleContext before and after every call of a handler, in its thread; with `hooks_when` only if
    it returns true for the messages of the call. `after_park` gets a
    ParkContext when the broker has parked messages; it runs on the event loop and must not block.

    `lease` is how long this consumer owns an ordered queue without a renewal (5 s), `grace` how
    long it owns the queue after its connection is lost (1 s); in seconds, or a timedelta. A handler
    that runs longer than that after a failure may overlap with the next owner's.

    With `trace` the client writes RocketMQ's message traces, which `mqadmin` and dashboards show,
    to the brokers' trace topic (`traceTopicEnable`).
    """

    def __init__(
        self,
        namesrv: str | Session | None = None,
        *,
        group: str,
        consume_from: BeginFrom = "last",
        message_model: MessageModel = "clustering",
        allocation: Allocation | None = None,
        instance: str = "",
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        before_handle: Hook | None = None,
        after_handle: Hook | None = None,
        after_park: ParkHook | None = None,
        hooks_when: HooksWhen | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
        trace: bool = False,
    ) -> None:
        if not group:
            raise UsageError("a consumer needs a group; its members share the queues")
        by_name = consume_from in ("first", "last", "timestamp")
        if not (by_name or isinstance(consume_from, datetime)):
            raise UsageError(
                f"consume_from={consume_from!r}: write 'first', 'last', 'timestamp' or a datetime"
            )
        if message_model not in ("clustering", "broadcasting"):
            raise UsageError(
                f"message_model={message_model!r}: write 'clustering' or 'broadcasting'"
            )
        broadcasting = message_model == "broadcasting"
        if broadcasting and not instance and not isinstance(namesrv, Session):
            instance = BROADCAST_INSTANCE
        self._access = Access(
            namesrv, config=config, tls=tls, credentials=credentials, instance=instance
        )
        self._group = group
        self._consume_from = _begin(consume_from, self._access.clock.now_ms())
        self._clustering = not broadcasting
        self._terms = _terms(self._access.config.consumer, lease, grace)
        self._allocation = Average() if allocation is None else allocation
        timeout_ms = self._access.config.consumer.handler_timeout_ms
        self._tracer = Tracer(group, "CONSUME", self._access.clock) if trace else None
        if self._tracer is not None:
            before_handle = self._tracer.before_handle(before_handle)
            after_handle = self._tracer.after_handle(after_handle)
        self._hooks = Hooks(
            before_handle,
            after_handle,
            group,
            timeout_ms,
            self._access.clock,
            after_park,
            hooks_when,
        )
        self._registrations: dict[str, HandlerRegistration] = {}
        self._threads: WorkersFactory | None = None  # the blocking twin sets it
        self._service: ConsumerService | None = None
        self._closing: asyncio.Task[None] | None = None
        self._patience: Patience | None = None
        self._closed = asyncio.Event()
        self._stop_asked = asyncio.Event()
        registry.made(self, "consumer", group)

    def on(
        self,
        topic: str,
        *,
        order: Order = "queue",
        tag: str = "*",
        sql: str | None = None,
        concurrency: int | None = None,
        batch: int = 1,
        on_failure: Policy | None = None,
        auto_commit: bool = True,
        key_of: str | KeyOf | None = None,
        keyless: Keyless = "barrier",
    ) -> Callable[[Handler], Handler]:
        """Decorate the handler of a topic: a function, or a class or object with `handle`.

        The handler gets a message, or with `batch` above 1 a list of up to `batch` messages of one
        queue (with `order="key"`: of one key). When it returns, the message is done; of a list,
        Handled says which messages are. To a message that asks for a reply it may return a Reply.
        After `raise Retry(after=seconds)` it is called again later. Any other exception is a failed
        attempt, and `on_failure` says what follows: Block(), DeadLetter() or, with `order="key"`,
        Park(). `tag` is `*`, a tag, or several as in `paid || shipped`. `sql` is an SQL92
        expression over the properties instead, as in `amount > 100 AND country = 'de'`. With
        `auto_commit=False` a handler of an ordered topic returns Outcome.COMMIT or Outcome.ROLLBACK
        for all messages since its last such result.

        With `order="key"` up to `concurrency` handlers run at a time, and the messages of one key
        run one after the other. The key is the message's own, or comes from `key_of`: the name of a
        property, or a function of the message. A message without a key waits for all messages
        before it and holds up all after it, unless `keyless="concurrent"`.
        """
        if self._service is not None:
            raise UsageError("this consumer has started; register its handlers before that")

        def decorate(handler: Handler) -> Handler:
            if topic in self._registrations:
                raise UsageError(f"topic {topic} has a handler already; a topic has one")
            found = register(
                topic,
                handler,
                order=order,
                tag=tag,
                sql=sql,
                concurrency=concurrency or self._access.config.consumer.concurrency,
                batch=batch,
                on_failure=on_failure,
                auto_commit=auto_commit,
                hooks=self._hooks,
                version=self._access.clock.now_ms(),
                key_of=key_of,
                keyless=keyless,
            )
            if not found.is_async and self._threads is None:
                raise UsageError(
                    f"the handler of topic {topic} is a plain function; write it with async def, "
                    "or use inorder.Consumer, which calls plain ones in threads"
                )
            self._registrations[topic] = found
            return handler

        return decorate

    async def start(self) -> None:
        """Join the group and begin to consume; returns at once, before the first message.

        Waits until a name server answers; AlreadyClosed is raised if the consumer is closed
        meanwhile. Brokers and topics that do not exist yet are waited for in the background.
        """
        if self._closed.is_set() or self._closing is not None:
            raise AlreadyClosed("this consumer was closed; make a new one")
        if self._service is not None:
            return
        if not self._registrations:
            raise UsageError("there is nothing to consume; register a handler with on(topic) first")
        session = await self._access.open()
        if self._closing is not None:
            raise AlreadyClosed("this consumer was closed while it started")
        if self._tracer is not None:
            self._tracer.start(session)
        self._service = ConsumerService(
            session,
            self._group,
            self._registrations,
            consume_from=self._consume_from,
            clustering=self._clustering,
            allocation=self._allocation,
            threads=self._threads,
            consumer=self,
            files=OsFiles(),
            terms=self._terms,
            hooks=self._hooks,
        )
        try:
            await self._service.start()
        except BaseException as error:
            self._service = None
            task, closed = asyncio.current_task(), self._closed.is_set() or self._closing
            cancelled = isinstance(error, asyncio.CancelledError)
            if cancelled and closed and task is not None and not task.cancelling():
                raise AlreadyClosed("this consumer was closed while it started") from None
            raise

    async def run(self) -> None:
        """Consume until the consumer is closed, or this call is cancelled; then close it."""
        begun = self._closing is None
        try:
            await self.start()
            await self._stop_asked.wait()
        except AlreadyClosed:
            if not begun or self._closing is None:
                raise
        finally:
            await self.close()

    async def close(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109 - of handlers
        """Stop pulling, wait for handlers, commit, release the queues and leave the group.

        Several tasks may call it; each call returns when all of that is done. In a handler, or in a
        task that a running handler has started, it returns at once, because it would wait for
        itself: no further handler starts, and `run`, or a `close` elsewhere, waits for the rest.
        With `order=None` handlers still get the messages before one that was begun, so that all
        that is done can be committed.

        `timeout` is how long to wait for handlers, in seconds or as a timedelta; by default
        `consumer.close_timeout_ms`, 30 s. Of several timeouts the earliest end counts. A handler
        that runs longer is left behind: its result is not committed, and its queue goes to another
        consumer when the lease has expired.
        """
        self._begin_close(timeout)
        if not in_handler(self):
            assert self._closing is not None
            await asyncio.shield(self._closing)

    def _begin_close(self, timeout: Duration | None = None) -> None:
        """Start no further handler, and close in a task of its own. May be called again."""
        default_ms = self._access.config.consumer.close_timeout_ms
        timeout_ms = default_ms if timeout is None else to_ms(timeout)
        if self._patience is None or self._closing is None:
            self._patience = Patience(timeout_ms, self._access.clock)
            self._closing = asyncio.get_running_loop().create_task(
                self._close(self._patience),
                name=f"close consumer {self._group}",
                context=Context(),
            )
            self._stop_asked.set()  # run() must return, even if a bug makes the next step fail
            if self._service is not None:
                self._service.halt()
        elif timeout is not None:
            self._patience.at_most(timeout_ms)

    async def _close(self, patience: Patience) -> None:
        try:
            if self._service is not None:
                await self._service.stop(patience)
        finally:
            patience.close()
            registry.closed(self)
            if self._tracer is not None:
                await self._tracer.close()
            await self._access.close()
            self._closed.set()

    def pause(self, *queues: TopicQueue) -> None:
        """Pull nothing and start no handler of these queues (default: of all) until `resume`."""
        self._running().member.pause(queues)

    def resume(self, *queues: TopicQueue) -> None:
        """Resume these queues (default: all)."""
        self._running().member.resume(queues)

    def paused(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are paused."""
        return self._running().member.paused()

    def assignment(self) -> tuple[TopicQueue, ...]:
        """Return the queues that this consumer owns now."""
        assigned_queues = self._running().member.assigned_queues
        return tuple(sorted(queue for queue, assigned in assigned_queues.items() if assigned.live))

    async def seek(self, queue: TopicQueue, to: Target) -> int:
        """Continue a queue at another offset: an offset, a time, "beginning" or "end".

        Waits until the queue's handlers have ended and the new offset is committed; in a handler it
        does not wait. Returns the offset.
        """
        return await self._seek(queue, to, wait=not in_handler(self))

    async def _seek(self, queue: TopicQueue, to: Target, *, wait: bool) -> int:
        return await self._running().seek(queue, to, wait=wait)

    async def commit(self) -> None:
        """Commit the finished messages now instead of at the next interval."""
        await self._running().member.committer.all()

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except Exception as failed:
            if error is None:
                raise
            # The error of the block is raised, not this one.
            log.warning("a consumer of group=%s was not closed cleanly: %s", self._group, failed)

    @property
    def group(self) -> str:
        """Return the name of the consumer group."""
        return self._group

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of the counters."""
        consuming = self._service
        if consuming is None:
            return ConsumerStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})
        member, counts = consuming.member, consuming.member.counts
        assigned_queues = member.assigned_queues.values()
        return ConsumerStatistics(
            handled=counts.handled,
            failed=counts.failed,
            sent_back=counts.sent_back,
            dead_lettered=counts.dead_lettered,
            dropped=counts.dropped,
            pulled=counts.pulled,
            cached_messages=sum(assigned.progress.count for assigned in assigned_queues),
            cached_bytes=sum(assigned.progress.size_bytes for assigned in assigned_queues),
            running=member.running,
            rebalances=consuming.rebalances,
            outlived=counts.outlived,
            parked=counts.parked,
            queues=member.final_offsets | member.offsets(),
            replied=counts.replied,
            unreplied=counts.unreplied,
        )

    def __repr__(self) -> str:
        topics = ", ".join(sorted(self._registrations)) or "no topics"
        return f"Consumer({self._group!r}, {topics})"

    def _running(self) -> ConsumerService:
        if self._service is None:
            raise NotStarted("this consumer has not started; start it first")
        return self._service


def _begin(consume_from: BeginFrom, now_ms: int) -> commits.ConsumeFrom:
    if isinstance(consume_from, datetime):
        return commits.FromTime(moment_ms(consume_from))
    return commits.from_timestamp(now_ms) if consume_from == "timestamp" else consume_from


def _terms(config: ConsumerConfig, lease: Duration | None, grace: Duration | None) -> Terms:
    """Return the durations for lease requests. Raises UsageError if they are out of bounds."""
    lease_ms = config.lease_ms if lease is None else to_ms(lease)
    grace_ms = min(config.grace_ms, lease_ms) if grace is None else to_ms(grace)
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        least_s, most_s = LEASE_MS_MIN / 1000, LEASE_MS_MAX / 1000
        raise UsageError(f"lease={lease_ms / 1000} s: give {least_s:g} to {most_s:g} seconds")
    if not GRACE_MIN_MS <= grace_ms <= lease_ms:
        raise UsageError(f"grace={grace_ms / 1000} s: give 0.1 seconds to the lease")
    return Terms(lease_ms, grace_ms)
