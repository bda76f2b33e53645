"""Users and policies, and the decision whether a user may do something.

A policy is a list of entries of one subject (a user). An entry names a resource, the actions, the
addresses it holds for, and allows or denies. The first entry in this order decides:

    a custom entry before a default one
    a concrete type (Topic, Group, Cluster) before any type
    a literal name before a prefix, a prefix before any name
    a longer prefix before a shorter one
    deny before allow

If no entry matches, the answer is no. A need may name several actions of which one suffices. Each
is decided on its own, so a denied Pub does not take away Sub. All tables are values: a change
returns a new `Book`. Why: decision 55.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from inorder.errors import InvalidParameter, NoPermission
from inorder.wire.names import (
    FIXED_SYSTEM_TOPICS,
    GROUP_PREFIXES,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_TOPIC_PREFIXES,
    TRACE_TOPIC,
)

NAME_CHARS_MAX: Final = 128
SECRET_CHARS_MAX: Final = 256
SECRET_CHARS_GOOD: Final = 12
"""A shorter secret is accepted with a warning."""
SECRET_CHARS_MIN: Final = 7
"""RocketMQ's clients refuse shorter ones."""
RESOURCE_CHARS_MAX: Final = 300
USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 1000
"""Entries of one user."""
SOURCES_MAX: Final = 100
"""Addresses of one entry."""
KNOWN_SECRETS: Final = frozenset(("12345678", "rocketmq", "password"))
"""Secrets of RocketMQ's examples and shipped defaults."""

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group in which tools read; a rule can give it to whoever looks at messages."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.@|-]+")


class Action(IntFlag):
    """What is done; a set of actions is their sum."""

    __hash__ = int.__hash__  # Enum's own is ten times slower

    PUB = 1
    SUB = 2
    CREATE = 4
    UPDATE = 8
    DELETE = 16
    GET = 32
    LIST = 64
    ALL = 127


ACTION_NAMES: Final[Mapping[str, Action]] = {
    "all": Action.ALL,
    "pub": Action.PUB,
    "sub": Action.SUB,
    "create": Action.CREATE,
    "update": Action.UPDATE,
    "delete": Action.DELETE,
    "get": Action.GET,
    "list": Action.LIST,
}
CONSUME_READS: Final = Action.SUB | Action.GET
"""Whoever consumes may ask what a consumer has to know: offsets, members, messages by key."""
ROUTE_READS: Final = Action.PUB | Action.SUB | Action.GET


class Kind(IntEnum):
    """The type of a resource."""

    __hash__ = int.__hash__

    ANY = 0
    CLUSTER = 1
    NAMESPACE = 2
    TOPIC = 3
    GROUP = 4


_KINDS: Final = {kind.name.lower(): kind for kind in Kind}


class Shape(IntEnum):
    """How a resource names what it covers, the most specific last."""

    ANY = 0
    PREFIX = 1
    LITERAL = 2


class Resource(NamedTuple):
    """What an entry is about."""

    kind: Kind
    shape: Shape
    name: str

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return "*"
        star = "" if self.shape is Shape.LITERAL else "*"
        return f"{self.kind.name.capitalize()}:{self.name}{star}"

    def covers(self, kind: Kind, name: str) -> bool:
        """Return whether a named thing is meant."""
        if self.kind not in {Kind.ANY, kind}:
            return False
        if self.shape is Shape.LITERAL:
            return self.name == name
        return self.shape is Shape.ANY or name.startswith(self.name)


def parse_resource(text: str) -> Resource:
    """Return the resource of a text such as `Topic:orders`, `Group:bill*`, `Topic:*` or `*`.

    A topic that belongs to a group is its group. Raises InvalidParameter.
    """
    text = text.strip()
    if text == "*":
        return Resource(Kind.ANY, Shape.ANY, "")
    kind_text, colon, name = text.partition(":")
    kind = _KINDS.get(kind_text.lower())
    if not colon or kind is None or not name or len(text) > RESOURCE_CHARS_MAX:
        raise InvalidParameter(
            f"{text[:80]!r} is no resource; write Topic:NAME, Group:PREFIX*, Cluster:* or *"
        )
    of = group_of_topic(name) if kind is Kind.TOPIC else None
    if of:
        kind, name = Kind.GROUP, of
    if name == "*":
        return Resource(kind, Shape.ANY, "")
    if kind is Kind.ANY:
        raise InvalidParameter(f"{text[:80]!r} names something of any type; write * alone")
    if "*" in name[:-1]:
        raise InvalidParameter(f"{text[:80]!r} has a * that is not at its end")
    if name.endswith("*"):
        return Resource(kind, Shape.PREFIX, name[:-1])
    return Resource(kind, Shape.LITERAL, name)


