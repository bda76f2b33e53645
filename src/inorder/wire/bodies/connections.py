"""Bodies about who is connected: the clients of a consumer group, of a producer group, of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from inorder.model import Subscription
from inorder.wire import shapes
from inorder.wire.bodies.heartbeat import subscription_from_json, subscription_to_json
from inorder.wire.extensions import DIFFERENCES
from inorder.wire.fastjson import dumps, loads

_ITEMS_MAX: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One connected client; `seen_at_ms` is its last heartbeat, where that is told."""

    client_id: str
    address: str
    language: str
    version: int
    seen_at_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's Connection."""
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> ClientConnection:
        """Read fastjson's Connection."""
        return cls(
            shapes.text(value, "clientId", ""),
            shapes.text(value, "clientAddr", ""),
            shapes.text(value, "language", ""),
            shapes.integer(value, "version", 0),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A topic of which the members of a group want different things."""

    topic: str
    views: tuple[tuple[str | None, tuple[str, ...]], ...]
    """What is wanted (None: the topic is not subscribed) and by which clients, most first."""

    def to_json(self) -> dict[str, Any]:
        """Return what our broker adds to GET_CONSUMER_CONNECTION_LIST."""
        return {
            "topic": self.topic,
            "views": [
                {"clients": list(ids), "subscription": wish, "subscribed": wish is not None}
                for wish, ids in self.views
            ],
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> Difference:
        """Read it."""
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
    """The answer to GET_CONSUMER_CONNECTION_LIST; what members want differently is ours."""

    connections: tuple[ClientConnection, ...] = ()
    consume_from_where: str = ""
    consume_type: str = ""
    message_model: str = ""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    def encode(self) -> bytes:
        """Return the JSON text."""
        ours = {DIFFERENCES: [one.to_json() for one in self.differences]}
        return dumps(
            {
                "connectionSet": [connection.to_json() for connection in self.connections],
                "consumeFromWhere": self.consume_from_where,
                "consumeType": self.consume_type,
                "messageModel": self.message_model,
                "subscriptionTable": {
                    topic: subscription_to_json(item) for topic, item in self.subscriptions.items()
                },
            }
            | (ours if self.differences else {})
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ConsumerConnections:
        """Read the JSON text; malformed: RemoteProtocolError."""
        value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "connections")
        table = shapes.as_object(value.get("subscriptionTable"), "subscriptionTable")
        return cls(
            tuple(map(ClientConnection.from_json, shapes.objects(value, "connectionSet"))),
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
    return dumps({"connectionSet": [connection.to_json() for connection in connections]})


def decode_producer_connections(data: bytes | memoryview) -> list[ClientConnection]:
    """Read the answer's body of GET_PRODUCER_CONNECTION_LIST; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "connections")
    return [ClientConnection.from_json(item) for item in shapes.objects(value, "connectionSet")]


def encode_producers(groups: Mapping[str, Iterable[ClientConnection]]) -> bytes:
    """Return the answer's body of GET_ALL_PRODUCER_INFO."""
    return dumps(
        {
            "data": {
                group: [
                    {
                        "clientId": one.client_id,
                        "language": one.language,
                        "lastUpdateTimestamp": one.seen_at_ms,
                        "remoteIP": f"/{one.address}",
                        "version": one.version,
                    }
                    for one in connections
                ]
                for group, connections in groups.items()
            }
        }
    )


def decode_producers(data: bytes | memoryview) -> dict[str, list[ClientConnection]]:
    """Read the answer's body of GET_ALL_PRODUCER_INFO; malformed: RemoteProtocolError."""
    value = shapes.as_object(loads(data, items_max=_ITEMS_MAX), "producers")
    groups = shapes.as_object(value.get("data"), "data")
    return {
        str(group): [
            ClientConnection(
                shapes.text(item, "clientId", ""),
                shapes.text(item, "remoteIP", "").removeprefix("/"),
                shapes.text(item, "language", ""),
                shapes.integer(item, "version", 0),
                shapes.integer(item, "lastUpdateTimestamp", 0),
            )
            for item in shapes.objects(groups, group)
        ]
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
