"""Topic lists, key-value config and settings of a name server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inorder.wire.codes import RequestCode


@dataclass(frozen=True, slots=True)
class PutKv:
    """Keep a value."""

    CODE: ClassVar = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class GetKv:
    """Ask for a value."""

    CODE: ClassVar = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class GetKvReply:
    """A value."""

    value: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteKv:
    """Forget a value."""

    CODE: ClassVar = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class GetKvList:
    """Ask for all values of a namespace."""

    CODE: ClassVar = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str


@dataclass(frozen=True, slots=True)
class GetAllTopics:
    """Ask for all topics."""

    CODE: ClassVar = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


@dataclass(frozen=True, slots=True)
class GetTopicsByCluster:
    """Ask for the topics of a cluster."""

    CODE: ClassVar = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


@dataclass(frozen=True, slots=True)
class GetSystemTopicsFromNameServer:
    """Ask for cluster and broker names, which are topics too."""

    CODE: ClassVar = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


@dataclass(frozen=True, slots=True)
class GetUnitTopics:
    """Ask for the topics with the unit flag."""

    CODE: ClassVar = RequestCode.GET_UNIT_TOPIC_LIST


@dataclass(frozen=True, slots=True)
class GetUnitSubscribedTopics:
    """Ask for the topics with the unit-subscription flag."""

    CODE: ClassVar = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST


@dataclass(frozen=True, slots=True)
class GetUnitSubscribedPlainTopics:
    """Ask for the topics with the unit-subscription flag that lack the unit flag."""

    CODE: ClassVar = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST


@dataclass(frozen=True, slots=True)
class DeleteTopicInNameServer:
    """Forget a topic, of one cluster or of all."""

    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True)
class RegisterTopicInNameServer:
    """Add a topic without a broker's registration; the body is a TopicRoute."""

    CODE: ClassVar = RequestCode.REGISTER_TOPIC_IN_NAMESRV

    topic: str


@dataclass(frozen=True, slots=True)
class UpdateNameServerConfig:
    """Change settings; the body is properties text."""

    CODE: ClassVar = RequestCode.UPDATE_NAMESRV_CONFIG


@dataclass(frozen=True, slots=True)
class GetNameServerConfig:
    """Ask for the settings; the answer's body is properties text."""

    CODE: ClassVar = RequestCode.GET_NAMESRV_CONFIG
