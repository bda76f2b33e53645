"""The ACL files of RocketMQ 4: `plain_acl.yml` and `acl/*.yml` become accounts. Pure.

    account      an access key, its secret, admin or not, and from where it is used
    rights       PUB and SUB on topics and on groups: named ones replace the default, they do not
                 add to it; no default, or a word that RocketMQ does not know, is DENY
    group        RocketMQ keeps the group g as the topic `%RETRY%g`: both spellings are one entry

The topic and group rights mean what they mean in RocketMQ. White addresses do not: there they let
requests pass without a signature, here they only narrow where an account is used from. Each line
that is not kept becomes a remark. A file that RocketMQ would not load is refused, with its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from inorder.access.addresses import NoPattern, networks
from inorder.access.plainyaml import Items, Node, Pairs, Place, Scalar, read
from inorder.access.rules import KNOWN_SECRETS, SECRET_CHARS_GOOD, group_of_topic
from inorder.errors import ConfigError
from inorder.wire.names import RETRY_PREFIX, TRACE_TOPIC

KEY_CHARACTERS_MIN: Final = 7
KEY_CHARACTERS_MAX: Final = 255
ACCOUNTS_MAX: Final = 10_000

_TOP: Final = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_ACCOUNT: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rights:
    """What an account may do with a topic or as a group; neither is DENY."""

    pub: bool = False
    sub: bool = False

    def __str__(self) -> str:
        """Return RocketMQ's words."""
        return (
            "|".join(word for word, has in (("PUB", self.pub), ("SUB", self.sub)) if has) or "DENY"
        )


DENY: Final = Rights()
_WORDS: Final[Mapping[str, Rights]] = {
    "DENY": DENY,
    "PUB": Rights(pub=True),
    "SUB": Rights(sub=True),
    "PUB|SUB": Rights(pub=True, sub=True),
    "SUB|PUB": Rights(pub=True, sub=True),
}


@dataclass(frozen=True, slots=True)
class Account:
    """One account of a file."""

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool
    addresses: tuple[str, ...]
    """Networks from which it may be used; none: from everywhere."""
    default_topic: Rights
    default_group: Rights
    topics: Mapping[str, Rights]
    groups: Mapping[str, Rights]
    place: Place

    def on_topic(self, name: str) -> Rights:
        """Return the rights on a topic; everybody may send traces."""
        if name.startswith(RETRY_PREFIX):
            return self.on_group(name.removeprefix(RETRY_PREFIX))
        rights = self.topics.get(name, self.default_topic)
        return Rights(pub=True, sub=rights.sub) if name == TRACE_TOPIC else rights

    def on_group(self, name: str) -> Rights:
        """Return the rights as a group."""
        return self.groups.get(name, self.default_group)


@dataclass(frozen=True, slots=True)
class Remark:
    """A line of a file that does not do what it does in RocketMQ."""

    place: Place
    text: str

    def __str__(self) -> str:
        """Return the remark with its place."""
        return f"{self.place.file}, line {self.place.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class PlainAccounts:
    """What the files of an installation say."""

    accounts: Mapping[str, Account]
    remarks: tuple[Remark, ...]


def accounts(files: Iterable[tuple[str, str]]) -> PlainAccounts:
    """Read files, each a name and a text; raises ConfigError that names file, line and column.

    An account that stands in two files is taken from the first one, as in RocketMQ.
    """
    found: dict[str, Account] = {}
    remarks: list[Remark] = []
    for file, text in files:
        _Reader(file, found, remarks).read(text)
    return PlainAccounts(found, tuple(remarks))


