"""Users and rules as bytes: the file `inorder/access.json`, and what tools read and send.

    {"format":1,
     "version":[1732026000000,7],
     "users":[{"name":"alice","secret":"…","super":false,"enabled":true,"session":false}],
     "entries":[{"user":"alice","resource":"Topic:orders*","actions":["Pub"],"allow":true,
                 "sources":["10.0.0.0/8"],"default":false}]}

`secret` is the secret itself, or `sealed:` and the secret encrypted with a key from outside of the
data directory (`storage.py`). A file that is not exactly this is refused as a whole: half of the
rules are other rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec

from inorder.access.rules import (
    ENTRIES_MAX,
    NAME_CHARS_MAX,
    SOURCES_MAX,
    USERS_MAX,
    Book,
    Entry,
    PolicyType,
    User,
    Version,
    action_names,
    check_name,
    check_secret,
    parse_actions,
    parse_resource,
    parse_source,
)
from inorder.errors import BrokerError, InvalidParameter, NoPermission, RemoteProtocolError
from inorder.wire.requests.users import AclInfo, EntryInfo, PolicyInfo, UserInfo

SEALED: Final = "sealed:"
FORMAT: Final = 1
_TEXT_MAX: Final = 1024

Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class _User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    secret: Text
    super: bool = False
    enabled: bool = True
    session: bool = False


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: Text
    resource: Text
    actions: Annotated[list[Text], msgspec.Meta(max_length=16)]
    allow: bool
    sources: Annotated[list[Text], msgspec.Meta(max_length=SOURCES_MAX)] = []
    default: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    version: tuple[int, int]
    users: Annotated[list[_User], msgspec.Meta(max_length=USERS_MAX)]
    entries: Annotated[list[_Entry], msgspec.Meta(max_length=USERS_MAX * ENTRIES_MAX)]


Seal = Callable[[str, bytes], str]
Unseal = Callable[[str, str], bytes]
"""A user's name and secret to text for the file, and back."""


def encode_book(book: Book, seal: Seal) -> bytes:
    """Return the content of the file."""
    users = [
        _User(
            user.name, seal(user.name, user.secret), user.is_super, user.enabled,
            user.session_required,
        )
        for user in book.users.values()
    ]  # fmt: skip
    entries = [
        _Entry(
            name, str(one.resource), action_names(one.actions), one.allow,
            [str(source) for source in one.sources], one.type is PolicyType.DEFAULT,
        )
        for name, found in book.entries.items()
        for one in found
    ]  # fmt: skip
    return msgspec.json.encode(
        _File(FORMAT, (book.version.changed_at_ms, book.version.counter), users, entries)
    )


