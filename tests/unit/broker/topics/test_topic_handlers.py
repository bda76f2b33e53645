"""Codes 17, 18, 21, 215, 305 and 351 against what a real broker answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inorder.errors import BrokerError, InvalidParameter, SystemError_
from inorder.model import TopicConfig
from inorder.wire.requests.topics import encode_topic_configs

FIELDS = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "true",
}


def test_a_topic_is_made_saved_and_registered(broker: Any) -> None:
    """Code 17 makes the topic; the answer waits for the name servers."""
    answer = broker.ask(17, {**FIELDS, "attributes": "+message.type=FIFO"})
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert not answer.has_fields
    assert broker.topics.get("orders") == TopicConfig(
        "orders", read_queues=4, write_queues=2, order=True, attributes={"message.type": "FIFO"}
    )
    assert broker.saved == ["topics"]
    assert broker.registration.changed == ["orders"]
    assert broker.registration.waited == 1


def test_the_same_topic_again_is_no_change(broker: Any) -> None:
    """Repeating a request saves nothing."""
    broker.ask(17, FIELDS)
    version = broker.topics.data_version.counter
    assert broker.ask(17, FIELDS).code == 0
    assert broker.topics.data_version.counter == version
    assert broker.saved == ["topics"]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"topic": "bad topic"}, 29, "illegal characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 29, "conflict with system topic."),
        ({"topic": "rmq_sys_new"}, 29, "conflict with system topic."),
        ({"attributes": "message.type=FIFO"}, 1, "format is wrong: message.type"),
        ({"attributes": "+no.such=1"}, 1, "unsupported key: no.such"),
        ({"attributes": "+queue.type=BatchCQ"}, 29, "queue.type=BatchCQ is not supported"),
        ({"attributes": "+cleanup.policy=COMPACTION"}, 29, "cleanup.policy=COMPACTION is not"),
        ({"topicFilterType": "ODD"}, 1, "topicFilterType = [ODD] value invalid"),
        ({"readQueueNums": "-1"}, 29, "queues"),
        ({"writeQueueNums": "70000"}, 29, "queues"),
        ({"perm": "16"}, 29, "perm"),
    ],
)
def test_what_is_refused(broker: Any, change: dict[str, str], code: int, text: str) -> None:
    """A wrong request is refused and changes nothing."""
    with pytest.raises(BrokerError) as caught:
        broker.ask(17, {**FIELDS, **change})
    assert caught.value.code == code
    assert text in caught.value.remark
    assert broker.saved == []
    assert broker.topics.data_version.counter == 0


def test_several_topics_are_made_or_none(broker: Any) -> None:
    """Code 18 checks all names before it makes the first."""
    good, bad = TopicConfig("one"), TopicConfig("bad topic")
    with pytest.raises(InvalidParameter):
        broker.ask(18, body=encode_topic_configs([good, bad]))
    assert "one" not in broker.topics
    mixed = TopicConfig("two", attributes={"+message.type": "MIXED"})
    with pytest.raises(InvalidParameter, match="MIXED"):
        broker.ask(18, body=encode_topic_configs([mixed]))
    body = encode_topic_configs([good, TopicConfig("two")])
    assert broker.ask(18, body=body).code == 0
    assert broker.saved == ["topics"]
    assert broker.registration.changed == ["one", "two"]


def test_deleting_takes_queues_offsets_and_held_pulls(broker: Any) -> None:
    """Code 215 removes all that belongs to a topic, and POP retry topics of its groups."""
    broker.ask(17, FIELDS)
    broker.put("orders", 0, b"x")
    broker.offsets.commit("g", "orders", 0, 1, 1)
    broker.topics.put(TopicConfig("%RETRY%g_orders"), 1)
    answer = broker.ask(215, {"topic": "orders"})
    assert answer.code == 0
    assert not answer.has_fields
    assert "orders" not in broker.topics
    assert "%RETRY%g_orders" not in broker.topics
    assert broker.store.find_queue("orders", 0) is None
    assert broker.offsets.query("g", "orders", 0) == -1
    assert broker.gone == ["orders", "%RETRY%g_orders"]
    assert broker.ask(30, {"topic": "orders", "queueId": "0"}).fields == {"offset": "0"}


def test_deleting_what_is_not_there_or_not_yours(broker: Any) -> None:
    """An unknown topic is no error; a system topic and a blank name are."""
    assert broker.ask(215, {"topic": "NoSuchTopic"}).code == 0
    assert broker.saved == []
    with pytest.raises(InvalidParameter, match="The specified topic is blank"):
        broker.ask(215, {"topic": ""})
    with pytest.raises(InvalidParameter, match="conflict with system topic"):
        broker.ask(215, {"topic": "TBW102"})


def test_topics_are_listed(broker: Any) -> None:
    """Code 21 answers all topics with their version, whatever page was asked for."""
    answer = broker.ask(21, {"topicSeq": "0", "maxTopicNum": "3"})
    table = json.loads(answer.body)
    assert answer.has_fields
    assert answer.fields == {}
    assert set(table["topicConfigTable"]) == set(broker.topics.names())
    assert table["dataVersion"]["counter"] == 0
    assert table["topicConfigTable"]["TBW102"]["perm"] == 7


def test_one_topic_is_shown(broker: Any) -> None:
    """Code 351 answers a topic's configuration; an unknown topic is 17."""
    answer = broker.ask(351, {"topic": "broker-a", "lo": "true"})
    assert answer.body == (
        b'{"attributes":{},"order":false,"perm":7,"readQueueNums":1,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"broker-a","topicSysFlag":0,"writeQueueNums":1}'
    )
    answer = broker.ask(351, {"topic": "NoSuchTopic"})
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: NoSuchTopic")


def test_system_topics_are_listed(broker: Any) -> None:
    """Code 305 answers the same names as a real broker of this cluster and name."""
    names = set(json.loads(broker.ask(305).body)["topicList"])
    assert names == {
        "RMQ_SYS_TRANS_HALF_TOPIC", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT", "TBW102", "rmq_sys_REVIVE_LOG_DefaultCluster", "SELF_TEST_TOPIC",
        "DefaultCluster", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC",
        "DefaultCluster_REPLY_TOPIC", "rmq_sys_wheel_timer", "CHECKPOINT_TOPIC",
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "broker-a",
    }  # fmt: skip


def test_too_many_topics_is_said(broker: Any) -> None:
    """At the limit the refusal names the limit."""
    broker.topics.topics_max = 0
    with pytest.raises(SystemError_, match="topics_max"):
        broker.ask(17, FIELDS)
