"""What a broker tells of a topic's versions (RESIZE_STATUS and its kin)."""

from __future__ import annotations

from typing import Final

import msgspec

from inorder.errors import RemoteProtocolError

BYTES_MAX: Final = 16 * 1024 * 1024


class PlanView(msgspec.Struct, frozen=True):
    """A resize that was decided or begun: who it is, to which version, with which map."""

    id: str
    version: int
    map: str
    base: str = ""
    """Of a topic's first map: how keys were placed before."""
    without: tuple[str, ...] = ()
    """Brokers that are gone for good."""


class ChapterView(msgspec.Struct, frozen=True):
    """A version that is over: its map, and where it ended in each queue of this broker."""

    version: int
    map: str
    ends: dict[int, int]


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a group is at this broker."""

    group: str
    version: int
    """The version that it may read."""
    done: int
    """The version that it could read as far as this broker knows: it is done with all before."""
    behind: int
    """Messages of its version that it has yet to finish here."""
    online: bool
    """Whether it has members at this broker."""
    term: int = 0
    """How often it was set back into a version that is past."""
    rests: bool = False
    """It was, and gets nothing until that is known and done everywhere."""
    quiet: bool = True
    """Nobody handles what this broker gave before."""
    back: int = 0
    """The version that it reads, or was set back into while it rests."""


class ResizeView(msgspec.Struct, frozen=True):
    """The versions of a topic at one broker."""

    broker: str
    topic: str
    version: int
    """The present one; 0: the topic has no key map, or is not there."""
    map: str
    last: int
    """The highest version that the name ever had here, also before it was deleted."""
    plan: PlanView | None = None
    ends: dict[int, int] | None = None
    """Where the present version ended, once it is stopped."""
    opened: str = ""
    """The id of the plan that began the present version."""
    past: tuple[ChapterView, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    read_queues: int = 0
    write_queues: int = 0
    going: bool = False
    """The plan is not taken back any more; said by the topic's first broker."""
    withdrawn: tuple[str, ...] = ()
    """The ids of the last plans that were taken back, oldest first."""
    protocol: int = 1
    """From 2 on a topic gets its first map by RESIZE_STOP, RESIZE_GO and RESIZE_OPEN."""
    empty: bool = False
    """Nothing of the present version is held here."""
    making: bool = False
    """The topic is there for a first map that is not open: nothing can be stored in it."""
    auto: bool = False
    """Sends may make topics here."""


def encode_resize_view(view: ResizeView) -> bytes:
    """Return the body."""
    return msgspec.json.encode(view)


def decode_resize_view(data: bytes | memoryview) -> ResizeView:
    """Read the body; malformed: RemoteProtocolError."""
    if len(data) > BYTES_MAX:
        raise RemoteProtocolError(f"a view of a resize has at most {BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(data, type=ResizeView)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RemoteProtocolError(f"not a view of a resize: {error}") from None
