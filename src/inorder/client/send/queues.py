"""The lane of a queue with what the shell keeps beside it: a producer's id, frames, pauses.

One request of a producer on its way: what, where to, until when, and who waits for it.

Beside the lanes: a thread may send a message by itself, over a connection of its own.

That is for a lone blocking send, for which two switches of threads cost more than everything
else. It is allowed only while the lane of the queue is empty, and it is numbered under an id of its
own. If its outcome is not known, the message comes into a lane of that id here, and the queue's own
lane waits behind it: the hello on the link's connection shuts the other connection out, the broker
tells what it has, and the message is brought to its end like any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from inorder.client.send.messages import Outgoing
from inorder.client.send.rules import DONE, UNKNOWN, Entry, Lane
from inorder.errors import InorderError, UsageError
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.ordering.keymap import queue_for_key
from inorder.tasks import Backoff
from inorder.wire.requests.sendframes import SendAnswer, SendTemplate
from inorder.wire.requests.sends import BatchItem, encode_batch

if TYPE_CHECKING:
    from inorder.client.send.router import Delivery
    from inorder.client.send.sender import BrokerSender


Selector = Callable[[Sequence[TopicQueue], Message, Any], TopicQueue]
BeforeSend = Callable[[Message], Message | None]
AfterSend = Callable[[Message, SendReceipt | None, BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """How the caller wants the queue chosen: this one, by a function, by key, or in turn."""

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
    """Who waits for an outcome: an asyncio future, or something like it of another thread."""

    def done(self) -> bool:
        """Tell whether nobody waits any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Take the receipt, or the receipts of a batch."""
        ...

    def set_exception(self, exception: Any, /) -> None:
        """Take the error."""
        ...


class Series:
    """Requests of one call that follow one another: behind one that failed nothing is sent.

    `behind` are series of the same call that its keys may have been in before, by an older key
    map. `divide` makes several requests of one, when a newer key map puts its messages into
    different queues: given the places of the messages of each.
    """

    __slots__ = ("_error", "behind", "divide")

    def __init__(
        self,
        divide: Callable[[Sending, Sequence[Sequence[int]]], list[Sending]],
        behind: Sequence[Series] = (),
    ) -> None:
        self.divide = divide
        self.behind = behind
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """Return why nothing more of it is sent, None while all is well."""
        if self._error is None and self.behind:
            errors = (one.error for one in self.behind)
            self._error = next((error for error in errors if error is not None), None)
        return self._error

    def fail(self, error: BaseException) -> None:
        """Send nothing more of it."""
        if self._error is None:
            self._error = error


class Sending(Entry):
    """A request of a lane: its content, and who waits for it."""

    __slots__ = (
        "answered_early",
        "by_key",
        "choice",
        "deadline_ms",
        "failure",
        "key",
        "lane",
        "messages",
        "oneway",
        "over",
        "part",
        "placed",
        "series",
        "size",
        "topic",
        "tries",
        "waiter",
        "written_ms",
    )

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
        sequences = part.sequences
        if sequences:
            super().__init__(part.count, sequences[0], sequences[-1])
        else:
            super().__init__(part.count)
        self.topic = topic
        self.key = key
        self.part = part
        self.choice = choice  # None: by the key, or in turn
        self.deadline_ms = deadline_ms
        self.waiter = waiter
        self.messages = messages  # for hooks and selectors; None if there are none
        self.series = series
        self.oneway = oneway
        self.size = 0  # bytes of its bodies, as its producer counts them
        self.lane: SendQueue | None = None
        self.by_key = False  # its key chose the queue
        self.placed = b""  # what it says of that: see SendTemplate.frame
        self.tries = 0
        self.written_ms = 0
        self.failure: InorderError | None = None  # of the last try
        self.over = False  # its caller knows the outcome
        self.answered_early = False  # one-way, and written: its caller waits no more

    @property
    def may_move(self) -> bool:
        """Tell whether another queue will do as well.

        Asked of what waits: it is not stored, or it is in doubt at a broker without numbers, where
        a second copy is allowed for.
        """
        free = self.key is None and self.choice is None and self.series is None
        return free and not self.stored

    @property
    def wanted(self) -> bool:
        """Tell whether it still should be sent: nobody cancelled it, nothing before it failed."""
        if self.series is not None and self.series.error is not None:
            return False
        return self.answered_early or not self.waiter.done()

    def answered(self, answer: SendAnswer) -> None:
        """Take the broker's answer."""
        lane = self.lane
        assert lane is not None
        lane.link.answered(lane, self, answer)


