"""One hand-over to a producer on its way: what, where to, until when, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inorder.client.outgoing import Outgoing
from inorder.client.turns import Turn
from inorder.errors import TransportError, UsageError
from inorder.model import Message, SendReceipt, TopicQueue

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

    def is_free(self, message: Message) -> bool:
        """Tell whether any queue will do."""
        return self.queue is None and self.selector is None and message.key is None

    def fixed(self, queues: Sequence[TopicQueue], message: Message) -> TopicQueue | None:
        """Return the queue that the caller chose, or None."""
        if self.queue is not None:
            return self.queue
        if self.selector is None:
            return None
        chosen = self.selector(queues, message, self.arg)
        if chosen not in queues:
            raise UsageError(f"the selector returned {chosen!r}; it must be one of {len(queues)}")
        return chosen


@dataclass(slots=True)
class Sending:
    """Requests for one queue, sent one after the other."""

    messages: Sequence[Message]
    parts: Sequence[Outgoing]
    choice: Choice
    deadline_ms: int
    turn: Turn
    queue: TopicQueue | None = None  # None: the turn is in the line of those who await the route
    receipts: list[SendReceipt] = field(default_factory=list)
    sent_parts: int = 0
    in_doubt: TransportError | None = None
    released: bool = False

    @property
    def topic(self) -> str:
        """Return the topic of all its messages."""
        return self.messages[0].topic

    @property
    def may_move(self) -> bool:
        """Tell whether another queue will do as well: nobody chose, and nothing is stored yet."""
        return self.sent_parts == 0 and all(map(self.choice.is_free, self.messages))

    def confirm(self, part: Outgoing, queue: TopicQueue, offset: int) -> None:
        """Note that a part is stored, from an offset on."""
        self.sent_parts += 1
        self.receipts += [
            SendReceipt(message_id, queue, offset + index)
            for index, message_id in enumerate(part.message_ids)
        ]
