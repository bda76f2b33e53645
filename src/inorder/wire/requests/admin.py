"""Topics and settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create or change a topic. `attributes`: `+name=value,-name`."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    default_topic: str
    read_queues: Int32 = field(metadata={"wire": "readQueueNums"})
    write_queues: Int32 = field(metadata={"wire": "writeQueueNums"})
    perm: Int32
    filter_type: str = field(metadata={"wire": "topicFilterType"})
    sys_flag: Int32 | None = field(default=None, metadata={"wire": "topicSysFlag"})
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True)
class CreateTopicList:
    """Create or change several topics; the body is a list of configs."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


@dataclass(frozen=True, slots=True)
class GetAllTopicConfig:
    """Ask for all topics; the paging of newer peers may be ignored."""

    CODE: ClassVar = RequestCode.GET_ALL_TOPIC_CONFIG

    topic_seq: Int32 | None = None
    topics_max: Int32 | None = field(default=None, metadata={"wire": "maxTopicNum"})
    data_version: str | None = None


@dataclass(frozen=True, slots=True)
class GetAllTopicConfigReply:
    """How many topics there are; absent means that the body holds all of them."""

    total_topics: Int32 | None = field(default=None, metadata={"wire": "totalTopicNum"})


@dataclass(frozen=True, slots=True)
class GetTopicConfig:
    """Ask for the config of a topic."""

    CODE: ClassVar = RequestCode.GET_TOPIC_CONFIG

    topic: str
    logical: bool | None = field(default=None, metadata={"wire": "lo"})


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic and its queues on the broker."""

    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


@dataclass(frozen=True, slots=True)
class GetSystemTopics:
    """Ask for the broker's own topics."""

    CODE: ClassVar = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


@dataclass(frozen=True, slots=True)
class UpdateBrokerConfig:
    """Change settings; the body is properties text."""

    CODE: ClassVar = RequestCode.UPDATE_BROKER_CONFIG


@dataclass(frozen=True, slots=True)
class GetBrokerConfig:
    """Ask for the settings; the answer's body is properties text."""

    CODE: ClassVar = RequestCode.GET_BROKER_CONFIG


@dataclass(frozen=True, slots=True)
class GetBrokerConfigReply:
    """The version of the settings, as JSON text."""

    version: str


@dataclass(frozen=True, slots=True)
class GetBrokerRuntimeInfo:
    """Ask for numbers about the running broker; the answer's body is a KV table."""

    CODE: ClassVar = RequestCode.GET_BROKER_RUNTIME_INFO
