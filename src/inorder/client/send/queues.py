"""The pending sends of a producer to one queue: their order, their sequence numbers, their frames.

    waiting ──next──> sent (in flight) ──confirm──> done
       ^                 │      │
       └────── rewind ───┘      └─ lose ─> unknown ── resolve ──> done, or waiting again

A message gets its sequence number when it is first written. The broker stores the numbers of a
queue without a gap. Behind a refused send it therefore refuses every later one. The queue then
holds: it writes nothing until all sends in flight are answered, and goes on after the last stored
message. Sequence numbers are given anew only at that moment, when no send of the queue is in flight
in the current incarnation.

A lost connection leaves sends whose outcome is unknown. They keep their sequence numbers and hold
the queue. A new connection fences off the old one, and the broker tells which messages are stored.

A broker without sequence numbers gets one send at a time. A send whose answer is lost is sent
again: at least once.

A named producer brings its own sequence numbers, which only grow. Each of its sends names the
number before it.

Messages of single calls may travel together in one request, if the broker tells which one of them
it refuses. Such a request is a form of transport: each message keeps its state, its number, its
deadline and its outcome. `take` says which messages travel together, `gathers` whether those that
wait do so for more to join them: while a request is on its way, until there are enough for another.

`SendQueue` does no I/O: `BrokerSender` asks `take` for the sends to write and reports each outcome.
How a producer keeps order and speed: decision 11. Automatic batches: decision 48.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from inorder.accelerated import native
from inorder.client.send.messages import BATCH_PROPERTIES, PART_SLOTS, Outgoing
from inorder.client.send.rules import REQUEST_MESSAGES_MAX, WINDOW_MAX
from inorder.errors import InorderError, PredecessorFailed, UsageError
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.wire.requests.sendframes import SendAnswer, SendTemplate
from inorder.wire.requests.sends import BatchItem, encode_batch

if TYPE_CHECKING:
    from inorder.client.send.sender import BrokerSender
    from inorder.tasks import Backoff

UNSENT: Final = 0
IN_FLIGHT: Final = 1
UNKNOWN: Final = 2
DONE: Final = 3

Selector = Callable[[Sequence[TopicQueue], Message, Any], TopicQueue]
BeforeSend = Callable[[Message], Message | None]
AfterSend = Callable[[Message, SendReceipt | None, BaseException | None], None]


@dataclass(frozen=True, slots=True)
class HalfReceipt(SendReceipt):
    """Where a half is stored; `offset` is that in the queue of halves."""

    stored_id: str = ""
    """The broker's id of the half, with its position in the log."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How the caller chooses the queue: by name, by a function, by key, or in turn."""

    queue: TopicQueue | None = None
    selector: Selector | None = None
    arg: Any = None

    def check(self, topic: str) -> None:
        """Refuse contradictions."""
        if self.queue is not None and self.selector is not None:
            raise UsageError("give queue= or selector=, not both")
        if self.queue is not None and self.queue.topic != topic:
            raise UsageError(f"{self.queue} is no queue of topic {topic}")

    def fixed(self, queues: Sequence[TopicQueue], message: Message | None) -> TopicQueue | None:
        """Return the queue that the caller chose, or None."""
        if self.queue is not None:
            return self.queue
        if self.selector is None:
            return None
        assert message is not None, "a selector sees the message"
        chosen = self.selector(queues, message, self.arg)
        if chosen not in queues:
            raise UsageError(f"the selector returned {chosen!r}; it must be one of {len(queues)}")
        return chosen


class Waiter(Protocol):
    """The future that gets an outcome: of asyncio, or a similar one of another thread."""

    def done(self) -> bool:
        """Return whether nobody waits any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Take the receipt, or the receipts of a batch."""
        ...

    def set_exception(self, exception: Any, /) -> None:
        """Take the error."""
        ...


