"""What a producer decides without I/O: which queue a message goes to, and how much may wait.

A keyed message goes to the queue of its key. A message without a key goes to the queues in turn,
past brokers that failed a short while ago (`RoundRobin`, `FailedBrokers`).

`Room` bounds the messages, and their bytes, that have no outcome yet. A call comes in while there
is any room at all, even if it brings more than fits. So a message or a batch above the limit is
sent too, and the limits are exceeded by one call at most.

`Pace` bounds the room in time: no more messages wait than the brokers store in a part of the time
that a message has. Otherwise the last of them would fail although every broker works.

How a producer keeps order and speed: decision 11. Automatic batches: decision 48.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from inorder.model import TopicQueue
from inorder.ordering.keymap import queue_for_key

WINDOW_MAX: Final = 1024
"""How many answers a broker remembers for a producer and queue, in messages."""
TIMES_AGAIN: Final = 2
"""How often a message of `send_nowait` gets its time again while its broker is away."""
PACE_FIRST: Final = 1024
PACE_LEAST: Final = 64
REQUEST_MESSAGES_MAX: Final = 256
"""How many messages of single calls travel in one request; four such requests fill the window."""


def select_by_key(queues: Sequence[TopicQueue], key: str) -> TopicQueue:
    """Return the queue of a key; the list must be the topic's full one, sorted."""
    return queues[queue_for_key(key, len(queues))]


class RoundRobin:
    """Takes queues in turn, and passes over brokers to avoid while there are others."""

    __slots__ = ("_next",)

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def select(self, queues: Sequence[TopicQueue], avoid: Collection[str] = ()) -> TopicQueue:
        """Return the next queue; one of an avoided broker only if all brokers are avoided."""
        return queues[self.index(queues, avoid)]

    def index(self, queues: Sequence[TopicQueue], avoid: Collection[str] = ()) -> int:
        """Return the position of the next queue."""
        start, self._next = self._next, self._next + 1
        if avoid:
            for step in range(len(queues)):
                index = (start + step) % len(queues)
                if queues[index].broker not in avoid:
                    self._next = start + step + 1
                    return index
        return start % len(queues)


class FailedBrokers:
    """The brokers that failed a short while ago."""

    __slots__ = ("_until_ms", "avoid_ms")

    def __init__(self, avoid_ms: int) -> None:
        self.avoid_ms = avoid_ms
        self._until_ms: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Return whether there may be one."""
        return bool(self._until_ms)

    def failed(self, broker: str, now_ms: int) -> None:
        """Avoid a broker for a while, from now on."""
        self._until_ms[broker] = now_ms + self.avoid_ms

    def worked(self, broker: str) -> None:
        """Stop avoiding a broker."""
        self._until_ms.pop(broker, None)

    def to_avoid(self, now_ms: int) -> Collection[str]:
        """Return the brokers to avoid now."""
        if not self._until_ms:
            return ()
        self._until_ms = {b: until for b, until in self._until_ms.items() if until > now_ms}
        return self._until_ms.keys()


class Pace:
    """How many messages may wait, so that the last of them has its outcome well within its time.

    It begins small. While half of it is used, it grows by what is stored within a quarter of the
    time. It shrinks when messages need more than half of the time. What was accepted before it
    shrank does not shrink it again.
    """

    __slots__ = ("_changed_ms", "allowed", "budget_ms", "messages_max")

    def __init__(self, messages_max: int, budget_ms: int) -> None:
        self.messages_max = messages_max
        self.budget_ms = max(budget_ms, 1)
        self.allowed = min(messages_max, PACE_FIRST)
        self._changed_ms = 0

    def stored(self, messages: int, waiting: int, accepted_ms: int, now_ms: int) -> None:
        """Take the time that messages needed, while `waiting` messages were without an outcome."""
        waited_ms = now_ms - accepted_ms
        if waited_ms * 4 <= self.budget_ms:
            if waiting * 2 >= self.allowed:  # few messages tell nothing about many
                self.allowed = min(self.allowed + messages, self.messages_max)
        elif waited_ms * 2 > self.budget_ms and accepted_ms >= self._changed_ms:
            fitting = min(waiting, self.allowed) * self.budget_ms // (4 * waited_ms)
            self.allowed = max(min(self.allowed, fitting), min(PACE_LEAST, self.messages_max))
            self._changed_ms = now_ms


class Room:
    """Messages and bytes without an outcome, and their limits."""

    __slots__ = ("bytes", "bytes_max", "messages", "messages_max", "pace", "refused")

    def __init__(self, messages_max: int, bytes_max: int, budget_ms: int = 10_000) -> None:
        self.pace = Pace(messages_max, budget_ms)
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        self.refused = 0  # messages that found no room

    @property
    def full(self) -> bool:
        """Return whether a limit is reached."""
        return self.messages >= self.messages_max or self.bytes >= self.bytes_max

    @property
    def paced(self) -> bool:
        """Return whether messages wait long."""
        return self.pace.allowed < min(PACE_FIRST, self.messages_max)

    @property
    def crowded(self) -> bool:
        """Return whether a caller that can wait should wait."""
        return self.messages >= self.pace.allowed or self.bytes >= self.bytes_max

    @property
    def wide(self) -> bool:
        """Return whether half of both limits is free: enough to wake a waiting caller."""
        allowed = self.pace.allowed
        return (
            self.messages <= allowed - max(allowed // 2, 1)
            and self.bytes <= self.bytes_max - max(self.bytes_max // 2, 1)
        )  # fmt: skip

    def enter(self, messages: int, bytes_: int) -> bool:
        """Count the messages of a call; False if there is no room."""
        if self.full:
            return False
        self.add(messages, bytes_)
        return True

    def add(self, messages: int, bytes_: int) -> None:
        """Count messages, full or not."""
        self.messages += messages
        self.bytes += bytes_

    def leave(self, messages: int, bytes_: int) -> None:
        """Release messages that have their outcome."""
        self.messages -= messages
        self.bytes -= bytes_

    def turn_away(self, messages: int) -> None:
        """Count messages that were refused because there was no room."""
        self.refused += messages

    def __str__(self) -> str:
        return (
            f"{self.messages} messages with {self.bytes} bytes have no outcome yet, the limits are "
            f"{self.messages_max} (sends_waiting_max) and {self.bytes_max} "
            "(sends_waiting_bytes_max)"
            + (f"; the brokers are slow and keep up with {self.pace.allowed}" if self.paced else "")
        )
