"""Parked keys: park, list, redrive, release, drop and move. Codes are in `wire/extensions.py`.

A request of a queue's owner carries the epoch of its lease. Lists stand in the bodies, which are
bounded (`wire/shapes.py`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, NamedTuple

import msgspec

from inorder.wire.extensions import ExtensionCode
from inorder.wire.fields import Int32, decode_fields
from inorder.wire.header import Command
from inorder.wire.record import Record, decode_all
from inorder.wire.replies import Reply, body_as, fields_as
from inorder.wire.requests.leases import HeldQueueHeader, PageHeader
from inorder.wire.shapes import I64, Body, Name, Natural, QueueId, answer_body, bounded_body


class ParkedReadReply(msgspec.Struct, frozen=True):
    """How many messages the key has; the body may hold only the first ones."""

    messages: int


class ParkedRecords(NamedTuple):
    """Messages of a parked key as %PARK%group stores them, and how many messages the key has."""

    records: list[Record]
    messages: int
    size: int
    """Bytes of the records."""


def _records(answer: Command) -> ParkedRecords:
    reply = decode_fields(ParkedReadReply, answer.fields)
    return ParkedRecords(decode_all(answer.body), reply.messages, len(answer.body))


class ParkedRead(msgspec.Struct, frozen=True):
    """Read the messages of a parked key in order; the body holds their records in %PARK%group."""

    CODE: ClassVar = ExtensionCode.PARKED_READ
    REPLY = Reply(_records)

    group: str
    topic: str
    queue_id: Int32
    key: str
    after: int = -1
    """Only messages that were parked from a higher offset."""
    max_messages: Int32 = 32
    in_order: bool = False
    """For a redrive: no message that must wait for an older one."""


class RedriveReply(msgspec.Struct, frozen=True):
    """For how many keys the broker recorded the request."""

    keys: Int32


class Redrive(msgspec.Struct, frozen=True):
    """Request a redrive of parked keys, or cancel it; body KeyList.

    The answer says how many of the keys are parked at this broker.
    """

    CODE: ClassVar = ExtensionCode.REDRIVE
    REPLY = fields_as(RedriveReply)

    group: str
    cancel: bool = False


class RedrivenReply(msgspec.Struct, frozen=True):
    """The version of the queue's parked keys before and afterwards."""

    before: int
    version: int


class Redriven(HeldQueueHeader, frozen=True):
    """Report the results of a redrive; the body is a RedrivenBody.

    `heir` is the wire name of "successor": the sender owns the queue that the key has moved to,
    and has no epoch of this queue.
    """

    CODE: ClassVar = ExtensionCode.REDRIVEN
    REPLY = fields_as(RedrivenReply)

    key: str
    heir: bool = False


class UnparkReply(msgspec.Struct, frozen=True):
    """Whether the key is live now, and if not, `why`; versions as in RedrivenReply."""

    live: bool
    before: int
    version: int
    why: str = ""


class Unpark(HeldQueueHeader, frozen=True):
    """Make a key live whose list is empty up to offset `end`; refused if the list grew."""

    CODE: ClassVar = ExtensionCode.UNPARK
    REPLY = fields_as(UnparkReply)

    key: str
    end: int
    heir: bool = False


class ParkedDropReply(msgspec.Struct, frozen=True):
    """How many messages were dropped."""

    messages: Int32


class ParkedDrop(msgspec.Struct, frozen=True):
    """Drop parked messages; for operators. The broker keeps the reason. Body KeyList."""

    CODE: ClassVar = ExtensionCode.PARKED_DROP
    REPLY = fields_as(ParkedDropReply)

    group: str
    reason: str
    first: bool = False
    """Only the first message of each key; the others stay parked."""


class ParkMoveReply(msgspec.Struct, frozen=True):
    """How many keys are here, and how many cannot move before their older list here is empty."""

    moved: Int32
    busy: Int32


class ParkMove(msgspec.Struct, frozen=True):
    """Install parked keys that a resize moves to queues of this broker; the body is a MoveBody.

    The broker of the old queue marks the keys as moved and sends this request before the group
    gets any message of the new key map version.
    """

    CODE: ClassVar = ExtensionCode.PARK_MOVE
    REPLY = fields_as(ParkMoveReply)

    group: str
    topic: str


ITEMS_MAX: Final = 1024
"""Messages or keys of one request."""
KEYS_MAX: Final = 1_000_000
"""Keys of one answer: more than a broker keeps."""
MOVES_MAX: Final = 1000
"""Keys of one move; a broker with more sends several requests."""
PAGE_MAX: Final = 1000
KEY_CHARS_MAX: Final = 1024
ERROR_CHARS_MAX: Final = 1000
REASON_CHARS_MAX: Final = 1000

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)]
Error = Annotated[str, msgspec.Meta(max_length=ERROR_CHARS_MAX)]
Rate = Annotated[int, msgspec.Meta(ge=0, le=10**9)]

Outcome = Literal["parked", "live", "full", "gone"]
"""The result of a request to park a message.

parked  it is stored in %PARK%group and counts as done, now or since before
live    its key is not parked any more: handle it
full    there is no room; `remark` says of what
gone    the broker has no such message
"""


class ParkItem(msgspec.Struct, frozen=True, array_like=True):
    """A message to park: by its offset, with the key that it is parked with."""

    offset: Natural
    key: Key
    tries: Natural = 0
    error: Error | None = None
    """How its last attempt failed; None: its key is parked, and it joins the key."""
    fence: Natural | None = None
    until: Natural | None = None
    """Of a Spark job: the group's offset once the batch that parks the message is done.

    The broker remembers the message as parked until then; None: until the group commits past it.
    """


