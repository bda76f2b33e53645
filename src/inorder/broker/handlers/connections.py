"""Who is connected: consumers (203), producers (204, 328), what a group subscribes to (345)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.handlers.context import BrokerLike
from inorder.broker.state.members import Member
from inorder.wire.codes import LanguageCode, ResponseCode
from inorder.wire.fields import decode_fields
from inorder.wire.requests.connections import (
    ClientConnection,
    ConsumerConnections,
    encode_producer_connections,
    encode_producers,
    encode_subscription,
)
from inorder.wire.requests.offsets import (
    GetConsumerConnections,
    GetProducerConnections,
    GetSubscription,
)

if TYPE_CHECKING:
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command


def get_consumer_connections(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Answer the clients of a group and what it subscribes to; 206 if nobody is there.

    A client that came back on a new connection is shown once.
    """
    name = decode_fields(GetConsumerConnections, command.fields).consumer_group
    group = broker.members.group(name)
    if group is None:
        return command.reply(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
        )
    answer = ConsumerConnections(
        tuple(_show(broker, one) for one in group.members.values() if not one.superseded),
        group.consume_from,
        group.consume_type,
        group.message_model,
        group.subscriptions,
        group.differences(),
    )
    return command.reply(body=answer.encode())


def get_producer_connections(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Answer the clients of a producer group; code 1 if there is none."""
    name = decode_fields(GetProducerConnections, command.fields).producer_group
    found = broker.members.producers(name)
    if not found:
        return command.reply(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    shown = [_show(broker, member) for member in found]
    return command.reply(body=encode_producer_connections(shown))


def get_all_producers(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Answer the clients of all producer groups."""
    members = broker.members
    groups = {
        name: [_show(broker, member) for member in members.producers(name)]
        for name in members.producer_groups()
    }
    return command.reply(body=encode_producers(groups))


def get_subscription(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer what an online group wants of a topic; nothing if it wants nothing."""
    request = decode_fields(GetSubscription, command.fields)
    found = broker.members.subscription(request.group, request.topic)
    return command.reply(body=encode_subscription(request.group, request.topic, found))


def _show(broker: BrokerLike, member: Member[ServerConnection]) -> ClientConnection:
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
