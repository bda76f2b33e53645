"""What brokers tell a name server, and what clients ask it about routes."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


class GetRoute(msgspec.Struct, frozen=True):
    """Ask who serves a topic."""

    CODE: ClassVar = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


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

    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster_name: str
    broker_id: int


class QueryDataVersion(msgspec.Struct, frozen=True):
    """Ask whether the name server has this version of the topics; the body is a DataVersion."""

    CODE: ClassVar = RequestCode.QUERY_DATA_VERSION

    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster_name: str
    broker_id: int


class QueryDataVersionReply(msgspec.Struct, frozen=True):
    """Whether a registration is due."""

    changed: bool


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


class GetClusterInfo(msgspec.Struct, frozen=True):
    """Ask for all brokers and clusters."""

    CODE: ClassVar = RequestCode.GET_BROKER_CLUSTER_INFO


class WipeWritePerm(msgspec.Struct, frozen=True):
    """Take the write permission from all topics of a broker."""

    CODE: ClassVar = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    broker_name: str


class WipeWritePermReply(msgspec.Struct, frozen=True):
    """How many topics lost it."""

    topics: Int32 = msgspec.field(name="wipeTopicCount")


class AddWritePerm(msgspec.Struct, frozen=True):
    """Give all topics of a broker read and write permission."""

    CODE: ClassVar = RequestCode.ADD_WRITE_PERM_OF_BROKER

    broker_name: str


class AddWritePermReply(msgspec.Struct, frozen=True):
    """How many topics got it."""

    topics: Int32 = msgspec.field(name="addTopicCount")
