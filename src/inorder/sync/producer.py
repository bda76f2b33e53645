"""The producer for code that blocks; `inorder.client.send.producer` says what each method does.

A thread can call faster than a broker stores. `send_nowait` therefore waits in the caller's thread
until the pending sends are below the limits, and raises NoRoom if that takes too long: every
message that the producer accepts has a future, and it never accepts one silently. The caller's
thread checks and packs the message too, so that a mistake is raised at the call and the loop is
left to its sockets. Messages come to the loop through an `Outbox`, all that have piled up at once.
How a producer keeps order and speed: decision 11. Automatic batches: decision 48.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import replace
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from inorder.accelerated import native
from inorder.client.identity import Identity, MessageIds
from inorder.client.rules.routes import Duration, to_ms
from inorder.client.send import producer as twin
from inorder.client.send import transactions
from inorder.client.send.batches import one_topic
from inorder.client.send.checks import GROUP, checked_delay, checked_listener
from inorder.client.send.messages import ITEM_BYTES, Outgoing, check_topic, compose_items
from inorder.client.send.queues import AfterSend, BeforeSend, Choice, Selector, Send, compiled
from inorder.client.send.rules import TIMES_AGAIN
from inorder.client.send.transactions import OnTransactionCheck
from inorder.clock import SystemClock
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.errors import AlreadyClosed, NoRoom, SendsFailed
from inorder.logs import get_logger
from inorder.model import (
    Message,
    ReceivedMessage,
    SendReceipt,
    TopicQueue,
    TransactionReceipt,
    TransactionState,
    key_text,
)
from inorder.sync.direct import DirectSends
from inorder.sync.futures import SendFuture, SharedFailures
from inorder.sync.portal import Closeable, lease
from inorder.sync.room import SharedRoom
from inorder.wire.ids import UniqueIds

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.sync.portal import Portal

log = get_logger(__name__)

TAKEN_MAX: Final = 2048
"""How many messages the loop takes over in one turn, which takes some 2 ms."""
MANY: Final = 2
"""Brokers from which on each has its share of the room."""


class Unmade(NamedTuple):
    """A message of a producer with hooks, which run on the loop: it is made there."""

    waiter: SendFuture
    size: int
    arguments: tuple[Any, ...]


class Outbox:
    """Messages on their way from callers' threads to the loop; one wake-up for all that pile up."""

    def __init__(self, portal: Portal, producer: twin.Producer, room: SharedRoom) -> None:
        self._portal = portal
        self._producer = producer
        self._room = room
        self._messages: deque[Send | Unmade] = deque()
        self._posted = False  # the loop has this in its inbox, and takes what is appended now
        self._lock = threading.RLock()  # a signal handler may send while it is held

    def put(self, message: Send | Unmade) -> None:
        """Hand a message over that has its room; if this raises, the message has left its room.

        Nothing that the caller hands to the loop after this comes before the message.
        """
        # hot: 0.15 us.
        self._messages.append(message)
        if not self._posted:
            self._post(message)

    def appended(self, message: Send) -> None:
        """Do the rest of `put` for a message that has its place in `_messages`."""
        if not self._posted:
            self._post(message)

    def _post(self, message: Send | Unmade) -> None:
        with self._lock:
            if self._posted:  # by another thread, meanwhile
                return
            try:
                self._portal.put(self)
                self._posted = True
            except BaseException:  # Ctrl-C, or the portal has ended
                with contextlib.suppress(ValueError):  # the loop has it: it keeps its room
                    self._messages.remove(message)
                    self._room.leave(1, message.size)
                raise

    def begin(self, _: asyncio.AbstractEventLoop) -> bool:
        """Take what has piled up, a part at a time; return whether there is more."""
        messages = self._messages
        with self._lock:
            self._posted = False
            if compiled is not None:
                taken = compiled.drain(messages, TAKEN_MAX)
            else:
                taken = [messages.popleft() for _ in range(min(len(messages), TAKEN_MAX))]
        if self._producer._hooked:
            for message in taken:
                assert isinstance(message, Unmade), "hooks run on the loop"
                self._make(message)
        else:
            self._producer._take_many(cast("list[Send]", taken))
        return bool(messages)

    def _make(self, message: Unmade) -> None:
        if message.waiter.done():  # cancelled
            self._room.leave(1, message.size)
            return
        try:
            self._producer._begin_inside(message.waiter, message.size, *message.arguments)
        except Exception as error:
            # The future carries the error to its owner.
            message.waiter.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Tell callers that the loop has ended."""
        with self._lock:
            self._posted = False  # the next call asks the portal, which refuses it
            left = list(self._messages)
            self._messages.clear()
        for message in (*left, *self._producer._pending()):
            if not message.waiter.done():
                message.waiter.set_exception(error)

    def __len__(self) -> int:
        """Return how many messages have no outcome."""
        return len(self._messages) + self._producer._waiting


class SharedIds:
    """Message ids for many threads."""

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._made: MessageIds | None = None

    def next(self) -> tuple[str, int]:
        """Return an id and the time that is in it."""
        # hot: 0.3 us.
        now_ms = self._clock.now_ms()
        return (self._made or self._ids()).at(now_ms), now_ms

    def some(self, count: int) -> tuple[list[str], int]:
        """Return ids, and the time that is in them."""
        now_ms = self._clock.now_ms()
        return (self._made or self._ids()).some(count, now_ms), now_ms

    @property
    def series(self) -> UniqueIds:
        """The ids without their clock."""
        return (self._made or self._ids()).series

    def _ids(self) -> MessageIds:
        """Return the series of this producer: one, whichever thread asks first."""
        with self._lock:
            if self._made is None:
                self._made = MessageIds(Identity.of_this_process(), self._clock)
            return self._made


def bytes_of(body: object) -> int:
    """Return the bytes of a body; 0 for a value that the request will refuse."""
    return len(body) if isinstance(body, bytes) else 0


class Questions:
    """Calls a plain listener in a thread of its own, one question after the other."""

    def __init__(self, listener: OnTransactionCheck) -> None:
        self._listener = listener
        self._inbox: SimpleQueue[tuple[asyncio.Future[Any], ReceivedMessage] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def ask(self, message: ReceivedMessage) -> TransactionState:
        """Return the listener's answer."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="inorder transactions", daemon=True
            )
            self._thread.start()
        answer: asyncio.Future[TransactionState] = asyncio.get_running_loop().create_future()
        self._inbox.put((answer, message))
        return await answer

    def close(self) -> None:
        """End the thread, once the listener returns."""
        self._inbox.put(None)

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            answer, message = item
            found: Any = None
            error: Exception | None = None
            try:
                found = self._listener(message)
                if inspect.iscoroutine(found):
                    found = asyncio.run(found)
            except Exception as raised:
                # The user's code; the broker gets no outcome and asks again.
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                answer.get_loop().call_soon_threadsafe(
                    _set, answer, found, error, context=Context()
                )


