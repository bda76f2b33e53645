"""Consumer groups: their configurations, their members, and what the members subscribe to.

`GroupTable` holds the configurations. `Members` holds the connections. Membership is per
connection: a connection that dies without a close stays for up to two minutes, and its client comes
back on a new one. RocketMQ then lists the client id twice, and nobody handles one of the queues.
Here each client id counts once, and its newest connection wins:

    a new connection with a known client id       supersedes the older connections of that id
    a heartbeat on a superseded connection        lifts that mark: the connection is alive
    the last connection not superseded closes     the client id leaves, with all its connections

Subscriptions belong to the group. A topic that the last heartbeat does not name is removed for all
members, so inconsistent subscriptions flap, as in RocketMQ. An older version never replaces a newer
one.

`differences` compares the subscriptions of the members. Members share the queues of a topic, and
each reads its own queues with its own tags. If one member subscribes to `paid` and another to
`shipped`, each skips and commits the messages of the other in its queues. If one member does not
subscribe to a topic, its share of the queues stands still. Broadcasting groups may differ.

Decisions 20 and 42 give the reasons.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, NamedTuple, TypeVar

from inorder.broker.topics import rules as topic_rules
from inorder.errors import SystemError_
from inorder.model import GroupConfig, Subscription
from inorder.wire import fastjson
from inorder.wire.names import RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, validate_group
from inorder.wire.requests.connections import Difference
from inorder.wire.requests.groups import GroupTable as GroupTableBody
from inorder.wire.requests.groups import group_config_to_json
from inorder.wire.requests.pulls import ALL, TAG
from inorder.wire.requests.topics import data_version_to_json

FORBID_READ = 1 << 2

RETRY_QUEUES_MAX: Final = 65_536
HEARTBEATS_MS: Final = 35_000
"""So long after a lost connection its client may come back without a heartbeat: clients send one
every 30 s."""
ROUTES_AND_HEARTBEATS_MS: Final = 65_000
"""So long a group that is new here may have members that this broker has not heard of: they ask for
routes every 30 s, and then send a heartbeat within 30 s."""
UNIT: Final = 1
"""The flag of a topic that a producer in unit mode has created."""
UNIT_SUBSCRIBED: Final = 2
"""The flag of a retry topic whose group consumes in unit mode."""


class GroupTable(topic_rules.ConfigTable[GroupConfig]):
    """The configurations of groups, by name."""

    def __init__(self, *, now_ms: int, groups_max: int = 100_000) -> None:
        super().__init__(group_config_to_json, now_ms)
        self.groups_max = groups_max
        self._table.update({name: GroupConfig(name) for name in SYSTEM_GROUPS})
        self._forbidden: dict[str, dict[str, int]] = {}

    def __repr__(self) -> str:
        return f"GroupTable({len(self._table)} groups, version {self.data_version.counter})"

    def find_or_create(self, name: str, *, auto_create: bool, now_ms: int) -> GroupConfig | None:
        """Return a group, created with default settings if allowed; None if it cannot be.

        A new group counts in `data_version`; the caller saves the table. A table of `groups_max`
        groups takes no further one.
        """
        found = self._table.get(name)
        if found is not None:
            return found
        if not auto_create and not name.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if validate_group(name) is not None or len(self._table) >= self.groups_max:
            return None
        config = GroupConfig(name)
        self._set(config, now_ms)
        return config

    def put(self, config: GroupConfig, now_ms: int) -> None:
        """Add or replace a group; its attributes are changes (`+name`) to the stored ones."""
        old = self._table.get(config.name)
        if old is None and len(self._table) >= self.groups_max:
            raise SystemError_(
                f"group {config.name} was not created: this broker holds {self.groups_max} groups "
                "(groups_max); delete some or raise the limit"
            )
        result = topic_rules.alter(
            {} if old is None else old.attributes,
            config.attributes,
            create=old is None,
            known=topic_rules.GROUP_ATTRIBUTES,
        )
        self._set(replace(config, attributes=result), now_ms)

    def delete(self, name: str, now_ms: int) -> GroupConfig | None:
        """Remove and return a group, with its entries in the forbidden table."""
        self._forbidden.pop(name, None)
        return self._remove(name, now_ms)

    def is_forbidden(self, group: str, topic: str, mask: int = FORBID_READ) -> bool:
        """Return whether a group may not read a topic."""
        topics = self._forbidden.get(group)
        return topics is not None and bool(topics.get(topic, 0) & mask)

    def forbid(self, group: str, topic: str, *, forbidden: bool, now_ms: int) -> None:
        """Forbid a group to read a topic, or allow it again."""
        if self.is_forbidden(group, topic) == forbidden:
            return
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) ^ FORBID_READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self.data_version.next(now_ms)

    def encode(self, *, pretty: bool = True) -> bytes:
        """Return the content of `subscriptionGroup.json`, which is also the answer to code 201."""
        if not pretty:
            return GroupTableBody(self.data_version, self._table, self._forbidden).encode()
        head = fastjson.dumps(
            {
                "dataVersion": data_version_to_json(self.data_version),
                "forbiddenTable": self._forbidden,
            },
            pretty=True,
        )
        return b"".join(
            (head[:-2], b',\n\t"subscriptionGroupTable":{', self._encode_entries(), b"\n\t}\n}")
        )

    def decode(self, data: bytes) -> None:
        """Load the content of `subscriptionGroup.json`; RemoteProtocolError if it is malformed."""
        loaded = GroupTableBody.decode(data)
        self.data_version = loaded.version
        self._table.update(loaded.groups)
        self._texts.clear()
        self._forbidden.update(loaded.forbidden)


Wishes = Mapping[str, str]
"""The subscriptions of one member: topic to tags, in canonical spelling."""

CLIENTS_SHOWN_MAX: Final = 3
TOPICS_SHOWN_MAX: Final = 5
WISH_CHARS_MAX: Final = 100


def wishes_of(subscriptions: Iterable[Subscription]) -> dict[str, str]:
    """Return subscriptions in canonical spelling, without the retry topic."""
    return {
        one.topic: _wish(one) for one in subscriptions if not one.topic.startswith(RETRY_PREFIX)
    }


def differences(members: Mapping[str, Wishes]) -> tuple[Difference, ...]:
    """Return the topics to which members subscribe differently; `members` is by client id."""
    topics = sorted({topic for wishes in members.values() for topic in wishes})
    found = []
    for topic in topics:
        views: dict[str | None, list[str]] = {}
        for client_id, wishes in members.items():
            views.setdefault(wishes.get(topic), []).append(client_id)
        if len(views) > 1:
            by_size = sorted(views.items(), key=lambda view: (-len(view[1]), view[0] or ""))
            found.append(
                Difference(topic, tuple((wish, tuple(sorted(ids))) for wish, ids in by_size))
            )
    return tuple(found)


def in_words(found: Iterable[Difference]) -> str:
    """Describe differences in one log line."""
    texts = [_one_in_words(one) for one in found]
    more = len(texts) - TOPICS_SHOWN_MAX
    return "; ".join(texts[:TOPICS_SHOWN_MAX]) + (f"; and {more} more topics" if more > 0 else "")


def _one_in_words(found: Difference) -> str:
    views = []
    for wish, clients in found.views[:CLIENTS_SHOWN_MAX]:
        shown = ", ".join(clients[:CLIENTS_SHOWN_MAX])
        more = len(clients) - CLIENTS_SHOWN_MAX
        who = shown + (f" and {more} more" if more > 0 else "")
        views.append(f"{'not subscribed' if wish is None else repr(_cut(wish))} by {who}")
    more = len(found.views) - CLIENTS_SHOWN_MAX
    return f"topic {found.topic}: " + ", ".join(views) + (f", {more} others" if more > 0 else "")


def _wish(subscription: Subscription) -> str:
    if subscription.expression_type != TAG:
        return f"{subscription.expression_type}: {subscription.expression}"
    return ALL if subscription.matches_all else " || ".join(sorted(subscription.tags))


def _cut(text: str) -> str:
    return text if len(text) <= WISH_CHARS_MAX else text[:WISH_CHARS_MAX] + "…"


C = TypeVar("C", bound=Hashable)

BROADCASTING = "BROADCASTING"
GROUPS_PER_CONNECTION_MAX = 4096
"""Producer groups of one connection; the broker ignores further ones."""


class Notice(NamedTuple, Generic[C]):
    """The connections to notify that the members of a group changed (code 40)."""

    group: str
    connections: tuple[C, ...]


class Departed(NamedTuple):
    """A client id that is no longer a member of a group."""

    group: str
    client_id: str


@dataclass(slots=True)
class Departure(Generic[C]):
    """The consequences of closed connections: notices, and clients that left."""

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
    """The member missed its heartbeats (`MemberLiveness`) and is not listed until it speaks."""
    wishes: Wishes | None = None
    """Its subscriptions; None: not sent on this connection yet."""


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
    """When the broker last logged differing subscriptions."""
    new_until_ms: int = 0
    """Until then members may be missing whose first heartbeat has not come yet."""
    lost_until_ms: int = 0
    """Until then a member may come back that has lost its connection."""
    _differences: tuple[Difference, ...] | None = None

    def differences(self) -> tuple[Difference, ...]:
        """Return the differing subscriptions; empty for a broadcasting group."""
        if self.broadcasting:
            return ()
        if self._differences is None:
            self._differences = differences(self.wishes())
        return self._differences

    def wishes(self) -> dict[str, Wishes]:
        """Return the subscriptions of each client, by its newest connection."""
        return {
            client_id: one.wishes
            for client_id, members in self.clients.items()
            for one in (next(reversed(members.values())),)
            if one.wishes is not None
        }

    def wishes_changed(self) -> None:
        """Compare again at the next query."""
        self._differences = None

    @property
    def broadcasting(self) -> bool:
        """Return whether every member gets every message."""
        return self.message_model == BROADCASTING

    @property
    def notifiable(self) -> bool:
        """Return whether a change of the members concerns the others."""
        return self.notify and not self.broadcasting

    def client_ids(self) -> list[str]:
        """Return each listed client id once, in the order of arrival."""
        return [
            client_id
            for client_id, members in self.clients.items()
            if not (
                any(one.silent for one in members.values())
                and all(one.silent or one.superseded for one in members.values())
            )
        ]

    def is_complete(self, now_ms: int) -> bool:
        """Return whether the list of members has everybody who believes to be one.

        A client that finds a list without itself gives up all its queues.
        """
        return (
            now_ms >= self.new_until_ms
            and now_ms >= self.lost_until_ms
            and not any(member.silent for member in self.members.values())
        )

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
        self._asking: dict[str, dict[tuple[C, str], None]] = {}
        """The producers of each client id: connection and group, the newest last."""
        self._refused: dict[C, set[str]] = {}

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

    def told_to(self, connection: C, group: str, now_ms: int) -> list[str]:
        """Return the client ids that a connection may see; empty: it is told that there are none.

        A member always sees them. Another connection may be that of a member which comes back, or
        which is new here, and is told only when no such member can be missing. A connection that
        was refused as a member is told nothing.
        """
        found = self._groups.get(group)
        if found is None:
            return []
        if connection in found.members:
            return found.client_ids()
        if group in self._refused.get(connection, ()) or not found.is_complete(now_ms):
            return []
        return found.client_ids()

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
        """Return the subscription of an online group to a topic."""
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
        """Apply one consumer group of a heartbeat; return the notice to send, if any.

        `subscriptions` None keeps the stored ones (a heartbeat without them).
        """
        group = self._groups.get(group_name)
        if group is None:
            group = self._groups[group_name] = ConsumerGroup(group_name)
            group.new_until_ms = member.seen_ms + ROUTES_AND_HEARTBEATS_MS
        _discard(self._refused, member.connection, group_name)
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
        """Return how the subscriptions of a client would differ from the members'."""
        group = self._groups.get(group_name)
        if group is None or group.broadcasting:
            return ()
        others, mine = group.wishes(), wishes_of(subscriptions)
        if others.pop(client_id, None) == mine:
            return ()  # already a member with these subscriptions
        return tuple(
            one
            for one in differences({**others, client_id: mine})
            if any(wishes.get(one.topic) != mine.get(one.topic) for wishes in others.values())
        )

    def refused(self, group_name: str, connection: C, now_ms: int) -> None:
        """Note that a heartbeat was refused; a member that sent it is alive."""
        self._refused.setdefault(connection, set()).add(group_name)
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
        """Remove a connection from a group, on request of its client."""
        departure: Departure[C] = Departure()
        group = self._groups.get(group_name)
        if group is not None:
            self._leave(group, connection, departure)
        return departure

    def silence(self, group_name: str, connection: C) -> bool:
        """Unlist a member that missed its heartbeats; return whether the list changes."""
        group = self._groups.get(group_name)
        member = None if group is None else group.members.get(connection)
        if group is None or member is None or member.silent:
            return False
        before = group.client_ids()
        member.silent = True
        return before != group.client_ids()

    def heard(self, group_name: str, connection: C) -> Notice[C] | None:
        """List a member again; return the notice to send, if any."""
        group = self._groups.get(group_name)
        member = None if group is None else group.members.get(connection)
        if group is None or member is None or not member.silent:
            return None
        member.silent = False
        return Notice(group_name, tuple(group.members)) if group.notifiable else None

    def register_producer(self, group_name: str, member: Member[C]) -> bool:
        """Apply one producer group of a heartbeat; False if the connection has too many."""
        groups = self._producers_of.setdefault(member.connection, set())
        if group_name not in groups and len(groups) >= GROUPS_PER_CONNECTION_MAX:
            return False
        groups.add(group_name)
        members = self._producers.setdefault(group_name, {})
        known = members.get(member.connection)
        if known is None or known.client_id != member.client_id:
            if known is not None:
                self._forget_asking(group_name, known)
            asking = self._asking.setdefault(member.client_id, {})
            asking[member.connection, group_name] = None
        members[member.connection] = member
        return True

    def _forget_asking(self, group_name: str, member: Member[C]) -> None:
        asking = self._asking[member.client_id]
        del asking[member.connection, group_name]
        if not asking:
            del self._asking[member.client_id]

    def producer_of(self, client_id: str) -> C | None:
        """Return the newest connection on which a client has named a producer group."""
        newest = next(reversed(self._asking.get(client_id, {})), None)
        return None if newest is None else newest[0]

    def unregister_producer(self, group_name: str, connection: C) -> None:
        """Remove a connection from a producer group."""
        producers = self._producers.get(group_name)
        member = None if producers is None else producers.pop(connection, None)
        if producers is not None and member is not None:
            self._forget_asking(group_name, member)
            if not producers:
                del self._producers[group_name]
            _discard(self._producers_of, connection, group_name)

    def producer_groups(self) -> list[str]:
        """Return the names of the online producer groups."""
        return list(self._producers)

    def producers(self, group_name: str) -> list[Member[C]]:
        """Return the members of a producer group."""
        return list(self._producers.get(group_name, {}).values())

    def close(self, connection: C, now_ms: int = 0) -> Departure[C]:
        """Forget a closed connection; its client may come back."""
        departure: Departure[C] = Departure()
        self._refused.pop(connection, None)
        for name in sorted(self._groups_of.get(connection, ())):
            self._groups[name].lost_until_ms = now_ms + HEARTBEATS_MS
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
                    group.lost_until_ms = now_ms + HEARTBEATS_MS
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
    """Apply the subscriptions of a heartbeat; return whether the set of topics changed."""
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
