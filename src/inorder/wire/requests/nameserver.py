"""Requests to a name server about topic lists, key-value pairs and settings; small bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec
from msgspec.json import encode as _encode_standard

from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.fastjson import TABLE_ITEMS_MAX, loads
from inorder.wire.replies import EMPTY, body_as, fields_as


class PutKv(msgspec.Struct, frozen=True):
    """Keep a value."""

    CODE: ClassVar = RequestCode.PUT_KV_CONFIG
    REPLY = EMPTY

    namespace: str
    key: str
    value: str


class GetKvReply(msgspec.Struct, frozen=True):
    """A value."""

    value: str | None = None


class GetKv(msgspec.Struct, frozen=True):
    """Ask for a value."""

    CODE: ClassVar = RequestCode.GET_KV_CONFIG
    REPLY = fields_as(GetKvReply)

    namespace: str
    key: str


class DeleteKv(msgspec.Struct, frozen=True):
    """Forget a value."""

    CODE: ClassVar = RequestCode.DELETE_KV_CONFIG
    REPLY = EMPTY

    namespace: str
    key: str


class DeleteTopicInNameServer(msgspec.Struct, frozen=True):
    """Forget a topic, of one cluster or of all."""

    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_NAMESRV
    REPLY = EMPTY

    topic: str
    cluster_name: str | None = None


class RegisterTopicInNameServer(msgspec.Struct, frozen=True):
    """Add a topic without a broker's registration; the body is a TopicRoute."""

    CODE: ClassVar = RequestCode.REGISTER_TOPIC_IN_NAMESRV

    topic: str


def encode_consumer_ids(client_ids: Iterable[str]) -> bytes:
    """Return the answer's body of GET_CONSUMER_LIST_BY_GROUP."""
    return _encode_standard({"consumerIdList": list(client_ids)})


def decode_consumer_ids(data: bytes | memoryview) -> list[str]:
    """Read the answer's body of GET_CONSUMER_LIST_BY_GROUP; malformed: RemoteProtocolError."""
    return _names(data, "consumerIdList")


def encode_topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """Return a TopicList; the address is for GET_SYSTEM_TOPIC_LIST_FROM_NS."""
    value: dict[str, object] = {} if broker_address is None else {"brokerAddr": broker_address}
    value["topicList"] = list(topics)
    return _encode_standard(value)


def decode_topic_list(data: bytes | memoryview) -> list[str]:
    """Read a TopicList; malformed: RemoteProtocolError."""
    return _names(data, "topicList")


class GetAllTopics(msgspec.Struct, frozen=True):
    """Ask for all topics."""

    CODE: ClassVar = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    REPLY = body_as(decode_topic_list)


class GetTopicsByCluster(msgspec.Struct, frozen=True):
    """Ask for the topics of a cluster."""

    CODE: ClassVar = RequestCode.GET_TOPICS_BY_CLUSTER
    REPLY = body_as(decode_topic_list)

    cluster: str


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Return a GroupList."""
    return _encode_standard({"groupList": list(groups)})


def decode_group_list(data: bytes | memoryview) -> list[str]:
    """Read a GroupList; malformed: RemoteProtocolError."""
    return _names(data, "groupList")


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Return a KVTable."""
    return _encode_standard({"table": dict(table)})


def decode_kv_table(data: bytes | memoryview) -> dict[str, str]:
    """Read a KVTable; malformed: RemoteProtocolError."""
    return shapes.text_map(
        shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "table"), "table"
    )


class GetKvList(msgspec.Struct, frozen=True):
    """Ask for all values of a namespace."""

    CODE: ClassVar = RequestCode.GET_KVLIST_BY_NAMESPACE
    REPLY = body_as(decode_kv_table)

    namespace: str


def encode_settings(settings: Mapping[str, str]) -> bytes:
    """Return `key=value` lines, as GET_BROKER_CONFIG answers."""
    return "".join(f"{key}={value}\n" for key, value in settings.items()).encode()


def decode_settings(data: bytes | memoryview) -> dict[str, str]:
    """Read `key=value` lines; comments and lines without `=` are left out."""
    settings = {}
    for line in str(data, "utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() and key.lstrip()[0] not in "#!":
            settings[key.strip()] = value.strip()
    return settings


def _names(data: bytes | memoryview, key: str) -> list[str]:
    return shapes.texts(shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), key), key)
