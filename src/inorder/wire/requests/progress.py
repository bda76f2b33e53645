"""What is consumed by whom and how far: statistics, connections, and the reset of offsets."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


class GetTopicStats(msgspec.Struct, frozen=True):
    """Ask what the queues of a topic hold."""

    CODE: ClassVar = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


class GetConsumeStats(msgspec.Struct, frozen=True):
    """Ask how far a group is; without topics, on all that it has offsets of."""

    CODE: ClassVar = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumerConnections(msgspec.Struct, frozen=True):
    """Ask who consumes for a group, and what."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


class GetProducerConnections(msgspec.Struct, frozen=True):
    """Ask who sends for a producer group."""

    CODE: ClassVar = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


class GetAllProducers(msgspec.Struct, frozen=True):
    """Ask for all producers."""

    CODE: ClassVar = RequestCode.GET_ALL_PRODUCER_INFO


class GetGroupsOfTopic(msgspec.Struct, frozen=True):
    """Ask which groups consume a topic."""

    CODE: ClassVar = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


class GetTopicsOfGroup(msgspec.Struct, frozen=True):
    """Ask on which topics a group has offsets."""

    CODE: ClassVar = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str


class GetSubscription(msgspec.Struct, frozen=True):
    """Ask what an online group wants of a topic."""

    CODE: ClassVar = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str = ""


class ResetOffset(msgspec.Struct, frozen=True):
    """Set the offsets of a group: to an offset if given, else to a time (-1 is the end)."""

    CODE: ClassVar = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    topic: str
    group: str
    timestamp_ms: int = msgspec.field(name="timestamp")
    force: bool = msgspec.field(default=True, name="isForce")
    queue_id: Int32 = -1
    offset: int = -1


class CloneOffsets(msgspec.Struct, frozen=True):
    """Give a group the offsets of another one."""

    CODE: ClassVar = RequestCode.CLONE_GROUP_OFFSET

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
