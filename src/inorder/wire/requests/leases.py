"""Leases of queues (inorder's) and queue locks (RocketMQ's): headers and bodies.

    LEASE, RELEASE        take or renew queues; commit a queue and give it back
    COMMIT                commit under an epoch
    LEASES, LEASE_FREE    list the owners; take a queue from its owner
    LOCK_BATCH_MQ, UNLOCK_BATCH_MQ
                          the locks; the reply echoes each queue exactly, because clients compare

The owner of a lease is (client id, instance). `instance` is a random text of each consumer object,
so the replacement of a frozen process is a new owner, whatever its client id. Bodies of inorder's
requests are bounded (`wire/shapes.py`). What a lease's epoch is part of: decision 19.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.model import TopicQueue
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionCode
from inorder.wire.fastjson import REQUEST_ITEMS_MAX, SLOW_ITEMS_MAX, dumps, loads
from inorder.wire.fields import Int32
from inorder.wire.replies import EMPTY, body_as, fields_as
from inorder.wire.shapes import (
    BODY_NAME_CHARS_MAX,
    I64,
    Body,
    Name,
    Natural,
    QueueId,
    answer_body,
    bounded_body,
)

POPPED_INSTANCE: Final = "(pop)"
"""The instance id of queues whose messages are popped in order; no client can have it."""
LEASE_MS_MIN: Final = 500
LEASE_MS_MAX: Final = 120_000
"""A client asks for a lease of this length at least and at most; the broker refuses others."""


class OwnerHeader(msgspec.Struct, frozen=True):
    """The first fields of every request of an owner."""

    group: str
    client_id: str
    instance: str


class HeldQueueHeader(OwnerHeader, frozen=True):
    """The first fields of an owner's request about one queue, under the epoch of its lease."""

    topic: str
    queue_id: Int32
    epoch: int


class PageHeader(msgspec.Struct, frozen=True):
    """Asks for one page of a list."""

    group: str = ""
    """Of this group alone; empty: of all."""
    after: str = ""
    """`next` of the page before."""


class Release(HeldQueueHeader, frozen=True):
    """Commit and release a queue in one request; answered when durable under the flush mode.

    A repeated request gets the first answer while the broker remembers it, else LEASE_LOST.
    """

    CODE: ClassVar = ExtensionCode.RELEASE
    REPLY = EMPTY

    offset: int = -1
    """The offset to commit; -1 for none."""
    finished: str = ""
    """The finished map above the offset."""
    number: int = 0
    """The number of this commit; it grows within an epoch."""


class LeaseFreeReply(msgspec.Struct, frozen=True):
    """The former owner; empty if the queue had none."""

    holder: str
    epoch: int


class LeaseFree(msgspec.Struct, frozen=True):
    """Force the release of a queue; for operators."""

    CODE: ClassVar = ExtensionCode.LEASE_FREE
    REPLY = fields_as(LeaseFreeReply)

    group: str
    topic: str
    queue_id: Int32


QUEUES_MAX: Final = 2048
"""Queues of one request; a client with more asks twice."""
FINISHED_CHARS_MAX: Final = 20_480
"""Characters of a finished map."""
CHAPTERS_MAX: Final = 4096
PAGE_MAX: Final = 2000
"""Leases of one page."""
WAITING_MAX: Final = 64
"""Owners that wait for one lease; a broker remembers no more of them."""

Finished = Annotated[str, msgspec.Meta(max_length=FINISHED_CHARS_MAX)]


class VersionSpan(NamedTuple):
    """From which offset on a queue's messages belong to a key-map version and log generation."""

    from_offset: Natural
    version: Natural
    generation: Natural


class QueueWish(msgspec.Struct, frozen=True, array_like=True):
    """A queue to take (epoch 0), or whose lease under an epoch to renew."""

    topic: Name
    queue_id: QueueId
    epoch: Natural = 0
    number: Natural = 0
    """Grows with every request of a consumer that takes a queue; a lower number comes late."""