def parse_actions(names: Iterable[str]) -> Action:
    """Return a set of actions from their names. Raises NoPermission, as RocketMQ answers 16."""
    found = Action(0)
    for name in names:
        word = name.strip().lower()
        if word == "any":
            raise NoPermission("The actions can not be Any.")
        if word not in ACTION_NAMES:
            raise NoPermission(f"{name[:40]!r} is no action; actions are {_action_words()}.")
        found |= ACTION_NAMES[word]
    if not found:
        raise NoPermission("The actions is empty.")
    return found


def _action_words() -> str:
    return ", ".join(name.capitalize() for name in ACTION_NAMES)


def action_names(actions: Action) -> list[str]:
    """Return the names of a set of actions."""
    if actions == Action.ALL:
        return ["All"]
    return [
        name.capitalize()
        for name, one in ACTION_NAMES.items()
        if one is not Action.ALL and actions & one
    ]


Network = IPv4Network | IPv6Network


def parse_source(text: str) -> Network:
    """Return an address or a network; an IPv4 address inside of IPv6 is the IPv4 address."""
    text = text.strip()
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise NoPermission("The source ip is invalid.") from None
    if isinstance(network, IPv6Network):
        inner = network.network_address.ipv4_mapped
        if inner is not None and network.prefixlen >= 96:
            return ip_network(f"{inner}/{network.prefixlen - 96}", strict=False)
    return network


class PolicyType(IntEnum):
    """Custom entries come first; default ones count where no custom one matches."""

    CUSTOM = 1
    DEFAULT = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule of a user."""

    resource: Resource
    actions: Action
    allow: bool
    sources: tuple[Network, ...] = ()
    """Addresses that it holds for; none: all."""
    type: PolicyType = PolicyType.CUSTOM

    @property
    def key(self) -> tuple[PolicyType, Resource]:
        """Return what tells it from the user's other entries."""
        return self.type, self.resource

    @property
    def rank(self) -> tuple[int, bool, int, int, bool]:
        """Return its place in the order of decision; lower comes first."""
        resource = self.resource
        return (
            self.type,
            resource.kind is Kind.ANY,
            -resource.shape,
            -len(resource.name),
            self.allow,
        )

    def holds_for(self, host: bytes) -> bool:
        """Return whether it holds for a peer, given by the packed bytes of its address."""
        if not self.sources:
            return True
        if len(host) not in {4, 16}:
            return False
        address = ip_address(host)
        inner = address.ipv4_mapped if address.version == 6 else None
        return any((inner or address) in network for network in self.sources)


class Verdict(NamedTuple):
    """Whether something is allowed, and the entry that decides; None: no entry matches."""

    allowed: bool
    entry: Entry | None = None


def decide(
    entries: Iterable[Entry], kind: Kind, name: str, actions: Action, host: bytes
) -> Verdict:
    """Judge by a user's entries, sorted by rank, whether one of the actions is allowed."""
    refusal: Entry | None = None
    matching = [one for one in entries if one.resource.covers(kind, name) and one.holds_for(host)]
    for action in Action.ALL:
        if not actions & action:
            continue
        first = next((one for one in matching if one.actions & action), None)
        if first is not None and first.allow:
            return Verdict(True, first)
        refusal = refusal or first
    return Verdict(False, refusal)


# -- what needs more than an entry ----------------------------------------------------------------


def group_of_topic(topic: str) -> str | None:
    """Return the group whose retries, dead letters or parked messages a topic holds."""
    if topic[:1] != "%":
        return None
    for prefix in GROUP_PREFIXES:
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


def is_system_topic(topic: str) -> bool:
    """Return whether a topic belongs to the broker."""
    return topic in FIXED_SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIXES)


def is_system_group(group: str) -> bool:
    """Return whether a group belongs to the broker."""
    if group == TOOLS_GROUP:
        return False
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def reachable(kind: Kind, name: str, actions: Action, *, own_topics: frozenset[str]) -> bool:
    """Return whether an entry can allow this to a normal user; else it takes a super user.

    `own_topics` are system topics to which clients send: traces and replies.
    """
    if kind is Kind.TOPIC:
        if name == TRACE_TOPIC or name in own_topics:
            return bool(actions & Action.PUB)
        return not is_system_topic(name)
    return not (kind is Kind.GROUP and is_system_group(name))


# -- users ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class User:
    """One account. The secret is what requests are signed with; no text of it shows it."""

    name: str
    secret: bytes = field(repr=False)
    is_super: bool = False
    enabled: bool = True
    session_required: bool = False
    """Only requests bound to their connection are accepted (our own clients send those)."""


