"""Topics and settings of a broker: topic configs, and the table that a broker registers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
from msgspec.json import encode as _encode_standard

from inorder.errors import RemoteProtocolError
from inorder.model import DataVersion, TopicConfig
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.fastjson import REQUEST_ITEMS_MAX, SLOW_ITEMS_MAX, TABLE_ITEMS_MAX, loads
from inorder.wire.fields import Int32
from inorder.wire.replies import EMPTY, body_as
from inorder.wire.requests.nameserver import decode_kv_table, decode_settings, decode_topic_list


class CreateTopic(msgspec.Struct, frozen=True):
    """Create or change a topic. `attributes`: `+name=value,-name`."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_TOPIC
    REPLY = EMPTY

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


class DeleteTopic(msgspec.Struct, frozen=True):
    """Delete a topic and its queues on the broker."""

    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_BROKER
    REPLY = EMPTY

    topic: str


class GetSystemTopics(msgspec.Struct, frozen=True):
    """Ask for the broker's own topics."""

    CODE: ClassVar = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    REPLY = body_as(decode_topic_list)


class UpdateBrokerConfig(msgspec.Struct, frozen=True):
    """Change settings; the body is properties text."""

    CODE: ClassVar = RequestCode.UPDATE_BROKER_CONFIG
    REPLY = EMPTY


class GetBrokerConfig(msgspec.Struct, frozen=True):
    """Ask for the settings; the answer's body is properties text."""

    CODE: ClassVar = RequestCode.GET_BROKER_CONFIG
    REPLY = body_as(decode_settings)


class GetBrokerConfigReply(msgspec.Struct, frozen=True):
    """The version of the settings, as JSON text."""

    version: str


class GetBrokerRuntimeInfo(msgspec.Struct, frozen=True):
    """Ask for numbers about the running broker; the answer's body is a KV table."""

    CODE: ClassVar = RequestCode.GET_BROKER_RUNTIME_INFO
    REPLY = body_as(decode_kv_table)


TABLE_ENTRIES_MAX: Final = 200_000
"""Topics or groups of one table."""


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All topics of a broker: the answer to GET_ALL_TOPIC_CONFIG."""

    version: DataVersion
    topics: dict[str, TopicConfig] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return TopicConfigAndMappingSerializeWrapper as 5.x writes it, without mappings."""
        return {
            "dataVersion": data_version_to_json(self.version),
            "mappingDataVersion": data_version_to_json(
                DataVersion(timestamp_ms=self.version.timestamp_ms)
            ),
            "topicConfigTable": {
                name: topic_config_to_json(config) for name, config in self.topics.items()
            },
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> TopicTable:
        """Read the wrapper of any version."""
        table = shapes.as_object(value.get("topicConfigTable"), "topicConfigTable")
        check_entries(len(table), "topics")
        configs = [
            topic_config_from_json(shapes.as_object(config, "topic config"), str(name))
            for name, config in table.items()
        ]
        return cls(
            data_version_from_json(shapes.as_object(value.get("dataVersion"), "dataVersion")),
            {config.name: config for config in configs},
        )

    def encode(self) -> bytes:
        """Return the JSON text."""
        return _encode_standard(self.to_json())

    @classmethod
    def decode(cls, data: bytes | memoryview) -> TopicTable:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return cls.from_json(
            shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "topic table")
        )


class GetAllTopicConfig(msgspec.Struct, frozen=True):
    """Ask for all topics; the paging of newer peers may be ignored."""

    CODE: ClassVar = RequestCode.GET_ALL_TOPIC_CONFIG
    REPLY = body_as(TopicTable.decode)

    topic_seq: Int32 | None = None
    topics_max: Int32 | None = msgspec.field(default=None, name="maxTopicNum")
    data_version: str | None = None


def check_entries(count: int, what: str) -> None:
    """Refuse a table that is too long before an object is made of each entry."""
    if count > TABLE_ENTRIES_MAX:
        raise RemoteProtocolError(
            f"{count} {what} in one table; at most {TABLE_ENTRIES_MAX} may be"
        )


def data_version_to_json(version: DataVersion) -> dict[str, Any]:
    """Return fastjson's DataVersion."""
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp_ms,
    }


def data_version_from_json(value: dict[Any, Any]) -> DataVersion:
    """Read a DataVersion; 4.9 has no stateVersion."""
    return DataVersion(
        shapes.integer(value, "stateVersion", 0),
        shapes.integer(value, "timestamp", 0),
        shapes.integer(value, "counter", 0),
    )


def encode_data_version(version: DataVersion) -> bytes:
    """Return the body of QUERY_DATA_VERSION and of its answer."""
    return _encode_standard(data_version_to_json(version))


def decode_data_version(data: bytes | memoryview) -> DataVersion:
    """Read the body of QUERY_DATA_VERSION; malformed: RemoteProtocolError."""
    value = loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX)
    return data_version_from_json(shapes.as_object(value, "data version"))


decode_data_version_request = shapes.request_body(decode_data_version)
"""The same for a request; malformed: SystemError_."""


def topic_config_to_json(config: TopicConfig) -> dict[str, Any]:
    """Return fastjson's TopicConfig."""
    return {
        "attributes": config.attributes,
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicFilterType": config.filter_type,
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


def topic_config_from_json(value: dict[Any, Any], name: str | None = None) -> TopicConfig:
    """Read a TopicConfig of any version; the name may come from the table's key."""
    return TopicConfig(
        shapes.text(value, "topicName", name),
        shapes.integer(value, "readQueueNums", 16, shapes.INT32_BITS),
        shapes.integer(value, "writeQueueNums", 16, shapes.INT32_BITS),
        shapes.integer(value, "perm", 6, shapes.INT32_BITS),
        shapes.text(value, "topicFilterType", "SINGLE_TAG"),
        shapes.integer(value, "topicSysFlag", 0, shapes.INT32_BITS),
        shapes.boolean(value, "order", False),
        shapes.text_map(value, "attributes"),
    )


def encode_topic_config(config: TopicConfig) -> bytes:
    """Return the answer's body of GET_TOPIC_CONFIG."""
    return _encode_standard(topic_config_to_json(config))


def decode_topic_config(data: bytes | memoryview) -> TopicConfig:
    """Read the answer's body of GET_TOPIC_CONFIG; malformed: RemoteProtocolError."""
    return topic_config_from_json(shapes.as_object(loads(data), "topic config"))


class GetTopicConfig(msgspec.Struct, frozen=True):
    """Ask for the config of a topic."""

    CODE: ClassVar = RequestCode.GET_TOPIC_CONFIG
    REPLY = body_as(decode_topic_config)

    topic: str
    logical: bool | None = msgspec.field(default=None, name="lo")


def encode_topic_configs(configs: list[TopicConfig]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_TOPIC_LIST."""
    return _encode_standard({"topicConfigList": [topic_config_to_json(item) for item in configs]})


@shapes.request_body
def decode_topic_configs(data: bytes | memoryview) -> list[TopicConfig]:
    """Read the body of UPDATE_AND_CREATE_TOPIC_LIST; malformed: SystemError_."""
    value = shapes.as_object(
        loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX), "topic list"
    )
    return [topic_config_from_json(item) for item in shapes.objects(value, "topicConfigList")]
