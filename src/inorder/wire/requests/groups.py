"""Groups and their clients: group configs, the table of all groups, and the heartbeat.

C++ clients send enums as numbers, and hashes of zero. Pull consumers may leave the subscriptions
out, producers the consumers. Hashes are always computed here, from the expression.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import msgspec
from msgspec.json import encode as _encode_standard

from inorder.errors import RemoteProtocolError
from inorder.model import DataVersion, GroupConfig, Subscription
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import CAPABILITY, DIFFERING
from inorder.wire.fastjson import REQUEST_ITEMS_MAX, SLOW_ITEMS_MAX, TABLE_ITEMS_MAX, dumps, loads
from inorder.wire.fields import Int32
from inorder.wire.ids import java_hash
from inorder.wire.replies import EMPTY, body_as, fields_as
from inorder.wire.requests.nameserver import decode_consumer_ids
from inorder.wire.requests.pulls import ALL, TAG, parse_subscription
from inorder.wire.requests.topics import (
    check_entries,
    data_version_from_json,
    data_version_to_json,
)
from inorder.wire.shapes import Key, Shape, boolean_key, integer_key, text_key


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
                    str(topic): shapes.as_integer(bits, "forbidden", shapes.INT32_BITS)
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


def _retry_policy(fields: dict[Any, Any]) -> dict[str, Any]:
    policy = shapes.as_object(fields.get("groupRetryPolicy"), "groupRetryPolicy")
    return {str(key): item for key, item in policy.items()} or {"type": "CUSTOMIZED"}


_GROUP_CONFIG: Final = Shape(
    GroupConfig,
    Key("attributes", "attributes", lambda fields: shapes.text_map(fields, "attributes")),
    integer_key("brokerId", "broker_id"),
    boolean_key("consumeBroadcastEnable", "consume_broadcast_enable", True),
    boolean_key("consumeEnable", "consume_enable", True),
    boolean_key("consumeFromMinEnable", "consume_from_min_enable", True),
    boolean_key("consumeMessageOrderly", "consume_message_orderly"),
    integer_key("consumeTimeoutMinute", "consume_timeout_minutes", 15, shapes.INT32_BITS),
    text_key("groupName", "name"),
    Key("groupRetryPolicy", "retry_policy", _retry_policy),
    integer_key("groupSysFlag", "sys_flag", 0, shapes.INT32_BITS),
    boolean_key("notifyConsumerIdsChangedEnable", "notify_ids_changed", True),
    integer_key("retryMaxTimes", "retry_max_times", 16, shapes.INT32_BITS),
    integer_key("retryQueueNums", "retry_queues", 1, shapes.INT32_BITS),
    integer_key("whichBrokerWhenConsumeSlowly", "which_broker_when_slow", 1),
)
"""fastjson's SubscriptionGroupConfig."""
group_config_to_json = _GROUP_CONFIG.to_json


def group_config_from_json(value: dict[Any, Any], name: str | None = None) -> GroupConfig:
    """Read a SubscriptionGroupConfig of any version; the name may come from the table's key."""
    if name is not None and value.get("groupName") is None:
        value = value | {"groupName": name}
    return _GROUP_CONFIG.from_json(value)


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


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The protocol that an inorder broker speaks; RocketMQ's reply has no such field."""

    capability: int = msgspec.field(default=0, name=CAPABILITY)
    differing: str | None = msgspec.field(default=None, name=DIFFERING)


class Heartbeat(msgspec.Struct, frozen=True):
    """Say which groups a client serves; the body is a ClientHeartbeat."""

    CODE: ClassVar = RequestCode.HEART_BEAT
    REPLY = fields_as(HeartbeatReply)


class UnregisterClient(msgspec.Struct, frozen=True):
    """Leave one or both groups."""

    CODE: ClassVar = RequestCode.UNREGISTER_CLIENT
    REPLY = EMPTY

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerList(msgspec.Struct, frozen=True):
    """Ask for the client ids of a group."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    REPLY = body_as(decode_consumer_ids)

    consumer_group: str


class UpdateGroup(msgspec.Struct, frozen=True):
    """Create or change a group; the body is its config."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    REPLY = EMPTY


class GetAllGroupConfig(msgspec.Struct, frozen=True):
    """Ask for all groups; the paging of newer peers may be ignored."""

    CODE: ClassVar = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    REPLY = body_as(GroupTable.decode)

    group_seq: Int32 | None = None
    groups_max: Int32 | None = msgspec.field(default=None, name="maxGroupNum")
    data_version: str | None = None


class GetGroupConfig(msgspec.Struct, frozen=True):
    """Ask for the config of a group."""

    CODE: ClassVar = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


class DeleteGroup(msgspec.Struct, frozen=True):
    """Forget a group, and its offsets if asked to."""

    CODE: ClassVar = RequestCode.DELETE_SUBSCRIPTIONGROUP
    REPLY = EMPTY

    group: str = msgspec.field(name="groupName")
    clean_offset: bool = False


CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERES: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)

