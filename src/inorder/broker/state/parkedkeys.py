"""What is known of a parked key and of a queue that has some; `parking.py` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inorder.wire.bodies.parking import QueuePlace

TOUCHES: Final = 64
"""What is added to a version stays below it: so short is no record."""


class Place(NamedTuple):
    """A queue of this broker as a group sees it."""

    group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may have parked on this broker."""

    keys_max: int = 10_000
    bytes_max: int = 256 * 1024 * 1024
    age_max_ms: int = 7 * 24 * 3_600_000


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
    """Where the group was when it was set back: what lies before that has to come again first."""
    touched: int = 0
    """Added to the version, so that owners look again."""
    redrive: tuple[int, bool] = (-1, False)
    """A version, and whether some key was to be redriven then."""

    def was_reset(self, until: int) -> None:
        """Know nothing but what is parked: the group, which was at an offset, was set elsewhere."""
        self.origins = {message.origin for one in self.keys.values() for message in one.messages}
        self.late.clear()
        self.replay_until = max(self.replay_until, until)

    def touch(self) -> None:
        """Have the owner look again: keys may be handled that had to wait."""
        self.touched = (self.touched + 1) % TOUCHES


@dataclass(slots=True)
class Totals:
    """What a group has parked."""

    keys: int = 0
    messages: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    """Since when its oldest key is parked; None: that has to be looked for."""
