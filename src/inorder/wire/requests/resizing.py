"""Another number of queues for a mapped topic: decide, stop, go, open, look, release; or back.

`wire/extensions.py` has the codes, `docs/howto/resizing.md` the story. What a broker knows comes as
a `ResizeView` (`wire/requests/resizing.py`) in the body of every answer but the last one's.

What a broker tells of a topic's versions (RESIZE_STATUS and its kin).
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.wire.extensions import ExtensionCode


class ResizeDecide(msgspec.Struct, frozen=True):
    """Decide the next version of a topic's map, at its first broker: the first one to ask wins.

    The same request again is answered like the first. Another plan for that version is refused
    with RESIZE_UNDER_WAY, one for another version with KEY_MAP_CHANGED.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_DECIDE

    topic: str
    plan_id: str
    version: int
    map: str
    """The new map as text."""
    without: str = ""
    """Brokers of the present map that are gone for good, with `,` between them."""


class ResizeStop(msgspec.Struct, frozen=True):
    """Take no more sends of the present version, and note where each queue ends.

    Answered when the log and the ends are on disk. Refused like RESIZE_DECIDE.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_STOP

    topic: str
    plan_id: str
    version: int
    map: str
    without: str = ""
    """As in RESIZE_DECIDE."""
    base: str = ""
    """Of a topic's first map: how keys were placed before, as a map of version 0. Empty: the topic
    is made by this request where it is not there, and nothing can be stored in it before it is
    opened."""
    perm: int = 6
    """The permission of a topic that is made."""
    order: bool = False
    auto: bool = False
    """A send makes it: refused with TOPIC_NOT_EXIST where topics are not made so."""


class ResizeOpen(msgspec.Struct, frozen=True):
    """Begin the next version: to be asked when every broker of the topic has stopped.

    The first broker is asked last: so whoever finds it open knows that all are.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_OPEN

    topic: str
    plan_id: str
    version: int
    empty: bool = False
    """Of a topic's first map: nothing was stored at any of its brokers before."""


class ResizeGo(msgspec.Struct, frozen=True):
    """Let the next version be begun, at the topic's first broker, when all brokers have stopped.

    Asked before the first RESIZE_OPEN: from then on the plan cannot be taken back.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_GO

    topic: str
    plan_id: str
    version: int


class ResizeWithdraw(msgspec.Struct, frozen=True):
    """Take a plan back: sends of the present version are taken again, late requests refused.

    Asked of the topic's first broker before all others; refused there after RESIZE_GO.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_WITHDRAW

    topic: str
    plan_id: str


class ResizeStatus(msgspec.Struct, frozen=True):
    """Ask what a broker knows of a topic's versions, and how far groups are."""

    CODE: ClassVar = ExtensionCode.RESIZE_STATUS

    topic: str
    group: str = ""
    """Only this group; empty: all."""


class ResizeRelease(msgspec.Struct, frozen=True):
    """Let a group read a version: it is done with those before it, on all brokers.

    Refused with GROUP_NOT_DONE if it is not so here, unless an operator insists.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_RELEASE

    topic: str
    group: str
    version: int
    force: bool = False
    term: int = 0
    """How often the group was set back, as far as is known: refused if it was since."""


class ResizeRewind(msgspec.Struct, frozen=True):
    """Give a group nothing of a topic: it was set back into a version that is past.

    Asked by one broker of the others, for the `term`-th time. Answered when that is on disk, and
    all queues of the group are asked back from their owners. With `over` it may read again: it
    rests at all brokers, and nobody handles what was given before.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_REWIND

    topic: str
    group: str
    version: int
    """The version that it reads then, unless it reads an older one here."""
    term: int
    over: bool = False


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
