"""Connected clients, and the requests that a broker passes to a consumer.

GET_CONSUMER_CONNECTION_LIST, GET_PRODUCER_CONNECTION_LIST, GET_ALL_PRODUCER_INFO
              who is connected, by group
307, 221      a consumer's queues and counts; its offsets
309           a consumer handles one message now and reports the result
36            a consumer gives a message back
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from inorder.model import Subscription, TopicQueue
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import DIFFERENCES, SENT_BACK_ERROR
from inorder.wire.fastjson import TABLE_ITEMS_MAX, dumps, loads
from inorder.wire.fields import Int32
from inorder.wire.replies import EMPTY
from inorder.wire.requests.groups import subscription_from_json, subscription_to_json
from inorder.wire.requests.leases import queue_key, queue_of_key
from inorder.wire.shapes import (
    Key,
    Shape,
    boolean_key,
    integer_key,
    optional_text_key,
    rate_key,
    text_key,
)


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One connected client; `seen_at_ms` is its last heartbeat, where that is told."""

    client_id: str
    address: str
    language: str
    version: int
    seen_at_ms: int = 0


CONNECTION: Final = Shape(
    ClientConnection,
    text_key("clientAddr", "address", ""),
    text_key("clientId", "client_id", ""),
    text_key("language", "language", ""),
    integer_key("version", "version"),
)
"""fastjson's Connection."""
PRODUCER: Final = Shape(
    ClientConnection,
    text_key("clientId", "client_id", ""),
    text_key("language", "language", ""),
    integer_key("lastUpdateTimestamp", "seen_at_ms"),
    Key(
        "remoteIP",
        "address",
        lambda fields: shapes.text(fields, "remoteIP", "").removeprefix("/"),
        lambda address: f"/{address}",
    ),
    integer_key("version", "version"),
)
"""fastjson's ProducerInfo."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A topic that the members of a group subscribe to differently."""

    topic: str
    views: tuple[tuple[str | None, tuple[str, ...]], ...]
    """Subscription (None: the topic is not subscribed) and its clients, most clients first."""

    def to_json(self) -> dict[str, Any]:
        """Return inorder's addition to GET_CONSUMER_CONNECTION_LIST."""
        return {
            "topic": self.topic,
            "views": [
                {"clients": list(ids), "subscription": wish, "subscribed": wish is not None}
                for wish, ids in self.views
            ],
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> Difference:
        """Read the addition."""
        return cls(
            shapes.text(value, "topic", ""),
            tuple(
                (
                    shapes.text(view, "subscription", "")
                    if shapes.boolean(view, "subscribed", False)
                    else None,
                    tuple(shapes.texts(view, "clients")),
                )
                for view in shapes.objects(value, "views")
            ),
        )


@dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """The reply to GET_CONSUMER_CONNECTION_LIST; `differences` is inorder's addition."""

    connections: tuple[ClientConnection, ...] = ()
    consume_from_where: str = ""
    consume_type: str = ""
    message_model: str = ""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    def encode(self) -> bytes:
        """Return the JSON text."""
        added = {DIFFERENCES: [one.to_json() for one in self.differences]}
        return dumps(
            {
                "connectionSet": [CONNECTION.to_json(one) for one in self.connections],
                "consumeFromWhere": self.consume_from_where,
                "consumeType": self.consume_type,
                "messageModel": self.message_model,
                "subscriptionTable": {
                    topic: subscription_to_json(item) for topic, item in self.subscriptions.items()
                },
            }
            | (added if self.differences else {})
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ConsumerConnections:
        """Read the JSON text; malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "connections")
        table = shapes.as_object(value.get("subscriptionTable"), "subscriptionTable")
        return cls(
            tuple(map(CONNECTION.from_json, shapes.objects(value, "connectionSet"))),
            shapes.text(value, "consumeFromWhere", ""),
            shapes.text(value, "consumeType", ""),
            shapes.text(value, "messageModel", ""),
            {
                str(topic): subscription_from_json(shapes.as_object(item, "subscription"))
                for topic, item in table.items()
            },
            tuple(map(Difference.from_json, shapes.objects(value, DIFFERENCES)))
            if DIFFERENCES in value
            else (),
        )


def encode_producer_connections(connections: Iterable[ClientConnection]) -> bytes:
    """Return the answer's body of GET_PRODUCER_CONNECTION_LIST."""
    return dumps({"connectionSet": [CONNECTION.to_json(one) for one in connections]})


def decode_producer_connections(data: bytes | memoryview) -> list[ClientConnection]:
    """Read the answer's body of GET_PRODUCER_CONNECTION_LIST; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "connections")
    return [CONNECTION.from_json(item) for item in shapes.objects(value, "connectionSet")]


def encode_producers(groups: Mapping[str, Iterable[ClientConnection]]) -> bytes:
    """Return the answer's body of GET_ALL_PRODUCER_INFO."""
    return dumps(
        {
            "data": {
                group: [PRODUCER.to_json(one) for one in connections]
                for group, connections in groups.items()
            }
        }
    )


def decode_producers(data: bytes | memoryview) -> dict[str, list[ClientConnection]]:
    """Read the answer's body of GET_ALL_PRODUCER_INFO; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "producers")
    groups = shapes.as_object(value.get("data"), "data")
    return {
        str(group): [PRODUCER.from_json(item) for item in shapes.objects(groups, group)]
        for group in groups
    }


def encode_subscription(group: str, topic: str, subscription: Subscription | None) -> bytes:
    """Return the answer's body of QUERY_SUBSCRIPTION_BY_CONSUMER."""
    return dumps(
        {
            "group": group,
            "subscriptionData": None
            if subscription is None
            else subscription_to_json(subscription),
            "topic": topic,
        }
    )


def decode_subscription(data: bytes | memoryview) -> Subscription | None:
    """Read the answer's body of QUERY_SUBSCRIPTION_BY_CONSUMER; malformed: RemoteProtocolError."""
    found = shapes.as_object(loads(data), "subscription").get("subscriptionData")
    return (
        None if found is None else subscription_from_json(shapes.as_object(found, "subscription"))
    )


CR_SUCCESS: Final = "CR_SUCCESS"
CR_LATER: Final = "CR_LATER"
CR_ROLLBACK: Final = "CR_ROLLBACK"
CR_COMMIT: Final = "CR_COMMIT"
CR_THROW_EXCEPTION: Final = "CR_THROW_EXCEPTION"


@dataclass(frozen=True, slots=True)
class QueueRunning:
    """One queue of a consumer; times are ms since 1970, 0: never."""

    commit_offset: int = 0
    cached_min_offset: int = 0
    cached_max_offset: int = 0
    cached_messages: int = 0
    cached_mib: int = 0
    taken_messages: int = 0
    locked: bool = False
    locked_at_ms: int = 0
    pulled_at_ms: int = 0
    handled_at_ms: int = 0
    dropped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's ProcessQueueInfo."""
        return _QUEUE_RUNNING.to_json(self) | {
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


_QUEUE_RUNNING: Final = Shape(
    QueueRunning,
    integer_key("cachedMsgCount", "cached_messages"),
    integer_key("cachedMsgMaxOffset", "cached_max_offset"),
    integer_key("cachedMsgMinOffset", "cached_min_offset"),
    integer_key("cachedMsgSizeInMiB", "cached_mib"),
    integer_key("commitOffset", "commit_offset"),
    boolean_key("droped", "dropped"),
    integer_key("lastConsumeTimestamp", "handled_at_ms"),
    integer_key("lastLockTimestamp", "locked_at_ms"),
    integer_key("lastPullTimestamp", "pulled_at_ms"),
    boolean_key("locked", "locked"),
    integer_key("transactionMsgCount", "taken_messages"),
)


@dataclass(frozen=True, slots=True)
class TopicRunning:
    """A consumer's work on one topic: rates a second, times in ms."""

    handled_rate: float = 0.0
    failed_rate: float = 0.0
    handling_ms: float = 0.0
    failed_total: int = 0
    pulled_rate: float = 0.0
    pulling_ms: float = 0.0


_TOPIC_RUNNING: Final = Shape(
    TopicRunning,
    integer_key("consumeFailedMsgs", "failed_total"),
    rate_key("consumeFailedTPS", "failed_rate"),
    rate_key("consumeOKTPS", "handled_rate"),
    rate_key("consumeRT", "handling_ms"),
    rate_key("pullRT", "pulling_ms"),
    rate_key("pullTPS", "pulled_rate"),
)
"""fastjson's ConsumeStatus."""


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """The answer to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: tuple[Subscription, ...] = ()
    queues: dict[TopicQueue, QueueRunning] = field(default_factory=dict)
    topics: dict[str, TopicRunning] = field(default_factory=dict)
    stacks: str | None = None

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(
            {
                "jstack": self.stacks,
                "mqPopTable": {},
                "mqTable": {
                    queue_key(queue): item.to_json() for queue, item in self.queues.items()
                },
                "properties": self.properties,
                "statusTable": {
                    topic: _TOPIC_RUNNING.to_json(item) for topic, item in self.topics.items()
                },
                "subscriptionSet": [subscription_to_json(item) for item in self.subscriptions],
                "userConsumerInfo": {},
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RunningInfo:
        """Read the JSON text of any client; malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "running info")
        queues = shapes.as_object(value.get("mqTable"), "mqTable")
        topics = shapes.as_object(value.get("statusTable"), "statusTable")
        return cls(
            shapes.text_map(value, "properties"),
            tuple(map(subscription_from_json, shapes.objects(value, "subscriptionSet"))),
            {
                queue_of_key(key): _QUEUE_RUNNING.from_json(shapes.as_object(item, "mqTable"))
                for key, item in queues.items()
            },
            {
                str(topic): _TOPIC_RUNNING.from_json(shapes.as_object(item, "statusTable"))
                for topic, item in topics.items()
            },
            shapes.text(value, "jstack", "") or None,
        )


@dataclass(frozen=True, slots=True)
class DirectResult:
    """The answer to CONSUME_MESSAGE_DIRECTLY; `result` is one of the CR_ names."""

    result: str
    spent_ms: int = 0
    remark: str | None = None
    order: bool = False
    auto_commit: bool = True

    def encode(self) -> bytes:
        """Return the JSON text."""
        return dumps(_DIRECT_RESULT.to_json(self))

    @classmethod
    def decode(cls, data: bytes | memoryview) -> DirectResult:
        """Read the JSON text; malformed: RemoteProtocolError."""
        return _DIRECT_RESULT.from_json(shapes.as_object(loads(data), "direct result"))


_DIRECT_RESULT: Final = Shape(
    DirectResult,
    boolean_key("autoCommit", "auto_commit", True),
    text_key("consumeResult", "result", ""),
    boolean_key("order", "order"),
    optional_text_key("remark", "remark"),
    integer_key("spentTimeMills", "spent_ms"),
)


def encode_consumer_status(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return the answer's body of GET_CONSUMER_STATUS_FROM_CLIENT."""
    table = {queue_key(queue): offset for queue, offset in offsets.items()}
    return dumps({"consumerTable": {}, "messageQueueTable": table})


def decode_consumer_status(data: bytes | memoryview) -> dict[TopicQueue, int]:
    """Read the answer's body of GET_CONSUMER_STATUS_FROM_CLIENT; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "consumer status")
    table = shapes.as_object(value.get("messageQueueTable"), "messageQueueTable")
    return {queue_of_key(key): shapes.as_integer(offset, "offset") for key, offset in table.items()}


def encode_consumer_statuses(clients: Mapping[str, Mapping[TopicQueue, int]]) -> bytes:
    """Return the answer's body of INVOKE_BROKER_TO_GET_CONSUMER_STATUS, by client id."""
    table = {
        client: {queue_key(queue): offset for queue, offset in offsets.items()}
        for client, offsets in clients.items()
    }
    return dumps({"consumerTable": table, "messageQueueTable": {}})


def decode_consumer_statuses(data: bytes | memoryview) -> dict[str, dict[TopicQueue, int]]:
    """Read the same; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "consumer statuses")
    return {
        str(client): {
            queue_of_key(key): shapes.as_integer(offset, "offset")
            for key, offset in shapes.as_object(offsets, "consumerTable").items()
        }
        for client, offsets in shapes.as_object(value.get("consumerTable"), "consumerTable").items()
    }


class SendBack(msgspec.Struct, frozen=True):
    """Give a message back that could not be handled: the broker stores it again, for later.

    `delay_level` 0: the broker decides; below: it goes to the dead letters at once.
    """

    CODE: ClassVar = RequestCode.CONSUMER_SEND_MSG_BACK
    REPLY = EMPTY

    position: int = msgspec.field(name="offset")
    group: str
    delay_level: Int32
    origin_message_id: str | None = msgspec.field(default=None, name="originMsgId")
    origin_topic: str | None = None
    unit_mode: bool = False
    redeliveries_max: Int32 | None = msgspec.field(default=None, name="maxReconsumeTimes")
    error: str | None = msgspec.field(default=None, name=SENT_BACK_ERROR)  # inorder's


class ResetClientOffset(msgspec.Struct, frozen=True):
    """Tell a consumer to go on elsewhere (oneway); the body has the offsets."""

    CODE: ClassVar = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    topic: str
    group: str
    timestamp_ms: int = msgspec.field(default=0, name="timestamp")
    force: bool = msgspec.field(default=False, name="isForce")


class GetConsumerStatus(msgspec.Struct, frozen=True):
    """Ask a consumer how far it is on a topic."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str


class GetRunningInfo(msgspec.Struct, frozen=True):
    """Ask a consumer for its running info."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    stacks: bool = msgspec.field(default=False, name="jstackEnable")


class ConsumeDirectly(msgspec.Struct, frozen=True):
    """Let a consumer handle one message now; the broker puts its record into the body."""

    CODE: ClassVar = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = msgspec.field(default=None, name="msgId")
    broker_name: str | None = None
    topic: str | None = None
