"""One request of a producer on its way: what, where to, until when, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from inorder.client.outgoing import Outgoing
from inorder.client.state.lane import Entry
from inorder.errors import InorderError, UsageError
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.wire.requests.sendframes import SendAnswer

if TYPE_CHECKING:
    from inorder.client.queuelane import QueueLane

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
        self.lane: QueueLane | None = None
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
