"""Clients: heartbeat (34), unregister (35), members of a group (38), subscription check (46)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from inorder.broker.handlers.context import BrokerLike
from inorder.broker.state import subscriptions
from inorder.broker.state.members import BROADCASTING, Member, Notice
from inorder.errors import SystemError_
from inorder.logs import get_logger
from inorder.model import TopicConfig
from inorder.wire import fastjson
from inorder.wire.codes import ResponseCode
from inorder.wire.extensions import CAPABILITY, DIFFERING, PROTOCOL, ExtensionAnswer
from inorder.wire.fields import decode_fields
from inorder.wire.requests.groups import (
    ClientConfigCheck,
    ClientHeartbeat,
    ConsumerData,
    GetConsumerList,
    UnregisterClient,
)
from inorder.wire.requests.nameserver import encode_consumer_ids
from inorder.wire.requests.pulls import TAG

if TYPE_CHECKING:
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command

logger = get_logger(__name__)

RETRY_QUEUES_MAX = 65_536
SAY_DIFFERING_MS = 60_000
UNIT_SUBSCRIBED = 2
"""The flag of a retry topic whose group consumes in unit mode."""


def heart_beat(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command | Coroutine[Any, Any, Command]:
    """Apply a heartbeat: groups and retry topics are made, members and subscriptions noted.

    Everything is applied before the answer. A retry topic that is new is registered with the name
    servers before it, too: the client asks for its route next. While the answer waits for that, the
    client itself is not told that the members changed: Java would count its queues, have a newer
    subscription to tell, find its own heartbeat under way and keep it for 20 s.
    """
    beat = ClientHeartbeat.decode(command.body)
    member = Member(
        connection, beat.client_id, command.language, command.version, broker.clock.monotonic_ms()
    )
    resend = beat.fingerprint == 0
    groups_before, retry_topics = broker.groups.data_version.counter, []
    notices: list[Notice[ServerConnection]] = []
    refused: dict[str, str] = {}
    for data in beat.consumers:
        group = broker.groups.find_or_create(
            data.group,
            auto_create=broker.config.auto_create_groups,
            now_ms=broker.clock.now_ms(),
        )
        if group is None:
            continue  # as RocketMQ: the others of this heartbeat count
        why = _refusal(broker, member, data, beat)
        if why:
            refused[data.group] = why
            broker.members.seen(data.group, connection, member.seen_ms)  # what it was stays
            continue
        retry_topics.append(_make_retry_topic(broker, data, group.retry_queues))
        notice, again = _register(broker, member, data, beat, notify=group.notify_ids_changed)
        notices += [notice] if notice is not None else []
        resend |= again
    waits = broker.groups.data_version.counter != groups_before
    if waits:
        broker.save_groups()
    made = [config for config in retry_topics if config is not None]
    if made:
        broker.save_topics()
    for config in made:
        broker.registration.topic_changed(config)
    left_out = sum(not broker.members.register_producer(name, member) for name in beat.producers)
    if left_out:
        logger.warning("too many producer groups peer=%s left_out=%d", connection.peer, left_out)
    answer = _answer(broker, beat, command, refused, resend=resend)
    waits |= bool(made)
    for notice in notices:
        told = [one for one in notice.connections if not (waits and one is connection)]
        if told:
            broker.notify_ids_changed(notice.group, told)
    if not waits:
        return answer
    own = [notice.group for notice in notices if connection in notice.connections]
    return _when_settled(broker, connection, answer, own, register=bool(made))


def _answer(
    broker: BrokerLike,
    beat: ClientHeartbeat,
    command: Command,
    refused: dict[str, str],
    *,
    resend: bool,
) -> Command:
    """Return what a heartbeat is told; also where members of its groups want different things."""
    fields = {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "true" if resend else "false",
        CAPABILITY: str(PROTOCOL),
    }
    if refused:
        fields[DIFFERING] = ",".join(refused)
        return command.reply(
            ExtensionAnswer.SUBSCRIPTIONS_DIFFER, " ".join(refused.values()), fields=fields
        )
    differing = {
        data.group: text for data in beat.consumers if (text := _differing(broker, data.group))
    }
    if differing:
        fields[DIFFERING] = fastjson.dumps(differing).decode()
    return command.reply(fields=fields)


def _differing(broker: BrokerLike, group_name: str) -> str:
    """Return where the members of a group want different things, and say so once a minute."""
    group = broker.members.group(group_name)
    found = () if group is None else group.differences()
    if group is None or not found:
        return ""
    text, now_ms = subscriptions.in_words(found), broker.clock.monotonic_ms()
    if group.said_ms is None or now_ms - group.said_ms >= SAY_DIFFERING_MS:
        group.said_ms = now_ms
        logger.warning(
            "members of group=%s have different subscriptions, so that messages are skipped or "
            "stand still: %s; let all members subscribe the same, or give them groups of their own",
            group_name, text,
        )  # fmt: skip
    return text


def _refusal(
    broker: BrokerLike,
    member: Member[ServerConnection],
    data: ConsumerData,
    beat: ClientHeartbeat,
) -> str:
    """Return why a client may not be a member of a group with these subscriptions; mostly it may.

    A group in which everybody gets everything is not concerned.
    """
    if not broker.config.refuse_different_subscriptions or beat.without_sub:
        return ""
    if data.message_model == BROADCASTING:
        return ""
    found = broker.members.would_differ(data.group, member.client_id, data.subscriptions)
    if not found:
        return ""
    text = (
        f"group {data.group} does not take client {member.client_id}: its subscriptions differ "
        f"from those of other members ({subscriptions.in_words(found)}); subscribe the same topics "
        "and tags in all members, or use another group"
    )
    seen = broker.members.group(data.group)
    now_ms = broker.clock.monotonic_ms()
    if seen is not None and (seen.said_ms is None or now_ms - seen.said_ms >= SAY_DIFFERING_MS):
        seen.said_ms = now_ms
        logger.warning("%s", text)
    return text


async def _when_settled(
    broker: BrokerLike,
    connection: ServerConnection,
    answer: Command,
    groups: list[str],
    *,
    register: bool,
) -> Command:
    """Register the new topics; the client's own notices follow its answer."""
    if register:
        await broker.registration.register_now()
    for group in groups:
        broker.notify_ids_changed(group, [connection])
    return answer


