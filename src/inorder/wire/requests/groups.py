"""Clients and groups: who is there, and how a group is configured."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode
from inorder.wire.extensions import CAPABILITY, DIFFERING
from inorder.wire.fields import Int32


class Heartbeat(msgspec.Struct, frozen=True):
    """Say which groups a client serves; the body is a ClientHeartbeat."""

    CODE: ClassVar = RequestCode.HEART_BEAT


class HeartbeatReply(msgspec.Struct, frozen=True):
    """What the broker can do beyond RocketMQ; a stock one says nothing of it."""

    capability: int = msgspec.field(default=0, name=CAPABILITY)
    differing: str | None = msgspec.field(default=None, name=DIFFERING)


class UnregisterClient(msgspec.Struct, frozen=True):
    """Leave one or both groups."""

    CODE: ClassVar = RequestCode.UNREGISTER_CLIENT

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class CheckClientConfig(msgspec.Struct, frozen=True):
    """Ask whether a subscription can be served; the body is a ClientConfigCheck."""

    CODE: ClassVar = RequestCode.CHECK_CLIENT_CONFIG


class GetConsumerList(msgspec.Struct, frozen=True):
    """Ask for the client ids of a group."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


class NotifyConsumerIdsChanged(msgspec.Struct, frozen=True):
    """Tell a client that the members of its group changed (broker to client, oneway)."""

    CODE: ClassVar = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


class UpdateGroup(msgspec.Struct, frozen=True):
    """Create or change a group; the body is its config."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


class UpdateGroupList(msgspec.Struct, frozen=True):
    """Create or change several groups; the body is a list of configs."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


class GetAllGroupConfig(msgspec.Struct, frozen=True):
    """Ask for all groups; the paging of newer peers may be ignored."""

    CODE: ClassVar = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    group_seq: Int32 | None = None
    groups_max: Int32 | None = msgspec.field(default=None, name="maxGroupNum")
    data_version: str | None = None


class GetAllGroupConfigReply(msgspec.Struct, frozen=True):
    """How many groups there are; absent means that the body holds all of them."""

    total_groups: Int32 | None = msgspec.field(default=None, name="totalGroupNum")


class GetGroupConfig(msgspec.Struct, frozen=True):
    """Ask for the config of a group."""

    CODE: ClassVar = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


class DeleteGroup(msgspec.Struct, frozen=True):
    """Forget a group, and its offsets if asked to."""

    CODE: ClassVar = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group: str = msgspec.field(name="groupName")
    clean_offset: bool = False