def _set(answer: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(found)


class Transaction:
    """One message that is stored as a half, and then committed or rolled back.

    `commit` and `rollback` end it within the block. `receipt` says where the half is, and how the
    transaction has ended as far as the broker has answered.
    """

    def __init__(
        self, producer: Producer, begun: transactions.Transaction, timeout: Duration | None
    ) -> None:
        self._producer = producer
        self._async = begun
        self._timeout = timeout

    @property
    def receipt(self) -> TransactionReceipt:
        """Return what is known of the transaction. Raises UsageError before its half is stored."""
        return self._async.receipt

    def commit(self) -> TransactionReceipt:
        """Store the message for consumers, now. Raises OutcomeUnknown if no answer came."""
        return self._producer._portal.call(self._async.commit)

    def rollback(self) -> TransactionReceipt:
        """Drop the message. Raises OutcomeUnknown if no answer came."""
        return self._producer._portal.call(self._async.rollback)

    def __enter__(self) -> Transaction:
        producer = self._producer
        if producer._direct is not None:
            producer._direct.interrupted()
        producer._when_there_is_room(
            self._timeout, lambda _: producer._portal.call(self._async.begin)
        )
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._producer._portal.call(partial(self._async.leave, failed=kind is not None))

    def __repr__(self) -> str:
        return repr(self._async)


T = TypeVar("T")

_NO_WISHES = (None, None, None, None)


class Producer(Closeable):
    """Sends messages to the cluster that a name server knows; many threads may share it.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
    `id` names the producer: every send then gives its `sequence`. If several producers have one
    name, only the one that started last may send. `before_send` gets each message and may return
    another one to send instead; `after_send` gets the message with its receipt or its error. Both
    run on the client's own thread: they must not block, and must not call the client.
    `on_transaction_check` answers when a broker asks about a transaction of the group `group` that
    this producer does not know: of a process that was killed. It gets the message and returns a
    TransactionState; it runs in a thread of its own and may block.
    With `trace` the client writes RocketMQ's message traces, which `mqadmin` and dashboards show,
    to the brokers' trace topic (`traceTopicEnable`).
    """

    def __init__(
        self,
        namesrv: str | None = None,
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
        checked_listener(on_transaction_check, group)
        self._questions = None if on_transaction_check is None else Questions(on_transaction_check)
        self._async = twin.Producer(
            namesrv, group=group, id=id, config=config, tls=tls, credentials=credentials,
            before_send=before_send, after_send=after_send,
            on_transaction_check=None if self._questions is None else self._questions.ask,
            trace=trace,
        )  # fmt: skip
        settings = self._async._config
        self._room = SharedRoom(
            settings.sends_waiting_max, settings.sends_waiting_bytes_max, settings.send_timeout_ms
        )
        self._async._room = self._room
        self._unheard = SharedFailures(self._async._clock)
        self._async._unheard = self._unheard
        self._ids = SharedIds(self._async._clock)
        self._portal = lease(self._async)
        self._outbox = Outbox(self._portal, self._async, self._room)
        self._portal.outboxes.add(self._outbox)
        # Direct sends are for anonymous producers without hooks and without TLS.
        self._is_plain = id is None and not self._async._hooked
        alone = self._is_plain and tls is None
        self._direct = DirectSends(self._async, self._portal) if alone else None
        self._make: Callable[[str, bytes, str | None], Send | None] | None = None
        self._closed = False

    def start(self) -> None:
        """Prepare to send, without connecting. The first send does this, too."""
        self._portal.call(self._async.start)

    def send(
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
            later = checked_delay(delay, delay_level, deliver_at, self._async._delays_ms)
        if key is not None:
            key = key_text(key)
        direct = self._direct
        if direct is not None:
            if (
                (queue, selector, sequence, timeout) == _NO_WISHES
                and not later
                and not self._portal.posted
                and not self._room.messages
            ):
                sent = direct.send(topic, body, key, tag, keys, properties)
                if sent is not None:
                    return sent
            else:
                direct.interrupted()
        receipt: SendReceipt = self._when_there_is_room(
            timeout,
            lambda left: self._portal.post(
                self._async._begin, topic, body, key, tag, keys, properties, queue, selector, arg,
                sequence, left, False, later,
            ),
        )  # fmt: skip
        return receipt

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
    ) -> Future[SendReceipt]:
        """Send a message without waiting; the future gives the receipt that `send` returns.

        The call returns at once, unless too many messages or bytes have no outcome yet. Then it
        waits for `timeout` at most, and raises TooManyOutstanding after that. `flush` and `close`
        report failures whose futures nobody has read.
        """
        later = ""
        if delay is not None or delay_level is not None or deliver_at is not None:
            later = checked_delay(delay, delay_level, deliver_at, self._async._delays_ms)
        if key is not None and type(key) is not str:
            key = key_text(key)
        shared = self._async
        if (
            self._make is not None and tag is None and properties is None and queue is None
            and selector is None and sequence is None and timeout is None
            and not later and type(keys) is tuple and not keys and not self._closed
            and (shared._router is None or len(shared._router.senders) < MANY)
        ):  # fmt: skip
            send = self._make(topic, body, key)
            if send is not None:
                self._outbox.appended(send)
                return cast("SendFuture", send.waiter)
        size = len(body) if type(body) is bytes else bytes_of(body)
        self._enter(topic, key, size, timeout)
        try:
            future = SendFuture(self._unheard, (topic, key))
            made: Send | Unmade
            if (
                self._is_plain and tag is None and properties is None and queue is None
                and selector is None and sequence is None and timeout is None
                and not later and type(keys) is tuple and not keys
            ):  # fmt: skip
                made = shared._make_plain(future, *self._ids.next(), topic, body, key)
                if self._make is None:
                    self._make = self._maker()
            else:
                message: tuple[Any, ...] = (
                    topic, body, key, tag, keys, properties, queue, selector, arg, sequence,
                    timeout, False, later, True,
                )  # fmt: skip
                if shared._hooked:
                    made = Unmade(future, size, message)
                else:
                    made = shared._make(future, *self._ids.next(), *message)
        except BaseException:
            self._room.leave(1, size)
            raise
        self._outbox.put(made)
        return future

    def send_oneway(
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
        self._when_there_is_room(
            timeout,
            lambda left: self._portal.post(
                self._async._begin, topic, body, key, tag, keys, properties, queue, selector, arg,
                sequence, left, True,
            ),
        )  # fmt: skip

    def request(
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
        if self._direct is not None:
            self._direct.interrupted()
        if self._async._router is None:
            self.start()
        reply: Message = self._when_there_is_room(
            timeout,
            lambda left: self._portal.post(
                self._async._begin_request, topic, body, key, tag, keys, properties, queue,
                selector, arg, left,
            ),
        )  # fmt: skip
        return reply

    def send_batch(
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
        shared = self._async
        if shared._hooked:
            return self._when_there_is_room(
                timeout,
                lambda left: self._portal.call(partial(
                    shared.send_batch, messages, queue=queue, selector=selector, arg=arg,
                    sequences=sequences, timeout=left,
                )),
            )  # fmt: skip
        self._portal.check_thread()
        wanted = one_topic(messages)
        ids, born_at_ms = self._ids.some(len(wanted))
        items = compose_items(wanted, ids, shared._config)
        choice = Choice(queue, selector, arg)
        return self._when_there_is_room(
            timeout,
            lambda left: self._portal.call(
                shared._send_items, wanted, items, ids, born_at_ms, choice, sequences, left
            ),
        )

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
        """Return a transaction for one message, to be used by `with`.

        At the entry of the block the message is stored where no consumer sees it. The end of the
        block commits: the message joins its key, after those that were stored meanwhile. An
        exception rolls back and is raised; `commit` and `rollback` of the transaction end it
        earlier. If this program dies meanwhile, the broker asks the producers of the group, and
        `on_transaction_check` answers. Raises OutcomeUnknown if the broker has not confirmed the
        end; it asks then, and gets the same one.
        """
        begun = self._async.transaction(
            topic, body, key=None if key is None else key_text(key), tag=tag, keys=keys,
            properties=properties, queue=queue, selector=selector, arg=arg, timeout=timeout,
        )  # fmt: skip
        return Transaction(self, begun, timeout)

    def recall(self, topic: str, handle: str) -> str:
        """Recall a message that waits for its time; return its id. It will never be delivered.

        `handle` is that of its receipt. Raises IllegalOperation if its time has come. A broker of
        Apache RocketMQ allows this from 5.3 on, with recallMessageEnable=true.
        """
        recalled: str = self._portal.call(self._async.recall, topic, handle)
        return recalled

    def flush(self) -> None:
        """Wait until every message has its outcome.

        Raises SendsFailed if messages of `send_nowait` failed and nobody has read their futures.
        """
        self._portal.call(self._async.flush)

    def close(self) -> None:
        """Accept no more messages, wait for the outcome of pending ones, and disconnect.

        Raises SendsFailed as `flush` does, after it has disconnected.
        """
        if not self._closed:
            self._closed = True
            if self._direct is not None:
                self._direct.close()
            if self._questions is not None:
                self._questions.close()
            try:
                self._portal.finish(self._async.close)
            finally:
                self._portal.outboxes.discard(self._outbox)

    def statistics(self) -> twin.ProducerStatistics:
        """Return a snapshot of the counters."""
        read = self._async.statistics
        statistics: twin.ProducerStatistics = read() if self._closed else self._portal.call(read)
        alone = 0 if self._direct is None else self._direct.sent
        return replace(statistics, sent=statistics.sent + alone)

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except SendsFailed as failed:
            if kind is None:
                raise
            log.error("%s", failed)  # the block has an error of its own

    def __repr__(self) -> str:
        return repr(self._async)

    def _maker(self) -> Callable[[str, bytes, str | None], Send | None] | None:
        """Return what makes plain messages in one step, None if there is nothing."""
        shared = self._async
        config, clock = shared._config, shared._clock
        if compiled is None or native is None or type(clock) is not SystemClock:
            return None
        body_max = config.message_bytes_max
        if config.compression != "none":
            body_max = min(body_max, config.compress_above_bytes - 1)
        future = SendFuture(self._unheard, ("", None))
        part = Outgoing(("",), b"x", b"", 0, 0, 0, None, (), b"")
        pattern = Send("", None, part, None, 0, future)
        pattern.joins = pattern.patient = True
        series = self._ids.series
        numbers = (
            body_max,
            config.send_timeout_ms,
            ITEM_BYTES,
            self._portal._ident,
            clock.clock_id,
        )
        maker = native.Maker(
            compiled, (future, pattern, part), self._room.tally, self._outbox._messages.append,
            (series.prefix, series.counter), check_topic, numbers,
        )  # fmt: skip
        make: Callable[[str, bytes, str | None], Send | None] = maker.make
        return make

    def _enter(
        self, topic: str, key: str | int | None, size: int, timeout: Duration | None
    ) -> None:
        """Take room for a message; wait for it if need be."""
        self._portal.check_thread()
        shared = self._async
        if not self._closed and not shared._is_crowded_at(topic, key) and self._room.enter(1, size):
            return
        deadline_ms = self._deadline_ms(timeout)
        if timeout is None:  # nobody waits for the outcome: see `extended_ms`
            deadline_ms += TIMES_AGAIN * shared._config.send_timeout_ms
        while True:
            left_ms = self._wait(deadline_ms, 1)
            if shared._is_crowded_at(topic, key):
                self._room.wait(left_ms / 1000, share=True)
            elif self._room.enter(1, size):
                return

    def _when_there_is_room(
        self, timeout: Duration | None, send: Callable[[Duration | None], T]
    ) -> T:
        """Send once there is room; `send` gets the time that is left for it."""
        if not self._room.full:
            try:
                return send(timeout)
            except NoRoom as error:  # others were faster
                self._room.turn_away(-error.count)
        deadline_ms = self._deadline_ms(timeout)
        while True:
            left_ms = self._wait(deadline_ms, 1)
            try:
                return send(left_ms / 1000)
            except NoRoom as error:
                self._room.turn_away(-error.count)

    def _deadline_ms(self, timeout: Duration | None) -> int:
        limit_ms = self._async._config.send_timeout_ms if timeout is None else to_ms(timeout)
        return self._async._clock.monotonic_ms() + limit_ms

    def _wait(self, deadline_ms: int, count: int) -> int:
        """Wait until there is room; return the milliseconds that are left."""
        while True:
            if self._closed:
                raise AlreadyClosed("this producer was closed; make a new one")
            self._portal.check_thread()
            left_ms = deadline_ms - self._async._clock.monotonic_ms()
            if left_ms <= 0:
                self._async._turn_away(count)
            if not self._room.full:
                return left_ms
            self._room.wait(left_ms / 1000)
