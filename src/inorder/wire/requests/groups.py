"""Clients and groups: who is there, and how a group is configured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inorder.wire.codes import RequestCode
from inorder.wire.extensions import CAPABILITY
from inorder.wire.fields import Int32


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Say which groups a client serves; the body is a ClientHeartbeat."""

    CODE: ClassVar = RequestCode.HEART_BEAT


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What the broker can do beyond RocketMQ; a stock one says nothing of it."""

    capability: int = field(default=0, metadata={"wire": CAPABILITY})


@dataclass(frozen=True, slots=True)
class UnregisterClient:
    """Leave one or both groups."""

    CODE: ClassVar = RequestCode.UNREGISTER_CLIENT

    client_id: str = field(metadata={"wire": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True)
class CheckClientConfig:
    """Ask whether a subscription can be served; the body is a ClientConfigCheck."""

    CODE: ClassVar = RequestCode.CHECK_CLIENT_CONFIG


@dataclass(frozen=True, slots=True)
class GetConsumerList:
    """Ask for the client ids of a group."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


@dataclass(frozen=True, slots=True)
class NotifyConsumerIdsChanged:
    """Tell a client that the members of its group changed (broker to client, oneway)."""

    CODE: ClassVar = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Create or change a group; the body is its config."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@dataclass(frozen=True, slots=True)
class UpdateGroupList:
    """Create or change several groups; the body is a list of configs."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


@dataclass(frozen=True, slots=True)
class GetAllGroupConfig:
    """Ask for all groups; the paging of newer peers may be ignored."""

    CODE: ClassVar = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    group_seq: Int32 | None = None
    groups_max: Int32 | None = field(default=None, metadata={"wire": "maxGroupNum"})
    data_version: str | None = None


@dataclass(frozen=True, slots=True)
class GetAllGroupConfigReply:
    """How many groups there are; absent means that the body holds all of them."""

    total_groups: Int32 | None = field(default=None, metadata={"wire": "totalGroupNum"})


@dataclass(frozen=True, slots=True)
class GetGroupConfig:
    """Ask for the config of a group."""

    CODE: ClassVar = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Forget a group, and its offsets if asked to."""

    CODE: ClassVar = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group: str = field(metadata={"wire": "groupName"})
    clean_offset: bool = False
