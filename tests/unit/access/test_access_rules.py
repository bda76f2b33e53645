"""Which rule decides, and the tables of users and rules."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import permutations

import pytest

from inorder.access.rules import (
    ENTRIES_MAX,
    WINDOW,
    Action,
    Book,
    Counters,
    Entry,
    Kind,
    PolicyType,
    Resource,
    Shape,
    User,
    check_name,
    check_secret,
    decide,
    parse_actions,
    parse_resource,
    parse_source,
    reachable,
)
from inorder.errors import BrokerError, InvalidParameter, NoPermission

HOST = ip_address("10.1.2.3").packed


def rule(
    resource: str, actions: Action = Action.ALL, *, allow: bool = True,
    sources: tuple[str, ...] = (), default: bool = False,
) -> Entry:  # fmt: skip
    return Entry(
        parse_resource(resource), actions, allow, tuple(map(parse_source, sources)),
        PolicyType.DEFAULT if default else PolicyType.CUSTOM,
    )  # fmt: skip


def allowed(
    entries: list[Entry], topic: str, actions: Action = Action.PUB, *,
    kind: Kind = Kind.TOPIC, host: bytes = HOST,
) -> bool:  # fmt: skip
    book = Book({"u": User("u", b"s")}).with_entries("u", entries, 1)
    return decide(book.entries["u"], kind, topic, actions, host).allowed


def test_the_most_specific_rule_decides_in_every_order() -> None:
    """Any, all topics, a prefix and a literal, in all 24 orders of insertion."""
    rules = [
        rule("*"), rule("Topic:*", allow=False), rule("Topic:test*"),
        rule("Topic:test-1", allow=False),
    ]  # fmt: skip
    for order in permutations(rules):
        entries = list(order)
        assert not allowed(entries, "test-1")
        assert allowed(entries, "test-2")
        assert not allowed(entries, "abc")
        assert allowed(entries, "x", kind=Kind.GROUP)


@pytest.mark.parametrize("swapped", [False, True])
def test_the_longer_prefix_counts(swapped: bool) -> None:
    """a* denies, ab* allows: abc is allowed, in either order."""
    rules = [rule("Topic:a*", allow=False), rule("Topic:ab*")]
    entries = rules[::-1] if swapped else rules
    assert allowed(entries, "abc")
    assert not allowed(entries, "axy")


def test_deny_counts_on_a_tie() -> None:
    """Two entries of one rank: sources and types make them two."""
    entries = [rule("Topic:a"), rule("Topic:a", allow=False, default=True)]
    assert allowed(entries, "a")  # a custom entry comes before a default one
    same = sorted([rule("Topic:a"), rule("Topic:a", allow=False)], key=lambda one: one.rank)
    assert not decide(same, Kind.TOPIC, "a", Action.PUB, HOST).allowed


def test_without_a_match_the_answer_is_no() -> None:
    """No entry, another type, another action, another address."""
    assert not decide((), Kind.TOPIC, "a", Action.PUB, HOST).allowed
    assert not allowed([rule("Group:a")], "a")
    assert not allowed([rule("Topic:a", Action.SUB)], "a")
    assert not allowed([rule("Topic:a", sources=("10.9.0.0/16",))], "a")
    assert not allowed([rule("Topic:a")], "A")
    assert not allowed([rule("Topic:a")], "ab")


def test_one_of_several_actions_is_enough() -> None:
    """A denied Pub does not take away Sub."""
    entries = [rule("Topic:*", Action.SUB), rule("Topic:a", Action.PUB, allow=False)]
    assert allowed(entries, "a", Action.PUB | Action.SUB)
    assert not allowed(entries, "a", Action.PUB)
    assert not allowed([rule("Topic:a", allow=False), *entries[:1]], "a", Action.PUB | Action.SUB)


@pytest.mark.parametrize(
    ("source", "peer", "matches"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.0.0/16", "10.1.2.3", True),
        ("10.1.0.0/16", "10.2.2.3", False),
        ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("::ffff:10.1.2.3", "10.1.2.3", True),
        ("::ffff:10.1.0.0/112", "10.1.2.3", True),
        ("2001:db8::1", "2001:0db8:0000:0000:0000:0000:0000:0001", True),
        ("2001:0db8:0:0:0:0:0:1", "2001:db8::1", True),
        ("2001:db8::/32", "2001:db8:ffff::", True),
        ("2001:db8::/32", "10.1.2.3", False),
        ("0.0.0.0/0", "2001:db8::1", False),
    ],
)
def test_addresses_are_compared_as_addresses(source: str, peer: str, matches: bool) -> None:
    """Networks, compressed and expanded IPv6, and IPv4 inside of IPv6."""
    entries = [rule("Topic:a", sources=(source,))]
    assert allowed(entries, "a", host=ip_address(peer).packed) is matches
    assert not allowed(entries, "a", host=b"?")


@pytest.mark.parametrize("text", ["", "10.1.2", "10.1.2.3/40", "host", "10.0.0.*", "1.2.3.4 ,5"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """In RocketMQ's words."""
    with pytest.raises(NoPermission, match="The source ip is invalid"):
        parse_source(text)


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("*", Resource(Kind.ANY, Shape.ANY, "")),
        ("Topic:orders", Resource(Kind.TOPIC, Shape.LITERAL, "orders")),
        ("topic:Orders*", Resource(Kind.TOPIC, Shape.PREFIX, "Orders")),
        ("GROUP:*", Resource(Kind.GROUP, Shape.ANY, "")),
        ("Cluster:*", Resource(Kind.CLUSTER, Shape.ANY, "")),
        ("Topic:%RETRY%g", Resource(Kind.GROUP, Shape.LITERAL, "g")),
        ("Topic:%DLQ%g", Resource(Kind.GROUP, Shape.LITERAL, "g")),
    ],
)
def test_resources(text: str, resource: Resource) -> None:
    """Type names in any case, names as they are; the topic of a group is the group."""
    assert parse_resource(text) == resource
    assert parse_resource(str(resource)) == resource