class _Reader:
    """Reads one file into the accounts of all."""

    def __init__(self, file: str, found: dict[str, Account], remarks: list[Remark]) -> None:
        self._file = file
        self._found = found
        self._remarks = remarks

    def read(self, text: str) -> None:
        top = read(text, self._file)
        if isinstance(top, Scalar) and top.is_null:
            return
        if not isinstance(top, Pairs):
            top.place.refuse("an ACL file begins with accounts: or globalWhiteRemoteAddresses:")
        _check_keys(top, _TOP)
        for node in _items(top.nodes.get("globalWhiteRemoteAddresses")):
            self._global_address(node)
        for node in _items(top.nodes.get("accounts")):
            self._account(node)

    def _remark(self, place: Place, text: str) -> None:
        self._remarks.append(Remark(place, text))

    def _global_address(self, node: Node) -> None:
        word = _scalar(node)
        if word.is_null or not word.text().strip():
            return
        _networks(word)
        self._remark(
            word.place,
            f"the global white address {word.text()} is not kept: requests from there need an "
            "access key and a signature, too",
        )

    def _account(self, node: Node) -> None:
        if not isinstance(node, Pairs):
            node.place.refuse("an account begins with accessKey:")
        _check_keys(node, _ACCOUNT)
        name = self._key(node, "accessKey")
        secret = self._key(node, "secretKey")
        place = node.keys["accessKey"]
        if name in self._found:
            first = self._found[name].place
            self._remark(
                place,
                f"the account {name} is ignored: {first.file}, line {first.line} has it already",
            )
            return
        if len(self._found) >= ACCOUNTS_MAX:
            place.refuse(f"more than {ACCOUNTS_MAX} accounts")
        if len(secret) < SECRET_CHARS_GOOD and secret not in KNOWN_SECRETS:
            self._remark(
                node.keys["secretKey"],
                f"the secret of {name} is kept, and easy to guess; change it soon",
            )
        admin = self._admin(node)
        topics, groups = self._named(node)
        if admin and (topics or groups):
            self._remark(
                place,
                f"{name} is an admin: its topicPerms and groupPerms do not limit it (RocketMQ 5 "
                "ignores them, 4.9 obeyed them)",
            )
        self._found[name] = Account(
            access_key=name,
            secret_key=secret,
            admin=admin,
            addresses=self._addresses(node, name),
            default_topic=self._default(node, "defaultTopicPerm"),
            default_group=self._default(node, "defaultGroupPerm"),
            topics=topics,
            groups=groups,
            place=place,
        )

    def _key(self, account: Pairs, key: str) -> str:
        node = account.nodes.get(key)
        if node is None:
            account.place.refuse(f"this account has no {key}")
        word = _scalar(node)
        text = "" if word.is_null else word.text()
        if not KEY_CHARACTERS_MIN <= len(text) <= KEY_CHARACTERS_MAX:
            word.place.refuse(
                f"{key} must have {KEY_CHARACTERS_MIN} to {KEY_CHARACTERS_MAX} characters"
            )
        return text

    def _admin(self, account: Pairs) -> bool:
        node = account.nodes.get("admin")
        if node is None or (isinstance(node, Scalar) and node.is_null):
            return False
        return _scalar(node).boolean()

    def _addresses(self, account: Pairs, name: str) -> tuple[str, ...]:
        node = account.nodes.get("whiteRemoteAddress")
        if node is None:
            return ()
        word = _scalar(node)
        if word.is_null or not word.text().strip():
            return ()
        found = _networks(word)
        if found is None:
            meaning = f"{name} may be used from everywhere, with its signature"
        else:
            meaning = f"{name} may be used from there alone, and needs its signature there, too"
        self._remark(word.place, f"the white address {word.text()} skips no check: {meaning}")
        return found or ()

    def _default(self, account: Pairs, key: str) -> Rights:
        node = account.nodes.get(key)
        if node is None:
            return DENY
        word = _scalar(node)
        return DENY if word.is_null else self._rights(word, word.text())

    def _rights(self, word: Scalar, text: str) -> Rights:
        rights = _WORDS.get(text.strip())
        if rights is None:
            self._remark(
                word.place,
                f"{text.strip()[:40]!r} is none of DENY, PUB, SUB, PUB|SUB and SUB|PUB, and means "
                "DENY, as in RocketMQ",
            )
        return rights or DENY

    def _named(self, account: Pairs) -> tuple[dict[str, Rights], dict[str, Rights]]:
        topics: dict[str, Rights] = {}
        groups: dict[str, Rights] = {}
        for node in _items(account.nodes.get("groupPerms")):
            word, name, rights = self._permission(node)
            if name.startswith(RETRY_PREFIX):
                self._remark(
                    word.place, f"{name} is no group name: write it without {RETRY_PREFIX}"
                )
            self._put(groups, name, rights, word)
        for node in _items(account.nodes.get("topicPerms")):
            word, name, rights = self._permission(node)
            if name.startswith(RETRY_PREFIX):
                self._put(groups, name.removeprefix(RETRY_PREFIX), rights, word)
            else:
                self._put(topics, name, rights, word)
                group = group_of_topic(name)
                if group is not None:
                    self._remark(
                        word.place,
                        f"{name} is not kept: here it belongs to its group; write {group} into "
                        "groupPerms",
                    )
        return topics, groups

    def _permission(self, node: Node) -> tuple[Scalar, str, Rights]:
        word = _scalar(node)
        parts = [part for part in word.text().split("=") if part]
        if len(parts) != 2 or not parts[0].strip():
            word.place.refuse(
                "a permission is written NAME=PUB, NAME=SUB, NAME=PUB|SUB or NAME=DENY"
            )
        name = parts[0].strip()
        if "*" in name:
            self._remark(
                word.place,
                f"{name} is taken literally, as in RocketMQ 4: * stands for no other name there",
            )
        return word, name, self._rights(word, parts[1])

    def _put(self, table: dict[str, Rights], name: str, rights: Rights, word: Scalar) -> None:
        if name in table and table[name] != rights:
            self._remark(word.place, f"{name} occurs twice; this one counts, as in RocketMQ")
        table[name] = rights


def _networks(word: Scalar) -> tuple[str, ...] | None:
    try:
        return networks(word.text())
    except NoPattern as error:
        word.place.refuse(str(error))


def _check_keys(pairs: Pairs, known: tuple[str, ...]) -> None:
    for key, place in pairs.keys.items():
        if key not in known:
            place.refuse(f"{key[:40]!r} is not known here; known are {', '.join(known)}")


def _items(node: Node | None) -> tuple[Node, ...]:
    if node is None or (isinstance(node, Scalar) and node.is_null):
        return ()
    if not isinstance(node, Items):
        node.place.refuse("here must be a list")
    return node.nodes


def _scalar(node: Node) -> Scalar:
    if not isinstance(node, Scalar):
        node.place.refuse("here must be a word, no list and no mapping")
    return node


def decode(data: bytes, file: str) -> str:
    """Return the text of a file; raises ConfigError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: byte {error.start}") from None
