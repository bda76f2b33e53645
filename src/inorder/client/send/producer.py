"""The public `Producer`: messages of one key go to one queue, in the order of the calls.

A send takes its place when `send` is first awaited, or when `send_nowait` is called. Many sends are
unconfirmed at a time. Each is stored in its order and exactly once, whatever happens to connections
and brokers, because its messages have sequence numbers (`client/send/queues.py`). A broker of
Apache RocketMQ knows no sequence numbers: there one send per queue is unconfirmed at a time, and a
lost answer may leave a second copy after the first. A send without a key goes to the queues in
turn, past brokers that failed a short while ago.

A *named* producer (`id=`) is for pipelines that run again: its caller gives the sequence numbers.

Before anything is sent, the functions `checked_...` refuse impossible names, numbers and settings.

How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

from inorder.client.access import Access
from inorder.client.rules.routes import Duration, to_ms
from inorder.client.send.batches import Batch, one_topic
from inorder.client.send.failures import SendFuture, UnseenFailures
from inorder.client.send.messages import compose, compose_items, words
from inorder.client.send.queues import AfterSend, BeforeSend, Choice, Selector, Send, Waiter
from inorder.client.send.router import SendRouter
from inorder.client.send.rules import WINDOW_MAX, Room
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.errors import AlreadyClosed, ConfigError, InorderError, NoRoom, SendsFailed, UsageError
from inorder.logs import get_logger
from inorder.model import Message, SendReceipt, TopicQueue, key_text
from inorder.tasks import Tasks
from inorder.wire.names import DELAY_LEVELS_MS, UNITS_MS, parse_delay_levels
from inorder.wire.requests.sends import BatchItem

log = get_logger(__name__)

PRODUCER_ID_CHARS_MAX: Final = 128
SEQUENCE_MAX: Final = (1 << 63) - 1


def checked_numbers(
    name: str | None, sequences: Sequence[int] | None, count: int
) -> tuple[int, ...]:
    """Return the caller's sequence numbers: a named producer needs them, others have none."""
    if name is None:
        if sequences is not None:
            raise UsageError("sequence= is for named producers; give the producer an id=")
        return ()
    if sequences is None or len(sequences) != count:
        raise UsageError(
            f"producer {name!r} is named: give every message its sequence= (sequences= of a "
            "batch, one for each)"
        )
    for number in sequences:
        if type(number) is not int or not 0 <= number <= SEQUENCE_MAX:
            raise UsageError(f"{number!r} is no sequence; give an int, 0 or more")
    return tuple(sequences)


def checked_name(name: str | None) -> str | None:
    """Return the name of a producer if it is allowed."""
    if name is not None and not (
        0 < len(name) <= PRODUCER_ID_CHARS_MAX and name.isascii() and name.isprintable()
    ):
        raise UsageError(
            f"{name!r} is no id of a producer; give 1 to {PRODUCER_ID_CHARS_MAX} printable ASCII "
            "characters"
        )
    return name


def check_fixed(choice: Choice | None, key: str | None) -> None:
    """Refuse a message of a named producer that would go to another queue when sent again."""
    if choice is None and key is None:
        raise UsageError(
            "a named producer needs key=, queue= or selector=: sent again, a message must come to "
            "the same queue"
        )


def checked_config(config: ClientConfig) -> ClientConfig:
    """Return the settings if they are valid for a producer."""
    if not 1 <= config.sends_in_flight_max <= WINDOW_MAX:
        raise ConfigError(
            f"sends_in_flight_max is {config.sends_in_flight_max}; it may be 1 to {WINDOW_MAX}"
        )
    return config


def checked_delay(
    delay: Duration | None,
    delay_level: int | None,
    deliver_at: datetime | None,
    levels_ms: Sequence[int] = DELAY_LEVELS_MS,
) -> int:
    """Return the delay level for the caller's arguments, 0 for none."""
    if deliver_at is not None:
        raise UsageError(
            "messages for a time of day are not supported yet (deliver_at=); use delay= or "
            "delay_level=, or send the message when it is due"
        )
    if delay is not None:
        if delay_level is not None:
            raise UsageError("give delay= or delay_level=, not both")
        return _level_of(delay, levels_ms)
    if delay_level is None:
        return 0
    if type(delay_level) is not int or delay_level < 0:
        raise UsageError(
            f"{delay_level!r} is no delay level; give 1 for the broker's shortest delay, 2 for the "
            "next, or 0 for none"
        )
    if delay_level > len(levels_ms):
        raise UsageError(
            f"there is no delay level {delay_level}; the levels are 1 ({_shown(levels_ms[0])}) to "
            f"{len(levels_ms)} ({_shown(levels_ms[-1])}); a broker with others: set delay_levels "
            "of the client to them"
        )
    return delay_level