@pytest.mark.parametrize(
    "text", ["", "Topic", "Topic:", "Queue:a", "Topic:a*b", "Any:x", ":", "a", "Topic:" + "a" * 400]
)
def test_a_resource_that_is_none_is_refused(text: str) -> None:
    """A star in the middle too: RocketMQ cuts what follows it."""
    with pytest.raises(InvalidParameter):
        parse_resource(text)


def test_actions() -> None:
    """Names in any case; none, Any and unknown ones are refused, not dropped."""
    assert parse_actions(["pub", "Sub"]) == Action.PUB | Action.SUB
    assert parse_actions(["ALL"]) == Action.ALL
    for words in ([], ["Any"], ["Pub", "Fly"], [""]):
        with pytest.raises(NoPermission):
            parse_actions(words)


def test_system_topics_and_groups_take_a_super_user() -> None:
    """But traces and replies can be sent."""
    own = frozenset(("RMQ_SYS_TRACE_TOPIC", "C_REPLY_TOPIC"))
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x", "TBW102"):
        assert not reachable(Kind.TOPIC, topic, Action.ALL, own_topics=own)
    for topic in own:
        assert reachable(Kind.TOPIC, topic, Action.PUB, own_topics=own)
        assert not reachable(Kind.TOPIC, topic, Action.SUB, own_topics=own)
    assert not reachable(Kind.GROUP, "CID_RMQ_SYS_TRANS", Action.SUB, own_topics=own)
    assert not reachable(Kind.GROUP, "TOOLS_CONSUMER", Action.SUB, own_topics=own)
    assert reachable(Kind.GROUP, "billing", Action.SUB, own_topics=own)
    assert reachable(Kind.TOPIC, "orders", Action.SUB, own_topics=own)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("alice", "12345678"), ("alice12", "alice12"), ("alice", ""), ("alice", " " * 9),
        ("alice", "short6"), ("alice", "x" * 257),
    ],
)  # fmt: skip
def test_a_secret_that_anybody_guesses_is_refused(name: str, secret: str) -> None:
    """RocketMQ's example, the name itself, blanks, and what clients would not send."""
    with pytest.raises(NoPermission):
        check_secret(name, secret)


@pytest.mark.parametrize("name", ["", "  ", "a b", "a\n", "../x", "a:b", "é", "x" * 129, "a/b"])
def test_a_name_that_could_mislead_is_refused(name: str) -> None:
    """Names of users stand in logs and in subjects."""
    with pytest.raises(InvalidParameter):
        check_name(name)


def test_a_book_is_a_value() -> None:
    """A change makes a new one with a higher version; what goes takes its rules along."""
    empty = Book()
    one = empty.with_user(User("a", b"s"), 10)
    two = one.with_entries("a", [rule("Topic:a"), rule("Topic:b")], 5)
    assert (empty.users, one.entries) == ({}, {})
    assert two.version > one.version > empty.version
    replaced = two.with_entries("a", [rule("Topic:a", Action.SUB)], 11)
    assert [one.actions for one in replaced.entries["a"]] == [Action.SUB, Action.ALL]
    less = replaced.without_entries("a", parse_resource("Topic:a"), PolicyType.CUSTOM, 12)
    assert [str(one.resource) for one in less.entries["a"]] == ["Topic:b"]
    assert less.without_entries("a", None, PolicyType.CUSTOM, 13).entries == {}
    assert less.without_user("a", 14) == Book(version=less.without_user("a", 14).version)
    assert less.without_user("b", 14) is less


def test_the_tables_are_bounded() -> None:
    """Too many entries, an unknown subject, an entry that is not there."""
    book = Book({"a": User("a", b"s")})
    many = [rule(f"Topic:{number}") for number in range(ENTRIES_MAX + 1)]
    with pytest.raises(InvalidParameter):
        book.with_entries("a", many, 1)
    for wrong in (
        lambda: book.with_entries("b", many[:1], 1),
        lambda: book.without_entries("a", None, PolicyType.CUSTOM, 1),
    ):
        with pytest.raises(BrokerError):
            wrong()


def test_counters_come_once_and_in_a_window() -> None:
    """Each counter once; at most 1,024 behind the highest."""
    seen = Counters()
    assert [seen.take(one) for one in (5, 5, 3, 6, 3, 4)] == [True, False, True, True, False, True]
    assert seen.take(5 + WINDOW)
    assert not seen.take(5)
    assert not seen.take(4)
    assert seen.take(7)
    assert not seen.take(7)
    assert seen.take(10**18)
    assert not seen.take(5 + WINDOW)
    assert repr(User("a", b"hidden")).count("hidden") == 0
