"""What one assigned queue has pulled, handed out, finished and committed.

    put ──> waiting ──take──> taken ──commit / remove / done──> gone
               ^                |
               └─ make_again, rollback

Waiting messages are taken in queue order, by one handler at a time (`order="queue"`) or by many
(`order=None`). With `order="key"` all waiting messages are moved to the key order (`KeyOrder` in
`rules/keyed.py`), which hands them out to handlers.

    saved.offset  <=  done_below  <=  lowest  <=  pulled_to

`lowest` is the first unfinished offset. Everything below `done_below` may be committed. Under a
lease a commit also carries the finished map. The map is made when a commit is due: an offset is
finished if no unfinished message has it, or if an earlier owner has finished it. Why offset and
map: decision 18. `rules/leases.py` decides who owns the queue, and for how long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter, ge
from typing import Final

from inorder.client.consume.rules.commits import NOT_STORED, NumberedCommit, Progress
from inorder.client.consume.rules.keyed import KeyOrder, Work
from inorder.model import ReceivedMessage
from inorder.ordering.finished import SPAN_MAX, FinishedMap

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
    limit. `span_max` does not apply to `order="queue"`.
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


class QueueProgress:
    """The unfinished messages of one queue, and how far the queue is finished and committed."""

    __slots__ = (
        "_accepted", "_known", "_known_end", "_number", "_ordered_to", "_started", "_taken",
        "_taken_offsets", "_waiting", "done_below", "handled_at_ms", "keys", "moved_to",
        "pulled_to", "saved", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        offset: int,
        *,
        stored: Progress = NOT_STORED,
        finished: FinishedMap | None = None,
        keys: KeyOrder | None = None,
    ) -> None:
        """Begin at an offset.

        `stored` is the progress that the broker or the file has. `finished` holds the messages
        above the offset that earlier owners have finished. `keys` is given with order="key".
        """
        self.pulled_to = offset
        """Where the next pull begins: every message below is cached, finished or filtered."""
        self.done_below = offset
        """Every message below is finished or filtered."""
        self.moved_to: int | None = None
        """Where the group continues after a seek, a reset or a correction by the broker."""
        self.saved = stored
        """The progress that the broker or the file has."""
        self.keys = keys
        self.size_bytes = 0
        self.handled_at_ms: int | None = None
        self._waiting: deque[ReceivedMessage] = deque()  # ascending
        self._taken: dict[int, ReceivedMessage] = {}
        # Ascending; its ends are taken, between them some are not taken any more.
        self._taken_offsets: deque[int] = deque()
        self._started: dict[int, int] = {}  # offset -> when its handler was called
        self._ordered_to = offset  # every message below was put into the key order
        self._known = FinishedMap(offset) if finished is None else finished  # and parked ones
        self._known_end = self._known.end
        self._number = 0  # of the last commit
        self._accepted = 0  # the highest number that the broker has accepted

    def __repr__(self) -> str:
        return (
            f"QueueProgress(saved={self.saved.offset}, done_below={self.done_below}, "
            f"lowest={self.lowest}, waiting={len(self._waiting)}, taken={len(self._taken)}, "
            f"pulled_to={self.pulled_to})"
        )

    # Reading.

    @property
    def count(self) -> int:
        """Return how many messages are unfinished, taken ones included."""
        return len(self._waiting) + len(self._taken)

    @property
    def waiting(self) -> int:
        """Return how many messages are not taken."""
        return len(self._waiting)

    @property
    def taken(self) -> int:
        """Return how many messages are with handlers, in the key order, or not committed."""
        return len(self._taken)

    @property
    def lowest(self) -> int:
        """Return the first unfinished offset, or where the next pull begins."""
        taken, waiting = self._taken_offsets, self._waiting
        if not taken:
            return waiting[0].offset if waiting else self.pulled_to
        first = taken[0]
        return min(first, waiting[0].offset) if waiting else first

    @property
    def span(self) -> int:
        """Return the distance from the first unfinished message to the last."""
        taken, waiting = self._taken_offsets, self._waiting
        last = max(taken[-1] if taken else -1, waiting[-1].offset if waiting else -1)
        return max(0, last - self.lowest)

    def __contains__(self, message: ReceivedMessage) -> bool:
        offset = message.offset
        return offset in self._taken or any(one.offset == offset for one in self._waiting)

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
        known = self.pulled_to
        offsets = list(map(_offset, messages))
        if offsets and (offsets[0] < known or any(map(ge, offsets, offsets[1:]))):
            messages = _ascending(messages, known)
        if messages:
            self._waiting.extend(messages)
            self.size_bytes += _body_bytes(messages)
            known = messages[-1].offset + 1
        self.pulled_to = max(known, next_offset)
        if not self.count:
            self.done_below = self.pulled_to
        return bool(messages)

    def without_finished(
        self, messages: tuple[ReceivedMessage, ...]
    ) -> tuple[ReceivedMessage, ...]:
        """Return the messages of a pull that no earlier owner has finished or parked."""
        if not messages or messages[0].offset >= self._known_end:
            return messages
        return tuple(message for message in messages if message.offset not in self._known)

    def done_elsewhere(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note ranges of offsets (start, end) that are parked at the broker.

        They are never handed out. Exception: messages that are already in the key order, because
        this owner's request to park them is unanswered.
        """
        known = self._known
        known.add_range(known.base, self.done_below)
        for start, end in ranges:
            if end <= known.base + SPAN_MAX:
                known.add_range(start, end)
        self._known_end = known.end

    # Handling.

    def take(self, limit: int, now_ms: int) -> list[ReceivedMessage]:
        """Take up to `limit` waiting messages, in order, for a handler."""
        self.handled_at_ms = now_ms
        waiting, taken = self._waiting, self._taken_offsets
        if limit >= len(waiting):
            found = list(waiting)
            waiting.clear()
        else:
            found = [waiting.popleft() for _ in range(limit)]
        offsets = list(map(_offset, found))
        self._taken.update(zip(offsets, found, strict=True))
        if taken and offsets and offsets[0] < taken[-1]:  # they were put back before
            self._taken_offsets = deque(sorted(self._taken))
        else:
            taken.extend(offsets)
        return found

    def take_below(self, offset: int, now_ms: int) -> list[ReceivedMessage]:
        """Take the waiting messages below an offset."""
        count = 0
        for message in self._waiting:
            if message.offset >= offset:
                break
            count += 1
        return self.take(count, now_ms) if count else []

    def start(self, messages: Iterable[ReceivedMessage], now_ms: int) -> None:
        """Note when a handler was called for taken messages: from then on they may expire."""
        for message in messages:
            if message.offset in self._taken:
                self._started[message.offset] = now_ms

    def commit(self) -> None:
        """Finish all taken messages."""
        if self._taken:
            self.done_below = self._taken_offsets[-1] + 1
            self.size_bytes -= _body_bytes(self._taken.values())
            self._taken.clear()
            self._started.clear()
            self._taken_offsets.clear()

    def rollback(self) -> None:
        """Put all taken messages back in front."""
        self.make_again(list(self._taken.values()))

    def make_again(self, messages: Iterable[ReceivedMessage]) -> None:
        """Put taken messages back in their place; the copies may count another redelivery."""
        again = []
        for message in messages:
            if self._taken.pop(message.offset, None) is None:
                continue
            self._started.pop(message.offset, None)
            again.append(message)
        self._trim()
        again.sort(key=_offset)
        if not self._waiting or (again and again[-1].offset < self._waiting[0].offset):
            self._waiting.extendleft(reversed(again))
        elif again:
            self._waiting = deque(sorted([*again, *self._waiting], key=_offset))

    def replace_taken(self, messages: Iterable[ReceivedMessage]) -> None:
        """Replace taken messages by copies that count another redelivery; they stay taken."""
        for message in messages:
            if message.offset in self._taken:
                self._taken[message.offset] = message

    def remove(self, messages: Iterable[ReceivedMessage], now_ms: int) -> None:
        """Finish these taken messages; those that expired and were sent back are ignored."""
        self.handled_at_ms = now_ms
        if self.count:
            taken = self._taken
            gone = [one for each in messages if (one := taken.pop(each.offset, None)) is not None]
            self.size_bytes -= _body_bytes(gone)
            if self._started:
                for message in gone:
                    self._started.pop(message.offset, None)
            self._trim()
            self.done_below = self.lowest

    def expired(
        self, now_ms: int, *, timeout_ms: int = CONSUME_TIMEOUT_MS
    ) -> ReceivedMessage | None:
        """Return the first unfinished message if its handler runs for longer than the timeout.

        For concurrent handling: the caller sends the message back, removes it and calls again, up
        to EXPIRED_PER_ROUND_MAX times. Later messages wait, for only the first one holds up the
        committed offset.
        """
        first = self.lowest
        started = self._started.get(first)
        if started is None or now_ms - started <= timeout_ms:
            return None
        return self._taken[first]

    # Order by key.

    def take_work(self, now_ms: int, *, batch: int = 1) -> Work | None:
        """Take up to `batch` messages of the next ready key; None if no key is ready."""
        assert self.keys is not None, "the queue is handled with order='key'"
        if self._waiting:
            self._order_waiting(self.keys, now_ms)
        return self.keys.take(now_ms, batch=batch)

    def done(self, work: Work, now_ms: int, count: int | None = None) -> None:
        """Finish the first `count` messages of a `Work` (default: all); the others are free."""
        assert self.keys is not None
        self.keys.done(work, count)
        if count != 0:
            self.remove(work.messages[:count], now_ms)

    def done_all(self, works: Sequence[Work], now_ms: int) -> None:
        """Finish all messages of several `Work`s."""
        assert self.keys is not None
        for work in works:
            self.keys.done(work)
        self.remove([message for work in works for message in work.messages], now_ms)

    def narrow(self, work: Work, now_ms: int, *, done: int = 0, keep: int) -> None:
        """Finish the first `done` messages of a `Work`; the next `keep` stay in it, no others."""
        assert self.keys is not None
        finished = work.messages[:done]
        self.keys.narrow(work, done, keep)
        if finished:
            self.remove(finished, now_ms)

    def again(
        self,
        work: Work,
        at_ms: int,
        messages: Sequence[ReceivedMessage] = (),
        *,
        maybe_parked: bool = False,
    ) -> None:
        """Take a `Work` back until `at_ms`; see `KeyOrder.again`."""
        assert self.keys is not None
        self.replace_taken(messages)
        self.keys.again(work, at_ms, messages, maybe_parked=maybe_parked)

    def _order_waiting(self, keys: KeyOrder, now_ms: int) -> None:
        """Put the waiting messages into the key order, as far as a finished map spans."""
        end = self.lowest + SPAN_MAX
        count = len(self._waiting)
        if self._waiting[-1].offset >= end:
            count = sum(message.offset < end for message in self._waiting)
        taken = self.take(count, now_ms)
        if not taken:
            return
        self._ordered_to = taken[-1].offset + 1
        if taken[0].offset < self._known_end:
            known = [message for message in taken if message.offset in self._known]
            if known:
                self.remove(known, now_ms)
                taken = [message for message in taken if message.offset in self._taken]
        keys.put(taken)

    # Committing.

    @property
    def offset(self) -> int:
        """Return the offset of the group: `done_below`, or `moved_to` of a queue that is moved."""
        return self.done_below if self.moved_to is None else self.moved_to

    @property
    def is_saved(self) -> bool:
        """Return whether the broker or the file has the offset."""
        return self.saved.offset == self.offset

    def progress(self) -> Progress:
        """Return what a commit under a lease says now."""
        if self.moved_to is not None:
            return Progress(self.moved_to)
        finished = self._finished()
        return Progress(finished.base, finished.above_text())

    def next_commit(self) -> NumberedCommit | None:
        """Return the next commit to send under a lease; None if the broker knows this progress.

        The first commit is always sent, even if nothing changed: from then on the group has an
        offset, also where the broker only said where to begin.
        """
        progress = self.progress()
        if progress == self.saved and self._accepted:
            return None
        self._number += 1
        return NumberedCommit(self._number, progress)

    def committed(self, commit: NumberedCommit) -> None:
        """Note that the broker accepted a commit; answers may come in any order."""
        if commit.number > self._accepted:
            self._accepted = commit.number
            self.saved = commit.progress

    def _finished(self) -> FinishedMap:
        """Return the finished offsets, and those that earlier owners have finished or parked."""
        end = max(self._ordered_to, self.done_below)
        unfinished = sorted(offset for offset in self._taken if offset < end)
        if unfinished and unfinished[0] < self._known_end:
            unfinished = [offset for offset in unfinished if offset not in self._known]
        self._known.add_range(self._known.base, unfinished[0] if unfinished else end)
        finished = self._known.copy()
        finished.add_below(end, unfinished=unfinished)
        return finished

    def _trim(self) -> None:
        """Let the taken offsets begin and end with one that is taken."""
        offsets, taken = self._taken_offsets, self._taken
        while offsets and offsets[0] not in taken:
            offsets.popleft()
        while offsets and offsets[-1] not in taken:
            offsets.pop()


_offset = attrgetter("offset")


def _body_bytes(messages: Iterable[ReceivedMessage]) -> int:
    return sum([len(message.body) for message in messages])


def _ascending(messages: Sequence[ReceivedMessage], known: int) -> list[ReceivedMessage]:
    """Return the messages from `known` on, each above the one before."""
    found = []
    for message in messages:
        if message.offset >= known:
            known = message.offset + 1
            found.append(message)
    return found
