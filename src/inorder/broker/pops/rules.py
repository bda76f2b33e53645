"""Which messages are popped, until when, and what an acknowledgement does.

**Without order.** Each queue of a group has a cursor, where the next pop reads, and messages in
flight: popped, not yet acknowledged, each in one check point. The time of the pop is the token of a
check point: milliseconds of the wall clock that strictly grow on each queue. The group's offset is
the lowest message in flight, else the cursor. A message whose time ends goes to the POP retry topic
of the group, and is then done.

    popped ──> acknowledged: done
       │  └──> its time is changed: a check point of its own, with a new token
       └─────> its time ends: stored in the retry topic, then done

**In order.** A pop takes a lease on the queue (`broker/leases/rules.py`, the owner `POPPED`); its
batch is the messages of one queue under one epoch. While a message of the batch is neither
acknowledged nor visible again, nobody else gets the queue. Acknowledgements commit the offset of
the first message that is not acknowledged. A batch that was reset keeps its queue, but commits
nothing. The next pop starts at the offset and counts how often each message was handed out.

Deadlines are monotonic; only the token is wall time. Why: decision 54.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from inorder.broker.leases.rules import POPPED, Deadlines
from inorder.model import GroupQueue

if TYPE_CHECKING:
    from inorder.broker.leases.rules import Lease, PastLease

IDLE_MS: Final = 600_000
"""After this time the broker forgets the cursor of a queue with nothing in flight."""
FORGET_AT_ONCE: Final = 1000


@dataclass(slots=True, eq=False)
class CheckPoint:
    """The messages of one pop on one queue that are not done yet."""

    pop_ms: int
    """The token: wall time of the pop, unique on its queue."""
    invisible_ms: int
    deadline_ms: int
    start: int
    """Where the pop began to read."""
    left: dict[int, None]
    """The offsets that are not done."""
    reviving: bool = False
    """Its time is over, and its messages are being stored in the retry topic."""


@dataclass(slots=True, eq=False)
class PoppedQueue:
    """The state of a queue that a group pops without order."""

    cursor: int = 0
    last_pop_ms: int = 0
    used_ms: int = 0
    points: dict[int, CheckPoint] = field(default_factory=dict)
    """The check point of each message in flight, by offset."""
    heap: list[int] = field(default_factory=list)
    """The offsets in flight, and some that are done since."""

    def floor(self) -> int:
        """Return the offset before which all messages are done."""
        heap, points = self.heap, self.points
        while heap and heap[0] not in points:
            heapq.heappop(heap)
        return heap[0] if heap else self.cursor

    def put(self, point: CheckPoint) -> None:
        """Take in a check point; it takes its messages over from earlier ones."""
        for offset in point.left:
            before = self.points.get(offset)
            if before is None:
                heapq.heappush(self.heap, offset)
            else:
                before.left.pop(offset, None)
            self.points[offset] = point
        self.last_pop_ms = max(self.last_pop_ms, point.pop_ms)

    def check_points(self) -> list[CheckPoint]:
        """Return the check points, each once."""
        return list(dict.fromkeys(self.points.values()))


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one pop in order; a batch lives until another replaces it."""

    epoch: int
    """Of the lease."""
    attempt: str
    """The client's name of its attempt: the same attempt gets the same batch again."""
    pop_ms: int
    invisible_ms: int
    until_ms: int
    offsets: tuple[int, ...]
    acked: int = 0
    """A bit for each offset."""
    visible: tuple[tuple[int, int], ...] = ()
    """Offsets that are visible again at another time than `until_ms`, with that time."""
    counts: tuple[tuple[int, int], ...] = ()
    """How often messages were handed out before; 0 is left out."""
    was_reset: bool = False
    acks: int = 0
    """Numbers the commits of the batch."""

    @property
    def unfinished(self) -> list[int]:
        """Return the offsets that are not acknowledged."""
        return [one for bit, one in enumerate(self.offsets) if not self.acked >> bit & 1]

    @property
    def blocked_until_ms(self) -> int | None:
        """Return when the last message is visible again; None: all are acknowledged."""
        visible = dict(self.visible)
        return max((visible.get(one, self.until_ms) for one in self.unfinished), default=None)

    @property
    def next_offset(self) -> int:
        """Return the first offset that is not acknowledged, else the one after the batch."""
        left = self.unfinished
        return left[0] if left else self.offsets[-1] + 1

    def with_ack(self, offset: int) -> Batch:
        """Return the batch with one more message acknowledged."""
        bit = 1 << self.offsets.index(offset)
        return replace(self, acked=self.acked | bit, acks=self.acks + 1)

    def with_time(self, offset: int, until_ms: int) -> Batch:
        """Return the batch with another time at which a message is visible again."""
        others = tuple(one for one in self.visible if one[0] != offset)
        return replace(self, visible=(*others, (offset, until_ms)))