class ParkBody(Body, frozen=True):
    """Messages of one queue, in order."""

    items: Annotated[list[ParkItem], msgspec.Meta(min_length=1, max_length=ITEMS_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ParkBody:
        """Read the JSON text; malformed: SystemError_."""
        return bounded_body(cls, data)


class ParkAnswer(Body, frozen=True):
    """The result for each message, and the version of the queue's parked keys before and after.

    A client that knew the version before need not ask for the keys again.
    """

    outcomes: Annotated[list[Outcome], msgspec.Meta(max_length=ITEMS_MAX)]
    before: Natural
    version: Natural
    remark: str = ""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ParkAnswer:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


class Park(HeldQueueHeader, frozen=True):
    """Park messages: each is stored in %PARK%group and counts as done, both or neither.

    The body is a ParkBody, the answer's a ParkAnswer. For a message that is already parked the
    broker repeats the first answer.
    """

    CODE: ClassVar = ExtensionCode.PARK
    REPLY = body_as(ParkAnswer.decode)


class QueuePlace(NamedTuple):
    """A queue of a topic, at any broker."""

    broker: Name
    queue_id: QueueId


class OwnedKey(msgspec.Struct, frozen=True):
    """A parked key as the owner of its queue sees it."""

    key: Key
    end: I64
    """The highest offset that was parked with it from this queue; -1: none."""
    redrive: Natural = 0
    """The number of the requested redrive; 0: none."""
    rate: Rate = 0
    """The most messages in 1,000 s, for all keys of this queue together; 0: no limit."""
    older: Annotated[list[QueuePlace], msgspec.Meta(max_length=1024)] = []
    """Queues that it was parked in before the topic was resized; their lists come first."""
    moved: bool = False
    """The key has moved to another queue."""
    moved_by: Natural = 0
    """The key map version that moved it."""
    home: bool = True
    """The owner of this queue redrives it; false if the key has moved and its group followed."""


class QueueParking(Body, frozen=True):
    """The parked keys of a queue, for its owner."""

    version: Natural
    keys: Annotated[list[OwnedKey], msgspec.Meta(max_length=KEYS_MAX)]
    done: Annotated[list[tuple[Natural, Natural]], msgspec.Meta(max_length=KEYS_MAX)]
    """Offsets at or above the committed one that were parked, as ranges [from, to)."""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> QueueParking:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


class ParkedKeys(msgspec.Struct, frozen=True):
    """Ask for the parked keys of a queue; the body is a QueueParking.

    The answer waits for pending writes of that queue.
    """

    CODE: ClassVar = ExtensionCode.PARKED_KEYS
    REPLY = body_as(QueueParking.decode)

    group: str
    topic: str
    queue_id: Int32


class ParkedEntry(msgspec.Struct, frozen=True):
    """A parked key as an operator sees it."""

    group: Name
    topic: Name
    queue: QueueId
    key: Key
    messages: Natural
    size_bytes: Natural
    since_ms: I64
    first_offset: I64
    """The offset of its first message; -1: its list is empty."""
    tries: Natural
    first_error: Error
    last_error: Error
    """How its last redrive failed; empty: it was not tried, or did not fail."""
    redrive: Natural = 0
    rate: Rate = 0
    older: Annotated[list[QueuePlace], msgspec.Meta(max_length=1024)] = []
    moved_to: QueuePlace | None = None
    sharding_key: Annotated[str, msgspec.Meta(max_length=32_767)] = ""


class ParkedPage(Body, frozen=True):
    """One page of parked keys, in order; `next` begins the next page, empty: there is none."""

    entries: Annotated[list[ParkedEntry], msgspec.Meta(max_length=PAGE_MAX)]
    full: dict[Name, str] = msgspec.field(default_factory=dict)
    """Groups that cannot park more, and why."""
    next: Annotated[str, msgspec.Meta(max_length=8192)] = ""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ParkedPage:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


class ParkedList(PageHeader, frozen=True):
    """List parked keys, a page at a time; the answer's body is a ParkedPage."""

    CODE: ClassVar = ExtensionCode.PARKED_LIST
    REPLY = body_as(ParkedPage.decode)


class NamedKey(msgspec.Struct, frozen=True, array_like=True):
    """A parked key of a queue; `rate` as in OwnedKey."""

    topic: Name
    queue_id: QueueId
    key: Key
    rate: Rate = 0


class KeyList(Body, frozen=True):
    """Parked keys of the broker that gets the request."""

    keys: Annotated[list[NamedKey], msgspec.Meta(min_length=1, max_length=ITEMS_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> KeyList:
        """Read the JSON text; malformed: SystemError_."""
        return bounded_body(cls, data)


class RedrivenBody(Body, frozen=True):
    """The results of a redrive for messages of one key."""

    done: Annotated[list[Natural], msgspec.Meta(max_length=ITEMS_MAX)] = msgspec.field(
        default_factory=list
    )
    """The offsets of the messages that a handler finished."""
    error: Error | None = None
    """How the next one failed: the redrive is over, the key stays parked."""
    older: QueuePlace | None = None
    """The list of this older queue is empty and closed."""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RedrivenBody:
        """Read the JSON text; malformed: SystemError_."""
        return bounded_body(cls, data)


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A key that moves to a queue of this broker; its former queue, and when and why it parked."""

    queue_id: QueueId
    key: Key
    other: QueuePlace
    since_ms: I64 = 0
    tries: Natural = 0
    error: Error = ""
    sharding_key: Annotated[str, msgspec.Meta(max_length=32_767)] = ""
    version: Natural = 0
    """The key map version that moves it."""


class MoveBody(Body, frozen=True):
    """Keys that move to queues of this broker."""

    coming: Annotated[list[Move], msgspec.Meta(max_length=MOVES_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> MoveBody:
        """Read the JSON text; malformed: SystemError_."""
        return bounded_body(cls, data)
