"""Routes: what brokers tell a name server, and what clients ask it.

The map of addresses has number keys. Clients from V4_9_4 on get them quoted, older ones bare,
exactly as from a RocketMQ name server. ClusterInfo always has them bare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.fastjson import TABLE_ITEMS_MAX, dumps, loads
from inorder.wire.fields import Int32
from inorder.wire.replies import EMPTY, body_as, fields_as
from inorder.wire.shapes import Key, Shape, integer_key, text_key


class RegisterBroker(msgspec.Struct, frozen=True):
    """Say which topics a broker serves; the body is a RegisterBrokerBody."""

    CODE: ClassVar = RequestCode.REGISTER_BROKER

    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster_name: str
    ha_server_address: str = msgspec.field(name="haServerAddr")
    broker_id: int
    heartbeat_timeout_ms: int | None = msgspec.field(default=None, name="heartbeatTimeoutMillis")
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerReply(msgspec.Struct, frozen=True):
    """The master of the broker's group, for slaves."""

    ha_server_address: str | None = msgspec.field(default=None, name="haServerAddr")
    master_address: str | None = msgspec.field(default=None, name="masterAddr")


class UnregisterBroker(msgspec.Struct, frozen=True):
    """Say that a broker leaves."""

    CODE: ClassVar = RequestCode.UNREGISTER_BROKER
    REPLY = EMPTY

    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster_name: str
    broker_id: int


class QueryDataVersionReply(msgspec.Struct, frozen=True):
    """Whether a registration is due."""

    changed: bool


class QueryDataVersion(msgspec.Struct, frozen=True):
    """Ask whether the name server has this version of the topics; the body is a DataVersion."""

    CODE: ClassVar = RequestCode.QUERY_DATA_VERSION
    REPLY = fields_as(QueryDataVersionReply)

    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster_name: str
    broker_id: int


class BrokerHeartbeat(msgspec.Struct, frozen=True):
    """Say that a broker lives; real brokers leave the id out."""

    CODE: ClassVar = RequestCode.BROKER_HEARTBEAT

    cluster_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    broker_name: str
    broker_id: int | None = None
    epoch: Int32 | None = None
    max_position: int | None = msgspec.field(default=None, name="maxOffset")
    confirm_position: int | None = msgspec.field(default=None, name="confirmOffset")
    heartbeat_timeout_ms: int | None = msgspec.field(default=None, name="heartbeatTimeoutMills")
    election_priority: Int32 | None = None


class GetBrokerMemberGroup(msgspec.Struct, frozen=True):
    """Ask for the addresses of a broker name."""

    CODE: ClassVar = RequestCode.GET_BROKER_MEMBER_GROUP

    cluster_name: str
    broker_name: str


class WipeWritePermReply(msgspec.Struct, frozen=True):
    """How many topics lost it."""

    topics: Int32 = msgspec.field(name="wipeTopicCount")


class WipeWritePerm(msgspec.Struct, frozen=True):
    """Take the write permission from all topics of a broker."""

    CODE: ClassVar = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    REPLY = fields_as(WipeWritePermReply)

    broker_name: str


class AddWritePermReply(msgspec.Struct, frozen=True):
    """How many topics got it."""

    topics: Int32 = msgspec.field(name="addTopicCount")