class Verdict(Enum):
    """What becomes of an acknowledgement, or a change, of a message that was popped in order."""

    TAKEN = auto()
    BLOCKS = auto()  # the queue was reset meanwhile: counts for the block, commits nothing
    DONE = auto()  # this batch acknowledged it already
    UNKNOWN = auto()  # the batch has no such message
    STALE = auto()  # the batch lost its queue


def judge(
    batch: Batch | None,
    lease: Lease | None,
    past: PastLease | None,
    *,
    pop_ms: int,
    offset: int,
    committed: int,
    ended_ms: int = 0,
    in_flight: bool = False,
) -> Verdict:
    """Judge an acknowledgement of a message that was popped in order.

    A batch whose time has ended still counts while nobody else got the queue. What was acknowledged
    is done under the token that did it, and stale under any other: another owner handled it.
    `ended_ms` is the token of the last batch that is done; `in_flight`: the group has messages of
    the queue in flight that were popped without order.
    """
    if batch is None or batch.pop_ms != pop_ms:
        was_last = batch is None and pop_ms == ended_ms
        return Verdict.DONE if was_last and offset < committed else Verdict.STALE
    if offset not in batch.offsets:
        return Verdict.UNKNOWN
    if offset not in batch.unfinished:
        return Verdict.DONE
    if lease is None:
        holds = (
            not in_flight
            and not batch.was_reset
            and past is not None
            and not past.released
            and (past.owner, past.epoch) == (POPPED, batch.epoch)
        )
    else:
        holds = lease.owner == POPPED and (lease.epoch == batch.epoch or batch.was_reset)
    if not holds:
        return Verdict.STALE
    return Verdict.BLOCKS if batch.was_reset else Verdict.TAKEN


