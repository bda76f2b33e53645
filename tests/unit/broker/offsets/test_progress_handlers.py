"""Codes 202, 208, 222, 300, 314, 343 and 353 against what a real broker answered."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import BrokerError
from inorder.model import GroupConfig, Subscription, TopicConfig, TopicQueue
from inorder.wire import fastjson
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData
from inorder.wire.requests.offsets import (
    ConsumeStats,
    QueueProgress,
    QueueStats,
    TopicStats,
    decode_queue_offsets,
)

T0, T1 = TopicQueue("t", "broker-a", 0), TopicQueue("t", "broker-a", 1)


@pytest.fixture
def stocked(broker: Any) -> Any:
    """Give topic t two read queues, three messages in queue 0 a second apart, and group g."""
    broker.topics.put(TopicConfig("t", 2, 2), 1)
    broker.groups.put(GroupConfig("g"), 1)
    for body in (b"a", b"b", b"c"):
        broker.put("t", 0, body)
        broker.clock.advance(1000)
    return broker


def reset(broker: Any, **more: str) -> Any:
    """Ask for a reset of group g on topic t."""
    fields = {"topic": "t", "group": "g", "timestamp": "-1", "isForce": "true", **more}
    return broker.ask(222, fields)


def test_topic_stats_tell_what_queues_hold(stocked: Any) -> None:
    """Offsets and the last store time of every queue, and the rate of the last minute."""
    answer = stocked.ask(202, {"topic": "t"})
    stats = TopicStats.decode(answer.body)
    last_ms = stocked.clock.now_ms() - 1000
    assert stats.queues[T0] == QueueStats(0, 3, last_ms)
    assert stats.queues[T1] == QueueStats(0, 0, 0)
    assert stats.put_rate == pytest.approx(3 / 60)
    assert answer.body.startswith(
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":'
    )
    stocked.clock.advance(120_000)
    assert TopicStats.decode(stocked.ask(202, {"topic": "t"}).body).put_rate == 0


def test_consume_stats_tell_how_far_a_group_is(stocked: Any) -> None:
    """Committed, pulled and end of every read queue; the time is that of the last one done."""
    stocked.offsets.commit("g", "t", 0, 1, 1)
    stocked.offsets.commit_pull("g", "t", 0, 2)
    stats = ConsumeStats.decode(stocked.ask(208, {"consumerGroup": "g"}).body)
    assert stats.queues[T0] == QueueProgress(3, 1, 2, stocked.clock.now_ms() - 3000)
    assert stats.queues[T1] == QueueProgress(0, 0, 0, 0)
    assert stats.queues[T0].lag == 2


@pytest.mark.parametrize(
    ("fields", "topics"),
    [
        ({}, {"t"}),
        ({"topic": "u"}, set()),
        ({"topic": "t"}, {"t"}),
        ({"topicList": "u;t"}, {"t", "u"}),
        ({"topicList": "nowhere"}, set()),
    ],
)
def test_an_online_group_shows_what_it_still_wants(
    stocked: Any, connect: Any, fields: dict[str, str], topics: set[str]
) -> None:
    """A topic it no longer subscribes to is left out, unless it is asked for in a list."""
    stocked.topics.put(TopicConfig("u", 1, 1), 1)
    stocked.offsets.commit("g", "t", 0, 1, 1)
    stocked.offsets.commit("g", "u", 0, 1, 1)
    data = ConsumerData("g", subscriptions=(Subscription("t", version=1),))
    stocked.ask(34, body=ClientHeartbeat("c", (data,)).encode(), connection=connect())
    answer = stocked.ask(208, {"consumerGroup": "g", **fields})
    assert {queue.topic for queue in ConsumeStats.decode(answer.body).queues} == topics


def test_groups_of_a_topic_and_topics_of_a_group(stocked: Any, connect: Any) -> None:
    """Groups with offsets and online subscribers; the topic itself is none of them."""
    stocked.offsets.commit("g", "t", 0, 1, 1)
    data = ConsumerData("online", subscriptions=(Subscription("t", version=1),))
    stocked.ask(34, body=ClientHeartbeat("c", (data,)).encode(), connection=connect())
    assert stocked.ask(300, {"topic": "t"}).body == b'{"groupList":["g","online"]}'
    assert stocked.ask(300, {"topic": "nowhere"}).body == b'{"groupList":[]}'
    assert stocked.ask(343, {"group": "g"}).body == (
        b'{"brokerAddr":"127.0.0.1:10911","topicList":["t"]}'
    )


@pytest.mark.parametrize(
    ("fields", "offsets"),
    [
        ({}, {T0: 3, T1: 0}),
        ({"timestamp": "0"}, {T0: 0, T1: 0}),
        ({"timestamp": "0", "queueId": "0"}, {T0: 0}),
        ({"queueId": "0", "offset": "2"}, {T0: 2}),
        ({"queueId": "-1", "offset": "-1"}, {T0: 3, T1: 0}),
    ],
)
def test_a_reset_sets_offsets_and_looks_at_waiting_pulls(
    stocked: Any, fields: dict[str, str], offsets: dict[TopicQueue, int]
) -> None:
    """The answer names each queue and its new offset, which is in force at once."""
    stocked.offsets.commit("g", "t", 0, 1, 1)
    answer = reset(stocked, **fields)
    assert decode_queue_offsets(answer.body) == offsets
    for queue, offset in offsets.items():
        asked = {"consumerGroup": "g", "topic": "t", "queueId": str(queue.index)}
        assert stocked.ask(14, asked).fields == {"offset": str(offset)}
    assert stocked.woken == [("t", queue.index) for queue in offsets]


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "nowhere"}, 17, "Topic nowhere does not exist"),
        ({"group": "nobody"}, 26, "Group nobody does not exist"),
        ({"queueId": "2"}, 29, "queueId 2 is illegal, topic t has 2 read queues"),
        ({"queueId": "0", "offset": "4"}, 1, "Target offset 4 not in consume queue range [0-3]"),
    ],
)
def test_an_impossible_reset_is_refused(
    stocked: Any, fields: dict[str, str], code: int, remark: str
) -> None:
    """Nothing is set when topic, group, queue or offset are not there."""
    with pytest.raises(BrokerError) as caught:
        reset(stocked, **fields)
    assert (caught.value.code, caught.value.remark) == (code, remark)
    assert stocked.offsets.queues("g", "t") == {}


def test_commits_do_not_count_until_a_reset_is_taken(stocked: Any) -> None:
    """Members that have yet to learn of the reset cannot undo it."""
    reset(stocked, timestamp="0")
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "3"}
    answer = stocked.ask(15, fields)
    assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
    assert stocked.offsets.query("g", "t", 0) == 0
    assert stocked.offsets.take_reset("g", "t", 0) == 0
    assert stocked.ask(15, fields).remark is None
    assert stocked.offsets.query("g", "t", 0) == 3


@pytest.mark.parametrize("fields", [{"topic": "t"}, {}])
def test_offsets_are_cloned(stocked: Any, fields: dict[str, str]) -> None:
    """Another group gets the offsets, on one topic or on all that still exist."""
    stocked.offsets.commit("g", "t", 0, 2, 1)
    stocked.offsets.commit("g", "gone", 0, 2, 1)
    answer = stocked.ask(314, {"srcGroup": "g", "destGroup": "h", "offline": "true", **fields})
    assert answer.code == 0
    assert stocked.offsets.queues("h", "t") == {0: 2}
    assert stocked.offsets.topics_of("h") == ["t"]


def test_a_group_is_forbidden_a_topic_and_allowed_again(stocked: Any) -> None:
    """The answer tells what holds now; only a change is saved."""
    fields = {"group": "g", "topic": "t"}
    stocked.saved.clear()
    for readable, saves in (("", 0), ("true", 0), ("false", 1), ("false", 1), ("true", 2)):
        answer = stocked.ask(353, {**fields, **({"readable": readable} if readable else {})})
        expected = {"group": "g", "readable": readable != "false", "topic": "t"}
        assert (answer.remark, fastjson.loads(answer.body)) == ("", expected)
        assert len(stocked.saved) == saves
    assert not stocked.groups.is_forbidden("g", "t")


@pytest.mark.parametrize(
    ("code", "fields", "answer"),
    [
        (314, {"srcGroup": "g", "destGroup": "not a name", "offline": "true"}, 26),
        (353, {"group": "nobody", "topic": "t", "readable": "false"}, 26),
        (353, {"group": "g", "topic": "nowhere", "readable": "false"}, 17),
    ],
)
def test_nothing_is_kept_for_what_is_not_there(
    stocked: Any, code: int, fields: dict[str, str], answer: int
) -> None:
    """Made-up names cannot fill the tables."""
    stocked.offsets.commit("g", "t", 0, 1, 1)
    with pytest.raises(BrokerError) as caught:
        stocked.ask(code, fields)
    assert caught.value.code == answer
    assert stocked.offsets.groups_of("t") == ["g"]
    assert not stocked.groups.is_forbidden(fields.get("group", "g"), fields.get("topic", "t"))
