"""The groups of one client: the content of its heartbeats, and the member for a broker's request.

`Groups` counts producers, and knows the subscriptions and the members of consumer groups.

`SubscriptionWarnings` reads the answers to heartbeats. An inorder broker compares the subscriptions
of all members of a group, RocketMQ clients included, and tells each inorder client about
differences. A broker that is set to refuse such a member answers SUBSCRIPTIONS_DIFFER instead. What
a broker does about members that subscribe differently: decision 42.
"""

from __future__ import annotations

import contextlib
from typing import Final, Protocol

from inorder.clock import Clock
from inorder.errors import CorruptRecord, RemoteProtocolError, SubscriptionsDiffer, UsageError
from inorder.logs import get_logger
from inorder.net.connection import Connection
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.fastjson import loads
from inorder.wire.header import Command
from inorder.wire.properties import get
from inorder.wire.record import decode
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData

log = get_logger(__name__)

# Requests that brokers send to consumers, and the field that names the group.
_GROUP_FIELDS: Final[dict[int, str]] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}


class Checks(Protocol):
    """Whoever answers for the transactions of a producer group."""

    def asked(self, connection: Connection, command: Command) -> None:
        """Answer a broker's question."""
        ...


class GroupMember(Protocol):
    """A consumer, as its session knows it."""

    def request_received(self, connection: Connection, command: Command) -> None:
        """Answer a broker's request to the group."""
        ...

    def connected(self, address: str) -> None:
        """Learn that a broker got a heartbeat over a new connection."""
        ...

    def lost(self, address: str) -> None:
        """Learn that the connection to a server is gone."""
        ...

    def route_changed(self, topic: str) -> None:
        """Learn that the queues or brokers of a topic have changed."""
        ...


class Groups:
    """The producer and consumer groups of one client."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.producers: dict[str, int] = {}
        self.consumers: dict[str, ConsumerData] = {}
        self.members: dict[str, GroupMember] = {}
        self.checks: dict[str, Checks] = {}  # by producer group

    def __bool__(self) -> bool:
        return bool(self.producers or self.consumers)

    def add_producer(self, group: str) -> None:
        """Count a producer of a group."""
        self.producers[group] = self.producers.get(group, 0) + 1

    def remove_producer(self, group: str) -> None:
        """Count one producer less."""
        self.producers[group] -= 1
        if not self.producers[group]:
            del self.producers[group]

    def join(self, data: ConsumerData, member: GroupMember) -> None:
        """Add a consumer to its group. Raises UsageError if this client has one in the group."""
        if data.group in self.members:
            raise UsageError(
                f"this client ({self.client_id}) has a consumer of group {data.group} already: to "
                "a broker both would be one; give the second one an instance= of its own"
            )
        self.members[data.group] = member
        self.consumers[data.group] = data

    def leave(self, group: str) -> None:
        """Remove the member of a group."""
        self.members.pop(group, None)
        self.consumers.pop(group, None)

    def heartbeat(self) -> ClientHeartbeat:
        """Return the heartbeat for brokers."""
        return ClientHeartbeat(
            self.client_id,
            tuple(self.consumers[group] for group in sorted(self.consumers)),
            tuple(sorted(self.producers)),
        )

    def connected(self, address: str) -> None:
        """Tell all members about a new connection."""
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

    def request_received(self, connection: Connection, command: Command) -> bool:
        """Pass a broker's request to the member of its group; False if it is not for a group."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._ask_producer(connection, command)
            return True
        field = _GROUP_FIELDS.get(command.code)
        if field is None:
            return False
        group = command.fields.get(field, "")
        member = self.members.get(group)
        if member is not None:
            member.request_received(connection, command)
        elif not command.is_oneway:
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            connection.send(command.reply(ResponseCode.SYSTEM_ERROR, remark))
        return True

    def _ask_producer(self, connection: Connection, command: Command) -> None:
        """Pass a broker's question to the producer group that the message in it names."""
        with contextlib.suppress(CorruptRecord):  # the broker asks again
            group = get(decode(command.body).properties, b"PGROUP") or b""
            checks = self.checks.get(group.decode("utf-8", "replace"))
            if checks is not None:
                checks.asked(connection, command)


WARN_MS: Final = 60_000
"""A warning is repeated after this time."""
WARNINGS_MAX: Final = 1000


class SubscriptionWarnings:
    """Warns of groups whose members subscribe differently."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned_ms: dict[str, int] = {}
        self._refusals: dict[str, SubscriptionsDiffer] = {}

    def taken(self, address: str, text: str | None) -> None:
        """Take the answer of a broker that admits this client to all groups."""
        self._refusals.pop(address, None)
        for group, why in _by_group(text).items():
            if self._is_due(group):
                log.warning(
                    "members of group=%s have different subscriptions, so that messages are "
                    "skipped or stand still: %s; let all members subscribe the same, or give them "
                    "groups of their own", group, why,
                )  # fmt: skip

    def refused(self, address: str, error: SubscriptionsDiffer) -> None:
        """Take the answer of a broker that does not admit this client to a group."""
        self._refusals[address] = error
        if self._is_due(error.groups):
            log.error("broker=%s: %s", address, error)

    def refusal(self, group: str) -> SubscriptionsDiffer | None:
        """Return why a broker does not admit this client to a group, if one does not."""
        return next(
            (one for one in self._refusals.values() if group in one.groups.split(",")), None
        )

    def _is_due(self, what: str) -> bool:
        now_ms = self._clock.monotonic_ms()
        last_ms = self._warned_ms.get(what)
        if last_ms is not None and now_ms - last_ms < WARN_MS:
            return False
        if len(self._warned_ms) >= WARNINGS_MAX:
            self._warned_ms.clear()
        self._warned_ms[what] = now_ms
        return True


def _by_group(text: str | None) -> dict[str, str]:
    """Read the field of a heartbeat's answer; an unreadable one counts as empty."""
    if not text:
        return {}
    try:
        found = loads(text.encode())
    except RemoteProtocolError:
        return {}
    return {str(group): str(why) for group, why in found.items()} if isinstance(found, dict) else {}
