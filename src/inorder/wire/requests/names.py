"""Topic lists, key-value config and settings of a name server."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode


class PutKv(msgspec.Struct, frozen=True):
    """Keep a value."""

    CODE: ClassVar = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


class GetKv(msgspec.Struct, frozen=True):
    """Ask for a value."""

    CODE: ClassVar = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


class GetKvReply(msgspec.Struct, frozen=True):
    """A value."""

    value: str | None = None


class DeleteKv(msgspec.Struct, frozen=True):
    """Forget a value."""

    CODE: ClassVar = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str


class GetKvList(msgspec.Struct, frozen=True):
    """Ask for all values of a namespace."""

    CODE: ClassVar = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str


class GetAllTopics(msgspec.Struct, frozen=True):
    """Ask for all topics."""

    CODE: ClassVar = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class GetTopicsByCluster(msgspec.Struct, frozen=True):
    """Ask for the topics of a cluster."""

    CODE: ClassVar = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


class GetSystemTopicsFromNameServer(msgspec.Struct, frozen=True):
    """Ask for cluster and broker names, which are topics too."""

    CODE: ClassVar = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


class GetUnitTopics(msgspec.Struct, frozen=True):
    """Ask for the topics with the unit flag."""

    CODE: ClassVar = RequestCode.GET_UNIT_TOPIC_LIST


class GetUnitSubscribedTopics(msgspec.Struct, frozen=True):
    """Ask for the topics with the unit-subscription flag."""

    CODE: ClassVar = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST


class GetUnitSubscribedPlainTopics(msgspec.Struct, frozen=True):
    """Ask for the topics with the unit-subscription flag that lack the unit flag."""

    CODE: ClassVar = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST


class DeleteTopicInNameServer(msgspec.Struct, frozen=True):
    """Forget a topic, of one cluster or of all."""

    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


class RegisterTopicInNameServer(msgspec.Struct, frozen=True):
    """Add a topic without a broker's registration; the body is a TopicRoute."""

    CODE: ClassVar = RequestCode.REGISTER_TOPIC_IN_NAMESRV

    topic: str


class UpdateNameServerConfig(msgspec.Struct, frozen=True):
    """Change settings; the body is properties text."""

    CODE: ClassVar = RequestCode.UPDATE_NAMESRV_CONFIG


class GetNameServerConfig(msgspec.Struct, frozen=True):
    """Ask for the settings; the answer's body is properties text."""

    CODE: ClassVar = RequestCode.GET_NAMESRV_CONFIG