class AddWritePerm(msgspec.Struct, frozen=True):
    """Give all topics of a broker read and write permission."""

    CODE: ClassVar = RequestCode.ADD_WRITE_PERM_OF_BROKER
    REPLY = fields_as(AddWritePermReply)

    broker_name: str


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker name, by broker id."""

    cluster: str
    name: str
    addresses: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's form."""
        return {
            "brokerAddrs": dict(sorted(self.addresses.items())),
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
            "zoneName": self.zone_name,
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> BrokerData:
        """Read fastjson's form, with quoted or bare keys."""
        zone = value.get("zoneName")
        return cls(
            shapes.text(value, "cluster", ""),
            shapes.text(value, "brokerName"),
            addresses_from_json(value.get("brokerAddrs")),
            shapes.boolean(value, "enableActingMaster", False),
            None if zone is None else shapes.as_text(zone, "zoneName"),
        )


def addresses_from_json(value: Any) -> dict[int, str]:
    """Read a map of broker ids to addresses."""
    return {
        shapes.as_integer(broker_id, "broker id"): shapes.as_text(address, "broker address")
        for broker_id, address in shapes.as_object(value, "brokerAddrs").items()
    }


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker name has."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


def _sys_flag(fields: dict[Any, Any]) -> int:
    """Read the flag, whose key was misspelt up to 4.8."""
    key = "topicSysFlag" if "topicSysFlag" in fields else "topicSynFlag"
    return shapes.integer(fields, key, 0, shapes.INT32_BITS)


_QUEUE_DATA: Final = Shape(
    QueueData,
    text_key("brokerName", "broker_name"),
    integer_key("perm", "perm", 0, shapes.INT32_BITS),
    integer_key("readQueueNums", "read_queues", 0, shapes.INT32_BITS),
    Key("topicSysFlag", "sys_flag", _sys_flag),
    integer_key("writeQueueNums", "write_queues", 0, shapes.INT32_BITS),
)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    brokers: tuple[BrokerData, ...] = ()
    queues: tuple[QueueData, ...] = ()
    order_conf: str | None = None
    filter_servers: dict[str, list[str]] = field(default_factory=dict)

    def encode(self, standard: bool = True) -> bytes:
        """Return the JSON text; `standard` quotes number keys."""
        return dumps(
            {
                "brokerDatas": [broker.to_json() for broker in self.brokers],
                "filterServerTable": self.filter_servers,
                "orderTopicConf": self.order_conf,
                "queueDatas": [_QUEUE_DATA.to_json(queue) for queue in self.queues],
            },
            bare_int_keys=not standard,
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> TopicRoute:
        """Read either key style.

        Raises:
            RemoteProtocolError: it is no route.
        """
        value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "route")
        order_conf = value.get("orderTopicConf")
        servers = shapes.as_object(value.get("filterServerTable"), "filterServerTable")
        return cls(
            tuple(map(BrokerData.from_json, shapes.objects(value, "brokerDatas"))),
            tuple(map(_QUEUE_DATA.from_json, shapes.objects(value, "queueDatas"))),
            None if order_conf is None else shapes.as_text(order_conf, "orderTopicConf"),
            {str(name): shapes.texts(servers, name) for name in servers},
        )

    @classmethod
    def decode_request(cls, data: bytes | memoryview) -> TopicRoute:
        """Read the body of REGISTER_TOPIC_IN_NAMESRV; malformed: SystemError_."""
        return shapes.request_body(cls.decode)(data)


class GetRoute(msgspec.Struct, frozen=True):
    """Ask for the route of a topic."""

    CODE: ClassVar = RequestCode.GET_ROUTEINFO_BY_TOPIC
    REPLY = body_as(TopicRoute.decode)

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The answer to GET_BROKER_CLUSTER_INFO: brokers by name, broker names by cluster."""

    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the JSON text, with bare number keys."""
        return dumps(
            {
                "brokerAddrTable": {name: data.to_json() for name, data in self.brokers.items()},
                "clusterAddrTable": self.clusters,
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ClusterInfo:
        """Read either key style.

        Raises:
            RemoteProtocolError: it is no cluster info.
        """
        value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "cluster info")
        brokers = shapes.as_object(value.get("brokerAddrTable"), "brokerAddrTable")
        clusters = shapes.as_object(value.get("clusterAddrTable"), "clusterAddrTable")
        return cls(
            {
                shapes.as_text(name, "broker name"): BrokerData.from_json(
                    shapes.as_object(data, "broker")
                )
                for name, data in brokers.items()
            },
            {
                shapes.as_text(name, "cluster name"): tuple(shapes.texts(clusters, name))
                for name in clusters
            },
        )


class GetClusterInfo(msgspec.Struct, frozen=True):
    """Ask for all brokers and clusters."""

    CODE: ClassVar = RequestCode.GET_BROKER_CLUSTER_INFO
    REPLY = body_as(ClusterInfo.decode)


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """The answer to GET_BROKER_MEMBER_GROUP."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the JSON text, with bare number keys."""
        return dumps(
            {
                "brokerMemberGroup": {
                    "brokerAddrs": dict(sorted(self.addresses.items())),
                    "brokerName": self.broker_name,
                    "cluster": self.cluster,
                }
            }
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> BrokerMemberGroup:
        """Read either key style.

        Raises:
            RemoteProtocolError: it is no member group.
        """
        outer = shapes.as_object(loads(data), "member group")
        value = outer.get("brokerMemberGroup")
        if value is None:
            raise RemoteProtocolError("brokerMemberGroup is missing")
        value = shapes.as_object(value, "brokerMemberGroup")
        return cls(
            shapes.text(value, "cluster", ""),
            shapes.text(value, "brokerName", ""),
            addresses_from_json(value.get("brokerAddrs")),
        )
