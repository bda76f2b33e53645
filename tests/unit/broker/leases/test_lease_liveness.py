"""Signs of life: who is left out of the list of members."""

from __future__ import annotations

from inorder.broker.groups.rules import Member, Members
from inorder.broker.leases.rules import MemberLiveness


def silent(signs: MemberLiveness[str], now_ms: int, *unread: str) -> list[tuple[str, str]]:
    return signs.missed(now_ms, lambda connection: connection in unread)


def test_who_says_nothing_for_its_span_is_silent_once() -> None:
    """Every sign counts from when it came; only who has begun is expected to go on."""
    signs: MemberLiveness[str] = MemberLiveness()
    assert not signs.note("g", "a", 0), "a commit of somebody who never leased"
    assert signs.note("g", "a", 0, 5000)
    assert not signs.note("g", "a", 3000)
    assert signs.next_deadline_ms() == 5000
    assert not signs.is_due(7999)
    assert signs.next_deadline_ms() == 8000
    assert signs.is_due(8000)
    assert silent(signs, 7999) == []
    assert signs.next_deadline_ms() == 8000
    assert silent(signs, 8000) == [("g", "a")]
    assert silent(signs, 99_000) == []
    assert signs.note("g", "a", 99_000, 5000), "it is back"


def test_who_is_not_read_may_have_spoken() -> None:
    """It is looked at again a little later."""
    signs: MemberLiveness[str] = MemberLiveness()
    signs.note("g", "a", 0, 800)
    assert silent(signs, 800, "a") == []
    assert signs.next_deadline_ms() == 901
    assert silent(signs, 901) == [("g", "a")]


def test_who_went_is_forgotten() -> None:
    """Of a connection all groups, of a group only that."""
    signs: MemberLiveness[str] = MemberLiveness()
    for group, connection in (("g", "a"), ("h", "a"), ("g", "b")):
        signs.note(group, connection, 0, 100)
    signs.forget(lambda _, connection: connection == "a")
    assert (len(signs), silent(signs, 100)) == (1, [("g", "b")])


def members() -> Members[str]:
    table: Members[str] = Members()
    for connection, client_id in (("c1", "a"), ("c2", "b")):
        beat(table, connection, client_id)
    return table


def beat(table: Members[str], connection: str, client_id: str) -> object:
    return table.register_consumer(
        "g", Member(connection, client_id, 0, 0, 0), consume_type="p", message_model="CLUSTERING",
        consume_from="last", subscriptions=None,
    )  # fmt: skip


def test_a_silent_member_is_not_listed_and_keeps_its_place() -> None:
    """It is still told of changes, and its connection is still a member's."""
    table = members()
    assert table.silence("g", "c1")
    assert not table.silence("g", "c1")
    assert not table.silence("h", "c1")
    assert table.client_ids("g") == ["b"]
    assert table.connections("g") == ("c1", "c2")
    assert table.client_id("g", "c1") == "a"


def test_a_member_that_is_heard_again_is_listed_again() -> None:
    """By its own request or a heartbeat; both tell the group."""
    table = members()
    table.silence("g", "c1")
    notice = table.heard("g", "c1")
    assert notice is not None
    assert notice.connections == ("c1", "c2")
    assert table.heard("g", "c1") is None
    table.silence("g", "c1")
    assert beat(table, "c1", "a") is not None
    assert beat(table, "c1", "a") is None
    assert table.client_ids("g") == ["a", "b"]


def test_a_client_that_is_back_on_another_connection_is_listed() -> None:
    """The silent one is superseded and does not matter."""
    table = members()
    table.silence("g", "c1")
    beat(table, "c3", "a")
    assert table.client_ids("g") == ["a", "b"]
    assert not table.silence("g", "c1")
