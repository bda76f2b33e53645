"""The parked keys of all groups: which messages of a key wait, and what may happen to them.

When a message fails too often, its owner parks the message's key. Later messages of the key join
the parked ones in order, while other keys go on.

    live ── a message failed too often ──> parked ── redriven, its list is empty ──> live
            later messages join it ────────┘    └─── dropped by an operator ──────┘

The table is derived from the log. Each change is an event in a record of the group's %PARK% topic
(`records.py`). An event is judged here, stored, and applied when the record is safe by the flush
mode. A start applies the same events again, so the table never knows more than the log.

A parked message counts as done in its queue. `ParkedQueue.origins` holds the offsets of all parked
messages that the group has not committed yet. With them the broker recognises a repeated park
request, and the queue's next owner skips these messages. A Spark job may park a message that lies
below the group's offset, because its key was held back. The broker knows such a message until the
group has committed the job's batch (`late`).

The version of a queue is the log position after its last event. It changes with every event and
over restarts, so an owner that knows the version knows the parked keys.

Why: decisions 21 (storage) and 22 (who parks and who releases).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Final

from inorder.broker.parking.records import (
    Cancelled,
    Dropped,
    Event,
    Forgotten,
    Installed,
    Moved,
    Parked,
    Redriven,
    Redriving,
    Unparked,
)
from inorder.model import GroupQueue
from inorder.wire.requests.parking import QueuePlace

TOUCHES: Final = 64
"""Upper bound of the counter that is added to a queue's version. Versions are log positions, and no
record is as short as 64 bytes, so the sum stays below the next version."""
COMING_FACTOR: Final = 16
"""How many times the limits a group may exceed by keys that it cannot refuse."""
_BY_ORIGIN: Final = attrgetter("origin")


@dataclass(slots=True)
class Totals:
    """How much a group has parked."""

    keys: int = 0
    messages: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    """When its oldest key was parked; None: not computed yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a group may park on this broker."""

    keys_max: int = 10_000
    bytes_max: int = 256 * 1024 * 1024
    age_max_ms: int = 7 * 24 * 3_600_000

    @property
    def for_replay(self) -> Limits:
        """Return the higher limits for keys that a group cannot refuse.

        Those are keys that a resize moves here, perhaps from many brokers, and keys that a replay
        brings back.
        """
        return Limits(COMING_FACTOR * self.keys_max, COMING_FACTOR * self.bytes_max, 1 << 62)

    def exceeded(self, totals: Totals, keys: int, size_bytes: int, *, age_ms: int) -> str:
        """Return the limit that an addition, or the age of the oldest key, exceeds; else empty."""
        if totals.keys + keys > self.keys_max:
            return f"{totals.keys} keys are parked, parked_keys_max is {self.keys_max}"
        if totals.size_bytes + size_bytes > self.bytes_max:
            return f"{totals.size_bytes} bytes are parked, parked_bytes_max is {self.bytes_max}"
        if age_ms > self.age_max_ms:
            hours = age_ms // 3_600_000
            return f"a key is parked for {hours} h, parked_age_max_ms is {self.age_max_ms}"
        return ""


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A parked message: its offset in the original queue, and the log position of its copy."""

    origin: int
    position: int
    size: int


@dataclass(slots=True)
class ParkedKey:
    """A parked key and its messages."""

    key: str
    since_ms: int
    first_error: str
    tries: int
    sharding_key: str = ""
    messages: list[ParkedMessage] = field(default_factory=list)
    """In the order of their offsets in the queue."""
    end: int = -1
    """The highest offset that was parked with the key."""
    last_error: str = ""
    redrive: int = 0
    rate: int = 0
    older: dict[QueuePlace, int] = field(default_factory=dict)
    """The queues from which the key has come, with the key map version that brought it."""
    moved_to: QueuePlace | None = None
    moved_by: int = 0
    """The key map version that moved it."""

    def older_until(self, version: int | None) -> list[QueuePlace]:
        """Return the queues from which it came up to a version, oldest first; None: all of them."""
        came = sorted(
            self.older.items(), key=lambda one: one[1]
        )  # stable: keeps the order within a version
        return [place for place, by in came if version is None or by <= version]

    @property
    def size_bytes(self) -> int:
        """Return the total size of its records."""
        return sum(message.size for message in self.messages)