def counts_of(
    before: Batch | None, attempt: str, offsets: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return how often the messages of a new batch were handed out before."""
    if before is None or before.was_reset:
        return ()
    counts = dict(before.counts)
    if attempt and attempt == before.attempt:
        return tuple((one, counts[one]) for one in offsets if one in counts)
    seen = set(before.offsets)
    return tuple((one, counts.get(one, 0) + 1) for one in offsets if one in seen)


class Room(NamedTuple):
    """The limits of messages in flight."""

    queue_max: int = 10_000
    """Messages of a group on one queue."""
    points_max: int = 200_000
    """Check points of all groups."""


class PopTable:
    """What all groups have popped."""

    def __init__(self, room: Room | None = None) -> None:
        self.room = room or Room()
        self.queues: dict[GroupQueue, PoppedQueue] = {}
        self.batches: dict[GroupQueue, Batch] = {}
        self.points = 0
        """Check points with messages in flight."""
        self.floor_pop_ms = 0
        """No token of a forgotten queue is above this."""
        self._deadlines: Deadlines[tuple[GroupQueue, CheckPoint]] = Deadlines()

    def __repr__(self) -> str:
        return f"PopTable({self.points} check points, {len(self.batches)} batches)"

    @property
    def messages(self) -> int:
        """Return how many messages are in flight without order."""
        return sum(len(queue.points) for queue in self.queues.values())

    # Without order.

    def in_flight(self, key: GroupQueue) -> bool:
        """Return whether a group has messages of a queue in flight without order."""
        queue = self.queues.get(key)
        return queue is not None and bool(queue.points)

    def has_room(self, key: GroupQueue) -> int:
        """Return how many more messages of a queue a group may have in flight."""
        if self.points >= self.room.points_max:
            return 0
        queue = self.queues.get(key)
        return self.room.queue_max - (0 if queue is None else len(queue.points))

    def next_offset(self, key: GroupQueue, committed: int) -> int:
        """Return where the next pop of a queue reads."""
        queue = self.queues.get(key)
        return committed if queue is None else max(queue.cursor, committed)

    def pop_ms(self, keys: Iterable[GroupQueue], now_ms: int) -> int:
        """Return the token of a pop of queues: the time, but above all earlier tokens of theirs."""
        found = now_ms
        for key in keys:
            queue, batch = self.queues.get(key), self.batches.get(key)
            found = max(found, (self.floor_pop_ms if queue is None else queue.last_pop_ms) + 1)
            if batch is not None:
                found = max(found, batch.pop_ms + 1)
        return found

    def take(self, key: GroupQueue, point: CheckPoint, cursor: int, now_ms: int) -> None:
        """Put messages in flight; the next pop reads at `cursor`."""
        queue = self._queue(key)
        before = self._points_of(queue, point.left)
        queue.put(point)
        self.points += 1 - sum(1 for one in before if not one.left)
        queue.cursor = max(queue.cursor, cursor)
        queue.used_ms = now_ms
        self._deadlines.push(point.deadline_ms, (key, point))
        self._compact()

    def pass_by(self, key: GroupQueue, cursor: int, now_ms: int) -> None:
        """Let the next pop read at `cursor`: no message before it matches."""
        queue = self._queue(key)
        queue.cursor = max(queue.cursor, cursor)
        queue.used_ms = now_ms

    def in_hand(self, key: GroupQueue, pop_ms: int, offsets: Iterable[int]) -> list[int]:
        """Return those offsets that are in flight under a token, and not on their way out of it.

        The copies of a check point that is being revived are perhaps in the log already.
        """
        queue = self.queues.get(key)
        found = [] if queue is None else _under(queue, pop_ms, offsets)
        return [one for one, point in found if not point.reviving]

    def point(self, key: GroupQueue, offset: int) -> CheckPoint | None:
        """Return the check point of a message in flight."""
        queue = self.queues.get(key)
        return None if queue is None else queue.points.get(offset)

    def finish(self, key: GroupQueue, pop_ms: int, offsets: Iterable[int]) -> None:
        """Take messages out of flight that are under a token."""
        queue = self.queues.get(key)
        if queue is None:
            return
        for offset, point in _under(queue, pop_ms, offsets):
            del queue.points[offset]
            point.left.pop(offset, None)
            self.points -= not point.left
        self._compact()

    def floor(self, key: GroupQueue) -> int | None:
        """Return the offset before which all messages of a queue are done; None: unknown."""
        queue = self.queues.get(key)
        return None if queue is None else queue.floor()

    def due(self, now_ms: int, count_max: int) -> list[tuple[GroupQueue, CheckPoint]]:
        """Remove and return check points whose time is over, with messages that are not done."""
        found: list[tuple[GroupQueue, CheckPoint]] = []
        count = 0
        while count < count_max and (item := self._deadlines.pop(now_ms)) is not None:
            _, point = item
            if not point.left or point.reviving:
                continue
            point.reviving = True
            count += len(point.left)
            found.append(item)
        return found

    def put_off(self, key: GroupQueue, point: CheckPoint, until_ms: int) -> None:
        """Try a check point again later: its messages could not be stored."""
        point.reviving = False
        if point.left:
            self._deadlines.push(until_ms, (key, point))

    def next_deadline_ms(self) -> int | None:
        """Return the next time at which `due` may find something, or None."""
        return self._deadlines.next_ms()

    def reset(self, key: GroupQueue) -> None:
        """Forget what is in flight of a queue: an operator set the offset."""
        queue = self.queues.pop(key, None)
        if queue is not None:
            self._drop(queue)
        batch = self.batches.get(key)
        if batch is not None:
            self.batches[key] = replace(batch, was_reset=True)

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """Forget a deleted group or topic."""

        def matches(key: GroupQueue) -> bool:
            return group in ("", key.group) and topic in ("", key.topic)

        for key in [one for one in self.queues if matches(one)]:
            self._drop(self.queues.pop(key))
        for key in [one for one in self.batches if matches(one)]:
            self.floor_pop_ms = max(self.floor_pop_ms, self.batches.pop(key).pop_ms)

    def forget_idle(self, now_ms: int) -> None:
        """Forget queues with nothing in flight that nobody has popped for long."""
        idle = [
            key for key, queue in self.queues.items()
            if not queue.points and now_ms - queue.used_ms > IDLE_MS
        ]  # fmt: skip
        for key in idle[:FORGET_AT_ONCE]:
            self._drop(self.queues.pop(key))

    def clamp(self, end_of: Callable[[str, int], int]) -> Iterator[GroupQueue]:
        """Forget messages beyond the ends of their queues; yield the queues that had some."""
        for key, queue in list(self.queues.items()):
            end = end_of(key.topic, key.queue_id)
            gone = [offset for offset in queue.points if offset >= end]
            for offset in gone:
                self.finish(key, queue.points[offset].pop_ms, [offset])
            if gone or queue.cursor > end:
                queue.cursor = min(queue.cursor, end)
                yield key
        for key, batch in list(self.batches.items()):
            if batch.offsets[-1] >= end_of(key.topic, key.queue_id):
                self.floor_pop_ms = max(self.floor_pop_ms, batch.pop_ms)
                del self.batches[key]
                yield key

    # In order.

    def ended_ms(self, key: GroupQueue) -> int:
        """Return the newest token of a queue whose last batch is done."""
        queue = self.queues.get(key)
        return 0 if queue is None else queue.last_pop_ms

    def put_batch(self, key: GroupQueue, batch: Batch) -> None:
        """Store a batch in the place of the one before."""
        self.batches[key] = batch

    def end_batch(self, key: GroupQueue) -> None:
        """Forget a batch: all of it is acknowledged."""
        batch = self.batches.pop(key, None)
        if batch is not None:
            queue = self._queue(key)
            queue.last_pop_ms = max(queue.last_pop_ms, batch.pop_ms)

    # Internals.

    def _queue(self, key: GroupQueue) -> PoppedQueue:
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = PoppedQueue(last_pop_ms=self.floor_pop_ms)
        return queue

    @staticmethod
    def _points_of(queue: PoppedQueue, offsets: Iterable[int]) -> list[CheckPoint]:
        found = (queue.points.get(offset) for offset in offsets)
        return list(dict.fromkeys(one for one in found if one is not None))

    def _drop(self, queue: PoppedQueue) -> None:
        for point in queue.check_points():
            point.left.clear()
            self.points -= 1
        self.floor_pop_ms = max(self.floor_pop_ms, queue.last_pop_ms)
        self._compact()

    def _compact(self) -> None:
        """Rebuild the heap when most of its entries belong to check points that are done."""
        if len(self._deadlines) <= 2 * self.points + 64:
            return
        self._deadlines.clear()
        for key, queue in self.queues.items():
            for point in queue.check_points():
                if not point.reviving:
                    self._deadlines.push(point.deadline_ms, (key, point))


def _under(queue: PoppedQueue, pop_ms: int, offsets: Iterable[int]) -> list[tuple[int, CheckPoint]]:
    """Return those offsets that are in flight under a token, with their check points."""
    points = queue.points
    return [
        (one, point) for one in dict.fromkeys(offsets)
        if (point := points.get(one)) is not None and point.pop_ms == pop_ms
    ]  # fmt: skip