class Series:
    """Requests of one batch call to one queue. After a failed request no later one is sent.

    `earlier` holds series of the same call that had the same keys under an older key map. `divide`
    replaces one request by several when a newer key map puts its messages into different queues;
    its second argument lists the positions of the messages of each new request.
    """

    __slots__ = ("_error", "divide", "earlier")

    def __init__(
        self,
        divide: Callable[[Send, Sequence[Sequence[int]]], list[Send]],
        earlier: Sequence[Series] = (),
    ) -> None:
        self.divide = divide
        self.earlier = earlier
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """The error that stops this series, None while no request has failed."""
        if self._error is None and self.earlier:
            errors = (one.error for one in self.earlier)
            self._error = next((error for error in errors if error is not None), None)
        return self._error

    def fail(self, error: BaseException) -> None:
        """Stop the series; the first error counts."""
        if self._error is None:
            self._error = error


SEND_SLOTS: Final = (
    # Those that the compiled module knows by their place.
    "topic", "key", "part", "choice", "deadline_ms", "waiter", "queue", "sender", "by_key",
    "placed", "size", "joins", "patient", "state", "sequence", "last", "together", "tries",
    "written_ms", "over",
    # The others.
    "abandoned", "answered_early", "count", "doomed", "failure", "firm", "maybe_stored", "messages",
    "oneway", "previous", "series", "stored",
)  # fmt: skip


class Send:
    """A message, or one request of `send_batch` with consecutive numbers."""

    __slots__ = SEND_SLOTS

    def __init__(  # noqa: PLR0917 - by place, for it is made for every message
        self,
        topic: str,
        key: str | None,
        part: Outgoing,
        choice: Choice | None,
        deadline_ms: int,
        waiter: Waiter,
        *,
        messages: Sequence[Message] | None = None,
        series: Series | None = None,
        oneway: bool = False,
    ) -> None:
        # hot: made for every message; the compiled module copies a pattern.
        self.topic = topic
        self.key = key
        self.part = part
        self.choice = choice  # None: by the key, or in turn
        self.deadline_ms = deadline_ms
        self.waiter = waiter
        self.messages = messages  # for hooks and selectors; None if there are none
        self.series = series
        self.oneway = oneway
        self.count = len(part.ids)
        self.queue: SendQueue | None = None
        self.sender: BrokerSender | None = None  # wrote the request, and takes the answer
        self.by_key = False  # the key chose the queue
        self.placed = b""  # header fields that say how it was chosen: `SendTemplate.frame`
        self.size = 0  # bytes of the bodies, as the producer counts them
        self.joins = False  # it may travel in one request with others
        self.patient = False  # its caller does not wait at the call: others may join it
        self.firm = False  # the caller gave a time limit for this send, so it is not extended
        self.state = UNSENT
        self.sequence = self.last = -1  # of the first message, and of the last one
        self.previous = -1  # named: the number that is stored or written before this one
        self.stored = False  # the broker has it; it is sent again for its receipt
        self.abandoned = False  # nobody waits for the outcome any more
        self.doomed = False  # named: a predecessor was given up; not written again
        self.maybe_stored = False  # an earlier try without sequence numbers was not answered
        self.together = False  # it is in flight in one request with others
        self.tries = self.written_ms = 0
        self.failure: InorderError | None = None  # of the last try
        self.over = False  # the caller knows the outcome
        self.answered_early = False  # one-way and written: the caller waits no more
        if part.sequences:
            self.sequence, self.last = part.sequences[0], part.sequences[-1]

    @property
    def may_move(self) -> bool:
        """Return whether another queue will do as well; asked of waiting sends.

        Such a send is not stored. Or its outcome is unknown at a broker without sequence numbers,
        where a second copy is allowed.
        """
        free = self.key is None and self.choice is None and self.series is None
        return free and not self.stored

    @property
    def wanted(self) -> bool:
        """Return whether to send it: no caller cancelled it, and no request before it failed."""
        if self.series is not None and self.series.error is not None:
            return False
        return self.answered_early or not self.waiter.done()

    @property
    def surely_not_stored(self) -> bool:
        """Return whether no try of this send can be stored."""
        return self.state == UNSENT and not self.maybe_stored

    def predecessor_failed(self) -> PredecessorFailed:
        """Return the error for a named producer's send after one that failed."""
        assert self.queue is not None
        return PredecessorFailed(
            f"sequence {self.sequence} of {self.queue.topic_queue} was not stored, for one before "
            "it failed; send again from the first one that failed"
        )

    def answered(self, answer: SendAnswer) -> None:
        """Take the broker's answer. The connection calls this."""
        assert self.sender is not None
        self.sender.answered(self, answer)

    def __repr__(self) -> str:
        state = ("unsent", "in flight", "unknown", "done")[self.state]
        return f"Send({self.sequence}..{self.last}, {state})"