def _make_retry_topic(broker: BrokerLike, data: ConsumerData, queues: int) -> TopicConfig | None:
    """Make the retry topic of a group; return it if it is new or changed."""
    order = any(
        (config := broker.topics.get(subscription.topic)) is not None and config.order
        for subscription in data.subscriptions
    )
    try:
        return broker.topics.create_retry(
            data.group,
            max(0, min(queues, RETRY_QUEUES_MAX)),
            broker.clock.now_ms(),
            order=order,
            sys_flag=UNIT_SUBSCRIBED if data.unit_mode else 0,
        )
    except SystemError_ as error:
        logger.warning("group=%s has no retry topic: %s", data.group, error)
        return None


def _register(
    broker: BrokerLike,
    member: Member[ServerConnection],
    data: ConsumerData,
    beat: ClientHeartbeat,
    *,
    notify: bool,
) -> tuple[Notice[ServerConnection] | None, bool]:
    """Note one group of a heartbeat; return whom to tell, and whether it should come in full."""
    members = broker.members
    online = members.group(data.group)
    if online is None or member.connection not in online.members:
        broker.locks.client_back(data.group, member.client_id)
    notice = members.register_consumer(
        data.group,
        member,
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from=data.consume_from_where,
        subscriptions=None if beat.without_sub else data.subscriptions,
        notify=notify,
    )
    return notice, members.note_fingerprint(data.group, beat.fingerprint, full=not beat.without_sub)


def unregister_client(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Take a client out of its groups, free what locks it left behind, and tell the others."""
    request = decode_fields(UnregisterClient, command.fields)
    if request.producer_group:
        broker.members.unregister_producer(request.producer_group, connection)
    group = request.consumer_group
    if group:
        departure = broker.members.unregister_consumer(group, connection)
        gone = request.client_id not in broker.members.client_ids(group)
        released = broker.ownership.client_left(group, request.client_id, connection, gone=gone)
        if released and not departure.notices:
            broker.notify_ids_changed(group)
        broker.apply_departure(departure)
    return command.reply(fields={})


def get_consumer_list(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Answer the client ids of a group, each once; code 1 if there is none, never an empty list.

    Only a member is told. A client that comes back on a new connection, after a restart of the
    broker say, asks before its next heartbeat: it would not find itself and give all its queues up.
    With code 1 it keeps them.
    """
    group = decode_fields(GetConsumerList, command.fields).consumer_group
    if broker.members.client_id(group, connection) is None:
        client_ids = []
    else:
        client_ids = broker.members.client_ids(group)
    if not client_ids:
        return command.reply(
            ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}", fields={}
        )
    return command.reply(fields={}, body=encode_consumer_ids(client_ids))


def check_client_config(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Say whether a subscription can be served: tags can, other filters cannot."""
    check = ClientConfigCheck.decode(command.body)
    if check is not None and check.subscription.expression_type != TAG:
        kind = check.subscription.expression_type
        return command.reply(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}",
        )
    return command.reply()
