"""What a client says of itself: the body of HEART_BEAT and of CHECK_CLIENT_CONFIG.

C++ clients send enums as numbers and hashes of zero; pull consumers may leave the subscriptions
out, producers the consumers. Hashes are always computed here, from the expression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from inorder.errors import RemoteProtocolError
from inorder.model import Subscription
from inorder.wire import shapes
from inorder.wire.fastjson import SLOW_ITEMS_MAX, dumps, loads
from inorder.wire.javahash import java_hash
from inorder.wire.subscription import ALL, TAG, parse_subscription

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
NAME_CHARS_MAX: Final = 255
"""Of a client id and of a group of producers, which nothing else checks."""

_ITEMS_MAX: Final = 50_000


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
                "consumerDataSet": [_consumer_to_json(consumer) for consumer in self.consumers],
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
        loaded = loads(data, items_max=_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX)
        value = shapes.as_object(loaded, "heartbeat")
        consumers = tuple(map(_consumer_from_json, shapes.objects(value, "consumerDataSet")))
        wanted = [subscription for one in consumers for subscription in one.subscriptions]
        if len(wanted) > SUBSCRIPTIONS_MAX or sum(len(one.tags) for one in wanted) > TAGS_MAX:
            raise RemoteProtocolError(
                f"a heartbeat has more than {SUBSCRIPTIONS_MAX} subscriptions or {TAGS_MAX} tags"
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
        loaded = loads(data, items_max=_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX)
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
    if len(found) > NAME_CHARS_MAX:
        raise RemoteProtocolError(f"{key} has more than {NAME_CHARS_MAX} characters")
    return found


def _consumer_to_json(consumer: ConsumerData) -> dict[str, Any]:
    return {
        "consumeFromWhere": consumer.consume_from_where,
        "consumeType": consumer.consume_type,
        "groupName": consumer.group,
        "messageModel": consumer.message_model,
        "subscriptionDataSet": [subscription_to_json(item) for item in consumer.subscriptions],
        "unitMode": consumer.unit_mode,
    }


def _consumer_from_json(value: dict[Any, Any]) -> ConsumerData:
    return ConsumerData(
        shapes.text(value, "groupName"),
        _enum(value, "consumeType", CONSUME_TYPES, "CONSUME_PASSIVELY"),
        _enum(value, "messageModel", MESSAGE_MODELS, "CLUSTERING"),
        _enum(value, "consumeFromWhere", CONSUME_FROM_WHERES, "CONSUME_FROM_LAST_OFFSET"),
        tuple(map(subscription_from_json, shapes.objects(value, "subscriptionDataSet"))),
        shapes.boolean(value, "unitMode", False),
    )


def _enum(value: dict[Any, Any], key: str, names: tuple[str, ...], default: str) -> str:
    """Read an enum by its name or its ordinal; what is unknown is the default, as in fastjson."""
    found = value.get(key)
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < len(names):
        return names[found]
    return found if isinstance(found, str) and found in names else default
