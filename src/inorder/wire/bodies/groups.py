"""Group configs: alone, in lists, and in the table that a broker keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.json import encode as _encode_standard

from inorder.model import DataVersion, GroupConfig
from inorder.wire import shapes
from inorder.wire.bodies.topics import (
    TABLE_ITEMS_MAX,
    check_entries,
    data_version_from_json,
    data_version_to_json,
)
from inorder.wire.fastjson import REQUEST_ITEMS_MAX, SLOW_ITEMS_MAX, loads

_INT32_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class GroupTable:
    """All groups of a broker: the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG.

    `forbidden` is group -> topic -> bits.
    """

    version: DataVersion
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's SubscriptionGroupWrapper."""
        return {
            "dataVersion": data_version_to_json(self.version),
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": {
                name: group_config_to_json(config) for name, config in self.groups.items()
            },
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> GroupTable:
        """Read the wrapper of any version."""
        table = shapes.as_object(value.get("subscriptionGroupTable"), "subscriptionGroupTable")
        check_entries(len(table), "groups")
        forbidden = shapes.as_object(value.get("forbiddenTable"), "forbiddenTable")
        configs = [
            group_config_from_json(shapes.as_object(config, "group config"), str(name))
            for name, config in table.items()
        ]
        return cls(
            data_version_from_json(shapes.as_object(value.get("dataVersion"), "dataVersion")),
            {config.name: config for config in configs},
            {
                str(group): {
                    str(topic): shapes.as_integer(bits, "forbidden", _INT32_BITS)
                    for topic, bits in shapes.as_object(topics, "forbidden").items()
                }
                for group, topics in forbidden.items()
            },
        )

    def encode(self) -> bytes:
        """Return the JSON text."""
        return _encode_standard(self.to_json())

    @classmethod
    def decode(cls, data: bytes | memoryview) -> GroupTable:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return cls.from_json(
            shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "group table")
        )


def group_config_to_json(config: GroupConfig) -> dict[str, Any]:
    """Return fastjson's SubscriptionGroupConfig."""
    return {
        "attributes": config.attributes,
        "brokerId": config.broker_id,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeMessageOrderly": config.consume_message_orderly,
        "consumeTimeoutMinute": config.consume_timeout_minutes,
        "groupName": config.name,
        "groupRetryPolicy": config.retry_policy,
        "groupSysFlag": config.sys_flag,
        "notifyConsumerIdsChangedEnable": config.notify_ids_changed,
        "retryMaxTimes": config.retry_max_times,
        "retryQueueNums": config.retry_queues,
        "whichBrokerWhenConsumeSlowly": config.which_broker_when_slow,
    }


def group_config_from_json(value: dict[Any, Any], name: str | None = None) -> GroupConfig:
    """Read a SubscriptionGroupConfig of any version; the name may come from the table's key."""
    policy = shapes.as_object(value.get("groupRetryPolicy"), "groupRetryPolicy")
    return GroupConfig(
        shapes.text(value, "groupName", name),
        consume_enable=shapes.boolean(value, "consumeEnable", True),
        consume_from_min_enable=shapes.boolean(value, "consumeFromMinEnable", True),
        consume_broadcast_enable=shapes.boolean(value, "consumeBroadcastEnable", True),
        consume_message_orderly=shapes.boolean(value, "consumeMessageOrderly", False),
        retry_queues=shapes.integer(value, "retryQueueNums", 1, _INT32_BITS),
        retry_max_times=shapes.integer(value, "retryMaxTimes", 16, _INT32_BITS),
        broker_id=shapes.integer(value, "brokerId", 0),
        which_broker_when_slow=shapes.integer(value, "whichBrokerWhenConsumeSlowly", 1),
        notify_ids_changed=shapes.boolean(value, "notifyConsumerIdsChangedEnable", True),
        sys_flag=shapes.integer(value, "groupSysFlag", 0, _INT32_BITS),
        consume_timeout_minutes=shapes.integer(value, "consumeTimeoutMinute", 15, _INT32_BITS),
        retry_policy={str(key): item for key, item in policy.items()} or {"type": "CUSTOMIZED"},
        attributes=shapes.text_map(value, "attributes"),
    )


def encode_group_config(config: GroupConfig) -> bytes:
    """Return the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, and the answer's of 352."""
    return _encode_standard(group_config_to_json(config))


def decode_group_config(data: bytes | memoryview) -> GroupConfig:
    """Read the answer's body of GET_SUBSCRIPTIONGROUP_CONFIG; malformed: RemoteProtocolError."""
    value = loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX)
    return group_config_from_json(shapes.as_object(value, "group config"))


decode_group_config_request = shapes.request_body(decode_group_config)
"""The same for a request; malformed: SystemError_."""


def encode_group_configs(configs: list[GroupConfig]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""
    return _encode_standard({"groupConfigList": [group_config_to_json(item) for item in configs]})


@shapes.request_body
def decode_group_configs(data: bytes | memoryview) -> list[GroupConfig]:
    """Read the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST; malformed: SystemError_."""
    value = shapes.as_object(
        loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX), "group list"
    )
    return [group_config_from_json(item) for item in shapes.objects(value, "groupConfigList")]
