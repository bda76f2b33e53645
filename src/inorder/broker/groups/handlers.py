"""Requests about groups and their clients.

    configurations   create or change (200, 225), list (201), show (352), delete (207), forbid (353)
    clients          heartbeat (34), unregister (35), members (38), check of a subscription (46)
    connections      consumers (203), producers (204, 328), subscription of a group (345)

Who is a member, and who is notified of changes: decision 20. Members that subscribe differently:
decision 42.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.filters.rules import filters_off
from inorder.broker.groups import rules as group_rules
from inorder.broker.groups.rules import (
    BROADCASTING,
    RETRY_QUEUES_MAX,
    UNIT_SUBSCRIBED,
    Member,
    Notice,
)
from inorder.errors import GroupNotFound, InvalidParameter, SystemError_, TopicNotFound
from inorder.logs import get_logger
from inorder.model import GroupConfig, TopicConfig
from inorder.wire import fastjson
from inorder.wire.codes import LanguageCode, ResponseCode
from inorder.wire.extensions import CAPABILITY, DIFFERING, PROTOCOL, ExtensionAnswer
from inorder.wire.names import validate_group
from inorder.wire.requests.connections import (
    ClientConnection,
    ConsumerConnections,
    encode_producer_connections,
    encode_producers,
    encode_subscription,
)
from inorder.wire.requests.groups import (
    ClientConfigCheck,
    ClientHeartbeat,
    ConsumerData,
    DeleteGroup,
    GetConsumerList,
    GetGroupConfig,
    UnregisterClient,
    decode_group_config_request,
    decode_group_configs,
    encode_group_config,
)
from inorder.wire.requests.nameserver import encode_consumer_ids
from inorder.wire.requests.offsets import (
    ForbidGroup,
    GetConsumerConnections,
    GetProducerConnections,
    GetSubscription,
)
from inorder.wire.requests.pulls import TAG

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command

logger = get_logger(__name__)


def update_group(call: Call[None]) -> Command:
    """Create or change a group."""
    _apply(call.broker, [decode_group_config_request(call.command.body)], call.connection.peer)
    return call.reply()


def update_group_list(call: Call[None]) -> Command:
    """Create or change several groups; none if one has an illegal name."""
    _apply(call.broker, decode_group_configs(call.command.body), call.connection.peer)
    return call.reply()


def _apply(broker: Broker, configs: list[GroupConfig], peer: str) -> None:
    for config in configs:
        invalid = validate_group(config.name)
        if invalid is not None:
            raise InvalidParameter(invalid)
    for config in configs:
        broker.groups.put(config, broker.clock.now_ms())
        logger.info("group=%s created or changed peer=%s", config.name, peer)
    broker.save_groups()


def get_all_groups(call: Call[None]) -> Command:
    """Return all groups; the paging of newer clients is optional and not used."""
    return call.reply(body=call.broker.groups.encode(pretty=False))


def get_group(call: Call[GetGroupConfig]) -> Command:
    """Return one group, created if the settings allow it."""
    name = call.request.group
    config = call.broker.find_group(name)
    if config is None:
        return call.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return call.reply(body=encode_group_config(config))


def delete_group(call: Call[DeleteGroup]) -> Reply:
    """Delete a group, with its offsets if the request says so; an unknown one is no error."""
    broker, request = call.broker, call.request
    if broker.groups.delete(request.group, broker.clock.now_ms()) is not None:
        broker.save_groups()
        logger.info("group=%s deleted peer=%s", request.group, call.connection.peer)
    if not request.clean_offset:
        broker.offset_service.forget_pops(request.group)
        return call.reply()
    broker.offset_service.forget(group=request.group)
    return _answer_forgotten(broker, request.group, call.reply())


async def _answer_forgotten(broker: Broker, group: str, answer: Command) -> Command:
    """Reply when a crash can no longer bring back the progress of a deleted group."""
    await broker.resizing.rewinding.group_deleted(group)
    return answer


def forbid_group(call: Call[ForbidGroup]) -> Command:
    """Return whether a group may read a topic, after changing that if the request says so."""
    broker, request = call.broker, call.request
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
    return call.reply(remark="", body=body)


SAY_DIFFERING_MS = 60_000


def heart_beat(call: Call[None]) -> Reply:
    """Apply a heartbeat: create groups and retry topics, note members and subscriptions.

    Everything is applied before the reply. A new retry topic is also registered with the name
    servers before it, because the client asks for its route next. While the reply waits for that,
    the client itself is not notified that the members changed: a Java client would rebalance, find
    its own heartbeat under way, and delay its newer subscription by 20 s.
    """
    broker = call.broker
    beat = ClientHeartbeat.decode(call.command.body)
    member = Member(
        call.connection,
        beat.client_id,
        call.command.language,
        call.command.version,
        broker.clock.monotonic_ms(),
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
            continue  # as RocketMQ: the other groups of this heartbeat count
        why = _refusal(broker, member, data, beat)
        if why:
            refused[data.group] = why
            # Its former subscriptions stay.
            broker.members.refused(data.group, call.connection, member.seen_ms)
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
        logger.warning(
            "too many producer groups peer=%s left_out=%d", call.connection.peer, left_out
        )
    answer = _answer(broker, beat, call.command, refused, resend=resend)
    waits |= bool(made)
    for notice in notices:
        told = [one for one in notice.connections if not (waits and one is call.connection)]
        if told:
            broker.notify_ids_changed(notice.group, told)
    if not waits:
        return answer
    own = [notice.group for notice in notices if call.connection in notice.connections]
    return _when_settled(broker, call.connection, answer, own, register=bool(made))


def _answer(
    broker: Broker,
    beat: ClientHeartbeat,
    command: Command,
    refused: dict[str, str],
    *,
    resend: bool,
) -> Command:
    """Return the reply to a heartbeat, with the differing subscriptions of its groups."""
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


def _differing(broker: Broker, group_name: str) -> str:
    """Describe the differing subscriptions of a group, and log them once a minute."""
    group = broker.members.group(group_name)
    found = () if group is None else group.differences()
    if group is None or not found:
        return ""
    text, now_ms = group_rules.in_words(found), broker.clock.monotonic_ms()
    if group.said_ms is None or now_ms - group.said_ms >= SAY_DIFFERING_MS:
        group.said_ms = now_ms
        logger.warning(
            "members of group=%s have different subscriptions, so that messages are skipped or "
            "stand still: %s; let all members subscribe the same, or give them groups of their own",
            group_name, text,
        )  # fmt: skip
    return text


def _refusal(
    broker: Broker,
    member: Member[ServerConnection],
    data: ConsumerData,
    beat: ClientHeartbeat,
) -> str:
    """Return why a client may not join a group with these subscriptions; empty: it may.

    Broadcasting groups may differ.
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
        f"from those of other members ({group_rules.in_words(found)}); subscribe the same topics "
        "and tags in all members, or use another group"
    )
    seen = broker.members.group(data.group)
    now_ms = broker.clock.monotonic_ms()
    if seen is not None and (seen.said_ms is None or now_ms - seen.said_ms >= SAY_DIFFERING_MS):
        seen.said_ms = now_ms
        logger.warning("%s", text)
    return text