@dataclass(slots=True)
class ParkedQueue:
    """The parked keys of one queue for one group."""

    version: int = 0
    keys: dict[str, ParkedKey] = field(default_factory=dict)
    origins: set[int] = field(default_factory=set)
    late: dict[int, int] = field(default_factory=dict)
    """For messages of a Spark job: the group offset up to which an origin below it stays known."""
    replay_until: int = 0
    """After a reset: parked messages below this offset wait until the group has passed it again."""
    touched: int = 0
    """Added to the version so that the owner fetches the keys again."""
    redrive: tuple[int, bool] = (-1, False)
    """A cached answer: a version, and whether a redrive of some key was wanted at that version."""

    def was_reset(self) -> None:
        """Forget all origins that are no longer parked, because the group's offset was reset."""
        self.origins = {message.origin for one in self.keys.values() for message in one.messages}
        self.late.clear()
        self.hold_back()

    def hold_back(self) -> None:
        """Make parked messages wait for the messages that a reset replays."""
        ends = (one.messages[-1].origin + 1 for one in self.keys.values() if one.messages)
        self.replay_until = max(self.replay_until, max(ends, default=0))

    def touch(self) -> None:
        """Have the owner fetch the keys again, because more of them may be redriven now."""
        self.touched = (self.touched + 1) % TOUCHES


class Verdict(Enum):
    """What to do with a message that a client wants to park; the values are those of the wire."""

    STORE = "store"
    PARKED = "parked"
    LIVE = "live"
    FULL = "full"


