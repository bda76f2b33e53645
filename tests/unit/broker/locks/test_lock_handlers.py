"""Codes 41 and 42."""

from __future__ import annotations

import json
from typing import Any

from inorder.model import TopicQueue
from inorder.wire.requests.leases import LockBatchBody, LockedQueues

QUEUES = tuple(TopicQueue("t", "broker-a", index) for index in range(3))


def test_locks_are_granted_to_one_client(broker: Any) -> None:
    """The second client gets what the first does not have; renewing grants the same again."""
    answer = broker.ask(41, body=LockBatchBody("a", "g", QUEUES[:2]).encode())
    assert answer.code == 0
    assert not answer.has_fields
    assert set(LockedQueues.decode(answer.body).queues) == set(QUEUES[:2])
    answer = broker.ask(41, body=LockBatchBody("b", "g", QUEUES[1:]).encode())
    assert LockedQueues.decode(answer.body).queues == QUEUES[2:]
    answer = broker.ask(41, body=LockBatchBody("a", "g", QUEUES).encode())
    assert set(LockedQueues.decode(answer.body).queues) == set(QUEUES[:2])
    assert broker.housekeeping.lock_deadlines == 3


def test_nothing_granted_is_still_a_body(broker: Any) -> None:
    """Clients cannot stand a missing body."""
    broker.ask(41, body=LockBatchBody("a", "g", QUEUES).encode())
    answer = broker.ask(41, body=LockBatchBody("b", "g", QUEUES).encode())
    assert json.loads(answer.body) == {"lockOKMQSet": []}


def test_unlocking_tells_the_group(broker: Any, connect: Any) -> None:
    """What is released can be taken at once, and the members are told; others' locks stay."""
    broker.ask(41, body=LockBatchBody("a", "g", QUEUES).encode())
    assert broker.ask(42, body=LockBatchBody("b", "g", QUEUES).encode()).code == 0
    assert broker.notified == []
    assert broker.ask(42, body=LockBatchBody("a", "g", QUEUES[:1]).encode()).code == 0
    assert broker.notified == [("g", [])]
    answer = broker.ask(41, body=LockBatchBody("b", "g", QUEUES).encode())
    assert LockedQueues.decode(answer.body).queues == QUEUES[:1]