class SendQueue(Lane[Sending]):
    """The lane of a queue, with what the shell keeps beside it."""

    __slots__ = (
        "backoff",
        "before",
        "behind",
        "draining",
        "forgotten",
        "highest",
        "highest_failed",
        "link",
        "moved",
        "paused",
        "producer_id",
        "queue",
        "ready",
        "syncing",
        "template",
    )

    def __init__(
        self, link: BrokerSender, queue: TopicQueue, template: SendTemplate, producer_id: str, *,
        window: int, named: bool, backoff: Backoff,
    ) -> None:  # fmt: skip
        super().__init__(window, named=named)
        self.link = link
        self.queue = queue
        self.template = template
        self.backoff = backoff
        self.ready = False  # the broker was told who we are, and how far it is is known
        self.syncing = False
        self.behind: SendQueue | None = (
            None  # what must be settled first: see client/send/queues.py
        )
        self.before: SendQueue | None = None  # the one that waits for this
        self.draining = False  # keys have left this queue: see Delivery.lane_drained
        self.paused = False  # after a refusal that may pass
        self.forgotten = False  # the broker said so; a new id when all is answered
        self.highest = -1  # named: the highest number that a caller gave
        self.highest_failed = False  # and its caller was told of a failure: it may come again
        self.moved: deque[Sending] = deque()  # of keys that left this queue, until it is drained
        self.producer_id = ""
        self.use_id(producer_id)

    def use_id(self, producer_id: str) -> None:
        """Number messages as this producer."""
        self.producer_id = producer_id
        self.template.set_producer(producer_id, named=self.named)

    @property
    def settled_all(self) -> bool:
        """Tell whether nothing is left in it."""
        return all(one.state == DONE for one in (*self.sent, *self.waiting, *self.moved))

    @property
    def idle(self) -> bool:
        """Tell whether nobody waits for anything here, nor behind it."""
        return super().idle and all(one.state == DONE for one in self.moved)

    @property
    def drained(self) -> bool:
        """Tell whether nothing is in flight and nothing unknown."""
        return not self.in_flight and not self.unknown

    def withdraw(self, which: Callable[[Sending], bool]) -> list[Sending]:
        """Take those out that wait and are such."""
        taken = [one for one in self.waiting if one.state != DONE and which(one)]
        if taken:
            gone = set(map(id, taken))
            left = [one for one in self.waiting if id(one) not in gone]
            self.waiting.clear()
            self.waiting.extend(left)
        return taken

    def frame(self, request_id: int, sending: Sending, *, oneway: bool) -> bytes:
        """Return the frame of an entry that `next` gave out."""
        part = sending.part
        body, items = part.body, part.items
        numbers: tuple[int, ...] = ()
        if items is not None:
            body = encode_batch(self._numbered(sending, items) if self.numbered else items)
        elif self.numbered:
            numbers = (sending.number, sending.previous) if self.named else (sending.number,)
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
            placed=sending.placed,
        )

    def _numbered(self, sending: Sending, items: Sequence[BatchItem]) -> list[BatchItem]:
        """Return the items of a batch with the properties that number them."""
        mark = self.template.item_mark
        if not self.named:
            return [
                BatchItem(item.flag, item.body, item.properties + mark % number)
                for number, item in enumerate(items, sending.number)
            ]
        sequences = sending.part.sequences
        before = (sending.previous, *sequences[:-1])
        return [
            BatchItem(item.flag, item.body, item.properties + mark % (number, previous))
            for number, previous, item in zip(sequences, before, items, strict=True)
        ]

    def check_sequence(self, sending: Sending) -> None:
        """Refuse a caller's number that a later one of this queue has passed."""
        number = sending.number
        if number < self.highest or (number == self.highest and not self.highest_failed):
            raise UsageError(
                f"sequence {number} of {self.queue} comes after {self.highest}; sequences of a "
                "queue only grow"
            )
        self.highest, self.highest_failed = sending.last, False

    def may_come_again(self, sending: Sending) -> None:
        """Let a caller that was told of a failure go on from there."""
        if sending.number <= self.highest:
            self.highest, self.highest_failed = sending.number, True


class Target(NamedTuple):
    """Where a message may go past the lanes."""

    queue: TopicQueue
    placed: bytes
    """What the send says of how its queue was chosen."""
    address: str


def target(delivery: Delivery, name: str, key: str | None, turn: int) -> Target | None:
    """Return where a message may be sent to now; None: by its lane. Called from other threads.

    `turn` counts those without a key. It only reads; whatever a caller's own thread has handed over
    before is in the lane, or in the portal's inbox, where the caller has looked.
    """
    topic, session = delivery.topics.get(name), delivery.session
    if (
        topic is None
        or topic.route is None
        or topic.early
        or topic.previous
        or session.known_route(name) is not topic.route
        or session.key_map(name) is not topic.key_map
    ):
        return None
    lanes = topic.lanes if key is None else topic.keyed_lanes
    if not lanes:
        return None
    lane = lanes[turn % len(lanes) if key is None else queue_for_key(key, len(lanes))]
    if lane is None or lane.sent or lane.waiting or lane.moved or lane.behind or not lane.ready:
        return None
    connection = lane.link.connection
    if connection is None or not lane.numbered:
        return None
    return Target(lane.queue, b"" if key is None else topic.placed, connection.address)


def take_over(delivery: Delivery, sending: Sending, where: Target, producer_id: str) -> None:
    """Bring a message to its end that was sent under `sending.number`, with an unknown outcome."""
    lane = delivery.lane(where.queue)
    link = lane.link
    doubt = SendQueue(
        link, where.queue, delivery.template(where.queue), producer_id, window=1, named=False,
        backoff=delivery.backoff(),
    )  # fmt: skip
    sending.lane, sending.state = doubt, UNKNOWN
    sending.by_key, sending.placed = sending.key is not None, where.placed
    doubt.sent.append(sending)
    doubt.unknown = 1
    doubt.tail, doubt.confirmed = sending.number, sending.number - 1
    while lane.behind is not None:
        lane = lane.behind
    lane.behind, doubt.before = doubt, lane
    number = delivery.next_doubt(sending.deadline_ms)
    link.lanes[TopicQueue(where.queue.topic, where.queue.broker, -number)] = doubt
    link.pump(doubt)
