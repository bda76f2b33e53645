"""Members of a group that want different things: the rule that finds them, and who is a member."""

from __future__ import annotations

import pytest

from inorder import errors
from inorder.broker.groups.rules import Member, Members, differences, in_words, wishes_of
from inorder.errors import BROKER_ERRORS
from inorder.wire.extensions import ExtensionAnswer
from inorder.wire.requests.connections import ConsumerConnections, Difference
from inorder.wire.requests.pulls import parse_subscription


def wishes(**topics: str) -> dict[str, str]:
    return wishes_of(parse_subscription(topic, text) for topic, text in topics.items())


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, ()),
        ({"a": wishes(t="*")}, ()),
        ({"a": wishes(t="*"), "b": wishes(t="*")}, ()),
        ({"a": wishes(t="x || y"), "b": wishes(t="y||x")}, ()),  # a set, however it is written
        ({"a": wishes(t=""), "b": wishes(t="*")}, ()),
        (
            {"a": wishes(t="paid"), "b": wishes(t="shipped")},
            (Difference("t", (("paid", ("a",)), ("shipped", ("b",)))),),
        ),
        (
            {"a": wishes(t="paid"), "b": wishes(t="*"), "c": wishes(t="*")},
            (Difference("t", (("*", ("b", "c")), ("paid", ("a",)))),),
        ),
        (
            {"a": wishes(t="*", u="*"), "b": wishes(t="*")},
            (Difference("u", ((None, ("b",)), ("*", ("a",)))),),
        ),
        (
            {"a": wishes(t="*"), "b": wishes(u="*")},
            (
                Difference("t", ((None, ("b",)), ("*", ("a",)))),
                Difference("u", ((None, ("a",)), ("*", ("b",)))),
            ),
        ),
    ],
)
def test_topics_that_members_want_differently(
    members: dict[str, dict[str, str]], expected: tuple[Difference, ...]
) -> None:
    """Other tags, or a topic that is not subscribed at all; the spelling does not matter."""
    assert differences(members) == expected


def test_the_retry_topic_is_no_wish_and_other_filters_are() -> None:
    """Every member has the first; an SQL filter is told apart from tags."""
    found = wishes_of(
        [parse_subscription("%RETRY%g", "*"), parse_subscription("t", "a > 1", 0, "SQL92")]
    )
    assert found == {"t": "SQL92: a > 1"}


def test_words_name_subscriptions_and_members_and_are_bounded() -> None:
    """Three members and subscriptions a topic, five topics; long tags are cut."""
    (one,) = differences({"a": wishes(t="paid"), "b": wishes(t="shipped")})
    assert in_words([one]) == "topic t: 'paid' by a, 'shipped' by b"
    (missing,) = differences({"a": wishes(t="*"), "b": {}})
    assert in_words([missing]) == "topic t: not subscribed by b, '*' by a"
    many = {f"c{number}": wishes(t="x" * 5000) for number in range(50)}
    topics = {f"t{number}": "y" for number in range(20)}
    text = in_words(differences({**many, "z": {**wishes(t="*"), **topics}}))
    assert "c0, c1, c10 and 47 more" in text
    assert "and 16 more topics" in text
    assert len(text) < 1000


def join(members: Members[str], connection: str, client_id: str, text: str | None, **more) -> None:
    members.register_consumer(
        "g",
        Member(connection, client_id, 0, 0, 0),
        consume_type="CONSUME_PASSIVELY",
        message_model=more.get("model", "CLUSTERING"),
        consume_from="",
        subscriptions=None if text is None else [parse_subscription("t", text)],
    )


def test_a_group_knows_who_differs_as_members_come_change_and_go() -> None:
    """By the newest connection of each client; a heartbeat without subscriptions changes none."""
    members: Members[str] = Members()
    join(members, "1", "a", "paid")
    group = members.group("g")
    assert group is not None
    assert group.differences() == ()
    join(members, "2", "b", "shipped")
    assert [one.topic for one in group.differences()] == ["t"]
    join(members, "2", "b", None)
    assert [one.topic for one in group.differences()] == ["t"]
    join(members, "3", "b", "paid")  # it came back with another mind
    assert group.differences() == ()
    join(members, "4", "c", "x")
    assert group.differences() != ()
    members.unregister_consumer("g", "4")
    assert group.differences() == ()


def test_a_broadcasting_group_may_differ() -> None:
    """Every member gets everything and keeps its own offsets."""
    members: Members[str] = Members()
    join(members, "1", "a", "paid", model="BROADCASTING")
    join(members, "2", "b", "shipped", model="BROADCASTING")
    group = members.group("g")
    assert group is not None
    assert group.differences() == ()


@pytest.mark.parametrize(
    ("client_id", "text", "refused"),
    [
        ("c", "shipped", True),
        ("c", "paid", False),
        ("a", "paid", False),  # a member as it is
        ("a", "shipped", True),  # another mind than the others
    ],
)
def test_who_would_make_a_group_differ(client_id: str, text: str, refused: bool) -> None:
    """One who joins with other subscriptions, or changes its own."""
    members: Members[str] = Members()
    join(members, "1", "a", "paid")
    join(members, "2", "b", "paid")
    found = members.would_differ("g", client_id, [parse_subscription("t", text)])
    assert bool(found) is refused


def test_the_only_member_may_change_its_mind() -> None:
    """And in a group that differs already nobody is put out who stays as it is."""
    members: Members[str] = Members()
    join(members, "1", "a", "paid")
    assert members.would_differ("g", "a", [parse_subscription("t", "shipped")]) == ()
    join(members, "2", "b", "shipped")
    assert members.would_differ("g", "a", [parse_subscription("t", "paid")]) == ()


def test_differences_travel_with_the_connections_of_a_group() -> None:
    """And are absent where there are none: that answer is RocketMQ's."""
    found = differences({"a": wishes(t="paid"), "b": {}})
    answer = ConsumerConnections(differences=found)
    assert ConsumerConnections.decode(answer.encode()).differences == found
    assert b"inorder" not in ConsumerConnections().encode()


def test_every_answer_of_ours_has_a_code_of_its_own() -> None:
    """And the error of our client that stands for it has the same."""
    raised = {kind.__name__: code for code, kind in BROKER_ERRORS.items()}
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    own = {kind.__name__: kind.code for kind in classes if "code" in vars(kind)}
    assert {name: own[name] for name in raised} == raised
    codes = [code for code in own.values() if code >= 7000]
    assert sorted(codes) == sorted(set(codes))
    assert set(codes) <= {int(answer) for answer in ExtensionAnswer}