async def _when_settled(
    broker: Broker,
    connection: ServerConnection,
    answer: Command,
    groups: list[str],
    *,
    register: bool,
) -> Command:
    """Register new topics, then reply; notices to the client itself follow the reply."""
    if register:
        await broker.registration.register_now()
    for group in groups:
        broker.notify_ids_changed(group, [connection])
    return answer


def _make_retry_topic(broker: Broker, data: ConsumerData, queues: int) -> TopicConfig | None:
    """Create the retry topic of a group; return it if it is new or changed."""
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
    broker: Broker,
    member: Member[ServerConnection],
    data: ConsumerData,
    beat: ClientHeartbeat,
    *,
    notify: bool,
) -> tuple[Notice[ServerConnection] | None, bool]:
    """Apply one group of a heartbeat; return the notice, and whether to ask for a full one."""
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
    if not beat.without_sub:
        broker.filters.heard(data.group, data.subscriptions)
    return notice, members.note_fingerprint(data.group, beat.fingerprint, full=not beat.without_sub)


def unregister_client(call: Call[UnregisterClient]) -> Command:
    """Remove a client from its groups, free its locks, and notify the other members."""
    broker, request = call.broker, call.request
    if request.producer_group:
        broker.members.unregister_producer(request.producer_group, call.connection)
    group = request.consumer_group
    if group:
        departure = broker.members.unregister_consumer(group, call.connection)
        gone = request.client_id not in broker.members.client_ids(group)
        released = broker.lock_service.client_left(
            group, request.client_id, call.connection, gone=gone
        )
        if released and not departure.notices:
            broker.notify_ids_changed(group)
        broker.apply_departure(departure)
    return call.reply(fields={})


