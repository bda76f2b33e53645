"""Sending: one queue per key, one unconfirmed send per queue, in the order of the calls.

The outcome of a send is known before the next message of that queue leaves, so what is stored is in
order, and a retry (same message id, same queue) can only leave a second copy behind the first: at
least once. A send without a key goes to the queues in turn, past brokers that just failed.

A place in the line of its queue is taken when `send` is first awaited, or when `send_nowait` is
called; while the route is not known yet, a place in the line of the topic.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from inorder.client.access import Access
from inorder.client.delivery import Delivery
from inorder.client.durations import Duration, to_ms
from inorder.client.outgoing import compose, compose_batch, words
from inorder.client.sending import AfterSend, BeforeSend, Choice, Selector, Sending
from inorder.client.session import Session
from inorder.client.turns import Turns
from inorder.config import ClientConfig
from inorder.errors import (
    AlreadyClosed,
    BatchIncomplete,
    InorderError,
    TooManyOutstanding,
    UsageError,
)
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.tasks.groups import Tasks

log = logging.getLogger(__name__)

GROUP: Final = "DEFAULT_PRODUCER"


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer did so far, in messages."""

    sent: int
    failed: int
    retries: int
    waiting: int


class Producer:
    """Sends messages to the cluster that a name server knows.

    `namesrv` is `host:9876` or `host:9876;host2:9876`, by default that of NAMESRV_ADDR, or a
    Session. `before_send` gets each message and may return another one to send instead;
    `after_send` gets the message with its receipt or its error. Both are plain functions and run
    on the event loop: they must not block.
    """

    def __init__(
        self,
        namesrv: str | Session | None = None,
        *,
        group: str = GROUP,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        before_send: BeforeSend | None = None,
        after_send: AfterSend | None = None,
    ) -> None:
        self._access = Access(namesrv, config=config, tls=tls)
        self._config = self._access.config
        self._group = group
        self._before_send = before_send
        self._after_send = after_send
        self._delivery: Delivery | None = None
        self._early = Turns()  # messages line up before there is a session
        self._tasks = Tasks(f"producer {group}")
        self._closed = False
        self._idle: asyncio.Event = asyncio.Event()
        self._sent = self._failed = self._waiting = 0
        if isinstance(namesrv, Session):
            self._attach(namesrv)

    async def start(self) -> None:
        """Make ready to send; the first send does it as well. Connects to nobody yet."""
        if self._closed:
            raise AlreadyClosed("this producer was closed; make a new one")
        session = await self._access.open()
        if self._delivery is None:
            self._attach(session)

    def _attach(self, session: Session) -> None:
        self._delivery = Delivery(session, self._group, self._early)
        session.add_producer(self._group)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> SendReceipt:
        """Store a message and return where it is.

        Messages of one key are stored in the order of the calls. `queue`, or the function
        `selector(queues, message, arg)`, chooses the queue instead of the key. Raises
        TransportError when the time is up and the outcome is unknown; a BrokerError when the
        broker refused the message.
        """
        _refuse_delays(delay_level, deliver_at)
        message = _message(topic, body, key=key, tag=tag, keys=keys, properties=properties)
        sending = self._admit(message, Choice(queue, selector, arg), timeout)
        return (await self._finish(sending))[0]

    def send_nowait(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Take a message and return at once; the future has what `send` would return."""
        _refuse_delays(delay_level, deliver_at)
        message = _message(topic, body, key=key, tag=tag, keys=keys, properties=properties)
        sending = self._admit(message, Choice(queue, selector, arg), timeout)
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        task = self._tasks.start(self._fill(future, sending), name=f"send {topic}")
        task.add_done_callback(lambda _: self._release(sending))
        future.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
        return future

    async def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout: Duration | None = None,
    ) -> None:
        """Write a message to its broker's connection and learn nothing of its fate.

        It keeps its place in the line of its queue. It may be lost without a word.
        """
        message = _message(topic, body, key=key, tag=tag, keys=keys, properties=properties)
        sending = self._admit(message, Choice(queue, selector, arg), timeout)
        await self._finish(sending, oneway=True)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout: Duration | None = None,
    ) -> list[SendReceipt]:
        """Store messages of one topic, one request for each queue; return their receipts.

        Messages of one queue are stored in their order; more than `batch_bytes_max` of them go in
        several requests. Those without a key go to one queue together. Raises the error if there
        was one request, BatchIncomplete if some of several failed.
        """
        choice = Choice(queue, selector, arg)
        wanted = self._checked_batch(messages)
        if not wanted:
            return []
        choice.check(wanted[0].topic)
        await self.start()
        assert self._delivery is not None
        deadline_ms = self._deadline_ms(timeout)
        groups = await self._delivery.group(wanted, choice, deadline_ms)
        ids = [self._message_id() for _ in wanted]
        sendings: list[tuple[list[int], Sending]] = []
        try:
            for chosen, turn, indexes in groups:
                members = [wanted[index] for index in indexes]
                parts = compose_batch(members, [ids[i] for i in indexes], self._config)
                sending = Sending(members, parts, choice, deadline_ms, turn, chosen)
                self._waiting += len(members)
                sendings.append((indexes, sending))
            work = (self._finish(sending) for _, sending in sendings)
            done = await asyncio.gather(*work, return_exceptions=True)
        finally:
            for _, sending in sendings:
                self._release(sending)
            for _, turn, _ in groups:
                turn.leave()
        return _batch_receipts(sendings, done)

    async def flush(self) -> None:
        """Wait until every message that was handed over has its outcome."""
        while self._waiting:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Take no more messages, wait for the outcome of those on their way, let go."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            await self._tasks.stop()
            if self._delivery is not None:
                self._delivery.session.remove_producer(self._group)
            await self._access.close()

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot."""
        retries = 0 if self._delivery is None else self._delivery.retries
        return ProducerStatistics(self._sent, self._failed, retries, self._waiting)

    def __repr__(self) -> str:
        return f"Producer({self._group!r}, sent={self._sent}, waiting={self._waiting})"

    # Inside.

    def _admit(self, message: Message, choice: Choice, timeout: Duration | None) -> Sending:
        """Check a message and give it its place; no await, so that the order of calls counts."""
        self._check_open(1)
        message = self._before(message)
        choice.check(message.topic)
        deadline_ms = self._deadline_ms(timeout)
        part = compose(message, self._message_id(), self._config)
        if self._delivery is None:
            turn, queue = self._early.join(message.topic), None
        else:
            turn, queue = self._delivery.place(message, choice)
        self._waiting += 1
        return Sending((message,), (part,), choice, deadline_ms, turn, queue)

    def _checked_batch(self, messages: Sequence[Message]) -> list[Message]:
        self._check_open(len(messages))
        wanted = [self._before(message) for message in messages]
        topics = {message.topic for message in wanted}
        if len(topics) > 1:
            raise UsageError(f"a batch is of one topic, not of {', '.join(sorted(topics))}")
        return wanted

    def _check_open(self, count: int) -> None:
        if self._closed:
            raise AlreadyClosed("this producer was closed; make a new one")
        limit = self._config.sends_waiting_max
        if self._waiting + count > limit:
            raise TooManyOutstanding(
                f"{self._waiting} sends have no outcome yet, the limit is {limit} "
                "(sends_waiting_max); wait for some of them"
            )

    def _before(self, message: Message) -> Message:
        if self._before_send is None:
            return message
        return self._before_send(message) or message

    async def _finish(self, sending: Sending, *, oneway: bool = False) -> list[SendReceipt]:
        error: BaseException | None = None
        try:
            if self._delivery is None:
                await self.start()
            assert self._delivery is not None
            await self._delivery.deliver(sending, oneway=oneway)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._release(sending)
            stored = len(sending.messages) if error is None else len(sending.receipts)
            self._sent += stored
            self._failed += len(sending.messages) - stored
            self._after(sending, error)
        return sending.receipts

    async def _fill(self, future: asyncio.Future[SendReceipt], sending: Sending) -> None:
        try:
            receipts = await self._finish(sending)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:
            # Whoever has the future gets the error.
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(receipts[0])

    def _release(self, sending: Sending) -> None:
        """Count a hand-over as done and free its place; once."""
        if sending.released:
            return
        sending.released = True
        sending.turn.leave()
        self._waiting -= len(sending.messages)
        if not self._waiting:
            self._idle.set()

    def _after(self, sending: Sending, error: BaseException | None) -> None:
        if self._after_send is None:
            return
        for index, message in enumerate(sending.messages):
            receipt = sending.receipts[index] if index < len(sending.receipts) else None
            try:
                self._after_send(message, receipt, None if receipt is not None else error)
            except Exception:
                # The caller's own code; the outcome of the send stands.
                log.exception("after_send failed topic=%s", message.topic)

    def _message_id(self) -> str:
        return self._access.message_ids.next()

    def _deadline_ms(self, timeout: Duration | None) -> int:
        limit_ms = self._config.send_timeout_ms if timeout is None else to_ms(timeout)
        return self._access.clock.monotonic_ms() + limit_ms


def _refuse_delays(delay_level: int | None, deliver_at: datetime | None) -> None:
    if delay_level or deliver_at is not None:
        raise UsageError(
            "delayed messages are not supported yet (delay_level=, deliver_at=); "
            "send the message when it is due"
        )


def _message(
    topic: str,
    body: bytes,
    *,
    key: str | None,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
) -> Message:
    return Message(topic, body, key, tag, words(keys), dict(properties or {}))


def _batch_receipts(
    sendings: Sequence[tuple[list[int], Sending]],
    done: Sequence[list[SendReceipt] | BaseException],
) -> list[SendReceipt]:
    """Put the receipts of all groups in the order of the messages; raise if some are missing."""
    failures = [outcome for outcome in done if isinstance(outcome, BaseException)]
    for failure in failures:
        if not isinstance(failure, InorderError) or len(sendings[0][1].parts) == len(done) == 1:
            raise failure
    outcomes: dict[int, SendReceipt | BaseException] = {}
    for (indexes, sending), outcome in zip(sendings, done, strict=True):
        for place, index in enumerate(indexes):
            stored = place < len(sending.receipts)
            outcomes[index] = sending.receipts[place] if stored else _error(outcome)
    in_order = [outcomes[index] for index in range(len(outcomes))]
    receipts = [outcome for outcome in in_order if isinstance(outcome, SendReceipt)]
    if len(receipts) < len(in_order):
        raise BatchIncomplete(
            f"{len(receipts)} of {len(in_order)} messages are stored; the first failure: "
            f"{failures[0]}; see .outcomes, and send the others again",
            in_order,
        )
    return receipts


def _error(outcome: list[SendReceipt] | BaseException) -> BaseException:
    assert isinstance(outcome, BaseException), "what has no receipt has an error"
    return outcome
