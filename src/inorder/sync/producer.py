"""The producer for code that blocks; `inorder.client.send.producer` says what each method does.

A thread can call faster than a broker stores. `send_nowait` therefore waits in the caller's thread
until the pending sends are below the limits, and raises NoRoom if that takes too long: every
message that the producer accepts has a future, and it never accepts one silently. The caller's
thread checks and packs the message too, so that a mistake is raised at the call and the loop is
left to its sockets. How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from inorder.client.identity import Identity, MessageIds
from inorder.client.rules.routes import Duration, to_ms
from inorder.client.send import producer as twin
from inorder.client.send.batches import one_topic
from inorder.client.send.failures import Asked, UnseenFailures
from inorder.client.send.messages import compose_items
from inorder.client.send.producer import checked_delay
from inorder.client.send.queues import AfterSend, BeforeSend, Choice, Selector
from inorder.client.send.rules import Room
from inorder.config import ClientConfig
from inorder.errors import AlreadyClosed, NoRoom, SendsFailed
from inorder.logs import get_logger
from inorder.model import Message, SendReceipt, TopicQueue, key_text
from inorder.sync.direct import DirectSends
from inorder.sync.portal import Closeable, Posted, lease

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.sync.portal import Portal

log = get_logger(__name__)

SLICE_SECONDS: Final = 0.05
"""A waiting thread checks again after this time, since the client may be closed meanwhile."""
LOG_EVERY_MS: Final = 10_000


class SharedRoom(Room):
    """Room for pending sends: threads enter it, and the loop leaves it."""

    __slots__ = ("_changed", "_waiting")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        super().__init__(messages_max, bytes_max)
        self._changed = threading.Condition()
        self._waiting = 0

    def enter(self, messages: int, bytes_: int) -> bool:
        with self._changed:
            return super().enter(messages, bytes_)

    def add(self, messages: int, bytes_: int) -> None:
        with self._changed:
            super().add(messages, bytes_)

    def leave(self, messages: int, bytes_: int) -> None:
        with self._changed:
            super().leave(messages, bytes_)
            if self._waiting and self.wide:
                self._changed.notify_all()

    def turn_away(self, messages: int) -> None:  # negative: they are tried again
        with self._changed:
            super().turn_away(messages)

    def wait(self, seconds: float) -> None:
        """Wait until there is some room, or the time is up."""
        with self._changed:
            if self.full:
                self._waiting += 1
                try:
                    self._changed.wait(min(seconds, SLICE_SECONDS))
                finally:
                    self._waiting -= 1


class SharedFailures(UnseenFailures):
    """Failures that the loop counts and threads are told of."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.RLock()  # a future may be collected while it is held
        self._logged_ms = -LOG_EVERY_MS
        self._silent = 0

    def failed(self, future: Asked, error: BaseException) -> None:
        with self._lock:
            super().failed(future, error)

    def heard(self, future: Asked) -> None:
        with self._lock:
            super().heard(future)

    def take(self) -> SendsFailed | None:
        with self._lock:
            return super().take()

    def dropped(self, future: Asked, error: BaseException | None) -> None:
        """Log, at intervals, that a failed future was dropped unread."""
        with self._lock:
            if future.unheard_at != self._report:
                return
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._logged_ms < LOG_EVERY_MS:
                self._silent += 1
                return
            self._logged_ms, before, self._silent = now_ms, self._silent, 0
        topic, key = future.message
        log.error(
            "send failed, and nobody asked for its outcome topic=%s key=%s error=%s "
            "(and %d more before)", topic, key, error, before,
        )  # fmt: skip


class SendFuture(Posted):
    """The future of `send_nowait`: it records whether its outcome was read."""

    unheard_at = 0  # also of one whose making Ctrl-C has ended

    def __init__(
        self,
        portal: Portal,
        begin: Callable[..., None],
        unheard: SharedFailures,
        room: SharedRoom,
        *,
        message: tuple[str, str | None],
        size: int,
    ) -> None:
        super().__init__(portal, begin, ())
        self.asked = False
        self.message = message  # its topic and key
        self._unheard = unheard
        self._room = room
        self._size = size
        self._failure: BaseException | None = None

    def carry(self, *args: Any) -> None:
        """Keep the arguments that `begin` needs."""
        self._args = args

    def begin(self, _: asyncio.AbstractEventLoop) -> None:
        if self.cancelled():
            self._portal.posted.discard(self)
            self._room.leave(1, self._size)
            return
        args, self._args = self._args, ()  # a request refers to its future
        try:
            self._begin(self, *args)
        except Exception as error:
            # The future carries the error to its owner.
            self.set_exception(error)

    def set_exception(self, exception: BaseException | None) -> None:
        if exception is not None and not self.cancelled():
            self._failure = exception
            self._unheard.failed(self, exception)
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> Any:
        self.asked = True
        try:
            return super().result(timeout)
        finally:
            self._was_asked()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.asked = True
        try:
            return super().exception(timeout)
        finally:
            self._was_asked()

    def _was_asked(self) -> None:
        self.asked = False
        if self.unheard_at:
            self._unheard.heard(self)

    def __del__(self) -> None:
        if self.unheard_at and not self._portal.is_forked:
            self._unheard.dropped(self, self._failure)