def get_consumer_list(call: Call[GetConsumerList]) -> Command:
    """Return the client ids of a group, each once; code 1 if there is none, never an empty list.

    A client on a new connection, for example after a restart of the broker, asks before its next
    heartbeat. It would not find itself in the list and would give up all its queues. With code 1 it
    keeps them. So others than members see the list only while nobody can be missing in it.
    """
    group, now_ms = call.request.consumer_group, call.broker.clock.monotonic_ms()
    client_ids = call.broker.members.told_to(call.connection, group, now_ms)
    if not client_ids:
        return call.reply(
            ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}", fields={}
        )
    return call.reply(fields={}, body=encode_consumer_ids(client_ids))


def check_client_config(call: Call[None]) -> Command:
    """Check the expression of a subscription; the remark marks the place of an error."""
    check = ClientConfigCheck.decode(call.command.body)
    if check is not None and check.subscription.expression_type != TAG:
        kind = check.subscription.expression_type
        if not call.broker.config.property_filter:
            raise filters_off(kind)
        call.broker.filters.compiled(kind, check.subscription.expression)
    return call.reply()


def get_consumer_connections(call: Call[GetConsumerConnections]) -> Command:
    """Return the clients of a group and its subscriptions; 206 if no member is online.

    A client on a new connection is shown once.
    """
    name = call.request.consumer_group
    group = call.broker.members.group(name)
    if group is None:
        return call.reply(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
        )
    answer = ConsumerConnections(
        tuple(_show(call.broker, one) for one in group.members.values() if not one.superseded),
        group.consume_from,
        group.consume_type,
        group.message_model,
        group.subscriptions,
        group.differences(),
    )
    return call.reply(body=answer.encode())


def get_producer_connections(call: Call[GetProducerConnections]) -> Command:
    """Return the clients of a producer group; code 1 if there is none."""
    name = call.request.producer_group
    found = call.broker.members.producers(name)
    if not found:
        return call.reply(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    shown = [_show(call.broker, member) for member in found]
    return call.reply(body=encode_producer_connections(shown))


def get_all_producers(call: Call[None]) -> Command:
    """Return the clients of all producer groups."""
    members = call.broker.members
    groups = {
        name: [_show(call.broker, member) for member in members.producers(name)]
        for name in members.producer_groups()
    }
    return call.reply(body=encode_producers(groups))


def get_subscription(call: Call[GetSubscription]) -> Command:
    """Return the subscription of an online group to a topic, if there is one."""
    request = call.request
    found = call.broker.members.subscription(request.group, request.topic)
    return call.reply(body=encode_subscription(request.group, request.topic, found))


def _show(broker: Broker, member: Member[ServerConnection]) -> ClientConnection:
    languages = LanguageCode.__members__.values()
    language = member.language if member.language in languages else LanguageCode.OTHER
    silent_ms = broker.clock.monotonic_ms() - member.seen_ms
    return ClientConnection(
        member.client_id,
        member.connection.peer,
        LanguageCode(language).name,
        member.version,
        broker.clock.now_ms() - silent_ms,
    )