def decode_book(data: bytes | memoryview, unseal: Unseal) -> Book:
    """Read the content of the file. Raises RemoteProtocolError: it is not exactly that."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RemoteProtocolError(f"not a file of users and rules: {error}") from None
    if file.format != FORMAT:
        raise RemoteProtocolError(f"format {file.format} is not known here; this is {FORMAT}")
    try:
        return _book(file, unseal)
    except BrokerError as error:
        raise RemoteProtocolError(f"not a file of users and rules: {error.remark}") from None


def _book(file: _File, unseal: Unseal) -> Book:
    book = Book()
    users: dict[str, User] = {}
    for one in file.users:
        check_name(one.name)
        secret = unseal(one.name, one.secret)
        if one.name in users or not secret:
            raise InvalidParameter(f"the user {one.name} stands there twice or without a secret")
        users[one.name] = User(one.name, secret, one.super, one.enabled, one.session)
    entries: dict[str, list[Entry]] = {}
    for found in file.entries:
        entries.setdefault(found.user, []).append(
            Entry(
                parse_resource(found.resource),
                parse_actions(found.actions),
                found.allow,
                tuple(map(parse_source, found.sources)),
                PolicyType.DEFAULT if found.default else PolicyType.CUSTOM,
            )
        )
    book = Book(users)
    for name, rules in entries.items():
        book = book.with_entries(name, rules, 0)
    return Book(users, book.entries, Version(*file.version))


def plain(_name: str, secret: bytes) -> str:
    """Write a secret as it is."""
    return secret.decode()


def unplain(name: str, text: str) -> bytes:
    """Read a secret that is not encrypted."""
    if text.startswith(SEALED):
        raise RemoteProtocolError(
            f"the secret of {name} is encrypted: set access.key_file to the file with the key"
        )
    return text.encode()


# -- what tools read and send ---------------------------------------------------------------------

_SUBJECT: Final = "User:"


def subject_name(subject: str) -> str:
    """Return the user of a subject such as `User:alice`. Raises NoPermission."""
    kind, colon, name = subject.strip().partition(":")
    if not colon or kind.lower() != "user" or not name:
        raise NoPermission(f"the subject {subject[:80]!r} is not User:NAME.")
    return name


def user_info(user: User) -> UserInfo:
    """Return what tools see of a user: never the secret."""
    return UserInfo(
        user.name,
        None,
        "Super" if user.is_super else "Normal",
        "enable" if user.enabled else "disable",
        user.session_required or None,
    )


def new_user(name: str, info: UserInfo) -> User:
    """Return the user that a request creates. Raises a BrokerError."""
    check_name(name)
    secret = info.password or ""
    check_secret(name, secret)
    return User(
        name,
        secret.encode(),
        _is_super(info.type or "Normal"),
        _is_enabled(info.status or "enable"),
        bool(info.session_required),
    )


def changed_user(user: User, info: UserInfo) -> User:
    """Return a user with the changes of a request. Raises a BrokerError."""
    secret = user.secret
    if info.password is not None and info.password != "":
        check_secret(user.name, info.password)
        secret = info.password.encode()
    return User(
        user.name,
        secret,
        user.is_super if info.type is None else _is_super(info.type),
        user.enabled if info.status is None else _is_enabled(info.status),
        user.session_required if info.session_required is None else info.session_required,
    )


def _is_super(word: str) -> bool:
    found = {"super": True, "normal": False}.get(word.strip().lower())
    if found is None:
        raise InvalidParameter(f"the user type {word[:40]!r} is neither Super nor Normal")
    return found


def _is_enabled(word: str) -> bool:
    found = {"enable": True, "disable": False}.get(word.strip().lower())
    if found is None:
        raise InvalidParameter(f"the user status {word[:40]!r} is neither enable nor disable")
    return found


def policy_type(word: str) -> PolicyType:
    """Return the type of a policy; empty: Custom."""
    found = {"": PolicyType.CUSTOM, "custom": PolicyType.CUSTOM, "default": PolicyType.DEFAULT}.get(
        word.strip().lower()
    )
    if found is None:
        raise InvalidParameter(f"the policy type {word[:40]!r} is neither Custom nor Default")
    return found


def entries_of(info: AclInfo) -> list[Entry]:
    """Return the entries of a request. Raises a BrokerError with RocketMQ's words."""
    return [
        _entry(policy_type(policy.type), one) for policy in info.policies for one in policy.entries
    ]


def _entry(kind: PolicyType, info: EntryInfo) -> Entry:
    if not info.resource.strip():
        raise NoPermission("The resource is null.")
    decision = {"allow": True, "deny": False}.get(info.decision.strip().lower())
    actions = parse_actions(info.actions)
    if len(info.sources) > SOURCES_MAX:
        raise InvalidParameter(f"an entry has at most {SOURCES_MAX} source addresses")
    sources = tuple(parse_source(one) for one in info.sources if one.strip())
    if decision is None:
        raise NoPermission("The decision is null or illegal.")
    return Entry(parse_resource(info.resource), actions, decision, sources, kind)


def acl_info(name: str, entries: Iterable[Entry], containing: str = "") -> AclInfo | None:
    """Return what tools see of a user's rules for resources that contain a text; None: none."""
    shown: dict[PolicyType, list[EntryInfo]] = {}
    for one in entries:
        resource = str(one.resource)
        if containing not in resource:
            continue
        shown.setdefault(one.type, []).append(
            EntryInfo(
                resource,
                tuple(action_names(one.actions)),
                "Allow" if one.allow else "Deny",
                tuple(map(_address, one.sources)),
            )
        )
    if not shown:
        return None
    return AclInfo(
        _SUBJECT + name,
        tuple(PolicyInfo(kind.name.capitalize(), tuple(shown[kind])) for kind in sorted(shown)),
    )


def _address(network: object) -> str:
    text = str(network)
    return text.removesuffix("/32") if ":" not in text else text.removesuffix("/128")
