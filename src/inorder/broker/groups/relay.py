"""Requests that an operator sends to a consumer through the broker: 223, 307, 309.

The broker finds the newest connection of the client, forwards the request, and returns the reply.
`tell_reset` tells consumers of an offset reset (220); how an offset is reset: decision 25. The
request for the offsets of delay levels (45) is answered here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from inorder.errors import (
    InorderError,
    RemoteProtocolError,
    RequestTimeout,
    SystemError_,
    TransportError,
)
from inorder.logs import get_logger
from inorder.wire.codes import NOTHING_SET, LanguageCode, ResponseCode
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.ids import parse_message_id
from inorder.wire.requests.connections import (
    ConsumeDirectly,
    GetConsumerStatus,
    GetRunningInfo,
    ResetClientOffset,
    decode_consumer_status,
    encode_consumer_statuses,
)
from inorder.wire.requests.offsets import encode_queue_offset_list, encode_queue_offsets

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply
    from inorder.model import TopicQueue
    from inorder.net.accepted import ServerConnection

logger = get_logger(__name__)

CALL_MS: Final = 10_000
STATUS_CALL_MS: Final = 5_000
STATUS_CALLS_MAX: Final = 1000


def get_running_info(call: Call[GetRunningInfo]) -> Reply:
    """Forward a request for the running info of a consumer (307)."""
    request = call.request
    client = _find(call.broker, request.consumer_group, request.client_id)
    forwarded = Command.request(
        call.command.code, dict(call.command.fields), bytes(call.command.body)
    )
    return _relay(client, call.command, forwarded, request.consumer_group, request.client_id)


def consume_directly(call: Call[ConsumeDirectly]) -> Reply:
    """Let a consumer handle a stored message now (309); reply with the outcome."""
    broker, request = call.broker, call.request
    group, client_id = request.consumer_group, request.client_id or ""
    client = _find(broker, group, client_id)
    try:
        _, _, position = parse_message_id(request.message_id or "")
    except RemoteProtocolError as error:
        raise SystemError_(str(error)) from None
    record = broker.store.visible_record(position)
    if record is None:
        raise SystemError_(f"can not find message by the offset, {position}")
    fields = dict(call.command.fields)
    fields["brokerName"] = broker.config.name
    topic, config = broker.topics.get(request.topic or ""), broker.groups.get(group)
    if topic is not None:
        fields["topicSysFlag"] = str(topic.sys_flag)
    if config is not None:
        fields["groupSysFlag"] = str(config.sys_flag)
    forwarded = Command.request(call.command.code, fields, bytes(record))
    return _relay(client, call.command, forwarded, group, client_id)


def _find(broker: Broker, group: str, client_id: str) -> ServerConnection:
    online = broker.members.group(group)
    found = None if online is None else online.connection_of(client_id)
    if found is None:
        raise SystemError_(f"The Consumer <{group}> <{client_id}> not online")
    return found


async def _relay(
    client: ServerConnection, command: Command, forwarded: Command, group: str, client_id: str
) -> Command:
    try:
        answer = await client.request(forwarded, CALL_MS)
    except RequestTimeout as error:
        return command.reply(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
        )
    except TransportError as error:
        raise SystemError_(f"invoke consumer <{group}> <{client_id}> Exception: {error}") from None
    fields = answer.fields if answer.has_fields else None
    return command.reply(answer.code, answer.remark, fields=fields, body=bytes(answer.body))


def get_consumer_status(call: Call[GetConsumerStatus]) -> Reply:
    """Ask the consumers of a group, or one of them, for their progress on a topic (223).

    Clients that do not reply in time are left out.
    """
    request = call.request
    online = call.broker.members.group(request.group)
    if online is None:
        return call.reply(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{request.group}] not online"
        )
    wanted = call.command.fields.get("clientAddr", "").strip()
    clients = {}
    for client_id in online.client_ids()[:STATUS_CALLS_MAX]:
        found = online.connection_of(client_id)
        if found is not None and wanted in ("", client_id):
            clients[client_id] = found
    return _statuses(clients, request, call.command)


async def _statuses(
    clients: dict[str, ServerConnection], request: GetConsumerStatus, command: Command
) -> Command:
    async def ask(client: ServerConnection) -> dict[TopicQueue, int] | None:
        forwarded = Command.request(GetConsumerStatus.CODE, encode_fields(request))
        try:
            answer = await client.request(forwarded, STATUS_CALL_MS)
            return decode_consumer_status(answer.body) if answer.code == 0 else None
        except InorderError as error:  # closed, too slow, or an unreadable reply
            logger.warning("no status group=%s peer=%s: %s", request.group, client.peer, error)
            return None

    answers = await asyncio.gather(*map(ask, clients.values()))
    found = {
        client_id: status
        for client_id, status in zip(clients, answers, strict=True)
        if status is not None
    }
    return command.reply(remark=NOTHING_SET, body=encode_consumer_statuses(found))


def tell_reset(
    broker: Broker, group: str, topic: str, offsets: Mapping[TopicQueue, int], at_ms: int
) -> int:
    """Tell the consumers of a group their new offsets (220); return how many were told."""
    online = broker.members.group(group)
    if online is None or online.broadcasting or not offsets:
        return 0
    header = encode_fields(ResetClientOffset(topic, group, at_ms, force=True))
    told = 0
    for member in online.members.values():
        if member.superseded:
            continue
        encode = (
            encode_queue_offset_list
            if member.language == LanguageCode.CPP
            else encode_queue_offsets
        )
        member.connection.notify(
            Command.request(ResetClientOffset.CODE, dict(header), encode(offsets), oneway=True)
        )
        told += 1
    return told


def get_delay_offsets(call: Call[None]) -> Command:
    """Return the delivered offset of each delay level (45)."""
    return call.reply(body=call.broker.delays.encode(pretty=False))
