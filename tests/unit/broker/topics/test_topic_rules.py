"""Topics: how they come into being, and the file that holds them."""

from __future__ import annotations

import pytest

from inorder.broker.topics.rules import TopicTable
from inorder.errors import RemoteProtocolError, SystemError_
from inorder.model import TopicConfig
from inorder.wire import fastjson
from inorder.wire.names import validate_group, validate_topic
from inorder.wire.requests.topics import topic_config_to_json


def table(**settings: object) -> TopicTable:
    """Make the table of a broker."""
    return TopicTable(cluster="DefaultCluster", broker="broker-a", now_ms=1000, **settings)  # type: ignore[arg-type]


def test_system_topics_are_there_from_the_start() -> None:
    """A new broker has RocketMQ's system topics with their queues and permissions."""
    topics = table()
    found = {config.name: (config.write_queues, config.perm) for config in topics}
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    assert topics.data_version.counter == 0
    assert topics.is_system("TRANS_CHECK_MAX_TIME_TOPIC")
    assert topics.is_system("rmq_sys_anything")
    assert not topics.is_system("orders")


def test_a_send_makes_a_topic_from_its_template() -> None:
    """Queues are the smaller of what the client and the template say; the inherit bit goes."""
    topics = table()
    made = topics.create_on_send("orders", "TBW102", 4, 2000)
    assert made == TopicConfig("orders", read_queues=4, write_queues=4, perm=6)
    assert topics.get("orders") is made
    assert topics.data_version.counter == 1
    assert topics.data_version.timestamp_ms == 2000
    wide = topics.create_on_send("wide", "TBW102", 100, 2000)
    assert wide is not None
    assert wide.write_queues == 8
    negative = topics.create_on_send("none", "broker-a", -3, 2000)
    assert negative is not None
    assert negative.write_queues == 0


def test_no_topic_without_a_template_that_allows_it() -> None:
    """An unknown template, one without the inherit bit, and TBW102 switched off make nothing."""
    topics = table()
    assert topics.create_on_send("orders", "nowhere", 4, 1) is None
    assert topics.create_on_send("orders", "BenchmarkTest", 4, 1) is None
    closed = table(auto_create=False)
    assert "TBW102" not in closed
    closed.decode(topics.encode())
    config = closed.get("TBW102")
    assert config is not None
    assert config.perm == 6
    assert closed.create_on_send("orders", "TBW102", 4, 1) is None
    assert closed.create_on_send("orders", "DefaultCluster", 4, 1) is not None


def test_an_existing_topic_is_returned_as_it_is() -> None:
    """A second send does not change what the first one made."""
    topics = table()
    made = topics.create_on_send("orders", "TBW102", 4, 1)
    assert topics.create_on_send("orders", "TBW102", 8, 2) is made
    assert topics.data_version.counter == 1


def test_retry_topics_are_made_once() -> None:
    """A retry topic is returned when it is new or its order flag changes, else not."""
    topics = table()
    made = topics.create_retry("g", 1, 1)
    assert made == TopicConfig("%RETRY%g", read_queues=1, write_queues=1, perm=6)
    assert topics.create_retry("g", 1, 2) is None
    ordered = topics.create_retry("g", 5, 3, order=True)
    assert ordered is not None
    assert (ordered.order, ordered.write_queues) == (True, 1)


def test_the_number_of_topics_is_limited() -> None:
    """At the limit new topics are refused; those that exist can still change."""
    topics = table(topics_max=14)
    assert topics.create_on_send("one", "TBW102", 1, 1) is not None
    with pytest.raises(SystemError_, match="topics_max"):
        topics.create_on_send("two", "TBW102", 1, 1)
    topics.put(TopicConfig("one", perm=4), 2)
    assert topics.delete("one", 3) is not None
    assert topics.create_on_send("two", "TBW102", 1, 1) is not None


