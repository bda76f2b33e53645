"""Offsets and progress: what a queue holds, how far a group is, and the reset of offsets.

The maps in these bodies have queues as keys (`wire/fastjson.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from inorder.model import TopicQueue
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.fastjson import dumps, loads
from inorder.wire.fields import Int32
from inorder.wire.replies import EMPTY, body_as, fields_as
from inorder.wire.requests.connections import (
    ConsumerConnections,
    decode_producer_connections,
    decode_producers,
)
from inorder.wire.requests.leases import queue_key, queue_of_key, queue_to_json
from inorder.wire.requests.nameserver import decode_group_list
from inorder.wire.shapes import Key, Shape, integer_key


class UpdateConsumerOffset(msgspec.Struct, frozen=True):
    """Commit an offset of a group. The broker refuses missing fields with INVALID_PARAMETER."""

    CODE: ClassVar = RequestCode.UPDATE_CONSUMER_OFFSET
    REPLY = EMPTY

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: int | None = None
    only_up: bool | None = None  # inorder's, see wire/extensions.py


class OffsetReply(msgspec.Struct, frozen=True):
    """An offset."""

    offset: int


class QueryConsumerOffset(msgspec.Struct, frozen=True):
    """Ask how far a group is."""

    CODE: ClassVar = RequestCode.QUERY_CONSUMER_OFFSET
    REPLY = fields_as(OffsetReply)

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class SearchOffset(msgspec.Struct, frozen=True):
    """Ask for the offset at a time."""

    CODE: ClassVar = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    REPLY = fields_as(OffsetReply)

    topic: str
    queue_id: Int32
    timestamp_ms: int = msgspec.field(name="timestamp")
    boundary_type: str | None = None


class GetMaxOffset(msgspec.Struct, frozen=True):
    """Ask for the offset that the next message will get."""

    CODE: ClassVar = RequestCode.GET_MAX_OFFSET
    REPLY = fields_as(OffsetReply)

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffset(msgspec.Struct, frozen=True):
    """Ask for the offset of the oldest message."""

    CODE: ClassVar = RequestCode.GET_MIN_OFFSET
    REPLY = fields_as(OffsetReply)

    topic: str
    queue_id: Int32


class TimestampReply(msgspec.Struct, frozen=True):
    """A time; -1 is none."""

    timestamp_ms: int = msgspec.field(name="timestamp")


class GetEarliest(msgspec.Struct, frozen=True):
    """Ask when the oldest message was stored."""

    CODE: ClassVar = RequestCode.GET_EARLIEST_MSG_STORETIME
    REPLY = fields_as(TimestampReply)

    topic: str
    queue_id: Int32


class GetConsumerConnections(msgspec.Struct, frozen=True):
    """Ask for the connected consumers of a group and their subscriptions."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_CONNECTION_LIST
    REPLY = body_as(ConsumerConnections.decode)

    consumer_group: str


class GetProducerConnections(msgspec.Struct, frozen=True):
    """Ask for the connected clients of a producer group."""

    CODE: ClassVar = RequestCode.GET_PRODUCER_CONNECTION_LIST
    REPLY = body_as(decode_producer_connections)

    producer_group: str


class GetAllProducers(msgspec.Struct, frozen=True):
    """Ask for all producers."""

    CODE: ClassVar = RequestCode.GET_ALL_PRODUCER_INFO
    REPLY = body_as(decode_producers)


class GetGroupsOfTopic(msgspec.Struct, frozen=True):
    """Ask which groups consume a topic."""

    CODE: ClassVar = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    REPLY = body_as(decode_group_list)

    topic: str


class GetTopicsOfGroup(msgspec.Struct, frozen=True):
    """Ask on which topics a group has offsets."""

    CODE: ClassVar = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str


class GetSubscription(msgspec.Struct, frozen=True):
    """Ask for the subscription of an online group to a topic."""

    CODE: ClassVar = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str = ""


class CloneOffsets(msgspec.Struct, frozen=True):
    """Give a group the offsets of another one."""

    CODE: ClassVar = RequestCode.CLONE_GROUP_OFFSET
    REPLY = EMPTY

    source_group: str = msgspec.field(name="srcGroup")
    target_group: str = msgspec.field(name="destGroup")
    topic: str = ""
    offline: bool = False


class ForbidGroup(msgspec.Struct, frozen=True):
    """Ask whether a group may read a topic; with `readable`, say so first."""

    CODE: ClassVar = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    group: str
    topic: str
    readable: bool | None = None


