"""Held pulls: each ends once, and ended ones cost nothing."""

from __future__ import annotations

from inorder.broker.pulls.rules import PullWaits, Wait, WaitStatistics

KEY = ("t", 0)


def test_waits_are_taken_in_order_of_arrival() -> None:
    """Whoever waits longest is served first, once."""
    waits: PullWaits[str, int] = PullWaits()
    for number in range(3):
        assert waits.hold(KEY, Wait("x", number), 100)
    assert KEY in waits
    assert [wait.request for wait in waits.take_ready(KEY)] == [0, 1, 2]
    assert waits.take_ready(KEY) == []
    assert KEY not in waits
    assert waits.expire(1000) == []
    assert waits.next_deadline_ms() is None


def test_too_many_waits_are_refused() -> None:
    """Above the limit a pull is not held, and counted."""
    waits: PullWaits[str, int] = PullWaits(waits_max=1)
    assert waits.hold(KEY, Wait("x", 0), 100)
    assert not waits.hold(KEY, Wait("x", 1), 100)
    assert waits.statistics() == WaitStatistics(1, 1, 0, 0, 0, 1)


def test_waits_expire_at_their_deadline() -> None:
    """The earliest deadline comes first, and each wait knows its own."""
    waits: PullWaits[str, int] = PullWaits()
    waits.hold(KEY, Wait("x", 1), 200)
    waits.hold(("t", 1), Wait("y", 2), 100)
    assert waits.next_deadline_ms() == 100
    assert waits.expire(99) == []
    (first,) = waits.expire(100)
    assert (first.request, first.deadline_ms, first.key) == (2, 100, ("t", 1))
    assert [wait.request for wait in waits.expire(500)] == [1]


def test_closed_connections_and_deleted_topics_let_go() -> None:
    """The pulls of a connection are forgotten, those of a topic handed back."""
    waits: PullWaits[str, int] = PullWaits()
    waits.hold(KEY, Wait("x", 1), 100)
    waits.hold(("t", 5), Wait("y", 2), 100)
    waits.hold(("u", 0), Wait("y", 3), 100)
    assert waits.drop_connection("x") == 1
    assert [wait.request for wait in waits.drop_topic("t")] == [2]
    assert [wait.request for wait in waits.take_all()] == [3]
    assert len(waits) == 0


def test_ended_waits_do_not_pile_up() -> None:
    """A busy queue whose pulls are held and woken all the time needs bounded memory."""
    waits: PullWaits[str, int] = PullWaits()
    for number in range(10_000):
        waits.hold(KEY, Wait("x", number), 1_000_000)
        waits.take_ready(KEY)
    assert len(waits._deadlines) <= 64
    assert waits._by_connection == {}