def test_the_file_has_the_form_of_rocketmq() -> None:
    """The joined text equals what the JSON writer makes of the whole table, also after changes."""
    topics = table()
    topics.create_on_send("orders", "TBW102", 4, 7)
    topics.encode()
    topics.put(TopicConfig("orders", perm=4, attributes={"message.type": "FIFO"}), 8)
    topics.put(TopicConfig("gone"), 8)
    topics.encode()
    topics.delete("gone", 9)
    whole = {
        "dataVersion": {"counter": 4, "stateVersion": 0, "timestamp": 9},
        "topicConfigTable": {c.name: topic_config_to_json(c) for c in topics},
    }
    assert topics.encode() == fastjson.dumps(whole, pretty=True)


def test_the_file_comes_back() -> None:
    """What was saved is loaded: topics and version."""
    topics = table()
    topics.create_on_send("orders", "TBW102", 4, 7)
    topics.put(TopicConfig("typed", attributes={"message.type": "FIFO"}, order=True), 8)
    again = table()
    again.decode(topics.encode())
    assert {c.name: c for c in again} == {c.name: c for c in topics}
    assert again.data_version == topics.data_version
    with pytest.raises(RemoteProtocolError):
        again.decode(b"[]")


def test_attributes_are_changed_by_signed_names() -> None:
    """A plus sets, a minus removes, and only known names with legal values pass."""
    topics = table()
    config = TopicConfig("orders")
    made = topics.altered(config, {"+message.type": "FIFO"})
    assert made.attributes == {"message.type": "FIFO"}
    topics.put(made, 1)
    assert topics.altered(config, {}).attributes == {"message.type": "FIFO"}
    assert topics.altered(config, {"-message.type": ""}).attributes == {}
    for changes, text in (
        ({"+no.such": "1"}, "unsupported key: no.such"),
        ({"+message.type": "ODD"}, "not in set"),
        ({"+queue.type": "BatchCQ"}, "unchangeable"),
        ({"-reserve.time": ""}, "nonexistent"),
        ({"+reserve.time": "-2"}, "not in range"),
        ({"message.type": "FIFO"}, "wrong format key"),
    ):
        with pytest.raises(SystemError_, match=text):
            topics.altered(config, changes)
    with pytest.raises(SystemError_, match="only add"):
        topics.altered(TopicConfig("new"), {"-message.type": ""})


def test_order_topics_follow_the_name_servers() -> None:
    """Topics named are ordered, all others are not; only changes are returned."""
    topics = table()
    topics.put(TopicConfig("was", order=True), 1)
    topics.put(TopicConfig("becomes"), 1)
    changed = topics.set_order({"becomes", "unknown"}, 2)
    assert {(c.name, c.order) for c in changed} == {("was", False), ("becomes", True)}
    assert topics.set_order({"becomes", "unknown"}, 3) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("bad topic", "illegal characters"),
        ("ünder", "illegal characters"),
        ("x" * 128, "longer"),
        ("%RETRY%" + "x" * 249, "longer"),
    ],
)
def test_illegal_topic_names(name: str, text: str) -> None:
    """An illegal name is explained in RocketMQ's words."""
    assert text in (validate_topic(name) or "")


def test_legal_names() -> None:
    """The longest legal names pass."""
    assert validate_topic("x" * 127) is None
    assert validate_topic("%RETRY%" + "x" * 248) is None
    assert validate_topic("a%|_-9") is None
    assert validate_group("x" * 120) is None
    assert "longer" in (validate_group("x" * 121) or "")
    assert "illegal" in (validate_group("a b") or "")
    assert "blank" in (validate_group("") or "")


def test_the_trace_topic_is_there_if_it_is_wanted() -> None:
    """`traceTopicEnable`, under the name that `msgTraceTopicName` gives; a system topic."""
    without = TopicTable(cluster="C", broker="b", now_ms=0)
    assert "RMQ_SYS_TRACE_TOPIC" not in without
    table = TopicTable(cluster="C", broker="b", now_ms=0, trace_topic="Traces")
    found = table.get("Traces")
    assert found is not None
    assert (found.read_queues, found.write_queues, found.perm) == (1, 1, 6)
    assert table.is_system("Traces")
