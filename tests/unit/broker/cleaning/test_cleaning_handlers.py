"""Codes 306, 316 and 329."""

from __future__ import annotations

from typing import Any

from inorder.broker.cleaning.service import RUNS_MAX


def test_queues_of_unknown_topics_go_unless_they_hold_messages(broker: Any) -> None:
    """The next start would create a topic with messages again, so it is not deleted."""
    for topic in ("known", "full"):
        broker.topics.create_internal(topic, 1, 0)
        broker.put(topic, 0, b"x")
    broker.store.queue("empty", 0)
    broker.topics.delete("full", 0)
    broker.offsets.commit("g", "empty", 0, 0, 0)
    assert broker.ask(316).code == 0
    assert sorted(broker.store.queues.topics()) == ["full", "known"]
    assert broker.offsets.topics_of("g") == []
    assert broker.store.end_offset("full", 0) == 1
    assert broker.housekeeping.flushes == 1


def test_log_files_are_deleted_until_none_has_expired(broker: Any) -> None:
    """Retention runs again and again, with an end, as in RocketMQ."""
    broker.housekeeping.to_clean = [10, 10, 3, 0, 7]
    assert broker.ask(329).code == 0
    assert broker.housekeeping.to_clean == [7]
    broker.housekeeping.to_clean = [1] * 100
    assert broker.ask(329).code == 0
    assert len(broker.housekeeping.to_clean) == 100 - RUNS_MAX


def test_queue_files_of_a_whole_log_stay(broker: Any) -> None:
    """Nothing has expired, so nothing goes."""
    broker.topics.create_internal("t", 1, 0)
    for number in range(300):
        broker.put("t", 0, b"%d" % number)
    assert broker.ask(306).code == 0
    assert (broker.store.min_offset("t", 0), broker.store.end_offset("t", 0)) == (0, 300)
