"""Codes 14, 15 and 29 to 32 against what a real broker answered."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import InvalidParameter, SystemError_


def query(broker: Any, topic: str = "t", queue: int = 0, **more: str) -> Any:
    """Ask for the offset of group g."""
    fields = {"consumerGroup": "g", "topic": topic, "queueId": str(queue), **more}
    return broker.ask(14, fields)


def test_a_stored_offset_is_answered(broker: Any) -> None:
    """The stored offset comes back, also on a queue that the topic does not have."""
    broker.offsets.commit("g", "t", 99, 5, 1)
    answer = query(broker, queue=99)
    assert (answer.code, answer.fields, answer.remark) == (0, {"offset": "5"}, None)


def test_o28_an_empty_queue_is_answered_with_its_end(broker: Any) -> None:
    """A new group on an empty queue starts at its end, so no message can fall between."""
    broker.topics.create_on_send("t", "TBW102", 4, 1)
    assert query(broker).fields == {"offset": "0"}
    broker.put("t", 0, b"x")
    queue = broker.store.find_queue("t", 0)
    queue.min_offset = queue.visible_offset  # what retention leaves of a queue
    assert query(broker).fields == {"offset": "1"}


def test_a_young_queue_starts_at_zero(broker: Any) -> None:
    """While the first message is there and in memory a new group starts with it."""
    broker.topics.create_on_send("t", "TBW102", 4, 1)
    broker.put("t", 0, b"x")
    assert query(broker).fields == {"offset": "0"}
    broker.store.reader.hot_bytes = 0
    answer = query(broker)
    assert answer.code == 22
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    assert answer.fields == {}
    assert answer.has_fields


def test_an_older_queue_has_no_default_start(broker: Any) -> None:
    """When the first messages are gone the client decides where to start."""
    broker.topics.create_on_send("t", "TBW102", 4, 1)
    broker.put("t", 0, b"x")
    broker.put("t", 0, b"y")
    broker.store.find_queue("t", 0).min_offset = 1
    assert query(broker).code == 22


def test_unknown_topics_and_queues_have_no_start(broker: Any) -> None:
    """An unknown topic, or a queue it does not have, is not found."""
    assert query(broker, "NoSuchTopic").code == 22
    broker.topics.create_on_send("t", "TBW102", 4, 1)
    assert query(broker, queue=4).code == 22
    assert query(broker, queue=-1).code == 22


def test_a_client_may_want_no_default(broker: Any) -> None:
    """With setZeroIfNotFound=false only a stored offset is answered."""
    broker.topics.create_on_send("t", "TBW102", 4, 1)
    answer = query(broker, setZeroIfNotFound="false")
    assert answer.code == 22
    assert answer.remark == "Not found, do not set to zero, maybe this group boot first"


def test_commits_are_checked_and_stored(broker: Any) -> None:
    """Group, topic, queue id and offset are checked in RocketMQ's order and words."""
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "3"}
    answer = broker.ask(15, fields)
    assert (answer.code, answer.remark, answer.fields) == (26, "Group g not exist!", {})
    broker.find_group("g")
    answer = broker.ask(15, fields)
    assert (answer.code, answer.remark) == (17, "Topic t not exist!")
    broker.topics.create_on_send("t", "TBW102", 4, 1)
    answer = broker.ask(15, {k: v for k, v in fields.items() if k != "queueId"})
    assert (answer.code, answer.remark) == (29, "QueueId is null, topic is t")
    answer = broker.ask(15, {k: v for k, v in fields.items() if k != "commitOffset"})
    assert (answer.code, answer.remark) == (29, "Offset is null, topic is t")
    with pytest.raises(InvalidParameter, match="beyond the end"):
        broker.ask(15, fields)
    for body in (b"a", b"b", b"c"):
        broker.put("t", 0, body)
    assert broker.ask(15, fields).code == 0
    assert broker.offsets.query("g", "t", 0) == 3
    assert broker.ask(15, {**fields, "commitOffset": "1"}).code == 0
    assert broker.offsets.query("g", "t", 0) == 1
    assert broker.ask(15, {**fields, "commitOffset": "-1"}).code == 0
    assert broker.offsets.query("g", "t", 0) == 1
    assert broker.ask(15, {**fields, "queueId": "99", "commitOffset": "0"}).code == 0


def test_ends_of_a_queue(broker: Any) -> None:
    """Smallest, next and earliest are answered; an unknown queue has 0, 0 and -1."""
    fields = {"topic": "t", "queueId": "0"}
    assert broker.ask(30, fields).fields == {"offset": "0"}
    assert broker.ask(31, fields).fields == {"offset": "0"}
    assert broker.ask(32, fields).fields == {"timestamp": "-1"}
    first_ms = broker.clock.now_ms()
    broker.put("t", 0, b"x")
    broker.put("t", 0, b"y")
    assert broker.ask(30, fields).fields == {"offset": "2"}
    assert broker.ask(31, fields).fields == {"offset": "0"}
    assert broker.ask(32, fields).fields == {"timestamp": str(first_ms)}


def test_offsets_by_time(broker: Any) -> None:
    """The lower boundary is the first at or after a time, the upper one the last at or before."""
    times = []
    for body in (b"a", b"b", b"c"):
        broker.clock.advance(100)
        times.append(broker.clock.now_ms())
        broker.put("t", 0, body)

    def at(timestamp_ms: int, **more: str) -> str:
        fields = {"topic": "t", "queueId": "0", "timestamp": str(timestamp_ms), **more}
        return str(broker.ask(29, fields).fields["offset"])

    assert at(0) == "0"
    assert at(times[1]) == "1"
    assert at(times[1] + 1) == "2"
    assert at(times[2] + 1) == "3"
    assert at(times[2] + 1, boundaryType="upper") == "2"
    assert at(times[1], boundaryType="LOWER") == "1"


def test_a_missing_field_is_named(broker: Any) -> None:
    """Without a required field the answer says which."""
    with pytest.raises(SystemError_, match="queueId"):
        broker.ask(30, {"topic": "t"})