compiled: Final = (
    None
    if native is None
    else native.Sending(
        (Send, SEND_SLOTS), (Outgoing, PART_SLOTS),
        (SendReceipt, ("message_id", "queue", "offset", "status", "handle")),
    )
)  # fmt: skip
"""Handles many sends at a time; a producer's methods do the same one by one without it."""


class Load:
    """Messages that travel in one request."""

    __slots__ = ("sender", "sends")

    def __init__(self, sender: BrokerSender, sends: list[Send]) -> None:
        self.sender = sender
        self.sends = sends

    def answered(self, answer: SendAnswer) -> None:
        """Take the broker's answer. The connection calls this."""
        self.sender.load_answered(self.sends, answer)


@dataclass(slots=True)
class Resolution:
    """The outcomes of a queue's sends, from the broker's last sequence number."""

    lost: tuple[int, int] | None = None
    """Sequence numbers that were acknowledged and are not stored."""
    forgotten: bool = False
    """The broker knows nothing of a producer that it once acknowledged."""
    outcome_unknown: list[Send] = field(default_factory=list)
    """A caller waits, and nobody can tell whether the message is stored."""
    doomed: list[Send] = field(default_factory=list)
    """A caller waits, and the message is not stored, because a predecessor is not."""
    stored: list[tuple[Send, int]] = field(default_factory=list)
    """The broker has told where the message is stored: its offset."""


