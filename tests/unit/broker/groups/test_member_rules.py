"""Members: who counts, who is told, whose subscription it is."""

from __future__ import annotations

from typing import Any

from inorder.broker.groups.rules import GROUPS_PER_CONNECTION_MAX, Departed, Member, Members, Notice
from inorder.model import Subscription


def join(
    members: Members[str], connection: str, client: str = "c", now_ms: int = 0, **more: Any
) -> Notice[str] | None:
    """Send a heartbeat for group g."""
    topics = more.pop("topics", [("t", 1)])
    return members.register_consumer(
        "g",
        Member(connection, client, 0, 0, now_ms),
        consume_type="CONSUME_PASSIVELY",
        message_model=more.pop("message_model", "CLUSTERING"),
        consume_from="CONSUME_FROM_LAST_OFFSET",
        subscriptions=None
        if topics is None
        else [Subscription(topic, str(version), version=version) for topic, version in topics],
        **more,
    )


def test_a_new_member_is_told_to_all() -> None:
    """A new connection is announced to all members, itself included; a repeat is not."""
    members: Members[str] = Members()
    assert join(members, "x", "a") == Notice("g", ("x",))
    assert join(members, "y", "b") == Notice("g", ("x", "y"))
    assert join(members, "x", "a") is None


def test_other_topics_are_told_too() -> None:
    """Adding or removing a topic announces; a new version of one does not."""
    members: Members[str] = Members()
    join(members, "x")
    assert join(members, "x", topics=[("t", 2)]) is None
    assert join(members, "x", topics=[("t", 2), ("u", 1)]) is not None
    assert join(members, "x", topics=[("u", 1)]) is not None
    assert members.subscription("g", "t") is None
    assert members.subscribers("u") == ["g"]


def test_subscriptions_never_get_older() -> None:
    """A heartbeat with a lower version leaves the stored expression alone."""
    members: Members[str] = Members()
    join(members, "x", "a", topics=[("t", 5)])
    join(members, "y", "b", topics=[("t", 4)])
    found = members.subscription("g", "t")
    assert found is not None
    assert found.version == 5


def test_quiet_groups() -> None:
    """Broadcasting groups and groups that asked for it are not told; the last heartbeat counts."""
    members: Members[str] = Members()
    assert join(members, "x", "a", message_model="BROADCASTING") is None
    assert members.close("x").notices == []
    assert join(members, "x", "a", notify=False) is None
    assert join(members, "y", "b") == Notice("g", ("x", "y"))


def test_the_newest_connection_of_a_client_wins() -> None:
    """O29: a client that reconnects is one member; its old connection goes unnoticed."""
    members: Members[str] = Members()
    join(members, "old", "a")
    join(members, "other", "b")
    join(members, "new", "a")
    assert members.client_ids("g") == ["a", "b"]
    group = members.group("g")
    assert group is not None
    assert group.connection_of("a") == "new"
    departure = members.close("old")
    assert (departure.notices, departure.departed) == ([], [])
    departure = members.close("new")
    assert departure.departed == [Departed("g", "a")]
    assert departure.notices == [Notice("g", ("other",))]


def test_a_dead_connection_does_not_keep_a_client_alive() -> None:
    """When the newest connection goes, the silent old one goes with it."""
    members: Members[str] = Members()
    join(members, "old", "a")
    join(members, "new", "a")
    departure = members.unregister_consumer("g", "new")
    assert departure.departed == [Departed("g", "a")]
    assert members.client_ids("g") == []
    assert members.group("g") is None


def test_two_living_connections_of_one_client_id() -> None:
    """A superseded connection that still sends heartbeats lives and keeps the id."""
    members: Members[str] = Members()
    join(members, "one", "a")
    join(members, "two", "a")
    assert join(members, "one", "a") is None
    assert members.close("two").departed == []
    assert members.client_ids("g") == ["a"]


def test_heartbeats_without_subscriptions_keep_them() -> None:
    """None leaves the stored subscriptions alone, an empty list removes them."""
    members: Members[str] = Members()
    join(members, "x")
    join(members, "x", topics=None)
    assert members.subscription("g", "t") is not None
    join(members, "x", topics=[])
    assert members.subscription("g", "t") is None


def test_silent_connections_are_dropped_and_told() -> None:
    """After two minutes without heartbeat a connection goes, and unlike RocketMQ all are told."""
    members: Members[str] = Members()
    join(members, "quiet", "a", 0)
    join(members, "alive", "b", 0)
    members.register_producer("p", Member("quiet", "a", 0, 0, 0))
    join(members, "alive", "b", 100_000)
    assert members.expire(120_000, 120_000).connections == []
    departure = members.expire(120_001, 120_000)
    assert departure.connections == ["quiet"]
    assert departure.departed == [Departed("g", "a")]
    assert departure.notices == [Notice("g", ("alive",))]
    assert members.producers("p") == []


def test_closing_forgets_everything_of_a_connection() -> None:
    """Nothing is left of a connection that was in many groups."""
    members: Members[str] = Members()
    join(members, "x")
    members.register_producer("p", Member("x", "c", 0, 0, 0))
    members.close("x")
    assert members.groups() == []
    assert members.producers("p") == []
    assert members._groups_of == {}
    assert members._producers_of == {}


def test_producer_groups_of_a_connection_are_limited() -> None:
    """Garbage cannot fill the memory; known groups still count."""
    members: Members[str] = Members()
    for number in range(GROUPS_PER_CONNECTION_MAX):
        assert members.register_producer(f"p{number}", Member("x", "c", 0, 0, 0))
    assert not members.register_producer("more", Member("x", "c", 0, 0, 0))
    assert members.register_producer("p0", Member("x", "c", 0, 0, 5))
    assert members.producers("p0")[0].seen_ms == 5


def test_a_producer_is_found_by_its_client_id() -> None:
    """Its newest connection counts, until it is closed, unregistered, or has another id."""
    members: Members[str] = Members()
    assert members.producer_of("a") is None
    for connection, group, client in (("x", "p", "a"), ("x", "q", "a"), ("y", "p", "a")):
        assert members.register_producer(group, Member(connection, client, 0, 0, 0))
    assert members.producer_of("a") == "y"
    members.close("y")
    assert members.producer_of("a") == "x"
    members.unregister_producer("q", "x")
    assert members.producer_of("a") == "x"
    members.register_producer("p", Member("x", "b", 0, 0, 0))
    assert (members.producer_of("a"), members.producer_of("b")) == (None, "x")
    members.close("x")
    assert members.producer_of("b") is None
    assert not members._asking
