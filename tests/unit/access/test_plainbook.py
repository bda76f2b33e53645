"""Accounts of ACL files as users and rules: they decide as RocketMQ 4 does."""

from __future__ import annotations

import itertools
from ipaddress import ip_address

import pytest

from inorder.access.plainacl import DENY, Account, PlainAccounts, Rights, accounts
from inorder.access.plainbook import book_of, entries_of, merged
from inorder.access.plainyaml import Place
from inorder.access.rules import (
    CONSUME_READS,
    ENTRIES_MAX,
    Action,
    Book,
    Entry,
    Kind,
    User,
    Version,
    decide,
    parse_resource,
)

PLACE = Place("f.yml", 1, 1)
ALL_RIGHTS = [Rights(pub, sub) for pub in (False, True) for sub in (False, True)]
HERE, THERE = ip_address("10.1.1.7").packed, ip_address("10.2.1.7").packed


def make(
    *,
    default_topic: Rights = DENY,
    default_group: Rights = DENY,
    topics: dict[str, Rights] | None = None,
    groups: dict[str, Rights] | None = None,
    addresses: tuple[str, ...] = (),
    admin: bool = False,
    secret: str = "long-enough-1",
    name: str = "appuser1",
) -> Account:
    """Return an account."""
    return Account(
        name, secret, admin, addresses, default_topic, default_group, topics or {}, groups or {},
        PLACE,
    )  # fmt: skip


def allows(account: Account, kind: Kind, name: str, actions: Action, host: bytes = HERE) -> bool:
    """Tell what the rules of an account say."""
    book, _ = book_of(PlainAccounts({account.access_key: account}, ()))
    return decide(book.entries.get(account.access_key, ()), kind, name, actions, host).allowed


@pytest.mark.parametrize(("default", "named"), list(itertools.product(ALL_RIGHTS, ALL_RIGHTS)))
@pytest.mark.parametrize("kind", [Kind.TOPIC, Kind.GROUP])
def test_rules_decide_as_rocketmq_4_does(kind: Kind, default: Rights, named: Rights) -> None:
    """A named right replaces the default; all sixteen pairs, for Pub, for Sub and for either."""
    if kind is Kind.TOPIC:
        account = make(default_topic=default, topics={"named": named})
    else:
        account = make(default_group=default, groups={"named": named})
    for name, rights in (("named", named), ("other", default)):
        assert allows(account, kind, name, Action.PUB) is rights.pub
        assert allows(account, kind, name, Action.SUB) is rights.sub
        assert allows(account, kind, name, Action.PUB | Action.SUB) is (rights.pub or rights.sub)
        assert allows(account, kind, name, CONSUME_READS) is rights.sub
        for other in (Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST):
            assert not allows(account, kind, name, other)


def test_rights_on_topics_are_none_on_groups() -> None:
    """Nor on the cluster."""
    account = make(default_topic=Rights(pub=True, sub=True), topics={"g": Rights(sub=True)})
    assert not allows(account, Kind.GROUP, "g", Action.SUB)
    assert not allows(account, Kind.CLUSTER, "*", Action.GET)


@pytest.mark.parametrize("named", [{}, {"RMQ_SYS_TRACE_TOPIC": Rights()}])
@pytest.mark.parametrize("default", ALL_RIGHTS)
def test_everybody_sends_traces(default: Rights, named: dict[str, Rights]) -> None:
    """Whatever the rights are."""
    account = make(default_topic=default, topics=named)
    assert allows(account, Kind.TOPIC, "RMQ_SYS_TRACE_TOPIC", Action.PUB)


def test_a_star_becomes_no_prefix() -> None:
    """`a*=PUB` allows nothing in RocketMQ 4, and `a*=DENY` denies nothing."""
    account = make(topics={"a*": Rights(pub=True), "*": Rights(pub=True)})
    assert not allows(account, Kind.TOPIC, "ab", Action.PUB)
    denied = make(default_topic=Rights(pub=True), topics={"a*": Rights()})
    assert allows(denied, Kind.TOPIC, "ab", Action.PUB)


@pytest.mark.parametrize(
    ("default", "named"), [(Rights(sub=True), Rights(pub=True)), (Rights(), Rights(pub=True))]
)
def test_addresses_narrow_what_is_allowed(default: Rights, named: Rights) -> None:
    """From elsewhere nothing is allowed, and what is denied is denied from everywhere."""
    account = make(default_topic=default, topics={"a": named}, addresses=("10.1.1.0/24",))
    assert allows(account, Kind.TOPIC, "a", Action.PUB)
    for host in (HERE, THERE):
        assert not allows(account, Kind.TOPIC, "a", Action.SUB, host)
    for name in ("a", "b"):
        assert not allows(account, Kind.TOPIC, name, Action.PUB | Action.SUB, THERE)


def test_an_admin_is_a_super_user_without_rules() -> None:
    """Its addresses cannot be limited, which is remarked."""
    account = make(admin=True, topics={"a": Rights()}, addresses=("10.1.1.0/24",))
    book, remarks = book_of(PlainAccounts({"appuser1": account}, ()))
    assert book.users == {"appuser1": User("appuser1", b"long-enough-1", is_super=True)}
    assert book.entries == {}
    assert ["addresses are not limited" in str(one) for one in remarks] == [True]


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        (make(secret="12345678"), "everybody knows"),
        (make(secret="appuser1"), "everybody knows"),
        (make(name="app user"), "not allowed"),
        (make(name="app\nuser"), "not allowed"),
        (make(secret="x" * 257), "at most 256"),
        (make(topics={f"t{number}": Rights() for number in range(ENTRIES_MAX + 1)}), "more than"),
    ],
)
def test_an_account_that_no_user_can_be_is_left_out_and_remarked(
    account: Account, reason: str
) -> None:
    """The others are kept."""
    other = make(name="appuser2")
    found = PlainAccounts({account.access_key: account, "appuser2": other}, ())
    book, remarks = book_of(found)
    assert list(book.users) == ["appuser2"]
    (remark,) = remarks
    assert reason in str(remark)
    assert account.secret_key not in str(remark) or account.secret_key == account.access_key


def test_entries_stand_in_the_order_in_which_they_decide() -> None:
    """As those of every user."""
    account = make(default_topic=Rights(sub=True), topics={"b": Rights(), "a": Rights(pub=True)})
    book, _ = book_of(PlainAccounts({"appuser1": account}, ()))
    ranks = [one.rank for one in book.entries["appuser1"]]
    assert ranks == sorted(ranks)
    assert set(book.entries["appuser1"]) == set(entries_of(account))


def test_a_user_of_our_own_file_comes_before_an_account() -> None:
    """With its rules alone; the other accounts stay as they are."""
    text = "accounts:\n" + "".join(
        f"- accessKey: appuser{number}\n  secretKey: long-enough{number}\n  defaultTopicPerm: PUB\n"
        for number in (1, 2)
    )
    plain, _ = book_of(accounts([("f", text)]), Version(50, 2))
    own = Book({"appuser1": User("appuser1", b"another-secret", enabled=False)}, {}, Version(7, 3))
    both = merged(own, plain)
    assert both.users["appuser1"] is own.users["appuser1"]
    assert list(both.entries) == ["appuser2"]
    assert both.version == (50, 5)


def test_without_accounts_the_own_users_are_all() -> None:
    """The very same book."""
    entry = Entry(parse_resource("Topic:a"), Action.PUB, True)
    own = Book({"a": User("a", b"secret")}, {"a": (entry,)}, Version(7, 3))
    assert merged(own, Book()) is own