class ParkingTable:
    """All parked keys of a broker."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.places: dict[GroupQueue, ParkedQueue] = {}
        self.revision = 0
        self._totals: dict[str, Totals] = {}
        self._oldest: tuple[int, int | None] = (-1, None)  # computed at this revision

    def __repr__(self) -> str:
        return f"ParkingTable({self})"

    def __str__(self) -> str:
        keys = sum(totals.keys for totals in self._totals.values())
        return f"{keys} keys of {len(self.places)} queues"

    # Queries.

    def version(self, group: str, topic: str, queue_id: int) -> int:
        """Return a number that changes with every event of a queue; 0: the queue is unknown."""
        queue = self.places.get(GroupQueue(group, topic, queue_id))
        return 0 if queue is None else queue.version + queue.touched

    def find(self, place: GroupQueue, key: str) -> ParkedKey | None:
        """Return a parked key, or None."""
        queue = self.places.get(place)
        return None if queue is None else queue.keys.get(key)

    def wants_redrive(self, place: GroupQueue) -> bool:
        """Return whether an operator wants some key of a queue redriven."""
        queue = self.places.get(place)
        if queue is None:
            return False
        if queue.redrive[0] != queue.version:
            wanted = any(one.redrive for one in queue.keys.values())
            queue.redrive = (queue.version, wanted)
        return queue.redrive[1]

    def done(self, place: GroupQueue, floor: int) -> list[tuple[int, int]]:
        """Return the offsets from `floor` on that were parked, as ranges [from, to)."""
        queue = self.places.get(place)
        ranges: list[tuple[int, int]] = []
        for origin in sorted(queue.origins if queue is not None else ()):
            if origin < floor:
                continue
            if ranges and ranges[-1][1] == origin:
                ranges[-1] = (ranges[-1][0], origin + 1)
            else:
                ranges.append((origin, origin + 1))
        return ranges

    def groups(self) -> list[str]:
        """Return the groups that have parked keys."""
        return sorted(self._totals)

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have parked keys of a topic."""
        return {
            place.group for place, queue in self.places.items()
            if place.topic == topic and queue.keys
        }  # fmt: skip

    def entries(self, group: str) -> Iterator[tuple[GroupQueue, ParkedKey]]:
        """Yield the parked keys of one group or ("") of all groups, sorted."""
        for place in sorted(self.places):
            if group in ("", place.group):
                keys = self.places[place].keys
                for key in sorted(keys):
                    yield place, keys[key]

    def oldest_position(self) -> int | None:
        """Return the log position of the oldest parked message; the log is needed from there on."""
        if self._oldest[0] != self.revision:
            positions = (
                message.position
                for queue in self.places.values()
                for key in queue.keys.values()
                for message in key.messages
            )
            self._oldest = (self.revision, min(positions, default=None))
        return self._oldest[1]

    # Rules.

    def judge(
        self,
        place: GroupQueue,
        offset: int,
        key: str,
        *,
        joins: bool,
        size: int,
        floor: int,
        now_ms: int,
        before: Iterable[Parked] = (),
        until: int | None = None,
    ) -> tuple[Verdict, str]:
        """Judge a request to park a message; if a limit is reached, also say which.

        `floor` is the committed offset. `before` holds the messages of the same request that will
        be stored.
        """
        queue = self.places.get(place)
        if until is not None:  # a job's message is done with its batch
            floor = offset + 1 if until <= floor else offset
        if offset < floor or (queue is not None and offset in queue.origins):
            return Verdict.PARKED, ""
        keys = {event.key for event in before}
        parked = key in keys or (queue is not None and key in queue.keys)
        if joins and not parked:
            return Verdict.LIVE, ""
        size += sum(event.size for event in before)
        if not parked:
            keys.add(key)
        new_keys = sum(1 for one in keys if queue is None or one not in queue.keys)
        # Redrives wait for replayed messages, so replayed messages must not wait for room.
        limits = self.limits.for_replay if queue and offset < queue.replay_until else self.limits
        why = self.full(place.group, now_ms, keys=new_keys, size_bytes=size, limits=limits)
        return (Verdict.FULL, why) if why else (Verdict.STORE, "")

    def full(
        self,
        group: str,
        now_ms: int,
        *,
        keys: int = 0,
        size_bytes: int = 0,
        limits: Limits | None = None,
    ) -> str:
        """Return why a group cannot park that much more; empty if it can."""
        since_ms = self.oldest_ms(group)
        return (limits or self.limits).exceeded(
            self._totals.get(group, Totals()), keys, size_bytes,
            age_ms=0 if since_ms is None else now_ms - since_ms,
        )  # fmt: skip

    def oldest_ms(self, group: str) -> int | None:
        """Return since when the oldest parked key of a group is parked."""
        totals = self._totals.get(group)
        if totals is None:
            return None
        if totals.oldest_ms is None:
            totals.oldest_ms = min(
                one.since_ms
                for place, queue in self.places.items()
                if place.group == group
                for one in queue.keys.values()
            )
        return totals.oldest_ms

    def may_unpark(self, place: GroupQueue, key: str, end: int, *, successor: bool) -> str:
        """Return why a key cannot go live after its owner finished a list up to `end`; else empty.

        `successor`: the request comes from the owner of the queue to which the key has moved.
        """
        one = self.find(place, key)
        if one is None:
            return ""  # it is live: the reply to the first request was lost
        if successor and one.moved_to is None:
            return "the key has not moved"
        if not successor and one.moved_to is not None:
            return f"the key has moved to {one.moved_to.broker}/{one.moved_to.queue_id}"
        if one.older:
            return "an older list of the key is not drained"
        if one.messages or one.end > end:
            return f"the list grew: it ends at {one.end}, not at {end}"
        return ""

    def left(self, place: GroupQueue, version: int) -> frozenset[str]:
        """Return the keys that moved away by a version and still have a list here."""
        known = self.places.get(place, ParkedQueue()).keys.values()
        return frozenset(
            one.key for one in known if one.moved_to is not None and one.moved_by <= version
        )

    def may_leave(self, place: GroupQueue, key: str, left: Container[str]) -> bool | None:
        """Return whether a key can move; None: it is not parked here, or has moved already.

        `left` holds the keys that have left the target queue. A key cannot follow its own older
        list there, and must not be marked as moved: otherwise no owner would redrive either list.
        """
        one = self.find(place, key)
        if one is None or one.moved_to is not None:
            return None
        return not one.redrive and key not in left

    def may_come(self, place: GroupQueue, key: str, older: QueuePlace, version: int) -> bool | None:
        """Return whether a key can move here by a version; None: it has already."""
        one = self.find(place, key)
        if one is None:
            return True
        if one.older.get(older, version + 1) <= version:
            return None
        return (
            one.moved_to is None or one.moved_by > version
        )  # otherwise the list here is the older one

    def is_crowded(self, group: str) -> bool:
        """Return whether a group cannot take more keys from other queues.

        Moved keys may exceed the limit for parking. Otherwise a resize would wait for a group that
        is full.
        """
        known = self._totals.get(group)
        return known is not None and known.keys >= self.limits.for_replay.keys_max

    # Changes.

    def apply(self, group: str, event: Event, position: int) -> None:
        """Apply an event that is stored at a log position. Applying it again changes nothing."""
        place = GroupQueue(group, event.topic, event.queue)
        queue = self.places.get(place)
        if queue is None:
            queue = self.places[place] = ParkedQueue()
        self.revision += 1
        queue.version = position + 1
        if isinstance(event, Parked):
            self._park(place, queue, event, position)
        elif isinstance(event, Installed):
            self._install(place, queue, event)
        elif isinstance(event, Forgotten):
            queue.was_reset()
            if not queue.keys:
                del self.places[place]
        else:
            one = queue.keys.get(event.key)
            if one is not None:
                self._change(place, queue, one, event)

    def _change(
        self,
        place: GroupQueue,
        queue: ParkedQueue,
        one: ParkedKey,
        event: Redriving | Cancelled | Redriven | Unparked | Dropped | Moved,
    ) -> None:
        if isinstance(event, Redriving):
            one.redrive, one.rate = queue.version, event.rate
        elif isinstance(event, Cancelled):
            one.redrive = one.rate = 0
        elif isinstance(event, Redriven):
            self._remove(place, one, event.done)
            if event.older is not None:
                one.older.pop(event.older, None)
            if event.error is not None:
                one.redrive = one.rate = 0
                one.last_error = event.error
        elif isinstance(event, Dropped):
            self._remove(place, one, event.offsets)
            if event.whole and one.moved_to is None:
                one.redrive, one.rate = queue.version, 0  # the owner will let it go live
        elif isinstance(event, Moved):
            one.moved_to, one.moved_by = event.to, event.version
        else:
            self._forget_key(place, queue, one)

    def _park(self, place: GroupQueue, queue: ParkedQueue, event: Parked, position: int) -> None:
        one = queue.keys.get(event.key)
        if event.offset in queue.origins:
            if one is not None:
                self._replace(one, event.offset, position)
            return
        totals = self._totals.setdefault(place.group, Totals())
        if one is None:
            one = queue.keys[event.key] = ParkedKey(
                event.key, event.at_ms, event.error, event.tries, event.sharding_key
            )
            totals.keys += 1
            totals.oldest_ms = None
        queue.origins.add(event.offset)
        if event.until:
            queue.late[event.offset] = event.until
        insort(one.messages, ParkedMessage(event.offset, position, event.size), key=_BY_ORIGIN)
        one.end = max(one.end, event.offset)
        totals.messages += 1
        totals.size_bytes += event.size

    @staticmethod
    def _replace(one: ParkedKey, origin: int, position: int) -> None:
        """Record the new position of a message that was stored again."""
        for index, message in enumerate(one.messages):
            if message.origin == origin and message.position < position:
                one.messages[index] = ParkedMessage(origin, position, message.size)

    def _install(self, place: GroupQueue, queue: ParkedQueue, event: Installed) -> None:
        one = queue.keys.get(event.key)
        if one is None:
            one = queue.keys[event.key] = ParkedKey(
                event.key, event.at_ms, event.error, event.tries, event.sharding_key
            )
            totals = self._totals.setdefault(place.group, Totals())
            totals.keys += 1
            totals.oldest_ms = None
        one.older[event.older] = min(event.version, one.older.get(event.older, event.version))

    def _remove(self, place: GroupQueue, one: ParkedKey, origins: Iterable[int]) -> None:
        gone = set(origins)
        totals = self._totals[place.group]
        for message in one.messages:
            if message.origin in gone:
                totals.messages -= 1
                totals.size_bytes -= message.size
        one.messages = [message for message in one.messages if message.origin not in gone]

    def _forget_key(self, place: GroupQueue, queue: ParkedQueue, one: ParkedKey) -> None:
        self._remove(place, one, [message.origin for message in one.messages])
        del queue.keys[one.key]
        totals = self._totals[place.group]
        totals.keys -= 1
        totals.oldest_ms = None
        if not totals.keys:
            assert not totals.messages, f"messages of no key are parked: {place}"
            assert not totals.size_bytes, f"messages of no key are parked: {place}"
            del self._totals[place.group]

    def prune(self, place: GroupQueue, floor: int) -> None:
        """Forget offsets that the group has committed past, and a queue without any left."""
        queue = self.places.get(place)
        if queue is None:
            return
        late = queue.late = {one: until for one, until in queue.late.items() if until > floor}
        queue.origins = {one for one in queue.origins if one >= floor or one in late}
        queue.replay_until = 0 if floor >= queue.replay_until else queue.replay_until
        for one in queue.keys.values():  # known as long as they are parked
            queue.origins.update(message.origin for message in one.messages)
        if not queue.origins and not queue.keys:
            del self.places[place]

    def forget_group(self, group: str) -> None:
        """Forget a group whose %PARK% topic was deleted."""
        for place in [place for place in self.places if place.group == group]:
            del self.places[place]
            self.revision += 1
        self._totals.pop(group, None)

    # Over a restart.

    def restore(self, place: GroupQueue, queue: ParkedQueue) -> None:
        """Add a queue from the snapshot."""
        self.places[place] = queue
        for one in queue.keys.values():
            totals = self._totals.setdefault(place.group, Totals())
            totals.keys += 1
            totals.messages += len(one.messages)
            totals.size_bytes += one.size_bytes

    def statistics(self, group: str) -> tuple[int, int, int]:
        """Return how many keys, messages and bytes a group has parked."""
        totals = self._totals.get(group, Totals())
        return totals.keys, totals.messages, totals.size_bytes