class SharedIds:
    """Message ids for many threads."""

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._ids: MessageIds | None = None

    def next(self) -> tuple[str, int]:
        """Return an id and the time that is in it."""
        ids, now_ms = self.some(1)
        return ids[0], now_ms

    def some(self, count: int) -> tuple[list[str], int]:
        """Return ids, and the time that is in them."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if self._ids is None:
                self._ids = MessageIds(Identity.of_this_process(), self._clock)
            return self._ids.some(count, now_ms), now_ms


def bytes_of(body: object) -> int:
    """Return the bytes of a body; 0 for a value that the request will refuse."""
    return len(body) if isinstance(body, bytes) else 0


T = TypeVar("T")

_NO_WISHES = (None, None, None, None)


class Producer(Closeable):
    """Sends messages to the cluster that a name server knows; many threads may share it.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.
    `id` names the producer: every send then gives its `sequence`. If several producers have one
    name, only the one that started last may send. `before_send` gets each message and may return
    another one to send instead; `after_send` gets the message with its receipt or its error. Both
    run on the client's own thread: they must not block, and must not call the client.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str = twin.GROUP,
        id: str | None = None,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        before_send: BeforeSend | None = None,
        after_send: AfterSend | None = None,
    ) -> None:
        self._async = twin.Producer(
            namesrv, group=group, id=id, config=config, tls=tls, before_send=before_send,
            after_send=after_send,
        )  # fmt: skip
        settings = self._async._config
        self._room = SharedRoom(settings.sends_waiting_max, settings.sends_waiting_bytes_max)
        self._async._room = self._room
        self._unheard = SharedFailures(self._async._clock)
        self._async._unheard = self._unheard
        self._ids = SharedIds(self._async._clock)
        self._portal = lease(self._async)
        # Direct sends are for anonymous producers without hooks and without TLS.
        plain = tls is None and id is None and before_send is None and after_send is None
        self._direct = DirectSends(self._async, self._portal) if plain else None
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
        producer takes it. With `delay` (seconds or a timedelta) consumers get the message later.
        The broker has 18 delays, from a second to two hours; `delay_level` names one of them, 1 to
        18. Raises OutcomeUnknown if the message may or may not be stored. After any other error it
        is not stored.
        """
        level = 0
        if delay is not None or delay_level is not None or deliver_at is not None:
            level = checked_delay(delay, delay_level, deliver_at, self._async._delays_ms)
        if key is not None:
            key = key_text(key)
        direct = self._direct
        if direct is not None:
            if (
                (queue, selector, sequence, timeout) == _NO_WISHES
                and not level
                and not self._portal.posted
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
                sequence, left, False, level,
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
        level = checked_delay(delay, delay_level, deliver_at, self._async._delays_ms)
        if key is not None:
            key = key_text(key)
        size = bytes_of(body)
        self._enter(size, timeout)
        shared = self._async
        message: tuple[Any, ...] = (
            topic, body, key, tag, keys, properties, queue, selector, arg, sequence, timeout, False,
            level,
        )  # fmt: skip
        try:
            begin = shared._begin_inside if shared._hooked else shared._hand_over
            future = SendFuture(
                self._portal, begin, self._unheard, self._room, message=(topic, key), size=size
            )
            if shared._hooked:
                future.carry(size, *message)
            else:
                future.carry(shared._make(future, *self._ids.next(), *message))
            self._portal.hand_over(future)
        except BaseException:
            self._room.leave(1, size)
            raise
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
            self._portal.finish(self._async.close)

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

    def _enter(self, size: int, timeout: Duration | None) -> None:
        """Take room for a message; wait for it if need be."""
        self._portal.check_thread()
        if not self._closed and self._room.enter(1, size):
            return
        deadline_ms = self._deadline_ms(timeout)
        while True:
            self._wait(deadline_ms, 1)
            if self._room.enter(1, size):
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
