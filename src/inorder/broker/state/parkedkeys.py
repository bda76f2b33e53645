"""What is known of a parked key and of a queue that has some; `parking.py` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

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
