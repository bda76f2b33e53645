"""Which queue a message goes to."""

from __future__ import annotations

from inorder.client.send.rules import FailedBrokers, RoundRobin, select_by_key
from inorder.model import TopicQueue

QUEUES = [TopicQueue("t", broker, index) for broker in ("a", "b") for index in range(2)]


def test_a_key_has_one_queue():
    """The same key, the same queue; many keys, all queues."""
    assert select_by_key(QUEUES, "order-42") == select_by_key(QUEUES, "order-42") == QUEUES[1]
    assert {select_by_key(QUEUES, f"order-{n}") for n in range(50)} == set(QUEUES)


def test_round_robin_takes_all_in_turn():
    """Each queue once per round, from anywhere."""
    turn = RoundRobin(3)
    assert [turn.select(QUEUES) for _ in range(5)] == [*QUEUES[3:], *QUEUES]


def test_round_robin_avoids_a_failing_broker():
    """Only the other broker's queues, in turn."""
    turn = RoundRobin()
    assert [turn.select(QUEUES, {"a"}) for _ in range(3)] == [QUEUES[2], QUEUES[3], QUEUES[2]]


def test_round_robin_tries_a_failing_broker_if_there_is_no_other():
    """Better a try than nothing."""
    assert RoundRobin(1).select(QUEUES, {"a", "b"}) == QUEUES[1]


def test_failed_brokers_are_avoided_for_a_while():
    """Until the time is over, or they worked again."""
    failed = FailedBrokers(100)
    assert list(failed.to_avoid(0)) == []
    failed.failed("a", 0)
    failed.failed("b", 50)
    assert set(failed.to_avoid(99)) == {"a", "b"}
    assert set(failed.to_avoid(100)) == {"b"}
    failed.worked("b")
    assert list(failed.to_avoid(101)) == []
