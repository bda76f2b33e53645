"""Consumer groups: create, change (200, 225), list (201), show (352), delete (207); 353."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from inorder.broker.handlers.context import BrokerLike
from inorder.errors import GroupNotFound, InvalidParameter, TopicNotFound
from inorder.logs import get_logger
from inorder.model import GroupConfig
from inorder.wire import fastjson
from inorder.wire.codes import ResponseCode
from inorder.wire.fields import decode_fields
from inorder.wire.names import validate_group
from inorder.wire.requests.groups import (
    DeleteGroup,
    GetGroupConfig,
    decode_group_config_request,
    decode_group_configs,
    encode_group_config,
)
from inorder.wire.requests.offsets import ForbidGroup

if TYPE_CHECKING:
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command

logger = get_logger(__name__)


def update_group(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Create or change a group."""
    _apply(broker, [decode_group_config_request(command.body)], connection.peer)
    return command.reply()


def update_group_list(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Create or change several groups; none if one has an illegal name."""
    _apply(broker, decode_group_configs(command.body), connection.peer)
    return command.reply()


def _apply(broker: BrokerLike, configs: list[GroupConfig], peer: str) -> None:
    for config in configs:
        invalid = validate_group(config.name)
        if invalid is not None:
            raise InvalidParameter(invalid)
    for config in configs:
        broker.groups.put(config, broker.clock.now_ms())
        logger.info("group=%s created or changed peer=%s", config.name, peer)
    broker.save_groups()


def get_all_groups(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer all groups; the paging that newer clients ask for is optional and not used."""
    return command.reply(body=broker.groups.encode(pretty=False))


def get_group(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer one group, which is made by this if the settings allow it."""
    name = decode_fields(GetGroupConfig, command.fields).group
    config = broker.find_group(name)
    if config is None:
        return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return command.reply(body=encode_group_config(config))


def delete_group(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command | Coroutine[Any, Any, Command]:
    """Forget a group, with its offsets if asked to; an unknown one is no error."""
    request = decode_fields(DeleteGroup, command.fields)
    if broker.groups.delete(request.group, broker.clock.now_ms()) is not None:
        broker.save_groups()
        logger.info("group=%s deleted peer=%s", request.group, connection.peer)
    if not request.clean_offset:
        return command.reply()
    broker.ownership.forget(group=request.group)
    return _answer_forgotten(broker, request.group, command.reply())


async def _answer_forgotten(broker: BrokerLike, group: str, answer: Command) -> Command:
    """Answer when it is on disk that a group which comes again begins anew."""
    await broker.resizing.rewinding.group_deleted(group)
    return answer


def forbid_group(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Say whether a group may read a topic, after changing it if the request says so."""
    request = decode_fields(ForbidGroup, command.fields)
    group, topic = request.group, request.topic
    if request.readable is not None:
        if group not in broker.groups:
            raise GroupNotFound(f"Group {group} does not exist")
        if topic not in broker.topics:
            raise TopicNotFound(f"Topic {topic} does not exist")
        before = broker.groups.data_version.counter
        broker.groups.forbid(
            group, topic, forbidden=not request.readable, now_ms=broker.clock.now_ms()
        )
        if broker.groups.data_version.counter != before:
            broker.save_groups()
    readable = not broker.groups.is_forbidden(group, topic)
    body = fastjson.dumps({"group": group, "readable": readable, "topic": topic})
    return command.reply(remark="", body=body)