class SendQueue:
    """The pending sends to one queue, in the order of the calls, many of them in flight."""

    __slots__ = (
        "backoff", "batching", "bytes_max", "confirmed", "draining", "forgotten", "held", "highest",
        "highest_failed", "idempotent", "in_flight", "lingering", "lost", "messages", "moved",
        "named", "paused", "producer_id", "ready", "requests", "ripe", "sender", "sent", "synced",
        "syncing", "tail", "template", "topic_queue", "unknown", "waited_for_by", "waiting",
        "waits_for", "window",
    )  # fmt: skip

    def __init__(
        self, sender: BrokerSender, topic_queue: TopicQueue, template: SendTemplate,
        producer_id: str, *, window: int, named: bool, backoff: Backoff, bytes_max: int = 1 << 20,
    ) -> None:  # fmt: skip
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"a window has 1 to {WINDOW_MAX} sends, not {window}")
        self.sender = sender
        self.topic_queue = topic_queue
        self.template = template
        self.backoff = backoff
        self.window = window
        self.named = named
        # The sends.
        self.waiting: deque[Send] = deque()  # unsent, in the order of the calls
        self.sent: deque[Send] = deque()  # written and not settled, in the order of their numbers
        self.moved: deque[Send] = deque()  # of keys that left this queue, until it is drained
        self.in_flight = 0
        self.requests = 0  # that they are in
        self.messages = 0  # that they have
        self.unknown = 0
        # Requests of several sends.
        self.batching = False  # the broker takes them and tells which message it refuses
        self.bytes_max = bytes_max  # of one request
        self.lingering = False  # a timer runs until the waiting sends are ripe
        self.ripe = False  # they have waited for others long enough
        # Sequence numbers.
        self.idempotent = True  # False: the broker knows no sequence numbers
        self.tail = -1  # the last number written
        self.confirmed = -1  # the last number known to be stored
        self.highest = -1  # named: the highest number that a caller gave
        self.highest_failed = False  # the caller was told that it failed: it may come again
        self.lost: tuple[int, int] | None = None
        self.forgotten = False  # the broker forgot the id; a new one when all is answered
        self.synced = not named  # False: the broker must tell its last number before a write
        # Reasons to write nothing.
        self.held = False  # a send was refused: nothing is written until all are answered
        self.ready = False  # hello is said under this id, and the broker's last number is known
        self.syncing = False
        self.paused = False  # after a refusal that may pass
        self.draining = False  # keys have left this queue: see SendRouter.queue_drained
        self.waits_for: SendQueue | None = None  # to be settled first: SendRouter.take_over
        self.waited_for_by: SendQueue | None = None
        self.use_id(producer_id)

    def use_id(self, producer_id: str) -> None:
        """Number messages as this producer."""
        self.producer_id = producer_id
        self.template.set_producer(producer_id, named=self.named)

    # Writing.

    def add(self, send: Send) -> None:
        """Append a send to the waiting ones."""
        self.waiting.append(send)

    def next(self) -> Send | None:
        """Take the send to write now, with its number; None if there is none or it must wait."""
        # hot: 0.5 us.
        waiting = self.waiting
        while waiting and waiting[0].state == DONE:
            waiting.popleft()
        if not waiting or self.held or self.unknown or not self.synced:
            return None
        if self.in_flight:
            if not self.idempotent or self.requests >= self.window:
                return None
            if self.messages + waiting[0].count > WINDOW_MAX:
                return None
        send = waiting.popleft()
        if self.idempotent:
            self._number(send)
        send.state = IN_FLIGHT
        self.in_flight += 1
        self.requests += 1
        self.messages += send.count
        self.sent.append(send)
        return send

    def gathers(self) -> bool:
        """Return whether the waiting sends wait for others to join them.

        They do while a request is on its way, until there are enough for another one, or until a
        caller waits for one of them.
        """
        # hot: 0.3 us.
        waiting = self.waiting
        if not (self.batching and waiting):
            return False
        first, count = waiting[0], len(waiting)
        return (
            first.joins
            and waiting[-1].patient
            and count < REQUEST_MESSAGES_MAX
            and count * first.part.bytes_together < self.bytes_max
        )

    def take(self) -> list[Send]:
        """Take the sends to write now in one request, with their numbers; none if they must wait.

        They have one key map version or none, or their callers chose the queue; and one sysFlag.
        """
        # hot: 0.3 us a message.
        first = self.next()
        if first is None:
            return []
        taken = [first]
        if not (first.joins and self.batching and self.waiting):
            return taken
        waiting, sent, sys_flag = self.waiting, self.sent, first.part.sys_flag
        most = min(REQUEST_MESSAGES_MAX, WINDOW_MAX - self.messages + 1)
        left = self.bytes_max - first.part.bytes_together
        placed, tail = first.placed, self.tail
        while waiting and len(taken) < most:
            if compiled is not None and taken[-1].placed == placed:
                left = compiled.take_alike(waiting, taken, most, left, tail)
                tail = taken[-1].last
                if not waiting or len(taken) >= most:
                    break
            send = waiting[0]
            if send.state == DONE:
                waiting.popleft()
                continue
            part = send.part
            left -= part.bytes_together
            if not send.joins or part.sys_flag != sys_flag or left < 0 or send.waiter.done():
                break
            if send.placed != placed:
                if placed and send.placed:
                    break
                placed = placed or send.placed
            waiting.popleft()
            tail += 1
            send.sequence = send.last = tail
            send.state = IN_FLIGHT
            taken.append(send)
        more = len(taken) - 1
        if more:
            self.tail = tail
            self.in_flight += more
            self.messages += more
            sent.extend(taken[1:])
            plain = 0 if compiled is None else compiled.together(taken)
            for send in taken[plain:]:
                send.together = True
        return taken

    def _number(self, send: Send) -> None:
        if not send.stored and not self.named:
            send.sequence = self.tail + 1
            send.last = self.tail + send.count
        elif self.named:
            send.previous = self.tail if send.sequence > self.tail else -1
        self.tail = max(self.tail, send.last)

    def load_frame(self, request_id: int, sends: list[Send], body: bytes) -> bytes:
        """Return the frame of several sends that `take` returned, given its body."""
        first = sends[0].part
        placed = next((send.placed for send in sends if send.placed), b"")
        return self.template.frame(
            request_id, BATCH_PROPERTIES, body, sys_flag=first.sys_flag,
            born_at_ms=first.born_at_ms, batch=True, placed=placed,
        )  # fmt: skip

    def frame(self, request_id: int, send: Send, *, oneway: bool) -> bytes:
        """Return the frame of a send that `next` returned."""
        part = send.part
        body, items = part.body, part.items
        numbers: tuple[int, ...] = ()
        if items is not None:
            body = encode_batch(self._numbered(send, items) if self.idempotent else items)
        elif self.idempotent:
            numbers = (send.sequence, send.previous) if self.named else (send.sequence,)
        return self.template.frame(
            request_id,
            part.properties,
            body,
            numbers=numbers,
            sys_flag=part.sys_flag,
            flag=part.flag,
            born_at_ms=part.born_at_ms,
            batch=items is not None,
            oneway=oneway,
            placed=send.placed,
        )

    def _numbered(self, send: Send, items: Sequence[BatchItem]) -> list[BatchItem]:
        """Return the items of a batch with the properties that number them."""
        mark = self.template.item_mark
        if not self.named:
            return [
                BatchItem(item.flag, item.body, item.properties + mark % number)
                for number, item in enumerate(items, send.sequence)
            ]
        sequences = send.part.sequences
        before = (send.previous, *sequences[:-1])
        return [
            BatchItem(item.flag, item.body, item.properties + mark % (number, previous))
            for number, previous, item in zip(sequences, before, items, strict=True)
        ]

    # Answers in the current incarnation.

    def confirm(self, send: Send) -> None:
        """Note that a send is stored."""
        # hot: 0.3 us.
        self._answered(send, DONE)
        self.confirmed = max(self.confirmed, send.last)
        self._trim()

    def confirm_load(self, sends: list[Send]) -> None:
        """Note that the sends of one request are stored."""
        # hot: 0.1 us a message.
        plain = 0 if compiled is None else compiled.confirm(sends)
        for send in sends[plain:]:
            send.state = DONE
            send.together = False
        self.in_flight -= len(sends)
        self.messages -= len(sends)
        self.requests -= 1
        self.confirmed = max(self.confirmed, sends[-1].last)
        self._trim()

    def _answered(self, send: Send, state: int) -> None:
        """Take a send out of flight; the request of several ends with `end_load`."""
        assert send.state == IN_FLIGHT
        send.state = state
        self.in_flight -= 1
        self.messages -= send.count
        if send.together:
            send.together = False
        else:
            self.requests -= 1

    def end_load(self) -> None:
        """Note that a request of several sends is answered by a refusal, or with no outcome."""
        self.requests -= 1

    def refuse(self, send: Send, *, final: bool) -> None:
        """Note that a send is not stored: it goes (`final`), or stays to be sent again."""
        self._answered(send, DONE if final or send.abandoned else UNSENT)
        self.held = True
        self._trim()

    def give_away(self, send: Send) -> None:
        """Note that a send is not stored and goes to another queue, with its state there."""
        self.sent.remove(send)
        self._answered(send, DONE)
        self.held = True
        self._trim()

    def gap(self, send: Send, last: int) -> None:
        """Note a refusal because the broker has stored up to `last` only."""
        if last < self.confirmed:
            self.lost = (last + 1, self.confirmed)
        self.refuse(send, final=False)

    def outcome_unknown(self, send: Send) -> None:
        """Note an answer that does not tell whether the send is stored."""
        self._answered(send, UNKNOWN)
        self.unknown += 1

    def _trim(self) -> None:
        sent = self.sent
        if compiled is not None:
            compiled.trim(sent)
        while sent and sent[0].state == DONE:
            sent.popleft()

    # Callers that give up.

    def abandon(self, send: Send) -> bool:
        """Note that nobody waits for a send any more; True if the send leaves the queue.

        A send in flight, or with an unknown outcome, keeps its number until its outcome is known.
        """
        if send.state in (IN_FLIGHT, UNKNOWN):
            send.abandoned = True
            return False
        send.state = DONE
        self._trim()
        return True

    def doom(self, send: Send) -> list[Send]:
        """Let nothing be stored after a send that failed. The producer is named.

        The caller may send the failed number again, in another run. If a later number were stored
        by then, the broker would take the repeated send for a duplicate. Returns the later sends
        that are not written: they leave the queue. Later sends in flight name the failed one as
        their predecessor, so the broker refuses them; they are not written again.
        """
        out = []
        for other in (*self.sent, *self.waiting):
            if other.state == DONE or other.stored or other.sequence <= send.sequence:
                continue
            if other.state == UNSENT:
                other.state = DONE
                out.append(other)
            else:
                other.doomed = True
        self._trim()
        return out

    def forget(self) -> None:
        """Drop all sends: the producer has ended. The collector does not visit a `Send`."""
        for sends in (self.waiting, self.sent, self.moved):
            sends.clear()

    def withdraw(self, which: Callable[[Send], bool]) -> list[Send]:
        """Remove and return the waiting sends for which `which` is true."""
        taken = [one for one in self.waiting if one.state != DONE and which(one)]
        if taken:
            gone = set(map(id, taken))
            left = [one for one in self.waiting if id(one) not in gone]
            self.waiting.clear()
            self.waiting.extend(left)
        return taken

    # Numbers that a caller gives.

    def check_sequence(self, send: Send) -> None:
        """Refuse a number that is below a later one of this queue."""
        number = send.sequence
        if number < self.highest or (number == self.highest and not self.highest_failed):
            raise UsageError(
                f"sequence {number} of {self.topic_queue} comes after {self.highest}; sequences of "
                "a queue only grow"
            )
        self.highest, self.highest_failed = send.last, False

    def may_come_again(self, send: Send) -> None:
        """Let a caller that was told of a failure go on from there."""
        if send.sequence <= self.highest:
            self.highest, self.highest_failed = send.sequence, True

    # Pausing and resuming.

    @property
    def settled(self) -> bool:
        """Return whether a queue that held may go on: all is answered, nothing is unknown."""
        return self.held and not self.in_flight and not self.unknown

    @property
    def needs_state(self) -> bool:
        """Return whether the broker must tell its last number first."""
        return self.idempotent and not self.in_flight and (self.unknown > 0 or not self.synced)

    @property
    def empty(self) -> bool:
        """Return whether every send has its outcome."""
        return all(one.state == DONE for one in (*self.sent, *self.waiting, *self.moved))

    @property
    def idle(self) -> bool:
        """Return whether no caller waits for an outcome."""
        return all(one.state == DONE for one in (*self.waiting, *self.moved)) and all(
            one.abandoned or one.state == DONE for one in self.sent
        )

    @property
    def drained(self) -> bool:
        """Return whether no send is in flight and no outcome unknown."""
        return not self.in_flight and not self.unknown

    def rewind(self) -> None:
        """Put refused sends before the waiting ones, in order; go on after the last stored."""
        assert not self.in_flight
        assert not self.unknown
        back = [one for one in self.sent if one.state == UNSENT]
        self.sent.clear()
        self.waiting.extendleft(reversed(back))
        self.tail = self.confirmed
        self.held = False

    def restart(self) -> list[Send]:
        """Begin again with the first number, under a new producer id; after `rewind`.

        Returns sends that are stored, and whose receipts went with the old id.
        """
        assert not self.sent
        self.tail = self.confirmed = -1
        self.lost = None
        stored = [one for one in self.waiting if one.stored]
        for one in stored:
            one.state = DONE
        return stored

    # Connections.

    def lose(self) -> None:
        """Note that the connection is gone: the outcome of every send in flight is unknown."""
        for one in self.sent:
            if one.state == IN_FLIGHT:
                one.state = UNKNOWN
                one.together = False
                self.unknown += 1
        self.in_flight = self.messages = self.requests = 0
        if not self.idempotent:
            self._send_again()
        elif self.settled:
            self.rewind()

    def connected(self, *, idempotent: bool, batches: bool = False) -> None:
        """Note a new connection, whether its broker knows sequence numbers, and what else.

        `batches`: it tells which message of a request it refuses.
        """
        assert not self.in_flight
        self.idempotent = idempotent
        self.batching = idempotent and batches and not self.named
        if not idempotent:
            self._send_again()

    def _send_again(self) -> None:
        for one in self.sent:
            if one.state == UNKNOWN:
                one.state = DONE if one.abandoned else UNSENT
                one.maybe_stored = True
        self.unknown = 0
        self.rewind()

    @property
    def first_unknown(self) -> int:
        """The first sequence number with an unknown outcome, -1 if there is none."""
        found = (one.sequence for one in self.sent if one.state == UNKNOWN)
        return next(found, -1)

    def resolve(
        self, last: int, *, known: bool, evicted: bool = False, offsets: Sequence[int] = ()
    ) -> Resolution:
        """Take the broker's word: it has stored up to `last` (-1: nothing), or knows nothing.

        No send of this queue is in flight then, and older connections are fenced off. A broker
        that knows nothing has stored nothing, unless it has forgotten producers (`evicted`).
        `offsets` says where messages lie, from `first_unknown` on. Such a message is not sent
        again.
        """
        assert not self.in_flight
        since = self.first_unknown
        found = Resolution()
        found.forgotten = evicted or (not known and self.confirmed >= 0)
        if last < self.confirmed and not found.forgotten:
            found.lost = (last + 1, self.confirmed)
        for one in self.sent:
            if one.state == DONE:
                continue
            was_unknown, one.state = one.state == UNKNOWN, UNSENT
            stored = was_unknown and one.sequence <= last
            if one.abandoned:
                one.state = DONE
            elif was_unknown and (found.forgotten or (stored and found.lost)):
                one.state = DONE
                found.outcome_unknown.append(one)
            elif one.doomed and not stored:
                one.state = DONE
                found.doomed.append(one)
            elif stored and _place(one, since, offsets) >= 0:
                one.state = DONE
                found.stored.append((one, _place(one, since, offsets)))
            else:
                one.stored = stored
                one.joins = one.joins and not stored
        self.unknown = 0
        self.synced = True
        self.confirmed = last
        self.rewind()
        return found

    def __repr__(self) -> str:
        return (
            f"SendQueue({self.topic_queue}, waiting={len(self.waiting)}, "
            f"in_flight={self.in_flight}, unknown={self.unknown}, tail={self.tail}, "
            f"confirmed={self.confirmed})"
        )


def _place(send: Send, since: int, offsets: Sequence[int]) -> int:
    """Return where a message lies, given the places of the numbers from `since` on; -1: unknown."""
    at = send.sequence - since
    plain = send.part.items is None and not send.part.alone
    return offsets[at] if plain and 0 <= at < len(offsets) else -1
