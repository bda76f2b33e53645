"""Who is connected: the members of each consumer group, and the producers.

Membership is per connection. A connection that dies silently stays for up to two minutes, and its
client comes back on a new one: RocketMQ then lists the client id twice and a queue is handled by
nobody. Here each client id counts once and the newest connection wins:

    a new connection with a known client id       the older ones of that id are *superseded*
    a heartbeat on a superseded connection        it lives after all: superseded no more
    the last connection not superseded goes       the client id goes, with what was superseded

Subscriptions belong to the group: a topic that the last heartbeat does not name is removed for all
(inconsistent subscriptions flap, as in RocketMQ), and an older version never replaces a newer one.
What each member wants is kept beside that, so that it can be told where they differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from inorder.broker.state.subscriptions import Wishes, differences, wishes_of
from inorder.model import Subscription
from inorder.wire.requests.connections import Difference

C = TypeVar("C", bound=Hashable)

BROADCASTING = "BROADCASTING"
GROUPS_PER_CONNECTION_MAX = 4096
"""Producer groups of one connection; further ones are not remembered."""


class Notice(NamedTuple, Generic[C]):
    """Tell these connections that the members of a group changed (code 40)."""

    group: str
    connections: tuple[C, ...]


class Departed(NamedTuple):
    """A client id that is no longer a member of a group."""

    group: str
    client_id: str


@dataclass(slots=True)
class Departure(Generic[C]):
    """What follows from connections that went: whom to tell, and who is gone."""

    notices: list[Notice[C]] = field(default_factory=list)
    departed: list[Departed] = field(default_factory=list)
    connections: list[C] = field(default_factory=list)
    """Silent connections to close (of `expire` only)."""


@dataclass(slots=True)
class Member(Generic[C]):
    """One connection of a client in a group."""

    connection: C
    client_id: str
    language: int
    version: int
    seen_ms: int
    superseded: bool = False
    silent: bool = False
    """It should have spoken (`signs.py`): it is not listed until it does."""
    wishes: Wishes | None = None
    """What it wants; None: it has not said so on this connection."""


@dataclass(slots=True)
class ConsumerGroup(Generic[C]):
    """An online group."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""
    notify: bool = True
    fingerprint: int | None = None
    members: dict[C, Member[C]] = field(default_factory=dict)
    clients: dict[str, dict[C, Member[C]]] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    said_ms: int | None = None
    """When it was last said that its members want different things."""
    _differences: tuple[Difference, ...] | None = None

    def differences(self) -> tuple[Difference, ...]:
        """Return where the members want different things; nothing if all get everything."""
        if self.broadcasting:
            return ()
        if self._differences is None:
            self._differences = differences(self.wishes())
        return self._differences

    def wishes(self) -> dict[str, Wishes]:
        """Return what each client wants that has said so, by its newest connection."""
        return {
            client_id: one.wishes
            for client_id, members in self.clients.items()
            for one in (next(reversed(members.values())),)
            if one.wishes is not None
        }

    def wishes_changed(self) -> None:
        """Compare anew when somebody asks."""
        self._differences = None

    @property
    def broadcasting(self) -> bool:
        """Tell whether every member gets every message."""
        return self.message_model == BROADCASTING

    @property
    def notifiable(self) -> bool:
        """Tell whether a change of the members concerns the others."""
        return self.notify and not self.broadcasting

    def client_ids(self) -> list[str]:
        """Return each client id once, in the order of arrival, but for those that are silent."""
        return [
            client_id
            for client_id, members in self.clients.items()
            if not (
                any(one.silent for one in members.values())
                and all(one.silent or one.superseded for one in members.values())
            )
        ]

    def connection_of(self, client_id: str) -> C | None:
        """Return the newest connection of a client."""
        return next(reversed(self.clients.get(client_id, {})), None)


