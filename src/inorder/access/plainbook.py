"""Accounts of RocketMQ's ACL files as users and rules. Pure.

A right on a topic or a group becomes an entry. A named right *replaces* the default in RocketMQ 4,
and an entry of ours only decides the actions that it has. So a named right that lacks something of
the default takes two entries:

    default  named      entries of the name
    SUB      PUB|SUB    custom: allow Pub, Sub
    SUB      DENY       custom: deny All
    SUB      PUB        custom: deny Sub         default: allow Pub
    -        PUB        custom: allow Pub

The default right is a default entry for every name. An admin is a super user. What the rights mean
for the requests that RocketMQ 4 did not check is decided by the table of codes, as for every user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from inorder.access.plainacl import DENY, Account, PlainAccounts, Remark, Rights
from inorder.access.rules import (
    ENTRIES_MAX,
    KNOWN_SECRETS,
    SECRET_CHARS_MAX,
    Action,
    Book,
    Entry,
    Kind,
    Network,
    PolicyType,
    Resource,
    Shape,
    User,
    Version,
    check_name,
    parse_source,
)
from inorder.errors import BrokerError
from inorder.wire.names import TRACE_TOPIC

_CUSTOM: Final = PolicyType.CUSTOM
_DEFAULT: Final = PolicyType.DEFAULT
_FIRST: Final = Version()


def user_of(account: Account) -> User:
    """Return the user of an account."""
    return User(account.access_key, account.secret_key.encode(), is_super=account.admin)


def entries_of(account: Account) -> tuple[Entry, ...]:
    """Return the entries of an account; a super user needs none."""
    if account.admin:
        return ()
    sources = tuple(map(parse_source, account.addresses))
    topics = {**account.topics, TRACE_TOPIC: account.on_topic(TRACE_TOPIC)}
    return (
        *_of_kind(Kind.TOPIC, account.default_topic, topics, sources),
        *_of_kind(Kind.GROUP, account.default_group, account.groups, sources),
    )


def _of_kind(
    kind: Kind, default: Rights, named: Mapping[str, Rights], sources: tuple[Network, ...]
) -> Iterator[Entry]:
    if default != DENY:
        everything = Resource(kind, Shape.ANY, "")
        yield Entry(everything, _actions(default), True, sources, _DEFAULT)
    for name, rights in named.items():
        if "*" in name:
            continue  # no topic and no group can be called so, and here it would mean a prefix
        resource = Resource(kind, Shape.LITERAL, name)
        missing = _actions(default) & ~_actions(rights)
        if rights == DENY:
            yield Entry(resource, Action.ALL, False)
        elif missing:
            yield Entry(resource, missing, False)
            yield Entry(resource, _actions(rights), True, sources, _DEFAULT)
        else:
            yield Entry(resource, _actions(rights), True, sources)


def _actions(rights: Rights) -> Action:
    return (Action.PUB if rights.pub else Action(0)) | (Action.SUB if rights.sub else Action(0))


def book_of(found: PlainAccounts, version: Version = _FIRST) -> tuple[Book, tuple[Remark, ...]]:
    """Return users and rules, and a remark on each line that is not kept."""
    users: dict[str, User] = {}
    entries: dict[str, tuple[Entry, ...]] = {}
    remarks = list(found.remarks)
    for name, account in found.accounts.items():
        rules = entries_of(account)
        reason = _not_kept(account, rules)
        if reason is not None:
            remarks.append(Remark(account.place, f"the account {name} is not kept: {reason}"))
            continue
        if account.admin and account.addresses:
            remarks.append(
                Remark(account.place, f"{name} is an admin, whose addresses are not limited")
            )
        users[name] = user_of(account)
        if rules:
            entries[name] = tuple(sorted(rules, key=lambda one: (*one.rank, one.resource)))
    return Book(users, entries, version), tuple(remarks)


def _not_kept(account: Account, rules: tuple[Entry, ...]) -> str | None:
    try:
        check_name(account.access_key)
    except BrokerError as error:
        return error.remark
    if len(account.secret_key) > SECRET_CHARS_MAX:
        return f"a secret has at most {SECRET_CHARS_MAX} characters"
    if account.secret_key in KNOWN_SECRETS or account.secret_key == account.access_key:
        return (
            "everybody knows its secret, for it is that of RocketMQ's examples or its own name; "
            "give it another one, here and in its clients"
        )
    if len(rules) > ENTRIES_MAX:
        return f"it has more than {ENTRIES_MAX} permissions"
    return None


def merged(own: Book, plain: Book) -> Book:
    """Return the users of both; a user that stands in both is that of `own`, with its rules."""
    if not plain.users:
        return own
    version = Version(
        max(own.version.changed_at_ms, plain.version.changed_at_ms),
        own.version.counter + plain.version.counter,
    )
    return Book(
        {**plain.users, **own.users},
        {**_of_others(plain.entries.items(), own), **own.entries},
        version,
    )


def _of_others(
    entries: Iterable[tuple[str, tuple[Entry, ...]]], own: Book
) -> dict[str, tuple[Entry, ...]]:
    return {name: rules for name, rules in entries if name not in own.users}
