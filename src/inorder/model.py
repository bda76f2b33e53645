"""The nouns that every package shares: plain values, with small rules of their own."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, SupportsIndex, cast

from inorder.errors import UsageError

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
READ_WRITE: Final = PERM_READ | PERM_WRITE

MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True, order=True)
class TopicQueue:
    """One queue of a topic on one broker. Sorts as RocketMQ sorts: topic, broker, index."""

    topic: str
    broker: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.index}"


class GroupQueue(NamedTuple):
    """A consumer group on one queue of the broker that holds the queue."""

    group: str
    topic: str
    queue_id: int

    @classmethod
    def of(cls, group: str, queue: TopicQueue) -> GroupQueue:
        """Return the key of a queue that a client names with its broker."""
        return cls(group, queue.topic, queue.index)


@dataclass(slots=True)
class DataVersion:
    """RocketMQ's version of a table: equal only if all three are equal."""

    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> None:
        """Count one change."""
        self.timestamp_ms = now_ms
        self.counter += 1


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings at a broker."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    perm: int = READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def with_perm(self, perm: int) -> TopicConfig:
        """Return a copy with other permissions."""
        return replace(self, perm=perm)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A group's settings at a broker; the defaults are those of an auto-created group."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_slow: int = 1
    notify_ids_changed: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    retry_policy: dict[str, object] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The messages that a group wants from a topic. `tag_hashes` is empty for `*`."""

    topic: str
    expression: str = "*"
    tags: tuple[str, ...] = ()
    tag_hashes: frozenset[int] = frozenset()
    version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    @property
    def matches_all(self) -> bool:
        """Return whether no filter applies."""
        return self.expression_type == "TAG" and self.expression in ("*", "")


class SendStatus(Enum):
    """How safely a message is stored, in RocketMQ's words. It is stored in each case.

    With any status but OK it is stored less safely than the broker's settings ask for: it may be
    lost if the broker fails now. Do not send it again.
    """

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Not known to be on the broker's disk yet."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Not known to be on the broker's replica yet."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """The broker has no replica at the moment."""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where a message is stored; `offset` is -1 if its broker has it but no longer knows where.

    `handle` names a message that waits for its time (`deliver_at=`), for `Producer.recall`.
    """

    message_id: str
    queue: TopicQueue
    offset: int
    status: SendStatus = SendStatus.OK
    handle: str | None = None


class TransactionState(Enum):
    """How a transaction ends, as far as it is known."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Not known yet: a broker that asks will ask again."""


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """A transaction: where its half lies, and how it has ended as far as the broker has said."""

    transaction_id: str
    """The message id: consumers get the message with it."""
    queue: TopicQueue
    """The queue that was chosen; after a resize a committed message may be in another one."""
    half_offset: int
    """The offset of the half in the broker's queue of halves."""
    state: TransactionState = TransactionState.UNKNOWN


def key_text(key: object) -> str:
    """Return a key as it is stored: a text as it is, a whole number in decimal digits."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or not hasattr(type(key), "__index__"):
        raise UsageError(
            f"key {key!r} is a {type(key).__name__}; give text, or a whole number, which is taken "
            "as its digits"
        )
    return str(operator.index(cast("SupportsIndex", key)))


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. A key that is a whole number becomes its digits."""

    topic: str
    body: bytes
    key: str | None = None
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0

    def __post_init__(self) -> None:
        if self.key is not None and type(self.key) is not str:
            object.__setattr__(self, "key", key_text(self.key))


@dataclass(frozen=True, slots=True)
class Fence:
    """Numbers that a handler compares, so that no effect is repeated, late or by a former owner.

    `sequence` grows along a key for ever, over restarts, handovers and resizes; None where nobody
    can promise that. `epoch` grows with each owner of the queue; None where there are no leases.
    """

    sequence: int | None
    epoch: int | None


NO_FENCE: Final = Fence(None, None)


class Fencing(Protocol):
    """Returns the fences of a queue's messages; see `ordering/fence.py`."""

    def of(self, message: ReceivedMessage) -> Fence:
        """Return the fence of a message."""
        ...


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as a consumer gets it."""

    topic: str
    queue: TopicQueue
    offset: int
    body: bytes
    properties: dict[str, str]
    message_id: str
    born_at_ms: int
    stored_at_ms: int
    redeliveries: int = 0
    position: int = 0
    flag: int = 0
    """A number that the producer set for its own use."""
    fencing: Fence | Fencing | None = field(default=None, repr=False, compare=False)
    """Where `fence` comes from."""

    @property
    def tag(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def key(self) -> str | None:
        return self.properties.get("__SHARDINGKEY")

    @property
    def asks_reply(self) -> bool:
        """Return whether the sender waits for a reply: a handler may return a Reply."""
        return "REPLY_TO_CLIENT" in self.properties and "CORRELATION_ID" in self.properties

    @property
    def attempt(self) -> int:
        """Return the number of this attempt; the first delivery is attempt 1."""
        return self.redeliveries + 1

    @property
    def fence(self) -> Fence:
        """Return the sequence of the message along its key, and the epoch of the lease."""
        fencing = self.fencing
        if fencing is None:
            return NO_FENCE
        return fencing if isinstance(fencing, Fence) else fencing.of(self)

    def __reduce__(self) -> tuple[type[ReceivedMessage], tuple[Any, ...]]:
        """Go to another process as it is, the fence as a value."""
        values = [getattr(self, each.name) for each in fields(ReceivedMessage)]
        return ReceivedMessage, (*values[:-1], self.fence)
