"""The unfinished messages of one queue that this consumer has pulled.

    put ──> waiting ──take──> taken ──commit / remove──> gone
               ^                |
               └─ make_again, rollback

Waiting messages are taken in queue order, by one handler at a time (`order="queue"`) or by many
(`order=None`). `lowest` is the first unfinished offset, so everything below it may be committed
(decision 18). `rules/leases.py` decides who owns the queue, and for how long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inorder.model import ReceivedMessage

CONSUME_TIMEOUT_MS: Final = 15 * 60 * 1000
EXPIRED_PER_ROUND_MAX: Final = 16

_MIB: Final = 1024 * 1024


class FlowControl(Enum):
    """Why the next pull of a queue has to wait."""

    COUNT = "too many messages"
    SIZE = "too many bytes"
    SPAN = "the first unfinished message is too far behind"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue this consumer caches.

    A pull starts only while nothing is *above* its limit, so at most the messages of one pull come
    on top. All queues of a topic that this consumer owns share the topic's limits; 0 means no
    limit. `span_max` applies to concurrent handling only.
    """

    messages_max: int = 1000
    size_bytes_max: int = 100 * _MIB
    span_max: int = 2000
    topic_messages_max: int = 0
    topic_bytes_max: int = 0

    def shared(self, queues: int) -> Limits:
        """Return the limits of each queue when `queues` of them share the topic's; at least 1."""
        if queues < 1:
            return self
        messages, size = self.messages_max, self.size_bytes_max
        if self.topic_messages_max:
            messages = max(1, self.topic_messages_max // queues)
        if self.topic_bytes_max:
            size = max(1, self.topic_bytes_max // queues)
        return Limits(messages, size, self.span_max, self.topic_messages_max, self.topic_bytes_max)


class ProcessQueue:
    """The unfinished messages of one queue, from `offset` on."""

    __slots__ = (
        "_messages", "_offsets", "_started", "_taken", "_waiting", "handled_at_ms", "pulled_to",
        "size_bytes",
    )  # fmt: skip

    def __init__(self, offset: int) -> None:
        self.pulled_to = offset
        """Where the next pull begins: every message below is cached, finished or filtered."""
        self.size_bytes = 0
        self.handled_at_ms: int | None = None
        self._messages: dict[int, ReceivedMessage] = {}  # the unfinished ones
        self._offsets: deque[int] = deque()  # theirs, ascending; between the ends some are finished
        self._waiting: deque[ReceivedMessage] = deque()
        self._taken: dict[int, ReceivedMessage] = {}
        self._started: dict[int, int] = {}  # offset -> when its handler was called

    def __repr__(self) -> str:
        return (
            f"ProcessQueue(lowest={self.lowest}, waiting={len(self._waiting)}, "
            f"taken={len(self._taken)}, pulled_to={self.pulled_to})"
        )

    # Reading.

    @property
    def count(self) -> int:
        """Return how many messages are unfinished, taken ones included."""
        return len(self._messages)

    @property
    def waiting(self) -> int:
        """Return how many messages are not taken."""
        return len(self._waiting)

    @property
    def taken(self) -> int:
        """Return how many messages are with handlers, or wait for a commit."""
        return len(self._taken)

    @property
    def lowest(self) -> int:
        """Return the first unfinished offset: everything below may be committed."""
        return self._offsets[0] if self._offsets else self.pulled_to

    @property
    def span(self) -> int:
        """Return the distance from the first unfinished message to the last."""
        return self._offsets[-1] - self._offsets[0] if self._offsets else 0

    def __contains__(self, message: ReceivedMessage) -> bool:
        return message.offset in self._messages

    def flow_control(
        self, limits: Limits, *, ordered: bool, ahead_max: int = 0
    ) -> FlowControl | None:
        """Return why the next pull has to wait; None if it may start.

        `ahead_max` bounds how far pulls go ahead of the first unfinished message, whether they find
        messages there or not; 0 means no bound.
        """
        if self.count > limits.messages_max:
            return FlowControl.COUNT
        if self.size_bytes > limits.size_bytes_max:
            return FlowControl.SIZE
        if not ordered and self.span > limits.span_max:
            return FlowControl.SPAN
        if ahead_max and self.pulled_to - self.lowest > ahead_max:
            return FlowControl.SPAN
        return None

    # Pulling.

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> bool:
        """Add the messages of a pull; return whether new messages wait.

        Messages below `pulled_to` are known already and are skipped.
        """
        known, was_waiting = self.pulled_to, len(self._waiting)
        for message in messages:
            offset = message.offset
            if offset < known:
                continue
            known = offset + 1
            self._messages[offset] = message
            self._offsets.append(offset)
            self._waiting.append(message)
            self.size_bytes += len(message.body)
        self.pulled_to = max(known, next_offset)
        return len(self._waiting) > was_waiting

    # Handling.

    def take(self, limit: int, now_ms: int) -> list[ReceivedMessage]:
        """Take up to `limit` waiting messages, in order, for a handler."""
        self.handled_at_ms = now_ms
        waiting, taken = self._waiting, self._taken
        found = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        for message in found:
            taken[message.offset] = message
        return found

    def take_below(self, end: int, now_ms: int) -> list[ReceivedMessage]:
        """Take all waiting messages below an offset, in order, for handlers."""
        if not self._waiting or self._waiting[-1].offset < end:
            return self.take(len(self._waiting), now_ms)
        return self.take(sum(message.offset < end for message in self._waiting), now_ms)

    def start(self, messages: Iterable[ReceivedMessage], now_ms: int) -> None:
        """Note when a handler was called for taken messages: from then on they may expire."""
        for message in messages:
            if message.offset in self._taken:
                self._started[message.offset] = now_ms

    def commit(self) -> int | None:
        """Finish all taken messages; return the offset behind the last, None if none was taken."""
        if not self._taken:
            return None
        last = max(self._taken)
        self._finish(list(self._taken))
        return last + 1

    def rollback(self) -> None:
        """Put all taken messages back in front."""
        self.make_again(list(self._taken.values()))

    def make_again(self, messages: Iterable[ReceivedMessage]) -> None:
        """Put taken messages back in their place; the copies may count another redelivery."""
        again = []
        for message in messages:
            if self._taken.pop(message.offset, None) is None:
                continue
            self._messages[message.offset] = message
            self._started.pop(message.offset, None)
            again.append(message)
        again.sort(key=_offset)
        if not self._waiting or (again and again[-1].offset < self._waiting[0].offset):
            self._waiting.extendleft(reversed(again))
        elif again:
            self._waiting = deque(sorted([*again, *self._waiting], key=_offset))

    def replace_taken(self, messages: Iterable[ReceivedMessage]) -> None:
        """Replace taken messages by copies that count another redelivery; they stay taken."""
        for message in messages:
            if message.offset in self._taken:
                self._taken[message.offset] = self._messages[message.offset] = message

    def remove(self, messages: Iterable[ReceivedMessage], now_ms: int) -> int | None:
        """Finish these taken messages; return the offset that may be committed.

        That is the lowest unfinished offset, or where the next pull begins. Messages that expired
        and were sent back are ignored. Returns None if no message is unfinished.
        """
        self.handled_at_ms = now_ms
        if not self._messages:
            return None
        self._finish([message.offset for message in messages if message.offset in self._taken])
        return self.lowest

    def expired(
        self, now_ms: int, *, timeout_ms: int = CONSUME_TIMEOUT_MS
    ) -> ReceivedMessage | None:
        """Return the first unfinished message if its handler runs for longer than the timeout.

        For concurrent handling: the caller sends the message back, removes it and calls again, up
        to EXPIRED_PER_ROUND_MAX times. Later messages wait, for only the first one holds up the
        committed offset.
        """
        if not self._offsets:
            return None
        started = self._started.get(self._offsets[0])
        if started is None or now_ms - started <= timeout_ms:
            return None
        return self._messages[self._offsets[0]]

    def _finish(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            del self._taken[offset]
            self.size_bytes -= len(self._messages.pop(offset).body)
            self._started.pop(offset, None)
        left = self._offsets
        while left and left[0] not in self._messages:
            left.popleft()
        while left and left[-1] not in self._messages:
            left.pop()


def _offset(message: ReceivedMessage) -> int:
    return message.offset
