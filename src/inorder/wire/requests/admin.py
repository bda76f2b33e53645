"""Topics and settings of a broker."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


class CreateTopic(msgspec.Struct, frozen=True):
    """Create or change a topic. `attributes`: `+name=value,-name`."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    default_topic: str
    read_queues: Int32 = msgspec.field(name="readQueueNums")
    write_queues: Int32 = msgspec.field(name="writeQueueNums")
    perm: Int32
    filter_type: str = msgspec.field(name="topicFilterType")
    sys_flag: Int32 | None = msgspec.field(default=None, name="topicSysFlag")
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class CreateTopicList(msgspec.Struct, frozen=True):
    """Create or change several topics; the body is a list of configs."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


class GetAllTopicConfig(msgspec.Struct, frozen=True):
    """Ask for all topics; the paging of newer peers may be ignored."""

    CODE: ClassVar = RequestCode.GET_ALL_TOPIC_CONFIG

    topic_seq: Int32 | None = None
    topics_max: Int32 | None = msgspec.field(default=None, name="maxTopicNum")
    data_version: str | None = None


class GetAllTopicConfigReply(msgspec.Struct, frozen=True):
    """How many topics there are; absent means that the body holds all of them."""

    total_topics: Int32 | None = msgspec.field(default=None, name="totalTopicNum")


class GetTopicConfig(msgspec.Struct, frozen=True):
    """Ask for the config of a topic."""

    CODE: ClassVar = RequestCode.GET_TOPIC_CONFIG

    topic: str
    logical: bool | None = msgspec.field(default=None, name="lo")


class DeleteTopic(msgspec.Struct, frozen=True):
    """Delete a topic and its queues on the broker."""

    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class GetSystemTopics(msgspec.Struct, frozen=True):
    """Ask for the broker's own topics."""

    CODE: ClassVar = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


class UpdateBrokerConfig(msgspec.Struct, frozen=True):
    """Change settings; the body is properties text."""

    CODE: ClassVar = RequestCode.UPDATE_BROKER_CONFIG


class GetBrokerConfig(msgspec.Struct, frozen=True):
    """Ask for the settings; the answer's body is properties text."""

    CODE: ClassVar = RequestCode.GET_BROKER_CONFIG


class GetBrokerConfigReply(msgspec.Struct, frozen=True):
    """The version of the settings, as JSON text."""

    version: str


class GetBrokerRuntimeInfo(msgspec.Struct, frozen=True):
    """Ask for numbers about the running broker; the answer's body is a KV table."""

    CODE: ClassVar = RequestCode.GET_BROKER_RUNTIME_INFO
