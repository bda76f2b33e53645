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
    older: list[QueuePlace] = field(default_factory=list)
    moved_to: QueuePlace | None = None
    version: int = 0
    """The version of the key map by which it has come from another queue; 0: it has not."""

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
    touched: int = 0
    """Added to the version, so that owners look again."""
    redrive: tuple[int, bool] = (-1, False)
    """A version, and whether some key was to be redriven then."""

    def touch(self) -> None:
        """Have the owner look again: keys may be handled that had to wait."""
        self.touched = (self.touched + 1) % TOUCHES
