"""The bodies of LEASE, COMMIT and LEASES: compact JSON, every list and text bounded.

A request that breaks a bound is answered with code 1, an answer that does closes the connection.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

from inorder.wire.bodies.bounded import (
    I64,
    NAME_CHARS_MAX,
    Body,
    Name,
    Natural,
    QueueId,
    answer_body,
    request_body,
)

QUEUES_MAX: Final = 2048
"""Queues of one request; a client with more asks twice."""
FINISHED_CHARS_MAX: Final = 20_480
"""The text of what is finished above a committed offset."""
CHAPTERS_MAX: Final = 4096
PAGE_MAX: Final = 2000
"""Leases of one page."""
WAITING_MAX: Final = 64

Finished = Annotated[str, msgspec.Meta(max_length=FINISHED_CHARS_MAX)]


class Chapter(NamedTuple):
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
    """Grows with every request of a consumer that takes a queue: an earlier one comes late."""


class LeaseBody(Body, frozen=True):
    """Which queues a consumer wants; the broker is the one that is asked."""

    queues: Annotated[list[QueueWish], msgspec.Meta(max_length=QUEUES_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeaseBody:
        """Read the JSON text; malformed: SystemError_."""
        return request_body(cls, data)


class LeaseGrant(msgspec.Struct, frozen=True):
    """A queue that is the consumer's now."""

    topic: Name
    queue: QueueId
    epoch: Natural
    fresh: bool = False
    """It was not the consumer's before, or not under this epoch: begin anew, at `offset`."""
    offset: I64 = -1
    """Where to begin, in a fresh grant; -1: the group has no offset here."""
    finished: Finished = ""
    """What is finished above it, in a fresh grant."""
    chapters: Annotated[list[Chapter], msgspec.Meta(max_length=CHAPTERS_MAX)] = []
    parked: I64 = 0
    """Changes with the parked keys of the queue and their redrives; 0: none is parked."""
    redrive: bool = False
    """A redrive waits for the owner."""
    reset: bool = False
    """The offset was set by an operator."""
    recalled: bool = False
    """Start no more handlers, and give the queue back when those that run have ended."""


class LeaseRefusal(msgspec.Struct, frozen=True):
    """A queue that the consumer does not get, or has lost."""

    topic: Name
    queue: QueueId
    holder: Name = ""
    """Whose it is; empty: nobody's, ask for it anew; `waits_ms` is how long it stays so."""
    waits_ms: I64 = 0


class LeaseAnswer(Body, frozen=True):
    """What became of the wishes; `generation` is the log generation of the broker."""

    granted: Annotated[list[LeaseGrant], msgspec.Meta(max_length=QUEUES_MAX)]
    refused: Annotated[list[LeaseRefusal], msgspec.Meta(max_length=QUEUES_MAX)]
    generation: Natural = 0

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeaseAnswer:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


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
        return request_body(cls, data)


class QueueName(NamedTuple):
    """A queue of the broker that is asked."""

    topic: Name
    queue_id: QueueId


class CommitAnswer(Body, frozen=True):
    """Which commits count, and of which queues the lease is lost."""

    taken: Annotated[list[QueueName], msgspec.Meta(max_length=QUEUES_MAX)]
    lost: Annotated[list[QueueName], msgspec.Meta(max_length=QUEUES_MAX)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> CommitAnswer:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)


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
    """Who asked for it since it was granted."""
    recalled: bool = False
    """Its owner was asked to give it back."""


class LeasePage(Body, frozen=True):
    """Some leases, in order; `next` says where the next page begins, empty: there is none."""

    leases: Annotated[list[HeldLease], msgspec.Meta(max_length=PAGE_MAX)]
    next: Annotated[str, msgspec.Meta(max_length=4 * NAME_CHARS_MAX)] = ""

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeasePage:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return answer_body(cls, data)
