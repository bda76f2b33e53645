"""Parked keys: set aside, look at, redrive, let go, drop, move. See `wire/extensions.py`.

Lists stand in the bodies (`wire/bodies/parking.py`). Requests of a queue's owner carry its epoch.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.extensions import ExtensionCode
from inorder.wire.fields import Int32


class Park(msgspec.Struct, frozen=True):
    """Set messages aside: each is stored in %PARK%group and counts as done, both or neither.

    The body is a ParkBody, the answer's a ParkAnswer. A message that is parked already is answered
    like the first time.
    """

    CODE: ClassVar = ExtensionCode.PARK

    group: str
    client_id: str
    instance: str
    topic: str
    queue_id: Int32
    epoch: int


class ParkedKeys(msgspec.Struct, frozen=True):
    """Ask for what an owner has to know of a queue: its parked keys; the body is a QueueParking.

    The answer waits for what is being parked there.
    """

    CODE: ClassVar = ExtensionCode.PARKED_KEYS

    group: str
    topic: str
    queue_id: Int32


class ParkedList(msgspec.Struct, frozen=True):
    """List parked keys, a page at a time; the answer's body is a ParkedPage."""

    CODE: ClassVar = ExtensionCode.PARKED_LIST

    group: str = ""
    """Of this group alone; empty: of all."""
    after: str = ""
    """`next` of the page before."""


class ParkedRead(msgspec.Struct, frozen=True):
    """Read the messages of a parked key in order; the body holds their records in %PARK%group."""

    CODE: ClassVar = ExtensionCode.PARKED_READ

    group: str
    topic: str
    queue_id: Int32
    key: str
    after: int = -1
    """Only those parked from behind this offset."""
    max_messages: Int32 = 32
    in_order: bool = False
    """Of a redrive: none that has to wait for what is older."""


class ParkedReadReply(msgspec.Struct, frozen=True):
    """How many messages the key has, of which the body may hold the first ones only."""

    messages: int


class Redrive(msgspec.Struct, frozen=True):
    """Let the owners of queues handle parked keys again, or take that back; body KeyList.

    The answer's fields say how many of the keys are parked here.
    """

    CODE: ClassVar = ExtensionCode.REDRIVE

    group: str
    cancel: bool = False


class RedriveReply(msgspec.Struct, frozen=True):
    """How many keys it was noted for."""

    keys: Int32


class Redriven(msgspec.Struct, frozen=True):
    """Say what became of messages in a redrive; the body is a RedrivenBody.

    `heir`: by the owner of the queue that the key has moved to, under no epoch of this queue.
    """

    CODE: ClassVar = ExtensionCode.REDRIVEN

    group: str
    client_id: str
    instance: str
    topic: str
    queue_id: Int32
    epoch: int
    key: str
    heir: bool = False


class RedrivenReply(msgspec.Struct, frozen=True):
    """The version of the queue's parked keys before and afterwards."""

    before: int
    version: int


class Unpark(msgspec.Struct, frozen=True):
    """Let a key go live, whose list ends at offset `end` and is empty; refused if it grew."""

    CODE: ClassVar = ExtensionCode.UNPARK

    group: str
    client_id: str
    instance: str
    topic: str
    queue_id: Int32
    epoch: int
    key: str
    end: int
    heir: bool = False


class UnparkReply(msgspec.Struct, frozen=True):
    """Whether the key is live now, if not `why`; versions as in RedrivenReply."""

    live: bool
    before: int
    version: int
    why: str = ""


class ParkedDrop(msgspec.Struct, frozen=True):
    """Throw parked messages away, by an operator's order; the reason is kept. Body KeyList."""

    CODE: ClassVar = ExtensionCode.PARKED_DROP

    group: str
    reason: str
    first: bool = False
    """Only the first message of each key; the others stay parked."""


class ParkedDropReply(msgspec.Struct, frozen=True):
    """How many messages that were."""

    messages: Int32


class ParkMove(msgspec.Struct, frozen=True):
    """Install parked keys that come to queues of this broker by a resize; the body is a MoveBody.

    Said by the broker of the old queue, which has marked them as moved, before the group gets any
    message of the new key map.
    """

    CODE: ClassVar = ExtensionCode.PARK_MOVE

    group: str
    topic: str


class ParkMoveReply(msgspec.Struct, frozen=True):
    """How many keys are here, and how many cannot come before their older list here is drained."""

    moved: Int32
    busy: Int32
