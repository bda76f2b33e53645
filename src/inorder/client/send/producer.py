"""The public `Producer`: messages of one key go to one queue, in the order of the calls.

A send takes its place when `send` is first awaited, or when `send_nowait` is called. Many sends are
unconfirmed at a time. Each is stored in its order and exactly once, whatever happens to connections
and brokers, because its messages have sequence numbers (`client/send/queues.py`). A broker of
Apache RocketMQ knows no sequence numbers: there one send per queue is unconfirmed at a time, and a
lost answer may leave a second copy after the first. A send without a key goes to the queues in
turn, past brokers that failed a short while ago.

A *named* producer (`id=`) is for pipelines that run again: its caller gives the sequence numbers.

Before anything is sent, `checks.py` refuses impossible names, numbers and settings.

How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, NoReturn

from inorder.client import registry
from inorder.client.access import Access
from inorder.client.rules.routes import Duration, to_ms
from inorder.client.send.batches import Batch, one_topic
from inorder.client.send.checks import (
    GROUP,
    check_fixed,
    checked_config,
    checked_delay,
    checked_listener,
    checked_name,
    checked_numbers,
)
from inorder.client.send.failures import SendFuture, UnseenFailures
from inorder.client.send.messages import (
    compose,
    compose_items,
    compose_plain,
    may_join,
    words,
)
from inorder.client.send.queues import (
    AfterSend,
    BeforeSend,
    Choice,
    HalfReceipt,
    Selector,
    Send,
    Waiter,
    compiled,
)
from inorder.client.send.requests import Request, Requests, asking, introduce
from inorder.client.send.router import SendRouter
from inorder.client.send.rules import TIMES_AGAIN, Room
from inorder.client.send.transactions import (
    Checks,
    OnTransactionCheck,
    Transaction,
    end_half,
)
from inorder.client.session import Session
from inorder.client.traces import Tracer
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.errors import (
    AlreadyClosed,
    InorderError,
    NoRoom,
    RemoteProtocolError,
    SendsFailed,
    UsageError,
)
from inorder.logs import get_logger
from inorder.model import (
    Message,
    SendReceipt,
    SendStatus,
    TopicQueue,
    TransactionState,
    key_text,
)
from inorder.tasks import Tasks
from inorder.wire.names import parse_delay_levels
from inorder.wire.requests.sends import BatchItem
from inorder.wire.timers import decode_handle

log = get_logger(__name__)

SUBMITS_A_TURN: Final = 128


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """Counters of a producer, in messages.

    `lost`: acknowledged, then lost by a broker. `unheard`: failed, and nobody has read the future
    yet. `refused`: not accepted, because too many messages had no outcome. `asking`: requests
    without a reply yet. `replies`: those that have one. `late_replies`: dropped, because nobody
    waited any more; they count for all producers of the session together.
    """

    sent: int
    failed: int
    retries: int
    waiting: int
    lost: int = 0
    unheard: int = 0
    refused: int = 0
    asking: int = 0
    replies: int = 0
    late_replies: int = 0


class Submitting(NamedTuple):
    """A caller that waits for room."""

    topic: str
    key: str | None
    turn: asyncio.Future[None]


def _closed() -> AlreadyClosed:
    return AlreadyClosed("this producer was closed; make a new one")


class Producer:
    """Sends messages to the cluster that a name server knows.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876; or a Session.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
    `id` names the producer: every send then gives its `sequence`. If several producers have one
    name, only the one that started last may send. `before_send` gets each message and may return
    another one to send instead; `after_send` gets the message with its receipt or its error. Both
    are plain functions and run on the event loop: they must not block.
    `on_transaction_check` answers when a broker asks about a transaction of the group `group` that
    this producer does not know: of a process that was killed. It gets the message and returns a
    TransactionState; it may be async.
    With `trace` the client writes RocketMQ's message traces, which `mqadmin` and dashboards show,
    to the brokers' trace topic (`traceTopicEnable`).
    """

    def __init__(
        self,
        namesrv: str | Session | None = None,
        *,
        group: str = GROUP,
        id: str | None = None,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        before_send: BeforeSend | None = None,
        after_send: AfterSend | None = None,
        on_transaction_check: OnTransactionCheck | None = None,
        trace: bool = False,
    ) -> None:
        self._access = Access(namesrv, config=config, tls=tls, credentials=credentials)
        self._config = checked_config(self._access.config)
        self._clock = self._access.clock
        self._group = group
        self._name = checked_name(id)
        self._tracer = Tracer(group, "PRODUCE", self._clock) if trace else None
        if self._tracer is not None:
            before_send = self._tracer.before_send(before_send)
            after_send = self._tracer.after_send(after_send)
        self._before_send = before_send
        self._after_send = after_send
        self._hooked = before_send is not None or after_send is not None
        self._router: SendRouter | None = None
        self._early: deque[tuple[Send, int]] = deque()  # before there is a session
        self._tasks = Tasks(f"producer {group}")
        self._closed = False
        self._idle: asyncio.Event = asyncio.Event()
        self._sent = self._failed = self._waiting = 0
        self._delays_ms = parse_delay_levels(self._config.delay_levels)
        self._room = Room(
            self._config.sends_waiting_max, self._config.sends_waiting_bytes_max,
            self._config.send_timeout_ms,
        )  # fmt: skip
        self._unheard = UnseenFailures()
        self._submitted = 0
        self._submitting: deque[Submitting] = deque()  # wait for room, in the order of the calls
        self._listener = checked_listener(on_transaction_check, group)
        self._checks: Checks | None = None
        self._requests = Requests(self._config.requests_waiting_max)
        self._asked = False
        registry.made(self, "producer")

    async def start(self) -> None:
        """Prepare to send, without connecting. The first send does this, too."""
        if self._closed:
            raise AlreadyClosed("this producer was closed; make a new one")
        await self._open()

    async def _open(self) -> None:
        session = await self._access.open()
        if self._router is None:
            self._attach(session)

    def _attach(self, session: Session) -> None:
        self._router = SendRouter(
            session, self._group, self._outcome, self._stored_together, name=self._name
        )
        session.add_producer(self._group)
        if self._listener is not None:
            self._answer_checks(session, everywhere=True)
        session.replies.add(self._requests)
        if self._tracer is not None:
            self._tracer.start(session)
        while self._early:
            send, now_ms = self._early.popleft()
            try:
                self._router.take(send, now_ms)
            except Exception as error:
                # An impossible choice of queue: the caller of the send gets the error.
                self._outcome(send, None, error)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequence: int | None = None,
        delay: Duration | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> SendReceipt:
        """Store a message and return its receipt, which says where it is stored.

        Messages of one key are stored in the order of the calls. A key that is a whole number
        counts as its digits. `queue`, or the function `selector(queues, message, arg)`, chooses the
        queue instead of the key. `sequence` is the sequence number of the message; only a named
        producer takes it. With `delay` (seconds or a timedelta) or `deliver_at` (a datetime, local
        time if it has no zone) consumers get the message later, to the millisecond; the receipt
        then has a `handle` for `recall`. The broker also has 18 fixed delays, from a second to two
        hours: `delay_level` names one of them, 1 to 18, and a `delay` that one of them has uses it,
        without a handle. Raises OutcomeUnknown if the message may or may not be stored. After any
        other error it is not stored.
        """
        later = ""
        if delay is not None or delay_level is not None or deliver_at is not None:
            later = checked_delay(delay, delay_level, deliver_at, self._delays_ms)
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        self._begin(
            future, topic, body, key, tag, keys, properties, queue, selector, arg, sequence,
            timeout, False, later,
        )  # fmt: skip
        return await future

    def send_nowait(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequence: int | None = None,
        delay: Duration | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Send a message without waiting; the future gives the receipt that `send` returns.

        Raises TooManyOutstanding if too many messages or bytes have no outcome yet. `flush` and
        `close` report failures whose futures nobody has read.
        """
        later = ""
        if delay is not None or delay_level is not None or deliver_at is not None:
            later = checked_delay(delay, delay_level, deliver_at, self._delays_ms)
        named = (topic, None if key is None else str(key))
        future = SendFuture(self._unheard, named, loop=asyncio.get_running_loop())
        if self._is_crowded_at(topic, key, self._room.messages_max):
            self._turn_away(1)
        self._begin(
            future, topic, body, key, tag, keys, properties, queue, selector, arg, sequence,
            timeout, False, later, True,
        )  # fmt: skip
        return future

    async def submit(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequence: int | None = None,
        delay: Duration | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Wait until there is room, then send as `send_nowait` does; return the future.

        A loop that submits a million messages needs memory for some thousands. Raises
        TooManyOutstanding if there is no room within `timeout`, which counts anew for the send.
        """
        self._check_open()
        if key is not None:
            key = key_text(key)
        self._submitted += 1
        try:
            if self._submitting or self._room.crowded or self._is_crowded_at(topic, key):
                await self._wait_for_room(topic, key, timeout)
            elif not self._submitted % SUBMITS_A_TURN:
                await self._leave_a_turn(topic, key)
            return self.send_nowait(
                topic, body, key=key, tag=tag, keys=keys, properties=properties, queue=queue,
                selector=selector, arg=arg, sequence=sequence, delay=delay,
                delay_level=delay_level, deliver_at=deliver_at, timeout=timeout,
            )  # fmt: skip
        finally:
            self._let_in()  # also if this one failed: it may have been let in

    async def _leave_a_turn(self, topic: str, key: str | None) -> None:
        """Let the loop read its sockets while one task submits; later callers stay behind it."""
        one = Submitting(topic, key, asyncio.get_running_loop().create_future())
        self._submitting.append(one)
        try:
            await asyncio.sleep(0)
        finally:
            self._submitting.remove(one)

    async def _wait_for_room(self, topic: str, key: str | None, timeout: Duration | None) -> None:
        limit_ms = (1 + TIMES_AGAIN) * self._config.send_timeout_ms
        if timeout is not None:
            limit_ms = to_ms(timeout)
        one = Submitting(topic, key, asyncio.get_running_loop().create_future())
        self._submitting.append(one)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await one.turn
        except TimeoutError:
            self._turn_away(1)
        finally:
            with contextlib.suppress(ValueError):
                self._submitting.remove(one)
        self._check_open()

    def _let_in(self) -> None:
        """Let the next caller in that waits for room and has some."""
        if self._room.crowded:
            return
        for one in list(self._submitting):
            if one.turn.done():
                return  # it comes in first
            if not self._is_crowded_at(one.topic, one.key):
                one.turn.set_result(None)
                return

    def _is_crowded_at(self, topic: str, key: str | int | None, room: int = 0) -> bool:
        """Return whether the broker of a key has its share of the room; any thread may ask.

        Without a `room` of messages, of the room for callers that can wait.
        """
        router = self._router
        if router is None or key is None or len(router.senders) < 2:
            return False
        return router.is_crowded(topic, str(key), room or self._room.pace.allowed)

    async def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequence: int | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Write a message to the broker's connection without waiting for an answer.

        The message keeps its place among the sends to its queue. It may be lost without an error.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begin(
            future, topic, body, key, tag, keys, properties, queue, selector, arg, sequence,
            timeout, True,
        )  # fmt: skip
        await future

    async def request(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout: Duration | None = None,
    ) -> Message:
        """Send a message that asks for a reply, and return the first reply.

        The message takes its place among the messages of its key like any other, and a consumer
        handles it in its turn; its handler replies by returning a Reply. `timeout` is for both
        ways; without it `send_timeout_ms` counts. Raises RequestTimeout if no reply comes in time:
        the message may be handled nevertheless, now or later. If it is not known to be stored, the
        error is SendTimedOut.
        """
        await self.start()
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        request = self._begin_request(
            future, topic, body, key, tag, keys, properties, queue, selector, arg, timeout
        )
        try:
            return await future
        finally:
            request.forget()

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequences: Sequence[int] | None = None,
        timeout: Duration | None = None,
    ) -> list[SendReceipt]:
        """Store messages of one topic, in one request for each queue; return their receipts.

        Messages of one queue are stored in their order. More than `batch_bytes_max` bytes go in
        several requests. Messages without a key go to one queue together. `sequences` are the
        sequence numbers of a named producer, one for each message. If the batch was one request,
        its error is raised; if some of several requests failed, BatchIncomplete.
        """
        self._check_open()
        wanted = one_topic(messages)
        if self._before_send is not None:
            wanted = one_topic([self._before(message) for message in wanted])
        born_at_ms = self._clock.now_ms()
        ids = self._access.message_ids.some(len(wanted), born_at_ms)
        items = compose_items(wanted, ids, self._config)
        return await self._send_items(
            wanted, items, ids, born_at_ms, Choice(queue, selector, arg), sequences, timeout
        )

    async def _send_items(  # noqa: PLR0917 - called by the two facades
        self,
        messages: Sequence[Message],
        items: Sequence[BatchItem],
        ids: Sequence[str],
        born_at_ms: int,
        choice: Choice,
        sequences: Sequence[int] | None,
        timeout: Duration | None,
    ) -> list[SendReceipt]:
        self._check_open()
        numbers = checked_numbers(self._name, sequences, len(messages))
        if not messages:
            return []
        choice.check(messages[0].topic)
        for message in messages if numbers else ():
            check_fixed(None if choice == Choice() else choice, message.key)
        if self._room.full:
            self._turn_away(len(messages))
        await self.start()
        assert self._router is not None
        now_ms = self._clock.monotonic_ms()
        limit_ms = self._config.send_timeout_ms if timeout is None else to_ms(timeout)
        batch = Batch(
            messages, items, ids, numbers, choice, now_ms + limit_ms, born_at_ms, self._config,
            self._batch_failed,
        )  # fmt: skip
        self._waiting += len(messages)
        self._room.add(len(messages), batch.size)
        try:
            self._router.take_batch(batch, now_ms)
        except BaseException:
            self._waiting -= len(messages)
            self._room.leave(len(messages), batch.size)
            raise
        return await batch.receipts()

    def transaction(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout: Duration | None = None,
    ) -> Transaction:
        """Return a transaction for one message, to be used by `async with`.

        At the entry of the block the message is stored where no consumer sees it. The end of the
        block commits: the message joins its key, after those that were stored meanwhile. An
        exception rolls back and is raised; `commit` and `rollback` of the transaction end it
        earlier. If this program dies meanwhile, the broker asks the producers of the group, and
        `on_transaction_check` answers. Raises OutcomeUnknown if the broker has not confirmed the
        end; it asks then, and gets the same one.
        """
        self._check_open()
        if self._name is not None:
            raise UsageError(
                "a named producer (id=) has no transactions: its sends are repeated by their "
                "sequence; use a producer without an id"
            )
        message = {
            "topic": topic, "body": body, "key": key, "tag": tag, "keys": keys,
            "properties": properties, "queue": queue, "selector": selector, "arg": arg,
            "timeout": timeout,
        }  # fmt: skip
        limit_ms = self._config.send_timeout_ms if timeout is None else to_ms(timeout)
        return Transaction(self, message, limit_ms)

    async def _send_half(self, message: dict[str, Any]) -> HalfReceipt:
        """Store a half. If that fails or its outcome is unknown, it is to be rolled back."""
        await self.start()
        assert self._router is not None
        decisions = self._answer_checks(self._router.session, everywhere=False).decisions
        future: asyncio.Future[HalfReceipt] = asyncio.get_running_loop().create_future()
        born_at_ms = self._clock.now_ms()
        id_ = self._access.message_ids.at(born_at_ms)
        send = self._make(future, id_, born_at_ms, sequence=None, half_group=self._group, **message)
        if not self._room.enter(1, send.size):
            self._turn_away(1)
        decisions.opened(id_)
        try:
            self._hand_over(future, send)
            return await future
        except BaseException:
            decisions.decided(id_, TransactionState.ROLLBACK)
            raise

    async def _end_half(self, half: HalfReceipt, state: TransactionState, timeout_ms: int) -> None:
        """Tell the broker the end of a transaction."""
        self._check_open()
        assert self._router is not None
        assert self._checks is not None, "the half was sent"
        self._checks.decisions.decided(half.message_id, state)
        await end_half(self._router.session, self._group, half, state, timeout_ms)

    def _answer_checks(self, session: Session, *, everywhere: bool) -> Checks:
        if self._checks is None:
            self._checks = session.answer_checks(
                self._group, lambda: Checks(session, self._group), everywhere=everywhere
            )
            self._checks.join(self._listener)
        return self._checks

    async def recall(self, topic: str, handle: str) -> str:
        """Recall a message that waits for its time; return its id. It will never be delivered.

        `handle` is that of its receipt. Raises IllegalOperation if its time has come. A broker of
        Apache RocketMQ allows this from 5.3 on, with recallMessageEnable=true.
        """
        self._check_open()
        try:
            named = decode_handle(handle)
        except RemoteProtocolError:
            raise UsageError(
                f"{handle!r:.64} is no handle; give receipt.handle of a message with deliver_at="
            ) from None
        if named.topic != topic:
            raise UsageError(f"the handle is for a message of topic {named.topic}, not {topic}")
        await self.start()
        assert self._router is not None
        broker = await self._router.session.master_of(TopicQueue(topic, named.broker, 0))
        return await broker.recall(topic, handle, self._group)

    async def flush(self) -> None:
        """Wait until every message has its outcome.

        Raises SendsFailed if messages of `send_nowait` failed and nobody has read their futures.
        """
        await self._settle()
        failed = self._unheard.take()
        if failed is not None:
            raise failed

    async def _settle(self) -> None:
        while self._waiting:
            self._idle.clear()
            await self._idle.wait()
        await self._requests.settled()

    async def close(self) -> None:
        """Accept no more messages, wait for the outcome of pending ones, and disconnect.

        Raises SendsFailed as `flush` does, after it has disconnected.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self._settle()
        finally:
            await self._tasks.stop()
            while self._early:
                self._outcome(self._early.popleft()[0], None, _closed())
            registry.closed(self)
            if self._checks is not None:
                await self._checks.leave(self._listener)
            if self._tracer is not None:
                await self._tracer.close()
            if self._router is not None:
                await self._router.close()
                self._router.session.remove_producer(self._group)
                self._router.session.replies.remove(self._requests)
            await self._access.close()
        failed = self._unheard.take()
        if failed is not None:
            raise failed

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            await self.close()
        except SendsFailed as failed:
            if kind is None:
                raise
            log.error("%s", failed)  # the block has an error of its own

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot of the counters."""
        router = self._router
        retries, lost = (0, 0) if router is None else (router.retries, router.lost)
        return ProducerStatistics(
            self._sent, self._failed, retries, self._waiting, lost, self._unheard.count,
            self._room.refused, self._requests.waiting, self._requests.answered,
            0 if router is None else router.session.replies.late,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Producer({self._group!r}, sent={self._sent}, waiting={self._waiting})"

    # Internals, which the blocking producer uses too.

    def _begin(self, waiter: Waiter, *message: Any) -> None:
        """Check a message, take room for it and give it its place. No await: order counts."""
        self._check_open()
        born_at_ms = self._clock.now_ms()
        id_ = self._access.message_ids.at(born_at_ms)
        send = self._make(waiter, id_, born_at_ms, *message)
        if not self._room.enter(1, send.size):
            self._turn_away(1)
        self._hand_over(waiter, send)

    def _begin_inside(self, waiter: Waiter, size: int, *message: Any) -> None:
        """Do the same for a message that has its room already."""
        try:
            self._check_open()
            born_at_ms = self._clock.now_ms()
            id_ = self._access.message_ids.at(born_at_ms)
            send = self._make(waiter, id_, born_at_ms, *message)
        except BaseException:
            self._failed += 1
            self._room.leave(1, size)
            raise
        send.size = size
        self._hand_over(waiter, send)

    def _take_many(self, sends: list[Send]) -> None:
        """Give places to messages that have their room, in order."""
        now_ms = self._clock.monotonic_ms()
        if compiled is not None:
            wanted = compiled.wanted(sends)
        else:
            wanted = [send for send in sends if not send.waiter.done()]
        if len(wanted) < len(sends):  # their callers cancelled them; others may do so meanwhile
            size = sum([send.size for send in sends]) - sum([send.size for send in wanted])
            self._room.leave(len(sends) - len(wanted), size)
        self._waiting += len(wanted)
        if self._closed:
            for send in wanted:
                self._outcome(send, None, _closed())
        elif self._router is None:
            for send in wanted:
                self._take_early(send, now_ms)
        else:
            self._router.take_many(wanted, now_ms)

    def _pending(self) -> list[Send]:
        """Return the messages without an outcome that have left their callers."""
        early = [send for send, _ in self._early]
        return early if self._router is None else [*early, *self._router.pending()]

    def _begin_request(  # noqa: PLR0917 - called by the two facades
        self,
        waiter: Waiter,
        topic: str,
        body: bytes,
        key: str | int | None,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        queue: TopicQueue | None,
        selector: Selector | None,
        arg: Any,
        timeout: Duration | None,
    ) -> Request:
        """Give a message that asks for a reply its place. No await: order counts."""
        self._check_open()
        if self._name is not None:
            raise UsageError(
                "a named producer (id=) sends no requests: sent again by a later run, a request is "
                "not stored again, so that its reply would never come; use a producer without an id"
            )
        assert self._router is not None, "the producer is started"
        session = self._router.session
        timeout_ms = self._config.send_timeout_ms if timeout is None else to_ms(timeout)
        born_at_ms = self._clock.now_ms()
        id_ = self._access.message_ids.at(born_at_ms)
        if not self._asked:
            self._asked = True
            session.expect_replies()
        request = self._requests.open(id_, waiter, timeout_ms)
        try:
            asked = asking(properties, id_=id_, client_id=session.client_id, timeout_ms=timeout_ms)
            send = self._make(
                request, id_, born_at_ms, topic, body, key, tag, keys, asked, queue, selector, arg,
                None, timeout_ms / 1000,
            )  # fmt: skip
            send.joins = False  # its caller waits: it does not wait for others
            if not self._room.enter(1, send.size):
                self._turn_away(1)
            self._hand_over(request, send)
        except BaseException:
            request.forget()
            raise
        if self._requests.is_first_to(topic):
            self._tasks.start(introduce(session, topic), name=f"introduce to {topic}")
        return request

    def _make(  # noqa: PLR0917 - by place, for it is called for every message
        self,
        waiter: Waiter,
        message_id: str,
        born_at_ms: int,
        topic: str,
        body: bytes,
        key: str | int | None,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        queue: TopicQueue | None,
        selector: Selector | None,
        arg: Any,
        sequence: int | None,
        timeout: Duration | None,
        oneway: bool = False,
        later: str = "",
        patient: bool = False,
        half_group: str | None = None,
    ) -> Send:
        """Check a message and return its request; without hooks any thread may call this."""
        # hot: 5 us with the properties.
        if key is not None:
            key = key_text(key)
        choice = messages = None
        flag = 0
        if queue is not None or selector is not None:
            choice = Choice(queue, selector, arg)
        if self._hooked or choice is not None:
            message = self._before(
                Message(topic, body, key, tag, words(keys), dict(properties or {}))
            )
            topic, body, key, tag = message.topic, message.body, message.key, message.tag
            keys, properties, flag = message.keys, message.properties, message.flag
            messages = (message,)
            if choice is not None:
                choice.check(topic)
        numbers: tuple[int, ...] = ()
        if sequence is not None or self._name is not None:
            numbers = checked_numbers(self._name, None if sequence is None else (sequence,), 1)
            check_fixed(choice, key)
        part = compose(
            topic, body, key, tag, keys, properties, message_id, born_at_ms, self._config,
            flag=flag, sequences=numbers, later=later, half_group=half_group,
        )  # fmt: skip
        limit_ms = self._config.send_timeout_ms if timeout is None else to_ms(timeout)
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        send = Send(topic, key, part, choice, deadline_ms, waiter, messages=messages, oneway=oneway)
        send.size = len(body)
        if timeout is not None:
            send.firm = True
        alone = oneway or self._name is not None or half_group is not None
        if not alone and may_join(properties, later):
            send.joins = True
        if patient:
            send.patient = True
        return send

    def _make_plain(  # noqa: PLR0917 - as above
        self,
        waiter: Waiter,
        message_id: str,
        born_at_ms: int,
        topic: str,
        body: bytes,
        key: str | None,
    ) -> Send:
        """Do what `_make` does with a patient message that has a key at most, sooner.

        The producer has no hooks and no name.
        """
        # hot: 1.2 us with the properties.
        config = self._config
        part = compose_plain(topic, body, key, message_id, born_at_ms, config)
        deadline_ms = self._clock.monotonic_ms() + config.send_timeout_ms
        send = Send(topic, key, part, None, deadline_ms, waiter)
        send.size = len(body)
        send.joins = send.patient = True
        return send

    def _hand_over(self, _: Waiter, send: Send) -> None:
        """Give its place to a message that has its room."""
        now_ms = self._clock.monotonic_ms()
        try:
            self._check_open()
            if self._router is not None:
                self._router.take(send, now_ms)
            else:
                self._take_early(send, now_ms)
        except BaseException:
            self._failed += 1
            self._room.leave(1, send.size)
            raise
        self._waiting += 1

    def _take_early(self, send: Send, now_ms: int) -> None:
        if not self._early:
            self._tasks.start(self._open_for_early(), name="open")
        self._early.append((send, now_ms))

    async def _open_for_early(self) -> None:
        try:
            await self._open()
        except InorderError as error:
            while self._early:
                self._outcome(self._early.popleft()[0], None, error)

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _turn_away(self, count: int) -> NoReturn:
        self._room.turn_away(count)
        raise NoRoom(f"{self._room}; wait for some of them", count)

    def _before(self, message: Message) -> Message:
        if self._before_send is None:
            return message
        return self._before_send(message) or message

    def _outcome(self, send: Send, result: Any, error: BaseException | None) -> None:
        """Tell a caller the outcome of its message; called once for each send."""
        # hot: 0.5 us.
        count = send.count
        self._waiting -= count
        self._room.leave(count, send.size)
        if error is None:
            self._sent += count
            if send.patient and not send.firm:
                self._pace(send, count)
        else:
            self._failed += count
        if self._after_send is not None:
            self._after(send, result, error)
        waiter = send.waiter
        if not waiter.done():
            if error is None:
                waiter.set_result(result)
            else:
                waiter.set_exception(error)
        if not self._waiting:
            self._idle.set()
        if self._submitting:
            self._let_in()

    def _stored_together(
        self, sends: list[Send], queue: TopicQueue, offsets: Sequence[int], status: SendStatus
    ) -> None:
        """Tell callers that their messages, which came in one request, are stored."""
        # hot: 0.3 us a message.
        if compiled is not None and self._after_send is None:
            count, size = compiled.stored(sends, queue, offsets, status)
        else:
            count, size = self._tell_stored(sends, queue, offsets, status)
        if not sends[0].firm:
            self._pace(sends[0], count)
        self._waiting -= count
        self._sent += count
        self._room.leave(count, size)
        if not self._waiting:
            self._idle.set()
        if self._submitting:
            self._let_in()

    def _tell_stored(
        self, sends: Sequence[Send], queue: TopicQueue, offsets: Sequence[int], status: SendStatus
    ) -> tuple[int, int]:
        """Give callers their receipts; return how many sends are over by that, and their bytes."""
        count = size = 0
        for send, offset in zip(sends, offsets, strict=True):
            if send.over:
                continue
            send.over = True
            count += 1
            size += send.size
            waiter = send.waiter
            place = (send.part.ids[0], queue, offset, status)
            if self._after_send is not None:
                self._after(send, SendReceipt(*place), None)
            if not waiter.done():
                # Futures of send_nowait make the receipt when somebody asks for it.
                waiter.set_result(place if send.patient else SendReceipt(*place))
        return count, size

    def _pace(self, first: Send, count: int) -> None:
        """Note how long the first of some stored messages has waited."""
        accepted_ms = first.deadline_ms - self._config.send_timeout_ms
        waiting = self._room.messages
        self._room.pace.stored(count, waiting, accepted_ms, self._clock.monotonic_ms())

    def _after(self, send: Send, result: Any, error: BaseException | None) -> None:
        assert self._after_send is not None
        for index, message in enumerate(send.messages or ()):
            receipt = result[index] if isinstance(result, list) else result
            try:
                self._after_send(message, receipt, error)
            except Exception:
                # The caller's own code; the outcome of the send stands.
                log.exception("after_send failed topic=%s", message.topic)

    def _batch_failed(self, count: int, size: int) -> None:
        """Count the messages of a batch that were not sent."""
        self._waiting -= count
        self._room.leave(count, size)
        self._failed += count
        if not self._waiting:
            self._idle.set()