def _level_of(delay: Duration, levels_ms: Sequence[int]) -> int:
    """Return the level with exactly this delay; the broker has no other delays."""
    if isinstance(delay, bool) or not isinstance(delay, int | float | timedelta):
        raise UsageError(
            f"delay={delay!r} is a {type(delay).__name__}; give seconds, as in 10, or a timedelta"
        )
    delay_ms = to_ms(delay)
    if not delay_ms:
        return 0
    if delay_ms in levels_ms:
        return levels_ms.index(delay_ms) + 1
    shorter = max((one for one in levels_ms if one < delay_ms), default=None)
    longer = min((one for one in levels_ms if one > delay_ms), default=None)
    nearest = " and ".join(
        f"{_shown(one)} (level {levels_ms.index(one) + 1})"
        for one in (shorter, longer)
        if one is not None
    )
    raise UsageError(
        f"no delay level has {_shown(delay_ms)}; nearest: {nearest}; a broker with other levels: "
        "set delay_levels of the client to them"
    )


def _shown(delay_ms: int) -> str:
    for unit, unit_ms in reversed(UNITS_MS.items()):
        if delay_ms >= unit_ms and delay_ms % unit_ms == 0:
            return f"{delay_ms // unit_ms}{unit}"
    return f"{delay_ms / 1000:g}s"


GROUP: Final = "DEFAULT_PRODUCER"


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """Counters of a producer, in messages.

    `lost`: acknowledged, then lost by a broker. `unheard`: failed, and nobody has read the future
    yet. `refused`: not accepted, because too many messages had no outcome.
    """

    sent: int
    failed: int
    retries: int
    waiting: int
    lost: int = 0
    unheard: int = 0
    refused: int = 0


class Producer:
    """Sends messages to the cluster that a name server knows.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876; or a Session.
    `id` names the producer: every send then gives its `sequence`. If several producers have one
    name, only the one that started last may send. `before_send` gets each message and may return
    another one to send instead; `after_send` gets the message with its receipt or its error. Both
    are plain functions and run on the event loop: they must not block.
    """

    def __init__(
        self,
        namesrv: str | Session | None = None,
        *,
        group: str = GROUP,
        id: str | None = None,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        before_send: BeforeSend | None = None,
        after_send: AfterSend | None = None,
    ) -> None:
        self._access = Access(namesrv, config=config, tls=tls)
        self._config = checked_config(self._access.config)
        self._clock = self._access.clock
        self._group = group
        self._name = checked_name(id)
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
        self._room = Room(self._config.sends_waiting_max, self._config.sends_waiting_bytes_max)
        self._unheard = UnseenFailures()

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
        self._router = SendRouter(session, self._group, self._outcome, name=self._name)
        session.add_producer(self._group)
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
        producer takes it. With `delay` (seconds or a timedelta) consumers get the message later.
        The broker has 18 delays, from a second to two hours; `delay_level` names one of them, 1 to
        18. Raises OutcomeUnknown if the message may or may not be stored. After any other error it
        is not stored.
        """
        level = 0
        if delay is not None or delay_level is not None or deliver_at is not None:
            level = checked_delay(delay, delay_level, deliver_at, self._delays_ms)
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        self._begin(
            future, topic, body, key, tag, keys, properties, queue, selector, arg, sequence,
            timeout, False, level,
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
        level = 0
        if delay is not None or delay_level is not None or deliver_at is not None:
            level = checked_delay(delay, delay_level, deliver_at, self._delays_ms)
        named = (topic, None if key is None else str(key))
        future = SendFuture(self._unheard, named, loop=asyncio.get_running_loop())
        self._begin(
            future, topic, body, key, tag, keys, properties, queue, selector, arg, sequence,
            timeout, False, level,
        )  # fmt: skip
        return future

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
            if self._router is not None:
                await self._router.close()
                self._router.session.remove_producer(self._group)
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
            self._room.refused,
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
        delay_level: int = 0,
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
            flag=flag, sequences=numbers, delay_level=delay_level,
        )  # fmt: skip
        limit_ms = self._config.send_timeout_ms if timeout is None else to_ms(timeout)
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        send = Send(topic, key, part, choice, deadline_ms, waiter, messages=messages, oneway=oneway)
        send.size = len(body)
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
            raise AlreadyClosed("this producer was closed; make a new one")

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