def check_name(name: str) -> None:
    """Refuse a name that no user can have. Raises InvalidParameter."""
    if not name.strip():
        raise InvalidParameter("The username is blank")
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise InvalidParameter(
            f"the username {name[:40]!r} is not allowed: 1 to {NAME_CHARS_MAX} letters, digits "
            "and _ . - @ |"
        )


def check_secret(name: str, secret: str) -> None:
    """Refuse a secret that anybody would guess. Raises NoPermission."""
    if not secret.strip():
        raise NoPermission("password can not be blank")
    if len(secret) > SECRET_CHARS_MAX:
        raise NoPermission(f"a password has at most {SECRET_CHARS_MAX} characters")
    if len(secret) < SECRET_CHARS_MIN:
        raise NoPermission(f"a password has at least {SECRET_CHARS_MIN} characters")
    if secret in KNOWN_SECRETS or secret == name:
        raise NoPermission("the password is one that everybody knows, or the name of the user")


class Version(NamedTuple):
    """Which of two books is newer: by time, then by count."""

    changed_at_ms: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class Book:
    """All users and their entries; a change makes a new book."""

    users: Mapping[str, User] = field(default_factory=dict)
    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    """By user, sorted by rank."""
    version: Version = field(default_factory=Version)

    @property
    def has_super(self) -> bool:
        """Return whether an enabled super user is there."""
        return any(user.is_super and user.enabled for user in self.users.values())

    def with_user(self, user: User, now_ms: int) -> Book:
        """Add or replace a user. Raises InvalidParameter: there are too many."""
        if user.name not in self.users and len(self.users) >= USERS_MAX:
            raise InvalidParameter(f"there are {USERS_MAX} users; delete some first")
        return replace(self, users={**self.users, user.name: user}, version=self._next(now_ms))

    def without_user(self, name: str, now_ms: int) -> Book:
        """Remove a user with all entries; an unknown one is no error."""
        if name not in self.users:
            return self
        return Book(
            {key: one for key, one in self.users.items() if key != name},
            {key: one for key, one in self.entries.items() if key != name},
            self._next(now_ms),
        )

    def with_entries(self, name: str, changed: Iterable[Entry], now_ms: int) -> Book:
        """Add entries of a user; one for the same resource is replaced. Raises NoPermission."""
        if name not in self.users:
            raise NoPermission(f"The subject of User:{name} is not exist.")
        kept = {one.key: one for one in self.entries.get(name, ())}
        kept |= {one.key: one for one in changed}
        if len(kept) > ENTRIES_MAX:
            raise InvalidParameter(f"a user has at most {ENTRIES_MAX} entries; use prefixes")
        return replace(
            self,
            entries={**self.entries, name: tuple(sorted(kept.values(), key=_sort_key))},
            version=self._next(now_ms),
        )

    def without_entries(
        self, name: str, resource: Resource | None, policy: PolicyType, now_ms: int
    ) -> Book:
        """Remove one entry of a user, or all; NoPermission if there is none."""
        before = self.entries.get(name, ())
        kept = tuple(
            one for one in before if resource is not None and one.key != (policy, resource)
        )
        if len(kept) == len(before):
            raise NoPermission("The acl is not exist.")
        entries = {key: one for key, one in self.entries.items() if key != name}
        if kept:
            entries[name] = kept
        return replace(self, entries=entries, version=self._next(now_ms))

    def _next(self, now_ms: int) -> Version:
        return Version(max(now_ms, self.version.changed_at_ms), self.version.counter + 1)


def _sort_key(entry: Entry) -> tuple[object, ...]:
    return (*entry.rank, entry.resource)


# -- requests that are repeated -------------------------------------------------------------------

WINDOW: Final = 1024
_WINDOW_BITS: Final = (1 << WINDOW) - 1


class Counters:
    """Which counters of one connection have come: rising, at most `WINDOW` out of order."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0

    def take(self, counter: int) -> bool:
        """Note a counter; False if it came before or is too old."""
        if counter > self._highest:
            self._seen = ((self._seen << min(counter - self._highest, WINDOW)) | 1) & _WINDOW_BITS
            self._highest = counter
            return True
        behind = self._highest - counter
        if behind >= WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True


def refused(name: str, kind: Kind, thing: str, source: str, verdict: Verdict) -> NoPermission:
    """Return the refusal of a request by a user's entries, in RocketMQ's words."""
    what = f"{kind.name.capitalize()}:{thing}"
    why = "no matched policies" if verdict.entry is None else "the decision is deny"
    return NoPermission(f"User:{name} has no permission to access {what} from {source}, {why}.")