_ITEMS_MAX: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The content of a queue: offsets from `min_offset` to below `max_offset`."""

    min_offset: int
    max_offset: int
    updated_at_ms: int = 0


_STATS: Final = Shape(
    QueueStats,
    integer_key("lastUpdateTimestamp", "updated_at_ms"),
    integer_key("maxOffset", "max_offset"),
    integer_key("minOffset", "min_offset"),
)


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The answer to GET_TOPIC_STATS_INFO."""

    queues: dict[TopicQueue, QueueStats] = field(default_factory=dict)
    put_rate: float = 0.0

    def encode(self) -> bytes:
        """Return the JSON text."""
        table = {queue_key(queue): _STATS.to_json(stats) for queue, stats in self.queues.items()}
        return dumps({"offsetTable": table, "topicPutTps": self.put_rate})

    @classmethod
    def decode(cls, data: bytes | memoryview) -> TopicStats:
        """Read the JSON text; 4.9 has no rate. Malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "topic stats")
        return cls(
            {queue: _STATS.from_json(item) for queue, item in _table(value)},
            shapes.rate(value, "topicPutTps"),
        )


class GetTopicStats(msgspec.Struct, frozen=True):
    """Ask for the offsets and times of a topic's queues."""

    CODE: ClassVar = RequestCode.GET_TOPIC_STATS_INFO
    REPLY = body_as(TopicStats.decode)

    topic: str


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is on a queue; `pulled_offset` also counts uncommitted messages."""

    end_offset: int
    committed_offset: int
    pulled_offset: int
    committed_at_ms: int = 0
    """When the last message that the group is done with was stored."""

    @property
    def lag(self) -> int:
        """Return how many messages the group has yet to do."""
        return max(0, self.end_offset - self.committed_offset)


def _pulled_offset(fields: dict[Any, Any]) -> int:
    return shapes.integer(fields, "pullOffset", shapes.integer(fields, "consumerOffset", 0))


_PROGRESS: Final = Shape(
    QueueProgress,
    integer_key("brokerOffset", "end_offset"),
    integer_key("consumerOffset", "committed_offset"),
    integer_key("lastTimestamp", "committed_at_ms"),
    Key("pullOffset", "pulled_offset", _pulled_offset),
)


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """The answer to GET_CONSUME_STATS."""

    queues: dict[TopicQueue, QueueProgress] = field(default_factory=dict)
    consume_rate: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's ConsumeStats."""
        table = {queue_key(queue): _PROGRESS.to_json(one) for queue, one in self.queues.items()}
        return {"consumeTps": self.consume_rate, "offsetTable": table}

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> ConsumeStats:
        """Read fastjson's form; 4.9 has no pull offsets."""
        found = {queue: _PROGRESS.from_json(item) for queue, item in _table(value)}
        return cls(found, shapes.rate(value, "consumeTps"))

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(self.to_json())

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ConsumeStats:
        """Read the JSON text. Malformed: RemoteProtocolError."""
        return cls.from_json(shapes.as_object(loads(data, items_max=_ITEMS_MAX), "consume stats"))


class GetConsumeStats(msgspec.Struct, frozen=True):
    """Ask how far a group is; without topics, on all that it has offsets of."""

    CODE: ClassVar = RequestCode.GET_CONSUME_STATS
    REPLY = body_as(ConsumeStats.decode)

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


def encode_queue_offsets(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return a ResetOffsetBody."""
    return dumps({"offsetTable": {queue_key(queue): offset for queue, offset in offsets.items()}})


def encode_queue_offset_list(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return a ResetOffsetBody as the C++ client wants it: a list."""
    return dumps(
        {"offsetTable": [queue_to_json(queue) | {"offset": at} for queue, at in offsets.items()]}
    )


def decode_queue_offsets(data: bytes | memoryview) -> dict[TopicQueue, int]:
    """Read a ResetOffsetBody; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "offsets")
    table = shapes.as_object(value.get("offsetTable"), "offsetTable")
    return {queue_of_key(key): shapes.as_integer(offset, "offset") for key, offset in table.items()}


class ResetOffset(msgspec.Struct, frozen=True):
    """Set the offsets of a group: to an offset if given, else to a time (-1 is the end)."""

    CODE: ClassVar = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    REPLY = body_as(decode_queue_offsets)

    topic: str
    group: str
    timestamp_ms: int = msgspec.field(name="timestamp")
    force: bool = msgspec.field(default=True, name="isForce")
    queue_id: Int32 = -1
    offset: int = -1


def _table(value: dict[Any, Any]) -> list[tuple[TopicQueue, dict[Any, Any]]]:
    table = shapes.as_object(value.get("offsetTable"), "offsetTable")
    return [
        (queue_of_key(key), shapes.as_object(item, "offsetTable")) for key, item in table.items()
    ]
