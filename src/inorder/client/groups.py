"""The groups that a client serves: what its heartbeat says, and who gets a broker's requests."""

from __future__ import annotations

from typing import Final, Protocol

from inorder.errors import UsageError
from inorder.net.connection import Connection
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.header import Command
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData

# What a broker asks a consumer: the code, and the field that names the group.
_GROUP_FIELDS: Final[dict[int, str]] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}


class GroupMember(Protocol):
    """A consumer, as its session sees it."""

    def asked(self, connection: Connection, command: Command) -> None:
        """Take a broker's request to the group."""
        ...

    def connected(self, address: str) -> None:
        """Learn that a broker was told of us over a new connection."""
        ...

    def lost(self, address: str) -> None:
        """Learn that the connection to a server is gone."""
        ...

    def route_changed(self, topic: str) -> None:
        """Learn that other queues or brokers serve a topic than before."""
        ...


class Groups:
    """Producers by count, consumers by their subscriptions, members among them."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.producers: dict[str, int] = {}
        self.consumers: dict[str, ConsumerData] = {}
        self.members: dict[str, GroupMember] = {}

    def __bool__(self) -> bool:
        return bool(self.producers or self.consumers)

    def add_producer(self, group: str) -> None:
        """Count a producer of a group."""
        self.producers[group] = self.producers.get(group, 0) + 1

    def remove_producer(self, group: str) -> None:
        """Forget one producer of a group."""
        self.producers[group] -= 1
        if not self.producers[group]:
            del self.producers[group]

    def join(self, data: ConsumerData, member: GroupMember) -> None:
        """Let a consumer be a member of its group. Raises UsageError if one of us is already."""
        if data.group in self.members:
            raise UsageError(
                f"this client ({self.client_id}) has a consumer of group {data.group} already: to "
                "a broker both would be one; give the second one an instance= of its own"
            )
        self.members[data.group] = member
        self.consumers[data.group] = data

    def leave(self, group: str) -> None:
        """Forget a member."""
        self.members.pop(group, None)
        self.consumers.pop(group, None)

    def heartbeat(self) -> ClientHeartbeat:
        """Return what brokers are told."""
        return ClientHeartbeat(
            self.client_id,
            tuple(self.consumers[group] for group in sorted(self.consumers)),
            tuple(sorted(self.producers)),
        )

    def connected(self, address: str) -> None:
        """Tell all members of a new connection."""
        for member in list(self.members.values()):
            member.connected(address)

    def lost(self, address: str) -> None:
        """Tell all members that a connection is gone."""
        for member in list(self.members.values()):
            member.lost(address)

    def route_changed(self, topic: str) -> None:
        """Tell all members that a route changed."""
        for member in list(self.members.values()):
            member.route_changed(topic)

    def asked(self, connection: Connection, command: Command) -> bool:
        """Let the member of a group have a broker's request; False if it is not for a group."""
        field = _GROUP_FIELDS.get(command.code)
        if field is None:
            return False
        group = command.fields.get(field, "")
        member = self.members.get(group)
        if member is not None:
            member.asked(connection, command)
        elif not command.is_oneway:
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            connection.send(command.reply(ResponseCode.SYSTEM_ERROR, remark))
        return True
