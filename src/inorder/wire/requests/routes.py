"""What brokers tell a name server, and what clients ask it about routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32


@dataclass(frozen=True, slots=True)
class GetRoute:
    """Ask who serves a topic."""

    CODE: ClassVar = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """Say which topics a broker serves; the body is a RegisterBrokerBody."""

    CODE: ClassVar = RequestCode.REGISTER_BROKER

    broker_name: str
    broker_address: str = field(metadata={"wire": "brokerAddr"})
    cluster_name: str
    ha_server_address: str = field(metadata={"wire": "haServerAddr"})
    broker_id: int
    heartbeat_timeout_ms: int | None = field(
        default=None, metadata={"wire": "heartbeatTimeoutMillis"}
    )
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


@dataclass(frozen=True, slots=True)
class RegisterBrokerReply:
    """The master of the broker's group, for slaves."""

    ha_server_address: str | None = field(default=None, metadata={"wire": "haServerAddr"})
    master_address: str | None = field(default=None, metadata={"wire": "masterAddr"})


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """Say that a broker leaves."""

    CODE: ClassVar = RequestCode.UNREGISTER_BROKER

    broker_name: str
    broker_address: str = field(metadata={"wire": "brokerAddr"})
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class QueryDataVersion:
    """Ask whether the name server has this version of the topics; the body is a DataVersion."""

    CODE: ClassVar = RequestCode.QUERY_DATA_VERSION

    broker_name: str
    broker_address: str = field(metadata={"wire": "brokerAddr"})
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class QueryDataVersionReply:
    """Whether a registration is due."""

    changed: bool


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    """Say that a broker lives; real brokers leave the id out."""

    CODE: ClassVar = RequestCode.BROKER_HEARTBEAT

    cluster_name: str
    broker_address: str = field(metadata={"wire": "brokerAddr"})
    broker_name: str
    broker_id: int | None = None
    epoch: Int32 | None = None
    max_position: int | None = field(default=None, metadata={"wire": "maxOffset"})
    confirm_position: int | None = field(default=None, metadata={"wire": "confirmOffset"})
    heartbeat_timeout_ms: int | None = field(
        default=None, metadata={"wire": "heartbeatTimeoutMills"}
    )
    election_priority: Int32 | None = None


@dataclass(frozen=True, slots=True)
class GetBrokerMemberGroup:
    """Ask for the addresses of a broker name."""

    CODE: ClassVar = RequestCode.GET_BROKER_MEMBER_GROUP

    cluster_name: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class GetClusterInfo:
    """Ask for all brokers and clusters."""

    CODE: ClassVar = RequestCode.GET_BROKER_CLUSTER_INFO


@dataclass(frozen=True, slots=True)
class WipeWritePerm:
    """Take the write permission from all topics of a broker."""

    CODE: ClassVar = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    broker_name: str


@dataclass(frozen=True, slots=True)
class WipeWritePermReply:
    """How many topics lost it."""

    topics: Int32 = field(metadata={"wire": "wipeTopicCount"})


@dataclass(frozen=True, slots=True)
class AddWritePerm:
    """Give all topics of a broker read and write permission."""

    CODE: ClassVar = RequestCode.ADD_WRITE_PERM_OF_BROKER

    broker_name: str


@dataclass(frozen=True, slots=True)
class AddWritePermReply:
    """How many topics got it."""

    topics: Int32 = field(metadata={"wire": "addTopicCount"})
