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

`SendQueue` does no I/O: `BrokerSender` asks `next` for the send to write and reports each outcome.
How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from inorder.client.send.messages import Outgoing
from inorder.client.send.rules import WINDOW_MAX
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


class Send:
    """One request of a producer: a message, or messages of a batch with consecutive numbers."""

    __slots__ = (
        "abandoned", "answered_early", "by_key", "choice", "count", "deadline_ms", "doomed",
        "failure", "key", "last", "maybe_stored", "messages", "oneway", "over", "part", "placed",
        "previous", "queue", "sender", "sequence", "series", "size", "state", "stored", "topic",
        "tries", "waiter", "written_ms",
    )  # fmt: skip

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
        # hot: made for every message.
        sequences = part.sequences
        self.topic = topic
        self.key = key
        self.part = part
        self.choice = choice  # None: by the key, or in turn
        self.deadline_ms = deadline_ms
        self.waiter = waiter
        self.messages = messages  # for hooks and selectors; None if there are none
        self.series = series
        self.oneway = oneway
        self.size = 0  # bytes of the bodies, as the producer counts them
        # The place.
        self.queue: SendQueue | None = None
        self.sender: BrokerSender | None = None  # wrote the request, and takes the answer
        self.by_key = False  # the key chose the queue
        self.placed = b""  # header fields that say how the queue was chosen: SendTemplate.frame
        # The state.
        self.state = UNSENT
        self.count = len(part.ids)
        self.sequence = sequences[0] if sequences else -1  # of the first message
        self.last = sequences[-1] if sequences else -1  # of the last message
        self.previous = -1  # named: the sequence number that is stored or written before this one
        self.stored = False  # the broker has the message; it is sent again for its receipt
        self.abandoned = False  # nobody waits for the outcome any more
        self.doomed = False  # named: a predecessor was given up; this send is not written again
        self.maybe_stored = False  # an earlier try without sequence numbers was not answered
        self.tries = 0
        self.written_ms = 0
        self.failure: InorderError | None = None  # of the last try
        self.over = False  # the caller knows the outcome
        self.answered_early = False  # one-way and written: the caller waits no more

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


class SendQueue:
    """The pending sends to one queue, in the order of the calls, many of them in flight."""

    __slots__ = (
        "backoff", "confirmed", "draining", "forgotten", "held", "highest", "highest_failed",
        "idempotent", "in_flight", "lost", "messages", "moved", "named", "paused", "producer_id",
        "ready", "sender", "sent", "synced", "syncing", "tail", "template", "topic_queue",
        "unknown", "waited_for_by", "waiting", "waits_for", "window",
    )  # fmt: skip

    def __init__(
        self, sender: BrokerSender, topic_queue: TopicQueue, template: SendTemplate,
        producer_id: str, *, window: int, named: bool, backoff: Backoff,
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
        self.messages = 0  # of the requests in flight
        self.unknown = 0
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
            if not self.idempotent or self.in_flight >= self.window:
                return None
            if self.messages + waiting[0].count > WINDOW_MAX:
                return None
        send = waiting.popleft()
        if self.idempotent:
            self._number(send)
        send.state = IN_FLIGHT
        self.in_flight += 1
        self.messages += send.count
        self.sent.append(send)
        return send

    def _number(self, send: Send) -> None:
        if not send.stored and not self.named:
            send.sequence = self.tail + 1
            send.last = self.tail + send.count
        elif self.named:
            send.previous = self.tail if send.sequence > self.tail else -1
        self.tail = max(self.tail, send.last)

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
        assert send.state == IN_FLIGHT
        send.state = DONE
        self.in_flight -= 1
        self.messages -= send.count
        self.confirmed = max(self.confirmed, send.last)
        self._trim()

    def refuse(self, send: Send, *, final: bool) -> None:
        """Note that a send is not stored: it goes (`final`), or stays to be sent again."""
        assert send.state == IN_FLIGHT
        send.state = DONE if final or send.abandoned else UNSENT
        self.in_flight -= 1
        self.messages -= send.count
        self.held = True
        self._trim()

    def gap(self, send: Send, last: int) -> None:
        """Note a refusal because the broker has stored up to `last` only."""
        if last < self.confirmed:
            self.lost = (last + 1, self.confirmed)
        self.refuse(send, final=False)

    def outcome_unknown(self, send: Send) -> None:
        """Note an answer that does not tell whether the send is stored."""
        assert send.state == IN_FLIGHT
        send.state = UNKNOWN
        self.in_flight -= 1
        self.messages -= send.count
        self.unknown += 1

    def _trim(self) -> None:
        sent = self.sent
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
                self.unknown += 1
        self.in_flight = self.messages = 0
        if not self.idempotent:
            self._send_again()
        elif self.settled:
            self.rewind()

    def connected(self, *, idempotent: bool) -> None:
        """Note a new connection, and whether its broker knows sequence numbers."""
        assert not self.in_flight
        self.idempotent = idempotent
        if not idempotent:
            self._send_again()

    def _send_again(self) -> None:
        for one in self.sent:
            if one.state == UNKNOWN:
                one.state = DONE if one.abandoned else UNSENT
                one.maybe_stored = True
        self.unknown = 0
        self.rewind()

    def resolve(self, last: int, *, known: bool, evicted: bool = False) -> Resolution:
        """Take the broker's word: it has stored up to `last` (-1: nothing), or knows nothing.

        No send of this queue is in flight then, and older connections are fenced off. A broker
        that knows nothing has stored nothing, unless it has forgotten producers (`evicted`).
        """
        assert not self.in_flight
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
            else:
                one.stored = stored
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
