"""The sends of one producer to one broker: the connection, the hello, the answers, the failures.

There is no task per send. `pump` writes the sends that a queue releases, and the connection calls
`answered` from `data_received`. A task runs only while there is no connection: it connects, says
hello as the first request, and lets the queues go on.

The hello introduces a producer id to the broker. Its answer shows whether the broker knows sequence
numbers, and it fences off older connections of the same producer, because every hello has a higher
incarnation. A queue with sends of unknown outcome asks the broker for its last stored sequence
number before it writes. A broker that does not know the hello gets one send per queue at a time,
without sequence numbers.

An answer to a send is one of three: stored (`answered`), refused (`_refused`, with the table
`_REFUSED_BY_CODE`), or neither is known (`_outcome_unknown`).

A request may hold several messages (`load_answered`). If the broker refuses one of them, that one
fails alone and the others go again; if it does not say which one, each goes again by itself. If
their outcome is unknown, nobody is told so: the broker is asked which of them it has, the others go
again, each by itself.

How a producer keeps order and speed: decision 11. Automatic batches: decision 48.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, cast

from inorder.accelerated import native
from inorder.client.api import BrokerApi
from inorder.client.rules.receipts import STATUSES, Verdict, verdict
from inorder.client.send.messages import Outgoing, pack_items_pure
from inorder.client.send.queues import (
    DONE,
    IN_FLIGHT,
    Load,
    Resolution,
    Send,
    SendQueue,
    compiled,
)
from inorder.client.send.rules import TIMES_AGAIN, WINDOW_MAX
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    ConnectFailed,
    ConnectionLost,
    FlushTimeout,
    InorderError,
    MessageIllegal,
    MessagesLost,
    OutcomeUnknown,
    PredecessorFailed,
    ProducerStale,
    ProducerUnknown,
    RequestTimeout,
    SendTimedOut,
    TransportError,
    UsageError,
    broker_error,
)
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.wire.extensions import PROTOCOL, ExtensionAnswer
from inorder.wire.requests.producers import ProducerHello, offsets_of
from inorder.wire.requests.sendframes import SendAnswer, SendFields

if TYPE_CHECKING:
    from inorder.client.send.router import SendRouter
    from inorder.net.connection import Connection

log = get_logger(__name__)

_NO_FIELDS: Final = SendFields()


class Refusal(NamedTuple):
    """An answer that says: this send is not stored."""

    queue: SendQueue
    send: Send
    fields: SendFields
    error: BrokerError


def pack_items(parts: Sequence[Outgoing], item_head: bytes, first: int) -> bytes:
    """Return the body of a request with several messages, numbered from `first` on.

    `item_head` are the properties that number a message, up to the number.
    """
    # hot: 0.2 us a message.
    bodies = [part.body for part in parts]
    raws = [cast("bytes", part.raw) for part in parts]
    flags = [part.flag for part in parts]
    if native is not None:
        packed: bytes | None = native.pack_items(bodies, raws, flags, item_head, first)
        if packed is not None:
            return packed
    return pack_items_pure(bodies, raws, flags, item_head, first)


def extended_ms(send: Send, heard_ms: int, limit_ms: int, away_ms: int = 0) -> int:
    """Return until when a send may get its outcome, if its caller set no limit.

    On its way to a broker that goes on answering it gets the time of a request from its writing on.
    If no caller waits at the call, it gets that on its way to any broker: one that does not answer
    is given up then. And it gets `away_ms` more while its broker is away.
    """
    due_ms = send.deadline_ms
    if send.firm:
        return due_ms
    if send.patient:
        due_ms += away_ms
    if send.state == IN_FLIGHT and (send.patient or heard_ms > send.written_ms):
        due_ms = max(due_ms, send.written_ms + limit_ms)
    return due_ms


class BrokerSender:
    """Sends the requests of a producer to one broker."""

    def __init__(self, router: SendRouter, broker: str) -> None:
        self.router = router
        self.broker = broker
        self.queues: dict[TopicQueue, SendQueue] = {}
        self.connection: Connection | None = None
        self.error: InorderError | None = None  # why there is no connection
        self._connecting = False
        self._memory = -1  # the broker's memory, as its first answer to a hello names it
        self._said_hello = False
        self.batches = False  # the broker tells which message of a request it refuses
        self.pending = 0  # messages without an outcome
        self._away = False  # a connection was lost
        self._back_ms = -(1 << 62)  # when the connection was made
        self._heard_ms = 0  # when it answered last
        self._introduced: dict[str, None] = {}  # ids that said hello on the present connection

    # Writing.

    def pump(self, queue: SendQueue) -> None:
        """Write the sends that the queue releases."""
        # hot: 3 us a send, with its frame.
        connection = self.connection
        if connection is None:
            self.wake()
            return
        if queue.waits_for is not None and not self._may_pass(queue, queue.waits_for):
            return
        if not queue.ready:
            self._prepare(queue)
            return
        if queue.paused:
            return
        waiting = queue.waiting
        while waiting:
            first = waiting[0]
            if first.state != DONE and not first.wanted:
                self._drop_unwanted(queue, first)
                continue
            if connection.full or (queue.gathers() and self._gather(queue)):
                return
            sends = queue.take()
            if not sends:
                return
            if len(sends) == 1:
                self._write(connection, queue, sends[0])
            else:
                self._write_load(connection, queue, sends)

    def _gather(self, queue: SendQueue) -> bool:
        """Let waiting sends wait for others; False if it is time to write them."""
        if queue.requests or queue.held:
            return True  # the answer pumps again
        linger_ms = self.router.linger_ms
        if not linger_ms or queue.ripe:
            return False
        if not queue.lingering:
            queue.lingering = True
            self.router.loop.call_later(linger_ms / 1000, self._ripen, queue)
        return True

    def _ripen(self, queue: SendQueue) -> None:
        queue.lingering = False
        if not self.router.closed:
            queue.ripe = True
            self.pump(queue)
            queue.ripe = False

    def _may_pass(self, queue: SendQueue, first: SendQueue) -> bool:
        """Bring the sends of `first` to their end; then forget `first`."""
        if not first.empty:
            self.pump(first)
        if not first.empty:
            return False
        self.queues = {key: one for key, one in self.queues.items() if one is not first}
        queue.waits_for = first.waits_for
        return queue.waits_for is None or self._may_pass(queue, queue.waits_for)

    def _write(self, connection: Connection, queue: SendQueue, send: Send) -> None:
        router = self.router
        send.sender = self
        unanswered = send.oneway and not queue.idempotent
        request_id = connection.next_id() if unanswered else connection.post(send)
        connection.write_request(queue.frame(request_id, send, oneway=unanswered))
        send.written_ms = router.clock.monotonic_ms()
        if send.tries:
            router.retries += 1
        send.tries += 1
        if send.oneway:
            router.written(send)
            if unanswered:
                queue.confirm(send)

    def _write_load(self, connection: Connection, queue: SendQueue, sends: list[Send]) -> None:
        """Write several sends as one request."""
        # hot: 0.6 us a message, with its record.
        head, first = queue.template.item_head, sends[0].sequence
        body: bytes | None = None if compiled is None else compiled.pack(sends, head, first)
        if body is None:
            body = pack_items([send.part for send in sends], head, first)
        connection.write_request(queue.load_frame(connection.post(Load(self, sends)), sends, body))
        now_ms = self.router.clock.monotonic_ms()
        if compiled is not None:
            self.router.retries += compiled.written(sends, self, now_ms)
            return
        for send in sends:
            send.sender = self
            send.written_ms = now_ms
            if send.tries:
                self.router.retries += 1
            send.tries += 1

    def _drop_unwanted(self, queue: SendQueue, send: Send) -> None:
        series = send.series
        error = None if series is None else series.error
        queue.waiting.popleft()
        queue.abandon(send)
        if isinstance(error, InorderError):
            error = PredecessorFailed(
                f"{send.count} messages to {queue.topic_queue} were not sent, for one before them "
                f"in the batch failed: {error}"
            )
        self.router.failed(send, error or asyncio.CancelledError())

    # Answers.

    def answered(self, send: Send, answer: SendAnswer) -> None:
        """Take the broker's answer to a send."""
        # hot: 2 us with the receipt.
        if send.state != IN_FLIGHT:
            return  # of a connection that was given up
        queue = send.queue
        assert queue is not None
        status = STATUSES.get(answer.code)
        if status is not None:
            queue.confirm(send)
            self.router.stored(send, queue.topic_queue, answer.extFields or _NO_FIELDS, status)
            if queue.backoff.attempts:
                queue.backoff.reset()
                self.router.broker_worked(self.broker)
        else:
            self._refused(queue, send, answer)
        self._after_answer(queue)

    def load_answered(self, sends: list[Send], answer: SendAnswer) -> None:
        """Take the broker's answer to a request with several sends."""
        # hot: 0.5 us a message with its receipt.
        queue = sends[0].queue
        if queue is None or sends[0].state != IN_FLIGHT:
            return  # of a connection that was given up
        status = STATUSES.get(answer.code)
        if status is not None:
            queue.confirm_load(sends)
            self.router.stored_together(
                sends, queue.topic_queue, answer.extFields or _NO_FIELDS, status
            )
            if queue.backoff.attempts:
                queue.backoff.reset()
                self.router.broker_worked(self.broker)
        else:
            queue.end_load()
            self._load_refused(queue, sends, answer)
        self._after_answer(queue)

    def _after_answer(self, queue: SendQueue) -> None:
        self._heard_ms = self.router.clock.monotonic_ms()
        if queue.waited_for_by is not None and queue.empty:
            self.pump(queue.waited_for_by)
        elif queue.held:
            self._go_on(queue)
        elif queue.draining:
            self.router.queue_drained(queue)
            self.pump(queue)
        elif queue.waiting or queue.unknown:
            self.pump(queue)

    def _refused(self, queue: SendQueue, send: Send, answer: SendAnswer) -> None:
        code, fields = answer.code, answer.extFields or _NO_FIELDS
        error = broker_error(code, answer.remark)
        if verdict(code, fields.stored) is Verdict.UNKNOWN:
            self._outcome_unknown(queue, send, error)
        elif send.doomed:
            queue.refuse(send, final=True)
            self.router.failed(send, send.predecessor_failed())
        else:
            actions = self._REFUSED_BY_CODE if queue.idempotent else {}
            act = actions.get(code, BrokerSender._refused_as_usual)
            act(self, Refusal(queue, send, fields, error))

    def _load_refused(self, queue: SendQueue, sends: list[Send], answer: SendAnswer) -> None:
        code, fields = answer.code, answer.extFields or _NO_FIELDS
        error = broker_error(code, answer.remark)
        if verdict(code, fields.stored) is Verdict.UNKNOWN:
            for send in sends:
                send.failure, send.joins = error, False
                queue.outcome_unknown(send)
            queue.ready = False  # the broker's last sequence number tells which are stored
            self.pause(queue)
            return
        act = self._REFUSED_BY_CODE.get(code)
        if act is None and not error.retriable:
            self._refused_for_one(queue, sends, fields.index, error)
            return
        for send in sends:
            if send.state != IN_FLIGHT:
                return  # the first refusal gave the connection up; a new hello tells what is stored
            (act or BrokerSender._refused_as_usual)(self, Refusal(queue, send, fields, error))

    def _refused_for_one(
        self, queue: SendQueue, sends: list[Send], index: int, error: BrokerError
    ) -> None:
        """Fail the message that a request was refused for; the others go again.

        If the broker does not say which one, each goes again by itself.
        """
        named = 0 <= index < len(sends)
        for at, send in enumerate(sends):
            send.joins = named
            queue.refuse(send, final=named and at == index)
        if named:
            self.router.failed(sends[index], error)
        elif isinstance(error, MessageIllegal):  # perhaps they are too large together
            queue.bytes_max = max(sum(one.part.bytes_together for one in sends) // 2, 1)

    def _outcome_unknown(self, queue: SendQueue, send: Send, error: BrokerError) -> None:
        """Take an answer that does not tell whether the message is stored."""
        if queue.idempotent:  # the broker's last sequence number will tell where to go on
            queue.outcome_unknown(send)
            queue.ready = False
            queue.abandon(send)
        else:
            queue.refuse(send, final=True)
        self.router.failed(
            send,
            OutcomeUnknown(
                f"broker {self.broker} answered {error.code}: {error}; the message may or may not "
                "be stored", error.code,
            ),
        )  # fmt: skip

    def _refused_as_usual(self, refusal: Refusal) -> None:
        """Fail the send, or try again here or at another broker."""
        queue, send, _, error = refusal
        if not error.retriable and send.stored:
            self._receipt_is_gone(queue, send)
            return
        if not error.retriable:
            queue.refuse(send, final=True)
            # A refusal of this try says nothing about an earlier one that was not answered.
            unknown = OutcomeUnknown(f"{send.failure or error}") if send.maybe_stored else None
            self.router.failed(send, unknown or error)
            return
        self.router.broker_failed(self.broker)
        if not send.maybe_stored:
            send.failure = error
        other = self.router.elsewhere(send, self.broker) if send.may_move else None
        if other is None:
            queue.refuse(send, final=False)
        else:
            queue.give_away(send)
            self.router.move(send, other)
        self.pause(queue)

    def _receipt_is_gone(self, queue: SendQueue, send: Send) -> None:
        """Confirm a message that is stored and was sent again only for its receipt."""
        queue.confirm(send)
        self.router.stored(send, queue.topic_queue, _NO_FIELDS)

    def _refused_gap(self, refusal: Refusal) -> None:
        """Send again from the gap: the broker has not stored the number before this one."""
        queue, send, fields, _ = refusal
        queue.gap(send, fields.expected - (0 if queue.named else 1))

    def _refused_id(self, refusal: Refusal) -> None:
        """Choose a new id, if the broker has forgotten one under which messages are stored."""
        queue, send = refusal.queue, refusal.send
        if send.stored:
            self._receipt_is_gone(queue, send)
        elif queue.named or queue.confirmed >= 0:
            self._refused_mismatch(refusal)
        else:
            # Nothing of this id is stored: the sends before this one were refused. Under another
            # id the broker would also take a late copy of this send.
            queue.refuse(send, final=False)

    def _refused_mismatch(self, refusal: Refusal) -> None:
        """Choose a new id: the broker has another message under this sequence number."""
        queue, send, _, error = refusal
        if queue.named:
            self._refused_as_usual(refusal)
            return
        log.warning("broker=%s queue=%s says: %s", self.broker, queue.topic_queue, error)
        queue.refuse(send, final=False)
        queue.forgotten = True

    def _refused_stale(self, refusal: Refusal) -> None:
        """Give up a name that another producer has taken over; otherwise say hello again."""
        queue, send, _, error = refusal
        queue.refuse(send, final=self.router.named)
        if self.router.named:
            self.router.fenced = self._fenced(error)
            self.router.failed(send, self.router.fenced)
            self._fail_pending(queue, self.router.fenced)
        elif self.connection is not None:
            self.drop("the broker asks for a new hello")

    def _refused_key_map(self, refusal: Refusal) -> None:
        """Compare key maps: the broker has another one than the one that chose this queue."""
        queue, send, fields, error = refusal
        send.failure = error
        queue.refuse(send, final=False)
        self.router.key_map_refused(queue, fields)

    _REFUSED_BY_CODE: ClassVar[dict[int, Callable[[BrokerSender, Refusal], None]]] = {
        ExtensionAnswer.PRODUCER_GAP: _refused_gap,
        ExtensionAnswer.PRODUCER_UNKNOWN: _refused_id,
        ExtensionAnswer.PRODUCER_MISMATCH: _refused_mismatch,
        ExtensionAnswer.PRODUCER_STALE: _refused_stale,
        ExtensionAnswer.KEY_MAP_CHANGED: _refused_key_map,
    }
    """The reaction to a refused idempotent send; all other codes: `_refused_as_usual`."""

    def _go_on(self, queue: SendQueue) -> None:
        """Go on after a refusal, if all sends are answered."""
        if not queue.settled:
            if queue.needs_state and self.connection is not None:
                self._prepare(queue)
            return
        lost, queue.lost = queue.lost, None
        forgotten, queue.forgotten = queue.forgotten, False
        queue.rewind()
        if lost or forgotten:
            self._begin_again(queue, lost, self.router.new_id())
        self.router.queue_drained(queue)
        self.pump(queue)

    def pause(self, queue: SendQueue) -> None:
        """Write nothing for a while, longer each time."""
        if not queue.paused:
            queue.paused = True
            delay_ms = queue.backoff.next_ms()
            self.router.loop.call_later(delay_ms / 1000, self._resume, queue)

    def _resume(self, queue: SendQueue) -> None:
        queue.paused = False
        if not self.router.closed:
            self.pump(queue)

    # Failures.

    def check_deadlines(self, now_ms: int, limit_ms: int) -> int | None:
        """Fail sends whose time is up; drop a connection that leaves a send unanswered.

        Returns the time of the next check, None if no send is pending.
        """
        dues = self._answers_due(now_ms, limit_ms)
        away = self.connection is None or now_ms < self._back_ms + limit_ms
        away_ms = TIMES_AGAIN * self.router.session.config.send_timeout_ms if away else 0
        for queue in list(self.queues.values()):
            for send in [*queue.sent, *queue.waiting, *queue.moved]:
                if send.state == DONE or send.abandoned:
                    continue
                due_ms = send.deadline_ms
                if due_ms <= now_ms:
                    due_ms = extended_ms(send, self._heard_ms, limit_ms, away_ms)
                if due_ms <= now_ms:
                    self._expire(queue, send)
                else:
                    dues.append(due_ms)
        return min(dues, default=None)

    def _answers_due(self, now_ms: int, limit_ms: int) -> list[int]:
        """Return when answers are due; if one is overdue, drop the connection first.

        Its sends then count as those of a broker that is away.
        """
        queues = self.queues.values()
        oldest = [next((one for one in q.sent if one.state == IN_FLIGHT), None) for q in queues]
        dues = [one.written_ms + limit_ms for one in oldest if one is not None]
        if min(dues, default=now_ms + 1) > now_ms:
            return dues
        self.drop(f"a send was not answered in {limit_ms} ms")
        return [now_ms + 1]

    @property
    def bytes_heard(self) -> int:
        """How many bytes the present connection has brought."""
        return 0 if self.connection is None else self.connection.bytes_received

    def _expire(self, queue: SendQueue, send: Send) -> None:
        """Fail a send whose time is up; a written one keeps its sequence number."""
        surely_not_stored = send.surely_not_stored
        queue.abandon(send)
        error: InorderError
        if send.stored:
            self.router.stored(send, queue.topic_queue, _NO_FIELDS)  # only the receipt is missing
            return
        if not surely_not_stored:
            why = f" ({send.failure})" if send.failure is not None else ""
            error = SendTimedOut(
                f"broker {self.broker} did not answer a send in time{why}; the message may or may "
                "not be stored"
            )
        elif send.failure is not None:
            error = send.failure
        elif self.error is not None and self.connection is None:
            error = self.error
        elif send.tries:
            error = RequestTimeout(
                f"no time was left for {queue.topic_queue}; the message was not sent"
            )
        else:
            error = RequestTimeout(
                f"earlier sends to topic {send.topic} took all the time; this one was not sent"
            )
        self.router.failed(send, error)

    def _fail_pending(self, queue: SendQueue, error: InorderError) -> None:
        """Fail every pending send of a queue."""
        # Back to front: otherwise a named producer's later sends would fail with
        # PredecessorFailed instead of this error.
        for send in reversed([*queue.sent, *queue.waiting, *queue.moved]):
            if send.state != DONE:
                told = error
                if not send.surely_not_stored:
                    told = OutcomeUnknown(
                        f"{error}; the message may or may not be stored",
                        getattr(error, "code", None),
                    )
                queue.abandon(send)
                self.router.failed(send, told)
        queue.moved.clear()

    def _resolved(self, queue: SendQueue, found: Resolution, new_id: str | None = None) -> None:
        """Give callers the outcome that the broker's last sequence number means, and continue."""
        for send, offset in found.stored:
            self.router.stored(send, queue.topic_queue, SendFields(queueOffset=offset))
        for send in found.outcome_unknown:
            self.router.failed(
                send,
                OutcomeUnknown(
                    f"{queue.topic_queue} knows nothing of producer {queue.producer_id} any more; "
                    "this message may or may not be stored"
                ),
            )
        for send in found.doomed:
            self.router.failed(send, send.predecessor_failed())
        if found.lost or found.forgotten:
            self._begin_again(queue, found.lost, new_id or self.router.new_id())
        self.router.queue_drained(queue)

    def _begin_again(self, queue: SendQueue, lost: tuple[int, int] | None, new_id: str) -> None:
        """Report lost messages. Go on under a new id; fail the sends of a named producer."""
        if lost is not None:
            self.router.lost += lost[1] - lost[0] + 1
            log.error(
                "messages lost producer=%s queue=%s numbers=%d..%d: they were acknowledged, and "
                "the broker has lost the end of its log",
                queue.producer_id, queue.topic_queue, *lost,
            )  # fmt: skip
        else:
            log.warning(
                "forgotten producer=%s queue=%s: going on under a new id",
                queue.producer_id, queue.topic_queue,
            )  # fmt: skip
        if self.router.named:
            if lost is not None:
                queue.confirmed = queue.tail = lost[0] - 1
            queue.highest = queue.confirmed
            error = MessagesLost(
                f"{queue.topic_queue} has nothing of producer {queue.producer_id} after "
                f"{queue.confirmed}: messages that were acknowledged are lost; send again from "
                "there"
            )
            self._fail_pending(queue, error)
            return
        for send in queue.restart():
            self.router.stored(send, queue.topic_queue, _NO_FIELDS)
        queue.use_id(new_id)
        queue.ready = False

    # Connections.

    def wake(self) -> None:
        """Connect, unless that is under way."""
        if not self._connecting:
            self._connecting = True
            self.router.start(self._connect(), f"connect {self.broker}")

    def drop(self, reason: str) -> None:
        """Close the connection: it does not answer, or needs a new hello."""
        if self.connection is not None:
            self.connection.close(reason)

    def connection_lost(self, connection: Connection, reason: str) -> None:
        """Keep the sends that were in flight until their outcome is known."""
        if connection is not self.connection:
            return
        self.connection = None
        self._away = True
        self._introduced.clear()
        error = ConnectionLost(
            f"lost the connection to {connection.address}: {reason}; the message may or may not "
            "be stored"
        )
        for queue in self.queues.values():
            if not queue.idempotent:
                for send in list(queue.sent):
                    send.failure = error
                    if send.part.half:  # sent again, it would be a second half
                        queue.abandon(send)
                        self.router.failed(send, OutcomeUnknown(str(error)))
            queue.lose()
            queue.ready = False
        if self.router.closed:
            return
        for queue in [one for one in self.queues.values() if one.draining]:
            self.router.queue_drained(queue)
        self.router.sender_failed(self)
        if self._busy_queue() is not None:
            self.wake()

    def connection_has_room(self, connection: Connection) -> None:
        """Go on writing."""
        if connection is self.connection:
            for queue in self.queues.values():
                self.pump(queue)

    async def _connect(self) -> None:
        """Connect and say hello, again and again while a caller waits."""
        backoff = self.router.backoff()
        try:
            while (topic_queue := self._busy_queue()) is not None:
                try:
                    await self._connect_once(topic_queue)
                    break
                except TransportError as error:
                    self.error = error
                except InorderError as error:
                    self.error = error
                    if not error.retriable:
                        for queue in self.queues.values():
                            self._fail_pending(queue, error)
                        continue
                self.router.sender_failed(self)
                if isinstance(self.error, ConnectFailed):
                    await self.router.session.try_refresh_route(topic_queue.topic)
                await asyncio.sleep(backoff.next_ms() / 1000)
        finally:
            self._connecting = False
        for queue in list(self.queues.values()):
            if not queue.idle:
                self.pump(queue)

    def _busy_queue(self) -> TopicQueue | None:
        return next((key for key, queue in self.queues.items() if not queue.idle), None)

    async def _connect_once(self, topic_queue: TopicQueue) -> None:
        connection = await self.router.session.master_connection(topic_queue)
        idempotent = connection.numbers_sends is not False and await self.hello(connection)
        if not idempotent and self.router.named:
            raise UsageError(
                f"broker {self.broker} knows no numbered sends, which a named producer (id=) "
                "needs; it is no broker of inorder"
            )
        if connection.closed:
            raise ConnectionLost(f"lost the connection to {connection.address} at the hello")
        self.connection = connection
        self.error = None
        if self._away:
            self._back_ms = self.router.clock.monotonic_ms()
        connection.watch(self)
        for queue in self.queues.values():
            queue.connected(idempotent=idempotent, batches=self.batches)

    # The hello.

    async def hello(self, connection: Connection) -> bool:
        """Say hello; False if the broker does not know the request."""
        self.batches = False
        try:
            await self._hello_as(connection, self.router.producer_id)
        except CodeNotSupported:
            connection.numbers_sends = False
            self.router.session.say_once(
                "numbers",
                "broker %s knows no numbered sends: one send per queue at a time, in order, each "
                "stored at least once",
                self.broker,
            )
            return False
        connection.numbers_sends = True
        return True

    async def _hello_as(self, connection: Connection, producer_id: str) -> None:
        """Introduce an id. Raises ProducerStale if another producer has taken over a name."""
        router = self.router
        api = BrokerApi(connection, timeout_ms=router.session.config.request_timeout_ms)
        fresh = not (self._said_hello and router.named)
        while True:
            request = ProducerHello(
                producer_id, router.next_incarnation(), router.named, memory=self._memory,
                protocol=PROTOCOL,
            )  # fmt: skip
            try:
                reply = await api.producer_hello(request)
                break
            except ProducerStale as error:
                if not fresh:
                    raise self._fenced(error) from None
                fresh = not router.named  # a name that starts takes over, once
                router.raise_incarnation(error.highest)
            except ProducerUnknown:
                producer_id = self._replace_id(producer_id)
        self._said_hello = True
        self.batches = reply.batches > 0
        if self._memory < 0:
            self._memory = reply.memory
        self._introduced[producer_id] = None

    def _replace_id(self, producer_id: str) -> str:
        """Return a new id for one that the broker may have forgotten.

        Nobody can tell which messages are stored under the old id.
        """
        new_id = self.router.new_id()
        if producer_id == self.router.producer_id:
            self.router.producer_id = new_id
        self._memory = -1
        for queue in self.queues.values():
            if queue.producer_id != producer_id:
                continue
            if queue.tail < 0:
                queue.use_id(new_id)
            else:
                self._resolved(queue, queue.resolve(-1, known=False, evicted=True), new_id)
        return new_id

    def _fenced(self, error: BrokerError) -> ProducerStale:
        """Return the error of a name that another producer has taken over."""
        return ProducerStale(
            f"another producer with the id {self.router.producer_id!r} has started and this one is "
            f"shut out of broker {self.broker} ({error}); close it",
            code=error.code,
        )

    # The broker's last sequence number.

    def _prepare(self, queue: SendQueue) -> None:
        """Make a queue ready: say hello under its id, ask for the last number, if need be."""
        if not queue.idempotent or (
            queue.producer_id in self._introduced and queue.synced and not queue.unknown
        ):
            queue.ready = True
            self.pump(queue)
        elif not (queue.syncing or queue.in_flight or queue.paused):
            queue.syncing = True
            self.router.start(self._sync(queue), f"numbers of {queue.topic_queue}")

    async def _sync(self, queue: SendQueue) -> None:
        connection = self.connection
        failure: InorderError | None = None
        try:
            if connection is not None:
                await self._ask_state(connection, queue)
        except InorderError as error:
            failure = error
        finally:
            queue.syncing = False
        if failure is not None and connection is self.connection and connection is not None:
            if isinstance(failure, TransportError):
                self.drop(f"it did not tell how far it is: {failure}")
            elif isinstance(failure, FlushTimeout) or failure.retriable:
                self.pause(queue)  # then it is asked again; a new connection would learn no more
            else:
                self._fail_pending(queue, failure)
        if queue.waited_for_by is not None and queue.empty:
            self.pump(queue.waited_for_by)
        elif not queue.idle:
            self.pump(queue)

    async def _ask_state(self, connection: Connection, queue: SendQueue) -> None:
        if queue.producer_id not in self._introduced:
            await self._hello_as(connection, queue.producer_id)
        if connection is self.connection and queue.needs_state:
            api = BrokerApi(connection, timeout_ms=self.router.session.config.request_timeout_ms)
            since = queue.first_unknown if self.batches and not queue.named else -1
            state = await api.producer_state(queue.producer_id, queue.topic_queue, since=since)
            if connection is self.connection and not queue.in_flight:
                offsets = (
                    offsets_of(state.offsets, WINDOW_MAX) if since == queue.first_unknown else ()
                )
                found = queue.resolve(state.last, known=state.known, offsets=offsets)
                self._resolved(queue, found)