class Members(Generic[C]):
    """Groups, their members and subscriptions; producer groups."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup[C]] = {}
        self._groups_of: dict[C, set[str]] = {}
        self._producers: dict[str, dict[C, Member[C]]] = {}
        self._producers_of: dict[C, set[str]] = {}

    def __repr__(self) -> str:
        return f"Members({len(self._groups)} groups, {len(self._groups_of)} connections)"

    def group(self, name: str) -> ConsumerGroup[C] | None:
        """Return an online group, or None."""
        return self._groups.get(name)

    def groups(self) -> list[str]:
        """Return the names of the online groups."""
        return list(self._groups)

    def client_ids(self, group: str) -> list[str]:
        """Return the client ids of a group, each once; empty if it is not online."""
        found = self._groups.get(group)
        return [] if found is None else found.client_ids()

    def client_id(self, group: str, connection: C) -> str | None:
        """Return the client id of a connection in a group; None if it is not a member."""
        found = self._groups.get(group)
        member = None if found is None else found.members.get(connection)
        return None if member is None else member.client_id

    def connections(self, group: str) -> tuple[C, ...]:
        """Return all connections of a group."""
        found = self._groups.get(group)
        return () if found is None else tuple(found.members)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return what an online group wants of a topic."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def subscribers(self, topic: str) -> list[str]:
        """Return the online groups that subscribe to a topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def register_consumer(
        self,
        group_name: str,
        member: Member[C],
        *,
        consume_type: str,
        message_model: str,
        consume_from: str,
        subscriptions: Iterable[Subscription] | None,
        notify: bool = True,
    ) -> Notice[C] | None:
        """Apply a heartbeat's entry for one group; return whom to tell, if anybody.

        `subscriptions` None keeps the stored ones (a heartbeat without them).
        """
        group = self._groups.get(group_name)
        if group is None:
            group = self._groups[group_name] = ConsumerGroup(group_name)
        group.consume_type = consume_type
        group.message_model = message_model
        group.consume_from = consume_from
        group.notify = notify
        changed = self._put_member(group, member)
        if subscriptions is not None:
            wanted = tuple(subscriptions)
            wishes, known = wishes_of(wanted), group.members[member.connection]
            if known.wishes != wishes:
                known.wishes = wishes
                group.wishes_changed()
            changed |= _replace_subscriptions(group, wanted)
        if not changed or not group.notifiable:
            return None
        return Notice(group_name, tuple(group.members))

    def would_differ(
        self, group_name: str, client_id: str, subscriptions: Iterable[Subscription]
    ) -> tuple[Difference, ...]:
        """Return where a client that joins, or changes its mind, wants other than the members."""
        group = self._groups.get(group_name)
        if group is None or group.broadcasting:
            return ()
        others, mine = group.wishes(), wishes_of(subscriptions)
        if others.pop(client_id, None) == mine:
            return ()  # it is a member as it is
        return tuple(
            one
            for one in differences({**others, client_id: mine})
            if any(wishes.get(one.topic) != mine.get(one.topic) for wishes in others.values())
        )

    def seen(self, group_name: str, connection: C, now_ms: int) -> None:
        """Note that a member lives whose heartbeat does not count otherwise."""
        group = self._groups.get(group_name)
        member = None if group is None else group.members.get(connection)
        if member is not None:
            member.seen_ms = now_ms

    def note_fingerprint(self, group_name: str, fingerprint: int, *, full: bool) -> bool:
        """Note the fingerprint of a heartbeat; return whether the client should send all again.

        A heartbeat that left its subscriptions out (`full` false) needs them known here.
        """
        group = self._groups[group_name]
        known = group.fingerprint
        group.fingerprint = fingerprint
        if known is None:
            return not full
        return known != fingerprint

    def unregister_consumer(self, group_name: str, connection: C) -> Departure[C]:
        """Take a connection out of a group, on its client's request."""
        departure: Departure[C] = Departure()
        group = self._groups.get(group_name)
        if group is not None:
            self._leave(group, connection, departure)
        return departure

    def silence(self, group_name: str, connection: C) -> bool:
        """Leave a member out of the list until it is heard of; tell whether that changes it."""
        group = self._groups.get(group_name)
        member = None if group is None else group.members.get(connection)
        if group is None or member is None or member.silent:
            return False
        before = group.client_ids()
        member.silent = True
        return before != group.client_ids()

    def heard(self, group_name: str, connection: C) -> Notice[C] | None:
        """List a member again that was silent; return whom to tell, if anybody."""
        group = self._groups.get(group_name)
        member = None if group is None else group.members.get(connection)
        if group is None or member is None or not member.silent:
            return None
        member.silent = False
        return Notice(group_name, tuple(group.members)) if group.notifiable else None

    def register_producer(self, group_name: str, member: Member[C]) -> bool:
        """Apply a heartbeat's entry for a producer group; False if the connection has too many."""
        groups = self._producers_of.setdefault(member.connection, set())
        if group_name not in groups and len(groups) >= GROUPS_PER_CONNECTION_MAX:
            return False
        groups.add(group_name)
        self._producers.setdefault(group_name, {})[member.connection] = member
        return True

    def unregister_producer(self, group_name: str, connection: C) -> None:
        """Take a connection out of a producer group."""
        producers = self._producers.get(group_name)
        if producers is not None and producers.pop(connection, None) is not None:
            if not producers:
                del self._producers[group_name]
            _discard(self._producers_of, connection, group_name)

    def producer_groups(self) -> list[str]:
        """Return the names of the producer groups that somebody sends for."""
        return list(self._producers)

    def producers(self, group_name: str) -> list[Member[C]]:
        """Return the members of a producer group."""
        return list(self._producers.get(group_name, {}).values())

    def close(self, connection: C) -> Departure[C]:
        """Forget a closed connection."""
        departure: Departure[C] = Departure()
        for name in sorted(self._groups_of.get(connection, ())):
            self._leave(self._groups[name], connection, departure)
        for name in list(self._producers_of.get(connection, ())):
            self.unregister_producer(name, connection)
        return departure

    def expire(self, now_ms: int, silent_ms: int) -> Departure[C]:
        """Drop connections without a heartbeat for `silent_ms` (monotonic time)."""
        departure: Departure[C] = Departure()
        silent: dict[C, None] = {}
        for group in list(self._groups.values()):
            for member in list(group.members.values()):
                if now_ms - member.seen_ms > silent_ms:
                    silent[member.connection] = None
                    self._leave(group, member.connection, departure)
        for name, producers in list(self._producers.items()):
            for member in list(producers.values()):
                if now_ms - member.seen_ms > silent_ms:
                    silent[member.connection] = None
                    self.unregister_producer(name, member.connection)
        departure.connections = list(silent)
        return departure

    def _put_member(self, group: ConsumerGroup[C], member: Member[C]) -> bool:
        connection, client_id = member.connection, member.client_id
        old = group.members.get(connection)
        if old is not None and old.client_id == client_id:
            old.seen_ms = member.seen_ms
            old.superseded = False
            was_silent, old.silent = old.silent, False
            return was_silent
        if old is not None:
            self._forget(group, old)
        group.wishes_changed()
        member = replace(member, superseded=False)
        group.members[connection] = member
        group.clients.setdefault(client_id, {})[connection] = member
        self._supersede_others(group, client_id, connection)
        self._groups_of.setdefault(connection, set()).add(group.name)
        return old is None

    def _supersede_others(self, group: ConsumerGroup[C], client_id: str, newest: C) -> None:
        for connection, member in group.clients.get(client_id, {}).items():
            if connection != newest:
                member.superseded = True

    def _leave(self, group: ConsumerGroup[C], connection: C, departure: Departure[C]) -> None:
        member = group.members.get(connection)
        if member is None:
            return
        self._forget(group, member)
        rest = group.clients.get(member.client_id, {})
        gone = all(other.superseded for other in rest.values())
        if gone:
            for other in list(rest.values()):
                self._forget(group, other)
            departure.departed.append(Departed(group.name, member.client_id))
        if not group.members:
            del self._groups[group.name]
        elif gone and group.notifiable:
            departure.notices.append(Notice(group.name, tuple(group.members)))

    def _forget(self, group: ConsumerGroup[C], member: Member[C]) -> None:
        group.wishes_changed()
        del group.members[member.connection]
        connections = group.clients[member.client_id]
        del connections[member.connection]
        if not connections:
            del group.clients[member.client_id]
        _discard(self._groups_of, member.connection, group.name)


def _replace_subscriptions(group: ConsumerGroup[C], subscriptions: Iterable[Subscription]) -> bool:
    """Apply the subscriptions of a heartbeat; tell whether the set of topics changed."""
    stored = group.subscriptions
    before = set(stored)
    named: set[str] = set()
    for subscription in subscriptions:
        named.add(subscription.topic)
        old = stored.get(subscription.topic)
        if old is None or subscription.version > old.version:
            stored[subscription.topic] = subscription
    for topic in before - named:
        del stored[topic]
    return before != named


def _discard(table: dict[C, set[str]], connection: C, name: str) -> None:
    names = table.get(connection)
    if names is not None:
        names.discard(name)
        if not names:
            del table[connection]
