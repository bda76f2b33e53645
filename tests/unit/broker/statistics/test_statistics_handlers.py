"""Codes 303, 308, 315, 317 and 321."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import InvalidParameter, TopicNotFound
from inorder.model import Subscription
from inorder.wire.requests.statistics import (
    AllConsumeStats,
    QueueContents,
    QueueEntry,
    StatsData,
    decode_correction_offsets,
    decode_time_spans,
)
from tests.unit.broker.groups.test_member_handlers import beat


@pytest.fixture
def filled(broker: Any) -> Any:
    """Topic t with two queues: five messages ten seconds apart in the first, none in the other."""
    broker.topics.create_internal("t", 2, broker.clock.now_ms())
    for number in range(5):
        broker.clock.advance(10_000)
        broker.put("t", 0, b"%d" % number)
    broker.groups.find_or_create("g", auto_create=True, now_ms=0)
    return broker


def test_time_spans_say_how_late_a_group_is(filled: Any) -> None:
    """First, last and consumed message of each queue, and how long the next one has waited."""
    now_ms = filled.clock.now_ms()
    filled.offsets.commit("g", "t", 0, 2, now_ms)
    answer = filled.ask(303, {"topic": "t", "group": "g"})
    first, second = decode_time_spans(answer.body)
    assert (first.first_ms, first.last_ms) == (now_ms - 40_000, now_ms)
    assert (first.consumed_ms, first.delay_ms) == (now_ms - 30_000, 20_000)
    assert (second.first_ms, second.last_ms, second.delay_ms) == (-1, -1, 0)
    fresh = decode_time_spans(filled.ask(303, {"topic": "t", "group": "new"}).body)[0]
    assert (fresh.consumed_ms, fresh.delay_ms) == (now_ms - 40_000, 40_000)
    assert b'"minTimeStampStr":"20' in answer.body
    with pytest.raises(TopicNotFound):
        filled.ask(303, {"topic": "none", "group": "g"})


def test_correction_offsets_change_nothing(filled: Any) -> None:
    """RocketMQ deletes the offsets of the groups to leave out."""
    for group, offset in (("g", 2), ("h", 4)):
        filled.offsets.commit(group, "t", 0, offset, 0)
    fields = {"topic": "t", "compareGroup": "g", "filterGroups": "g"}
    found = decode_correction_offsets(filled.ask(308, fields).body)
    assert found == {0: (1 << 63) - 1}, "g is behind all others"
    assert filled.offsets.query("g", "t", 0) == 2
    del fields["filterGroups"]
    assert decode_correction_offsets(filled.ask(308, fields).body) == {0: 2}


def test_statistics_of_a_topic_come_from_the_log(filled: Any) -> None:
    """What was stored in the last minute, hour and day."""
    found = StatsData.decode(filled.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "t"}).body)
    assert (found.minute.sum, found.hour.sum, found.day.sum) == (5, 5, 5)
    assert found.minute.rate == pytest.approx(5 / 60)
    filled.clock.advance(35_000)
    found = StatsData.decode(filled.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "t"}).body)
    assert (found.minute.sum, found.hour.sum) == (3, 5)
    filled.clock.advance(3_600_000)
    found = StatsData.decode(filled.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "t"}).body)
    assert (found.minute.sum, found.hour.sum, found.day.sum) == (0, 0, 5)


def test_statistics_of_a_group_are_counted(filled: Any) -> None:
    """By topic and group; a group that was given nothing has none."""
    fields = {"statsName": "GROUP_GET_NUMS", "statsKey": "t@g"}
    answer = filled.ask(315, fields)
    assert (answer.code, answer.remark) == (1, "The stats <GROUP_GET_NUMS> <t@g> not exist")
    filled.deliveries.count("t", "g", 5, 500)
    assert StatsData.decode(filled.ask(315, fields).body).minute.sum == 5


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "none"), ("TOPIC_PUT_NUMS", ""), ("TOPIC_PUT_SIZE", "t"), ("", "")],
)
def test_unknown_statistics_do_not_exist(filled: Any, name: str, key: str) -> None:
    """RocketMQ's answer, with the words of its tools."""
    answer = filled.ask(315, {"statsName": name, "statsKey": key})
    assert (answer.code, answer.remark) == (1, f"The stats <{name}> <{key}> not exist")


def test_the_progress_of_all_groups(filled: Any, connect: Any) -> None:
    """Each topic with offsets; not one that an online group no longer subscribes to."""
    filled.topics.create_internal("u", 1, 0)
    for topic in ("t", "u", "gone"):
        filled.offsets.commit("g", topic, 0, 3, 0)
    filled.deliveries.count("t", "g", 6, 600)
    found = AllConsumeStats.decode(filled.ask(317, {"isOrder": "false"}).body)
    assert found.address == filled.address
    assert [sorted(q.topic for q in one.queues) for one in found.groups["g"]] == [["t", "t"], ["u"]]
    assert found.lag == 2
    assert "TOOLS_CONSUMER" in found.groups
    assert found.groups["TOOLS_CONSUMER"] == []
    assert AllConsumeStats.decode(filled.ask(317, {"isOrder": "true"}).body).groups["g"] == []
    filled.ask(34, body=beat("c", "g", ("u",)), connection=connect())
    found = AllConsumeStats.decode(filled.ask(317, {"isOrder": "false"}).body)
    assert [[q.topic for q in one.queues] for one in found.groups["g"]] == [["u"]]


def test_the_entries_of_a_queue(filled: Any, connect: Any) -> None:
    """Where its messages lie, with the subscription of a group that is online."""
    fields = {"topic": "t", "queueId": "0", "index": "1", "count": "2"}
    answer = filled.ask(321, fields)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    found = QueueContents.decode(answer.body)
    assert (found.first, found.end) == (0, 5)
    assert found.entries is not None
    assert [type(one) for one in found.entries] == [QueueEntry] * 2
    assert found.entries[0].position + found.entries[0].size == found.entries[1].position
    assert b"subscriptionData" not in answer.body
    offline = filled.ask(321, {**fields, "consumerGroup": "g"})
    assert b'"filterData":"g@t is not online!"' in offline.body
    filled.ask(34, body=beat("c", "g", ("t",)), connection=connect())
    assert filled.members.subscription("g", "t") == Subscription("t", version=1)
    online = filled.ask(321, {**fields, "consumerGroup": "g"})
    assert b'"filterData":"null"' in online.body
    assert b'"subscriptionData":{' in online.body


def test_entries_that_are_not_there(filled: Any) -> None:
    """An index beyond the end, an unknown queue, and too many at once."""
    fields = {"topic": "t", "queueId": "0", "index": "5", "count": "2"}
    answer = filled.ask(321, fields)
    assert (answer.code, answer.remark, answer.body) == (0, "Index 5 of 0@t is not exist!", b"")
    answer = filled.ask(321, {**fields, "queueId": "7"})
    assert (answer.code, answer.remark) == (1, "7@t is not exist!")
    with pytest.raises(InvalidParameter, match="at most 10000"):
        filled.ask(321, {**fields, "count": "10001"})
