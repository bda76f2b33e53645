"""Who waits for messages, and until when."""

from __future__ import annotations

import pytest

from inorder.broker.pops.polls import Poll, PollKey, Polls

ANY = PollKey("orders", "billing", -1)
ONE = PollKey("orders", "billing", 1)
OTHER = PollKey("orders", "audit", -1)


def polls(**changes: int) -> Polls[int, str]:
    limits = {"total_max": 9, "key_max": 9, "keys_max": 9, "connection_max": 9, **changes}
    return Polls(**limits)


def poll(name: str, key: PollKey = ANY, *, connection: int = 1, at_ms: int = 100) -> Poll[int, str]:
    return Poll(connection, name, key, at_ms)


def names(found: list[Poll[int, str]]) -> list[str]:
    return [one.request for one in found]


def test_a_topic_is_found_by_its_own_name_and_by_its_retry_topics() -> None:
    """Each group has one; the oldest waits first."""
    table = polls()
    for one in (poll("a"), poll("b"), poll("c", ONE), poll("d", OTHER)):
        assert table.hold(one)
    assert table.keys_of_topic("orders") == [ANY, ONE, OTHER]
    assert table.keys_of_topic("%RETRY%billing_orders") == [ANY, ONE]
    assert table.keys_of_topic("%RETRY%audit_orders") == [OTHER]
    assert table.keys_of_topic("%RETRY%audit") == []
    assert table.keys_of_group("billing") == [ANY, ONE]
    assert (names(table.of(ANY)), table.count(ANY), len(table)) == (["a", "b"], 2, 4)


@pytest.mark.parametrize(
    ("limits", "held"),
    [
        ({"total_max": 2}, [True, True, False, False]),
        ({"key_max": 1}, [True, False, True, True]),
        ({"keys_max": 2}, [True, True, True, False]),
        ({"connection_max": 3}, [True, True, True, False]),
    ],
)
def test_waits_are_bounded(limits: dict[str, int], held: list[bool]) -> None:
    """In all, for a key, by keys, and of a connection."""
    table = polls(**limits)
    keys = (ANY, ANY, ONE, OTHER)
    assert [table.hold(poll("x", key)) for key in keys] == held
    assert len(table) == sum(held)


def test_a_wait_ends_once() -> None:
    """Answered, over, or dropped with its connection; then its key is unknown."""
    table = polls()
    first, second, third = poll("a", at_ms=50), poll("b", connection=2), poll("c", ONE, at_ms=60)
    for one in (first, second, third):
        table.hold(one)
    assert (table.next_deadline_ms(), table.expire(49)) == (50, [])
    assert names(table.expire(55)) == ["a"]
    table.end(first)
    table.drop_connection(2)
    assert (len(table), second.ended) == (1, True)
    assert table.keys_of_topic("orders") == [ONE]
    table.end(third)
    assert table.keys_of_topic("%RETRY%billing_orders") == []
    assert (table.keys_of_group("billing"), table.next_deadline_ms()) == ([], None)
    assert table.expire(999) == []


def test_what_ended_early_does_not_pile_up() -> None:
    """A pop that is answered at once leaves no deadline behind for long."""
    table = polls()
    for number in range(1000):
        one = poll(str(number), at_ms=10_000 + number)
        table.hold(one)
        table.end(one)
    assert len(table._deadlines) <= 64 + 2


def test_all_of_some_keys_are_taken() -> None:
    """For a topic that is deleted, and a broker that stops."""
    table = polls()
    for one in (poll("a"), poll("b", ONE), poll("c", OTHER)):
        table.hold(one)
    assert names(table.take([ONE])) == ["b"]
    assert names(table.take_all()) == ["a", "c"]
    assert len(table) == 0