HEARTBEAT_BYTES_MAX: Final = 1024 * 1024
SUBSCRIPTIONS_MAX: Final = 4096
TAGS_MAX: Final = 16_384
"""Tags of one heartbeat, all its subscriptions together: each is kept with its hash."""
SQL_CHARS_MAX: Final = 32 * 1024
"""Characters of the SQL expressions of one heartbeat: each is compiled."""
CLIENT_NAME_CHARS_MAX: Final = 255
"""Of a client id and of a group of producers, which nothing else checks."""


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a client."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class ClientHeartbeat:
    """The groups that a client serves."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producers: tuple[str, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [_CONSUMER.to_json(consumer) for consumer in self.consumers],
                "heartbeatFingerprint": self.fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producers],
                "withoutSub": self.without_sub,
            }
        )

    @classmethod
    @shapes.request_body
    def decode(cls, data: bytes | memoryview) -> ClientHeartbeat:
        """Read the JSON text of any client.

        Raises:
            SystemError_: it is no heartbeat.
            SubscriptionParseFailed: an expression holds operators only.
        """
        if len(data) > HEARTBEAT_BYTES_MAX:
            raise RemoteProtocolError(f"a heartbeat has more than {HEARTBEAT_BYTES_MAX} bytes")
        loaded = loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX)
        value = shapes.as_object(loaded, "heartbeat")
        consumers = tuple(map(_CONSUMER.from_json, shapes.objects(value, "consumerDataSet")))
        wanted = [subscription for one in consumers for subscription in one.subscriptions]
        if len(wanted) > SUBSCRIPTIONS_MAX or sum(len(one.tags) for one in wanted) > TAGS_MAX:
            raise RemoteProtocolError(
                f"a heartbeat has more than {SUBSCRIPTIONS_MAX} subscriptions or {TAGS_MAX} tags"
            )
        if sum(len(one.expression) for one in wanted if one.expression_type != TAG) > SQL_CHARS_MAX:
            raise RemoteProtocolError(
                f"the SQL expressions of a heartbeat have more than {SQL_CHARS_MAX} characters"
            )
        return cls(
            _name(value, "clientID"),
            consumers,
            tuple(
                _name(producer, "groupName")
                for producer in shapes.objects(value, "producerDataSet")
            ),
            shapes.integer(value, "heartbeatFingerprint", 0, 32),
            shapes.boolean(value, "withoutSub", False),
        )


class CheckClientConfig(msgspec.Struct, frozen=True):
    """Ask whether a subscription may be used; the body is a ClientConfigCheck."""

    CODE: ClassVar = RequestCode.CHECK_CLIENT_CONFIG
    REPLY = EMPTY


@dataclass(frozen=True, slots=True)
class ClientConfigCheck:
    """The body of CHECK_CLIENT_CONFIG: may this subscription be used?"""

    client_id: str
    group: str
    subscription: Subscription
    namespace: str | None = None

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "clientId": self.client_id,
                "group": self.group,
                "namespace": self.namespace,
                "subscriptionData": subscription_to_json(self.subscription),
            }
        )

    @classmethod
    @shapes.request_body
    def decode(cls, data: bytes | memoryview) -> ClientConfigCheck | None:
        """Read the JSON text; None if it holds no subscription (there is nothing to check).

        Raises:
            SystemError_: it is no such body.
        """
        loaded = loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX)
        value = shapes.as_object(loaded, "client config")
        subscription = value.get("subscriptionData")
        if subscription is None:
            return None
        namespace = value.get("namespace")
        return cls(
            shapes.text(value, "clientId", ""),
            shapes.text(value, "group", ""),
            subscription_from_json(shapes.as_object(subscription, "subscriptionData")),
            None if namespace is None else shapes.as_text(namespace, "namespace"),
        )


def subscription_to_json(subscription: Subscription) -> dict[str, Any]:
    """Return fastjson's SubscriptionData."""
    return {
        "classFilterMode": subscription.class_filter_mode,
        "codeSet": [java_hash(tag) for tag in subscription.tags],
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": list(subscription.tags),
        "topic": subscription.topic,
    }


def subscription_from_json(value: dict[Any, Any]) -> Subscription:
    """Read a SubscriptionData; tags and hashes are taken from the expression."""
    expression = value.get("subString")
    if expression is None:
        expression = "||".join(shapes.texts(value, "tagsSet")) or ALL
    subscription = parse_subscription(
        shapes.text(value, "topic"),
        shapes.as_text(expression, "subString"),
        shapes.integer(value, "subVersion", 0),
        shapes.text(value, "expressionType", TAG),
    )
    if shapes.boolean(value, "classFilterMode", False):
        return replace(subscription, class_filter_mode=True)
    return subscription


def _name(value: dict[Any, Any], key: str) -> str:
    found = shapes.text(value, key)
    if len(found) > CLIENT_NAME_CHARS_MAX:
        raise RemoteProtocolError(f"{key} has more than {CLIENT_NAME_CHARS_MAX} characters")
    return found


def _enum(value: dict[Any, Any], key: str, names: tuple[str, ...], default: str) -> str:
    """Read an enum by its name or its ordinal; an unknown value is the default, as in fastjson."""
    found = value.get(key)
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < len(names):
        return names[found]
    return found if isinstance(found, str) and found in names else default


def _enum_key(key: str, attribute: str, names: tuple[str, ...], default: str) -> Key:
    return Key(key, attribute, lambda fields: _enum(fields, key, names, default))


_CONSUMER: Final = Shape(
    ConsumerData,
    _enum_key(
        "consumeFromWhere", "consume_from_where", CONSUME_FROM_WHERES, "CONSUME_FROM_LAST_OFFSET"
    ),
    _enum_key("consumeType", "consume_type", CONSUME_TYPES, "CONSUME_PASSIVELY"),
    text_key("groupName", "group"),
    _enum_key("messageModel", "message_model", MESSAGE_MODELS, "CLUSTERING"),
    Key(
        "subscriptionDataSet",
        "subscriptions",
        lambda fields: tuple(
            map(subscription_from_json, shapes.objects(fields, "subscriptionDataSet"))
        ),
        lambda subscriptions: list(map(subscription_to_json, subscriptions)),
    ),
    boolean_key("unitMode", "unit_mode"),
)