class LeaseBody(Body, frozen=True):
    """The queues that a consumer wants, all of them of the broker that gets the request."""

    queues: Annotated[list[QueueWish], msgspec.Meta(max_length=QUEUES_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeaseBody:
        """Read the JSON text; malformed: SystemError_."""
        return bounded_body(cls, data)


class LeaseGrant(msgspec.Struct, frozen=True):
    """A queue that the consumer owns now."""

    topic: Name
    queue: QueueId
    epoch: Natural
    fresh: bool = False
    """The consumer did not own it before under this epoch, and begins at `offset`."""
    offset: I64 = -1
    """Where to begin, in a fresh grant; -1: the group has no offset here."""
    finished: Finished = ""
    """The finished map above `offset`, in a fresh grant."""
    chapters: Annotated[list[VersionSpan], msgspec.Meta(max_length=CHAPTERS_MAX)] = []
    parked: I64 = 0
    """Changes with the parked keys of the queue and their redrives; 0: none is parked."""
    redrive: bool = False
    """A redrive waits for the owner."""
    reset: bool = False
    """The offset was set by an operator."""
    recalled: bool = False
    """Wire name of "revoked": start no handler, and release the queue when the running ones end."""


class LeaseRefusal(msgspec.Struct, frozen=True):
    """A queue that the consumer does not get, or has lost."""

    topic: Name
    queue: QueueId
    holder: Name = ""
    """The owner, for `waits_ms` at least; empty: nobody owns the queue, request it again."""
    waits_ms: I64 = 0


class LeaseAnswer(Body, frozen=True):
    """Grants and refusals; `generation` is the log generation of the broker."""

    granted: Annotated[list[LeaseGrant], msgspec.Meta(max_length=QUEUES_MAX)]
    refused: Annotated[list[LeaseRefusal], msgspec.Meta(max_length=QUEUES_MAX)]
    generation: Natural = 0

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeaseAnswer:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


class Lease(OwnerHeader, frozen=True):
    """Take or renew queues of a group; the body is a LeaseBody, the answer's a LeaseAnswer."""

    CODE: ClassVar = ExtensionCode.LEASE
    REPLY = body_as(LeaseAnswer.decode)

    lease_ms: int
    """How long a lease lasts without a renewal, 500 to 120,000."""
    grace_ms: int
    """How long a lease lasts once the connection that renewed it last closes; at most the lease."""


class QueueCommit(msgspec.Struct, frozen=True, array_like=True):
    """One commit. `number` grows within (queue, epoch)."""

    topic: Name
    queue_id: QueueId
    epoch: Natural
    number: Natural
    offset: I64
    finished: Finished = ""


class CommitBody(Body, frozen=True):
    """The commits of a consumer at one broker."""

    commits: Annotated[list[QueueCommit], msgspec.Meta(max_length=QUEUES_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> CommitBody:
        """Read the JSON text; malformed: SystemError_."""
        return bounded_body(cls, data)


class QueueName(NamedTuple):
    """A queue of the broker that gets the request."""

    topic: Name
    queue_id: QueueId


class CommitAnswer(Body, frozen=True):
    """The accepted commits, and the queues whose lease is lost."""

    taken: Annotated[list[QueueName], msgspec.Meta(max_length=QUEUES_MAX)]
    lost: Annotated[list[QueueName], msgspec.Meta(max_length=QUEUES_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> CommitAnswer:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


class Commit(OwnerHeader, frozen=True):
    """Commit queues under their epochs and renew their leases; bodies CommitBody, CommitAnswer."""

    CODE: ClassVar = ExtensionCode.COMMIT
    REPLY = body_as(CommitAnswer.decode)


class HeldLease(msgspec.Struct, frozen=True):
    """A lease as an operator sees it."""

    group: Name
    topic: Name
    queue: QueueId
    holder: Name
    instance: Name
    """Empty for a client that has no leases, only RocketMQ's locks (`stock`)."""
    epoch: Natural
    age_ms: I64
    remaining_ms: I64
    lease_ms: I64
    grace_ms: I64
    stock: bool
    connected: bool
    """The connection that renewed it last is open."""
    waiting: Annotated[list[Name], msgspec.Meta(max_length=WAITING_MAX)] = []
    """The clients that have requested it since the grant."""
    recalled: bool = False
    """Wire name of "revoked"."""


class LeasePage(Body, frozen=True):
    """One page of leases, in order; `next` begins the next page, empty: there is none."""

    leases: Annotated[list[HeldLease], msgspec.Meta(max_length=PAGE_MAX)]
    next: Annotated[str, msgspec.Meta(max_length=4 * BODY_NAME_CHARS_MAX)] = ""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeasePage:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


class Leases(PageHeader, frozen=True):
    """List leases, a page at a time; the answer's body is a LeasePage."""

    CODE: ClassVar = ExtensionCode.LEASES
    REPLY = body_as(LeasePage.decode)


class UnlockBatch(msgspec.Struct, frozen=True):
    """Give queues back; the body is a LockBatchBody."""

    CODE: ClassVar = RequestCode.UNLOCK_BATCH_MQ
    REPLY = EMPTY


LOCK_QUEUES_MAX: Final = 2048
"""Queues of one request."""


@dataclass(frozen=True, slots=True)
class LockBatchBody:
    """Which queues a client wants locked or unlocked."""

    client_id: str
    group: str
    queues: tuple[TopicQueue, ...]
    only_this_broker: bool = False

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "mqSet": [queue_to_json(queue) for queue in self.queues],
                "onlyThisBroker": self.only_this_broker,
            }
        )

    @classmethod
    @shapes.request_body
    def decode(cls, data: bytes | memoryview) -> LockBatchBody:
        """Read the JSON text; malformed: SystemError_."""
        value = shapes.as_object(
            loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX), "lock request"
        )
        queues = shapes.objects(value, "mqSet")
        if len(queues) > LOCK_QUEUES_MAX:
            raise RemoteProtocolError(
                f"{len(queues)} queues; at most {LOCK_QUEUES_MAX} in one request"
            )
        found = cls(
            shapes.text(value, "clientId"),
            shapes.text(value, "consumerGroup"),
            tuple(map(queue_from_json, queues)),
            shapes.boolean(value, "onlyThisBroker", False),
        )
        names = [found.client_id, found.group]
        for queue in found.queues:
            names += (queue.topic, queue.broker)
        if max(map(len, names)) > BODY_NAME_CHARS_MAX:
            raise RemoteProtocolError(f"a name has more than {BODY_NAME_CHARS_MAX} characters")
        return found


@dataclass(frozen=True, slots=True)
class LockedQueues:
    """Which of the queues are locked for the client now."""

    queues: tuple[TopicQueue, ...] = ()

    def encode(self) -> bytes:
        """Return the JSON text; there must be one even if no queue is locked."""
        return dumps({"lockOKMQSet": [queue_to_json(queue) for queue in self.queues]})

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LockedQueues:
        """Read the JSON text; malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data), "lock answer")
        return cls(tuple(map(queue_from_json, shapes.objects(value, "lockOKMQSet"))))


class LockBatch(msgspec.Struct, frozen=True):
    """Lock queues for a client; the body is a LockBatchBody, the answer LockedQueues."""

    CODE: ClassVar = RequestCode.LOCK_BATCH_MQ
    REPLY = body_as(LockedQueues.decode)


def queue_to_json(queue: TopicQueue) -> dict[str, Any]:
    """Return fastjson's MessageQueue."""
    return {"brokerName": queue.broker, "queueId": queue.index, "topic": queue.topic}


def queue_from_json(value: dict[Any, Any]) -> TopicQueue:
    """Read a MessageQueue."""
    return TopicQueue(
        shapes.text(value, "topic"),
        shapes.text(value, "brokerName", ""),
        shapes.integer(value, "queueId", 0, shapes.INT32_BITS),
    )


def queue_key(queue: TopicQueue) -> tuple[tuple[str, Any], ...]:
    """Return a MessageQueue as the key of a map (`wire/fastjson.py`)."""
    return tuple(queue_to_json(queue).items())


def queue_of_key(key: Any) -> TopicQueue:
    """Read a MessageQueue that is a key: an object, or (by standard JSON writers) its text."""
    bean = loads(key) if isinstance(key, str) else dict(key)
    return queue_from_json(shapes.as_object(bean, "queue"))
