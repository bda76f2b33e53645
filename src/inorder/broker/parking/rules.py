"""The parked keys of groups: what is set aside of each queue, in order, until it is redriven.

    live ── a message failed too often ──> parked ── redriven, its list empty ──> live
             its later messages join it ──┘    └── dropped by an operator ──────┘

Nothing here is stored as such: the state is what the records of the %PARK% topics say, one after
the other (`broker/parking/records.py`), so it can never know more than the log. An event is judged,
stored, and applied when it is safe by the flush mode; a start applies the same events again.

A parked message counts as done in its queue. `origins` holds the offsets of all that were parked,
as long as the group has not committed past them: a request that comes twice is answered like the
first time, and the next owner of the queue does not handle them again. What a job parks is known
until the group has committed its batch (`until`): it may lie below the offset, being held back.

The version of a queue is the position of its last event: it changes with every one, also over
restarts, and an owner that knows it knows the keys.

What is known of a parked key and of a queue that has some; `broker/parking/rules.py` changes it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple

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
from inorder.wire.requests.parking import QueuePlace

TOUCHES: Final = 64
"""What is added to a version stays below it: so short is no record."""
COMING_FACTOR: Final = 16
"""How many times the bounds a group may have parked by what it cannot refuse."""


class Place(NamedTuple):
    """A queue of this broker as a group sees it."""

    group: str
    topic: str
    queue_id: int


@dataclass(slots=True)
class Totals:
    """What a group has parked."""

    keys: int = 0
    messages: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    """Since when its oldest key is parked; None: that has to be looked for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may have parked on this broker."""

    keys_max: int = 10_000
    bytes_max: int = 256 * 1024 * 1024
    age_max_ms: int = 7 * 24 * 3_600_000

    @property
    def for_replay(self) -> Limits:
        """Return what it may have by resizes, so many brokers in one, and by a reset."""
        return Limits(COMING_FACTOR * self.keys_max, COMING_FACTOR * self.bytes_max, 1 << 62)

    def exceeded(self, totals: Totals, keys: int, size_bytes: int, *, age_ms: int) -> str:
        """Return which one so much more would exceed, or does the age of the oldest key."""
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
    """A message in %PARK%group: the offset it had in its queue, and where its copy lies."""

    origin: int
    position: int
    size: int


@dataclass(slots=True)
class ParkedKey:
    """A key that is set aside."""

    key: str
    since_ms: int
    first_error: str
    tries: int
    sharding_key: str = ""
    messages: list[ParkedMessage] = field(default_factory=list)
    """By their offsets in the queue."""
    end: int = -1
    """The highest offset that was parked with it."""
    last_error: str = ""
    redrive: int = 0
    rate: int = 0
    older: dict[QueuePlace, int] = field(default_factory=dict)
    """Queues that it has come from, and by which version of the key map."""
    moved_to: QueuePlace | None = None
    moved_by: int = 0
    """The version of the key map by which it lives there."""

    def older_until(self, version: int | None) -> list[QueuePlace]:
        """Return the queues that it has come from up to a version, the oldest first; None: all."""
        came = sorted(self.older.items(), key=lambda one: one[1])  # stable: of one version in order
        return [place for place, by in came if version is None or by <= version]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its records."""
        return sum(message.size for message in self.messages)


@dataclass(slots=True)
class ParkedQueue:
    """What is parked of one queue."""

    version: int = 0
    keys: dict[str, ParkedKey] = field(default_factory=dict)
    origins: set[int] = field(default_factory=set)
    late: dict[int, int] = field(default_factory=dict)
    """Of a job's: the group's offset up to which an origin is to be known, though it lies below."""
    replay_until: int = 0
    """The group was set back: what is parked below this waits until the group has come past it."""
    touched: int = 0
    """Added to the version, so that owners look again."""
    redrive: tuple[int, bool] = (-1, False)
    """A version, and whether some key was to be redriven then."""

    def was_reset(self) -> None:
        """Know nothing but what is parked: the offset of the group was set."""
        self.origins = {message.origin for one in self.keys.values() for message in one.messages}
        self.late.clear()
        self.hold_back()

    def hold_back(self) -> None:
        """Let what is parked wait for what comes again."""
        ends = (one.messages[-1].origin + 1 for one in self.keys.values() if one.messages)
        self.replay_until = max(self.replay_until, max(ends, default=0))

    def touch(self) -> None:
        """Have the owner look again: keys may be handled that had to wait."""
        self.touched = (self.touched + 1) % TOUCHES


