"""What is consumed by whom and how far: statistics, connections, and the reset of offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


@dataclass(frozen=True, slots=True)
class GetTopicStats:
    """Ask what the queues of a topic hold."""

    CODE: ClassVar = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


@dataclass(frozen=True, slots=True)
class GetConsumeStats:
    """Ask how far a group is; without topics, on all that it has offsets of."""

    CODE: ClassVar = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True)
class GetConsumerConnections:
    """Ask who consumes for a group, and what."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


@dataclass(frozen=True, slots=True)
class GetProducerConnections:
    """Ask who sends for a producer group."""

    CODE: ClassVar = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


@dataclass(frozen=True, slots=True)
class GetAllProducers:
    """Ask for all producers."""

    CODE: ClassVar = RequestCode.GET_ALL_PRODUCER_INFO


@dataclass(frozen=True, slots=True)
class GetGroupsOfTopic:
    """Ask which groups consume a topic."""

    CODE: ClassVar = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


@dataclass(frozen=True, slots=True)
class GetTopicsOfGroup:
    """Ask on which topics a group has offsets."""

    CODE: ClassVar = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str


@dataclass(frozen=True, slots=True)
class GetSubscription:
    """Ask what an online group wants of a topic."""

    CODE: ClassVar = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ResetOffset:
    """Set the offsets of a group: to an offset if given, else to a time (-1 is the end)."""

    CODE: ClassVar = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    topic: str
    group: str
    timestamp_ms: int = field(metadata={"wire": "timestamp"})
    force: bool = field(default=True, metadata={"wire": "isForce"})
    queue_id: Int32 = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class CloneOffsets:
    """Give a group the offsets of another one."""

    CODE: ClassVar = RequestCode.CLONE_GROUP_OFFSET

    source_group: str = field(metadata={"wire": "srcGroup"})
    target_group: str = field(metadata={"wire": "destGroup"})
    topic: str = ""
    offline: bool = False


@dataclass(frozen=True, slots=True)
class ForbidGroup:
    """Ask whether a group may read a topic; with `readable`, say so first."""

    CODE: ClassVar = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    group: str
    topic: str
    readable: bool | None = None
