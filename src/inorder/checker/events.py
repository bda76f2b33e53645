"""What a history is made of: kinds of events, each written by whoever saw it happen.

    Sent       a producer learnt the outcome of a send; one event per outcome, a retry keeps the id
    Stored     a record was found in a queue (by a pull, or by reading the files)
    Handled    a handler ran over a message; without an end it never came back
    Committed  an offset of a group was stored
    Granted    the broker gave a queue to a consumer, under an epoch
    Applied    a store that compares fences took the effect of a message

Times are any monotonic clock of one machine, in nanoseconds. The order of the events in a history
does not matter. One history holds one consumer group. A sequence counts the sends of one producer
for one key, upwards; holes are fine. `queue` is any name that is unique; see `queue_name`. `fence`
and `epoch` are the sequence and the epoch of `message.fence`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from inorder.model import TopicQueue


class SentResult(StrEnum):
    """How a send ended, as its producer knows it."""

    OK = "ok"
    """Acknowledged: it must be there for ever."""
    UNKNOWN = "unknown"
    """Timed out or cut off: it may be there, once, or not."""
    FAILED = "failed"
    """Refused: it must not be there."""


class HandledResult(StrEnum):
    """How a handler ended."""

    DONE = "done"
    """The effect took place."""
    FAILED = "failed"
    """A failed attempt; the message comes again."""
    DEAD = "dead"
    """Set aside for good: dead-lettered or parked."""
    PARKED = "parked"
    """Set aside behind its key, without a handler: it comes again when the key is redriven."""
    RETURNED = "returned"
    """Handed back to the broker, which stores it again under a retry topic."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a send. `digest` is any hash of the body; compared if both sides have one."""

    producer: str
    key: str | None
    sequence: int
    id: str
    result: SentResult = SentResult.OK
    queue: str | None = None
    offset: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A record in a queue."""

    queue: str
    offset: int
    id: str
    key: str | None = None
    sequence: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Handled:
    """One run of a handler over one message; messages of one batch share client, start and end."""

    client: str
    queue: str
    offset: int
    id: str
    key: str | None
    start_ns: int
    end_ns: int | None = None
    result: HandledResult | None = None
    epoch: int | None = None
    fence: int | None = None

    @property
    def until_ns(self) -> int:
        """Return the end, or the instant of the start if there was none."""
        return self.start_ns if self.end_ns is None else self.end_ns

    @property
    def settled(self) -> bool:
        """Tell whether the message needs no further delivery on its queue."""
        return self.result is not None and self.result != HandledResult.FAILED


@dataclass(frozen=True, slots=True)
class Committed:
    """A stored offset: everything below it is said to be done. `reset` marks an explicit one."""

    client: str
    queue: str
    offset: int
    at_ns: int
    reset: bool = False
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """A queue became a client's. With these in a history, owners are judged by the broker's word:
    whoever starts a handler after another one was granted the queue is wrong; one that was begun
    before, and outlives its lease, is counted only."""

    client: str
    queue: str
    epoch: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Applied:
    """An effect that passed the comparison of fences: one for each message, in order per key."""

    id: str
    key: str | None
    fence: int
    at_ns: int


Event = Sent | Stored | Handled | Committed | Granted | Applied


def queue_name(queue: TopicQueue) -> str:
    """Return the name by which events call a queue."""
    return f"{queue.topic}/{queue.broker}/{queue.index}"
