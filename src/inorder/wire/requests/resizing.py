"""A resize of a topic with a key map: decide, stop, go, open, withdraw; groups that wait for it.

`wire/extensions.py` has the codes, `docs/howto/resizing.md` tells how a resize runs. A `ResizeView`
in the body of a reply holds what the broker knows of the topic's versions. How a resize keeps
order: decision 13.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.wire.extensions import ExtensionCode
from inorder.wire.replies import EMPTY, body_as


class ResizeRelease(msgspec.Struct, frozen=True):
    """Let a group read a version, because it has finished the versions before on all brokers.

    Refused with GROUP_NOT_DONE if the group has not finished here, unless `force` is set.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_RELEASE
    REPLY = EMPTY

    topic: str
    group: str
    version: int
    force: bool = False
    term: int = 0
    """Wire name of the rewind number: refused if the group was rewound since."""


class ResizeRewind(msgspec.Struct, frozen=True):
    """Pause a group on a topic, because it was rewound into an older version.

    One broker sends it to the others; `term` is the rewind number. A broker answers when the pause
    is on disk and it has revoked all queues of the group. With `over` the group resumes: it is
    paused at all brokers, and no consumer handles earlier deliveries any more.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_REWIND
    REPLY = EMPTY

    topic: str
    group: str
    version: int
    """The version that the group reads then, unless it reads an older one at this broker."""
    term: int
    over: bool = False


BYTES_MAX: Final = 16 * 1024 * 1024


class Plan(msgspec.Struct, frozen=True):
    """The next version of a topic's map, under the id of the coordinator that planned it.

    Brokers keep plans and past versions in `inorder/resizing.json` under these names.
    """

    id: str
    version: int
    map: str
    base: str = ""
    """For a topic's first map: how producers placed keys before, as a map of version 0."""
    without: tuple[str, ...] = ()
    """Brokers that are gone for good. The resize does not wait for them."""


class PastVersion(msgspec.Struct, frozen=True):
    """A version that is no longer open, and where it ended in each queue of this broker."""

    version: int
    map: str
    ends: dict[int, int]


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a group is at this broker."""

    group: str
    version: int
    """The version that it may read."""
    done: int
    """The version that it could read as far as this broker knows: it has finished all before."""
    behind: int
    """Messages of its version that it has yet to finish here."""
    online: bool
    """Whether it has members at this broker."""
    term: int = 0
    """Wire name of the rewind number: how often the group was rewound into a past version."""
    rests: bool = False
    """Wire name of "paused for rewind": the group gets nothing until every broker has paused it."""
    quiet: bool = True
    """No consumer handles earlier deliveries of this broker."""
    back: int = 0
    """The version that it reads, or was rewound into while it is paused."""


class ResizeView(msgspec.Struct, frozen=True):
    """The versions of a topic at one broker."""

    broker: str
    topic: str
    version: int
    """The present one; 0: the topic has no key map, or is not there."""
    map: str
    last: int
    """The highest version that the name ever had here, also before it was deleted."""
    plan: Plan | None = None
    ends: dict[int, int] | None = None
    """Where the present version ended, once it is stopped."""
    opened: str = ""
    """The id of the plan that began the present version."""
    past: tuple[PastVersion, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    read_queues: int = 0
    write_queues: int = 0
    going: bool = False
    """The plan cannot be withdrawn any more, according to the topic's first broker."""
    withdrawn: tuple[str, ...] = ()
    """The ids of the last plans that were withdrawn, oldest first."""
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


class ResizeDecide(msgspec.Struct, frozen=True):
    """Decide the next version of a topic's map, at its first broker: the first plan wins.

    A repeated request gets the first answer. Another plan for that version is refused
    with RESIZE_UNDER_WAY, one for another version with KEY_MAP_CHANGED.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_DECIDE
    REPLY = body_as(decode_resize_view)

    topic: str
    plan_id: str
    version: int
    map: str
    """The new map as text."""
    without: str = ""
    """Brokers of the current map that are gone for good, comma-separated."""


class ResizeStop(msgspec.Struct, frozen=True):
    """Accept no more sends of the current version, and record where each queue ends.

    Answered when the log and the ends are on disk. Refused like RESIZE_DECIDE.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_STOP
    REPLY = body_as(decode_resize_view)

    topic: str
    plan_id: str
    version: int
    map: str
    without: str = ""
    """As in RESIZE_DECIDE."""
    base: str = ""
    """For a topic's first map: how producers placed keys before, as a map of version 0. Empty: this
    request creates the topic if it does not exist, and the topic stores nothing until it is
    opened."""
    perm: int = 6
    """The permission of a new topic."""
    order: bool = False
    auto: bool = False
    """A send creates the topic: refused with TOPIC_NOT_EXIST if the broker does not allow that."""


class ResizeOpen(msgspec.Struct, frozen=True):
    """Begin the next version; sent when every broker of the topic has stopped.

    The first broker gets it last: if that broker is open, all are.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_OPEN
    REPLY = body_as(decode_resize_view)

    topic: str
    plan_id: str
    version: int
    empty: bool = False
    """For a topic's first map: no broker of the topic has stored a message before."""


class ResizeGo(msgspec.Struct, frozen=True):
    """Make the resize final, at the topic's first broker, when all brokers have stopped.

    Sent before the first RESIZE_OPEN. After it the plan cannot be withdrawn.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_GO
    REPLY = body_as(decode_resize_view)

    topic: str
    plan_id: str
    version: int


class ResizeWithdraw(msgspec.Struct, frozen=True):
    """Withdraw a plan: the broker accepts sends of the current version again, and refuses late
    requests of the plan.

    The topic's first broker gets it before all others, and refuses it after RESIZE_GO.
    """

    CODE: ClassVar = ExtensionCode.RESIZE_WITHDRAW
    REPLY = body_as(decode_resize_view)

    topic: str
    plan_id: str


class ResizeStatus(msgspec.Struct, frozen=True):
    """Ask for a broker's view of a topic's versions and of the groups that read them."""

    CODE: ClassVar = ExtensionCode.RESIZE_STATUS
    REPLY = body_as(decode_resize_view)

    topic: str
    group: str = ""
    """Only this group; empty: all."""