_BY_ORIGIN: Final = attrgetter("origin")


class Verdict(Enum):
    """What is to be done with a message that shall be parked; the values are those of the wire."""

    STORE = "store"
    PARKED = "parked"
    LIVE = "live"
    FULL = "full"


class ParkingTable:
    """All parked keys of a broker."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.places: dict[Place, ParkedQueue] = {}
        self.revision = 0
        self._totals: dict[str, Totals] = {}
        self._oldest: tuple[int, int | None] = (-1, None)  # by revision

    def __repr__(self) -> str:
        return f"ParkingTable({self})"

    def __str__(self) -> str:
        keys = sum(totals.keys for totals in self._totals.values())
        return f"{keys} keys of {len(self.places)} queues"

    # Looking.

    def version(self, group: str, topic: str, queue_id: int) -> int:
        """Return what changes with every event of a queue; 0: nothing is known of it."""
        queue = self.places.get(Place(group, topic, queue_id))
        return 0 if queue is None else queue.version + queue.touched

    def find(self, place: Place, key: str) -> ParkedKey | None:
        """Return a key if it is parked."""
        queue = self.places.get(place)
        return None if queue is None else queue.keys.get(key)

    def wants_redrive(self, place: Place) -> bool:
        """Tell whether some key of a queue is to be redriven by its owner."""
        queue = self.places.get(place)
        if queue is None:
            return False
        if queue.redrive[0] != queue.version:
            wanted = any(one.redrive for one in queue.keys.values())
            queue.redrive = (queue.version, wanted)
        return queue.redrive[1]

    def done(self, place: Place, floor: int) -> list[tuple[int, int]]:
        """Return which offsets from `floor` on were parked, as ranges [from, to)."""
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
        """Return the groups that have something parked."""
        return sorted(self._totals)

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have keys of a topic parked."""
        return {
            place.group for place, queue in self.places.items()
            if place.topic == topic and queue.keys
        }  # fmt: skip

    def entries(self, group: str) -> Iterator[tuple[Place, ParkedKey]]:
        """Return the parked keys, of one group or ("") of all, in order."""
        for place in sorted(self.places):
            if group in ("", place.group):
                keys = self.places[place].keys
                for key in sorted(keys):
                    yield place, keys[key]

    def oldest_position(self) -> int | None:
        """Return the position of the oldest parked message: the log is needed from there on."""
        if self._oldest[0] != self.revision:
            positions = (
                message.position
                for queue in self.places.values()
                for key in queue.keys.values()
                for message in key.messages
            )
            self._oldest = (self.revision, min(positions, default=None))
        return self._oldest[1]

    # Judging.

    def judge(
        self,
        place: Place,
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
        """Say what is to be done with a message that shall be parked, and if it is full, of what.

        `floor` is the committed offset; `before` are those of the same request that will be stored.
        """
        queue = self.places.get(place)
        if until is not None:  # a job's message is done with its batch, wherever it lies itself
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
        # Redrives wait for what a reset brings again: it must not wait for them to make room.
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
        """Return why a group cannot park so much more; empty if it can."""
        since_ms = self._oldest_ms(group)
        return (limits or self.limits).exceeded(
            self._totals.get(group, Totals()), keys, size_bytes,
            age_ms=0 if since_ms is None else now_ms - since_ms,
        )  # fmt: skip

    def _oldest_ms(self, group: str) -> int | None:
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

    def may_unpark(self, place: Place, key: str, end: int, *, successor: bool) -> str:
        """Return why a key cannot go live, whose owner is done with a list up to `end`."""
        one = self.find(place, key)
        if one is None:
            return ""  # it is live: the answer to the first request was lost
        if successor and one.moved_to is None:
            return "the key has not moved"
        if not successor and one.moved_to is not None:
            return f"the key has moved to {one.moved_to.broker}/{one.moved_to.queue_id}"
        if one.older:
            return "an older list of the key is not drained"
        if one.messages or one.end > end:
            return f"the list grew: it ends at {one.end}, not at {end}"
        return ""

    def left(self, place: Place, version: int) -> frozenset[str]:
        """Return the keys that live elsewhere by a version, whose older list still lies here."""
        known = self.places.get(place, ParkedQueue()).keys.values()
        return frozenset(
            one.key for one in known if one.moved_to is not None and one.moved_by <= version
        )

    def may_leave(self, place: Place, key: str, left: Container[str]) -> bool | None:
        """Tell whether a key can move; None: it is not parked here, or has moved already.

        `left` are the keys that have left the queue it shall move to: it cannot follow its own
        older list, and must not be marked as moved, or no owner would redrive either list.
        """
        one = self.find(place, key)
        if one is None or one.moved_to is not None:
            return None
        return not one.redrive and key not in left

    def may_come(self, place: Place, key: str, older: QueuePlace, version: int) -> bool | None:
        """Tell whether a key can come here by a version; None: it has already."""
        one = self.find(place, key)
        if one is None:
            return True
        if one.older.get(older, version + 1) <= version:
            return None
        return one.moved_to is None or one.moved_by > version  # else what lies here is older still

    def is_crowded(self, group: str) -> bool:
        """Tell whether no key of a group may come from another queue.

        They come above the bound for parking: else a resize would wait for a group that is full.
        """
        known = self._totals.get(group)
        return known is not None and known.keys >= self.limits.for_replay.keys_max

    # Changing.

    def apply(self, group: str, event: Event, position: int) -> None:
        """Take note of what is stored at a position of the log; the same again changes nothing."""
        place = Place(group, event.topic, event.queue)
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
        place: Place,
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
                one.redrive, one.rate = queue.version, 0  # the owner lets it go live
        elif isinstance(event, Moved):
            one.moved_to, one.moved_by = event.to, event.version
        else:
            self._forget_key(place, queue, one)

    def _park(self, place: Place, queue: ParkedQueue, event: Parked, position: int) -> None:
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
        """Note that a message lies elsewhere: it was stored again, before its file went."""
        for index, message in enumerate(one.messages):
            if message.origin == origin and message.position < position:
                one.messages[index] = ParkedMessage(origin, position, message.size)

    def _install(self, place: Place, queue: ParkedQueue, event: Installed) -> None:
        one = queue.keys.get(event.key)
        if one is None:
            one = queue.keys[event.key] = ParkedKey(
                event.key, event.at_ms, event.error, event.tries, event.sharding_key
            )
            totals = self._totals.setdefault(place.group, Totals())
            totals.keys += 1
            totals.oldest_ms = None
        one.older[event.older] = min(event.version, one.older.get(event.older, event.version))

    def _remove(self, place: Place, one: ParkedKey, origins: Iterable[int]) -> None:
        gone = set(origins)
        totals = self._totals[place.group]
        for message in one.messages:
            if message.origin in gone:
                totals.messages -= 1
                totals.size_bytes -= message.size
        one.messages = [message for message in one.messages if message.origin not in gone]

    def _forget_key(self, place: Place, queue: ParkedQueue, one: ParkedKey) -> None:
        self._remove(place, one, [message.origin for message in one.messages])
        del queue.keys[one.key]
        totals = self._totals[place.group]
        totals.keys -= 1
        totals.oldest_ms = None
        if not totals.keys:
            assert not totals.messages, f"messages of no key are parked: {place}"
            assert not totals.size_bytes, f"messages of no key are parked: {place}"
            del self._totals[place.group]

    def prune(self, place: Place, floor: int) -> None:
        """Forget what a group has committed past, and a queue of which nothing is left."""
        queue = self.places.get(place)
        if queue is None:
            return
        late = queue.late = {one: until for one, until in queue.late.items() if until > floor}
        queue.origins = {one for one in queue.origins if one >= floor or one in late}
        queue.replay_until = 0 if floor >= queue.replay_until else queue.replay_until
        for one in queue.keys.values():  # they stay known as long as they are parked
            queue.origins.update(message.origin for message in one.messages)
        if not queue.origins and not queue.keys:
            del self.places[place]

    def forget_group(self, group: str) -> None:
        """Forget all of a group: its topic of parked messages is gone."""
        for place in [place for place in self.places if place.group == group]:
            del self.places[place]
            self.revision += 1
        self._totals.pop(group, None)

    # Over a restart.

    def restore(self, place: Place, queue: ParkedQueue) -> None:
        """Put in what a file holds."""
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
