"""Brokers that a route has lost: who they are, and for how long they are waited for."""

from __future__ import annotations

from inorder.client.rules.routes import ABSENT_MS, Absences
from inorder.wire.requests.routes import BrokerData, QueueData, TopicRoute


def route(*brokers: str, perm: int = 6, queues: int = 2) -> TopicRoute:
    return TopicRoute(
        tuple(BrokerData("C", name, {0: f"{name}:1"}) for name in brokers),
        tuple(QueueData(name, queues, queues, perm) for name in brokers),
    )


def test_a_broker_that_leaves_the_route_is_absent_for_a_while():
    """Until it is back, or was away for too long; asking again does not begin the time anew."""
    absences = Absences()
    assert not absences.note("t", None, route("a", "b"), 0)
    assert absences.of("t", 0) == frozenset()
    assert absences.note("t", route("a", "b"), route("a"), 100)
    assert not absences.note("t", route("a"), route("a", queues=3), 5000)
    assert absences.of("t", 99 + ABSENT_MS) == {"b"}
    assert absences.of("t", 100 + ABSENT_MS) == frozenset()


def test_a_broker_that_is_back_is_absent_no_more():
    """And counts from the beginning when it leaves again."""
    absences = Absences()
    absences.note("t", route("a", "b"), route("a"), 0)
    assert not absences.note("t", route("a"), route("a", "b"), 10)
    assert absences.of("t", 10) == frozenset()
    assert absences.note("t", route("a", "b"), route("a"), 50_000)
    assert absences.of("t", ABSENT_MS) == {"b"}


def test_fewer_queues_or_rights_are_no_absence():
    """The broker is there and says so itself: those queues are gone."""
    absences = Absences()
    assert not absences.note("t", route("a", "b"), route("a", "b", queues=1), 0)
    assert not absences.note("t", route("a", "b"), route("a", "b", perm=0), 0)
    assert absences.of("t", 0) == frozenset()


def test_topics_are_apart_and_a_deleted_one_waits_for_nobody():
    """A broker may be away for one name server's view of one topic only."""
    absences = Absences()
    assert absences.note("t", route("a", "b"), route("a"), 0)
    assert absences.note("u", route("a", "b"), route("b"), 0)
    assert (absences.of("t", 1), absences.of("u", 1)) == ({"b"}, {"a"})
    absences.forget("t")
    assert (absences.of("t", 1), absences.of("u", 1)) == (frozenset(), {"a"})
