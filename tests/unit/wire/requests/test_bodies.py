"""Typed JSON bodies."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest

from inorder.errors import RemoteProtocolError, SubscriptionParseFailed, SystemError_
from inorder.model import DataVersion, GroupConfig, TopicConfig, TopicQueue
from inorder.wire.requests import registration
from inorder.wire.requests.groups import (
    SQL_CHARS_MAX,
    ClientConfigCheck,
    ClientHeartbeat,
    ConsumerData,
    GroupTable,
    decode_group_config,
    decode_group_config_request,
    decode_group_configs,
    encode_group_config,
    encode_group_configs,
    subscription_from_json,
)
from inorder.wire.requests.leases import LockBatchBody, LockedQueues
from inorder.wire.requests.nameserver import (
    decode_consumer_ids,
    decode_group_list,
    decode_kv_table,
    decode_settings,
    decode_topic_list,
    encode_consumer_ids,
    encode_group_list,
    encode_kv_table,
    encode_settings,
    encode_topic_list,
)
from inorder.wire.requests.pulls import parse_subscription
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.topics import (
    TopicTable,
    decode_data_version_request,
    decode_topic_config,
    decode_topic_configs,
    encode_data_version,
    encode_topic_config,
    encode_topic_configs,
)

HEARTBEAT = (
    b'{"clientID":"10.0.0.9@4321#123456789","consumerDataSet":[{"consumeFromWhere":'
    b'"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG",'
    b'"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":'
    b'[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":'
    b'1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicA"},{"classFilterMode":false,"codeSet"'
    b':[],"expressionType":"TAG","subString":"*","subVersion":1700000000001,"tagsSet":[],"topic":'
    b'"%RETRY%CG"}],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":'
    b'"PG"}],"withoutSub":false}'
)
VERSION = DataVersion(1, 2, 3)
TOPIC = TopicConfig("T", 4, 3, 6, "MULTI_TAG", 1, True, {"message.type": "FIFO"})


def test_heartbeat_of_java_is_read_and_written_exactly() -> None:
    """The description's example, both ways."""
    heartbeat = ClientHeartbeat.decode(HEARTBEAT)
    assert heartbeat.encode() == HEARTBEAT
    (consumer,) = heartbeat.consumers
    assert (consumer.group, heartbeat.producers) == ("CG", ("PG",))
    assert consumer.subscriptions == (
        parse_subscription("TopicA", "TagA || TagB", 1700000000000),
        parse_subscription("%RETRY%CG", "*", 1700000000001),
    )


def test_heartbeat_of_cpp_is_understood() -> None:
    """Enums are numbers, versions text, hashes zeros, sets missing."""
    heartbeat = ClientHeartbeat.decode(
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g",'
        b'"messageModel":0,"subscriptionDataSet":[{"codeSet":[0,0],"subString":"TagA||TagB",'
        b'"subVersion":"17","tagsSet":["TagA","TagB"],"topic":"T"}],"unitMode":1}]}\n'
    )
    (consumer,) = heartbeat.consumers
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "BROADCASTING"
    assert consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert consumer.unit_mode
    (subscription,) = consumer.subscriptions
    assert (subscription.version, subscription.tag_hashes) == (17, {2598919, 2598920})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "CONSUME_FROM_TIMESTAMP"),
        ("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"),
        (6, "CONSUME_FROM_LAST_OFFSET"),
        ("?", "CONSUME_FROM_LAST_OFFSET"),
        (None, "CONSUME_FROM_LAST_OFFSET"),
        (True, "CONSUME_FROM_LAST_OFFSET"),
    ],
)
def test_enums(value: Any, expected: str) -> None:
    """By name or ordinal; what is unknown is the default."""
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "consumeFromWhere": value}]}
    (consumer,) = ClientHeartbeat.decode(json.dumps(body).encode()).consumers
    assert consumer.consume_from_where == expected


def test_subscription_without_expression_uses_its_tags() -> None:
    """Some clients send the set only."""
    read = subscription_from_json({"topic": "T", "tagsSet": ["A", "B"]})
    assert (read.expression, read.tags) == ("A||B", ("A", "B"))
    assert subscription_from_json({"topic": "T"}).matches_all
    mode = subscription_from_json({"topic": "T", "classFilterMode": True})
    assert mode.class_filter_mode


def test_heartbeat_with_an_unusable_expression() -> None:
    """The code says what is wrong."""
    body = HEARTBEAT.replace(b"TagA || TagB", b"||")
    with pytest.raises(SubscriptionParseFailed):
        ClientHeartbeat.decode(body)


def test_the_expressions_of_a_heartbeat_are_bounded_together() -> None:
    """Each is compiled when it is new."""
    long = "a = '" + "x" * (SQL_CHARS_MAX // 4) + "'"
    four = tuple(parse_subscription(f"T{number}", long, 1, "SQL92") for number in range(4))
    beat = ClientHeartbeat("c", (ConsumerData("g", subscriptions=four[:3]),))
    assert ClientHeartbeat.decode(beat.encode()).consumers[0].subscriptions == four[:3]
    beat = ClientHeartbeat("c", (ConsumerData("g", subscriptions=four),))
    with pytest.raises(SystemError_, match=f"more than {SQL_CHARS_MAX} characters"):
        ClientHeartbeat.decode(beat.encode())


def test_client_config_check() -> None:
    """With and without a subscription."""
    check = ClientConfigCheck("c", "g", parse_subscription("T", "a > 1", 1, "SQL92"), "n")
    assert ClientConfigCheck.decode(check.encode()) == check
    assert ClientConfigCheck.decode(b"{}") is None


def test_locks_are_the_descriptions() -> None:
    """Request and answer, byte for byte."""
    request = (
        b'{"clientId":"c","consumerGroup":"CG","mqSet":[{"brokerName":"broker-a","queueId":1,'
        b'"topic":"TopicA"}],"onlyThisBroker":false}'
    )
    queue = TopicQueue("TopicA", "broker-a", 1)
    body = LockBatchBody("c", "CG", (queue,))
    assert body.encode() == request
    assert LockBatchBody.decode(request) == body
    answer = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}]}'
    assert LockedQueues((queue,)).encode() == answer
    assert LockedQueues.decode(answer).queues == (queue,)
    assert LockedQueues().encode() == b'{"lockOKMQSet":[]}'
    assert LockedQueues.decode(b"{}").queues == ()


def test_topic_configs_come_back() -> None:
    """Alone, in a list, in a table; old brokers send less."""
    assert decode_topic_config(encode_topic_config(TOPIC)) == TOPIC
    assert decode_topic_configs(encode_topic_configs([TOPIC])) == [TOPIC]
    table = TopicTable(VERSION, {"T": TOPIC})
    assert TopicTable.decode(table.encode()) == table
    old = TopicTable.decode(
        b'{"dataVersion":{"counter":7,"timestamp":5},"topicConfigTable":{"A":{"perm":2}}}'
    )
    assert old.version == DataVersion(0, 5, 7)
    assert old.topics == {"A": TopicConfig("A", 16, 16, 2)}
    assert decode_data_version_request(encode_data_version(VERSION)) == VERSION


def test_registration_plain_compressed_and_old() -> None:
    """The three forms; the compressed one is recognised even if the header denies it."""
    body = RegisterBrokerBody(VERSION, {"T": TOPIC}, ("f",))
    decode = RegisterBrokerBody.decode
    assert decode(body.encode(), version=479) == body
    packed = body.encode(compressed=True)
    plain = TopicConfig("T", 4, 3, 6, "MULTI_TAG", attributes={"message.type": "FIFO"})
    expected = RegisterBrokerBody(VERSION, {"T": plain}, ("f",))
    assert decode(packed, version=479, compressed=True) == expected
    assert decode(packed, version=479) == expected
    wrapper = TopicTable(VERSION, {"T": TOPIC}).encode()
    assert decode(wrapper, version=36) == RegisterBrokerBody(VERSION, {"T": TOPIC})


def piece(data: bytes) -> bytes:
    """Prefix a length."""
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"\0",
        struct.pack(">i", -1),
        struct.pack(">i", 100),
        piece(b"x"),
        piece(b"{}"),
        piece(b"{}") + struct.pack(">i", 1 << 30),
        piece(b"{}") + struct.pack(">i", 1),
        piece(b"{}") + struct.pack(">i", 1) + piece(b"T 1 1"),
        piece(b"{}") + struct.pack(">i", 1) + piece(b"T 1 1 x S") + piece(b"[]") + bytes(4),
        piece(b"{}") + struct.pack(">i", 1) + piece(b"\xff 1 1 1 S") + piece(b"[]") + bytes(4),
        piece(b"{}") + struct.pack(">i", 1) + piece(b"T 1 1 1 S x") + piece(b"[]") + bytes(4),
        piece(b"{}") + bytes(4) + piece(b"{}"),
        piece(b"{}") + bytes(4) + piece(b"[{}]") + bytes(4),
        piece(b"{}") + bytes(4) + piece(b"[]") + struct.pack(">i", 1),
    ],
    ids=range(15),
)
def test_broken_compressed_registrations(plain: bytes) -> None:
    """Every length is checked."""
    with pytest.raises(SystemError_):
        RegisterBrokerBody.decode(zlib.compress(plain), version=479)


def test_compressed_registrations_of_4_9_have_no_mappings() -> None:
    """Lines without attributes, no section after the filter servers."""
    topics = struct.pack(">i", 1) + piece(b"T 1 2 6 SINGLE_TAG")
    plain = piece(b'{"counter":1}') + topics + piece(b"[]")
    body = RegisterBrokerBody.decode(zlib.compress(plain), version=409, compressed=True)
    assert body.topics == {"T": TopicConfig("T", 1, 2, 6)}


def test_compressed_garbage_and_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is unpacked beyond its limit."""
    monkeypatch.setattr(registration, "PLAIN_BYTES_MAX", 1000)
    bomb = zlib.compress(piece(b"{}") + bytes(4) + piece(b"[]") + bytes(10_000), 9)
    for data in (b"\x78garbage", bomb, zlib.compress(b"x" * 99)[:-3]):
        with pytest.raises(SystemError_):
            RegisterBrokerBody.decode(data, version=479)


def test_group_configs_come_back() -> None:
    """Alone, in a list, in a table with forbidden bits; defaults are those of a new group."""
    group = GroupConfig("g", retry_queues=2, attributes={"a": "b"}, retry_policy={"type": "EXP"})
    assert decode_group_config(encode_group_config(group)) == group
    assert decode_group_config_request(encode_group_config(group)) == group
    assert decode_group_configs(encode_group_configs([group])) == [group]
    table = GroupTable(VERSION, {"g": group}, {"g": {"t": 4}})
    assert GroupTable.decode(table.encode()) == table
    assert decode_group_config(b'{"groupName":"g"}') == GroupConfig("g")


def test_auto_created_group_is_the_descriptions() -> None:
    """Byte for byte."""
    assert encode_group_config(GroupConfig("CG")) == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"CG","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_lists_and_tables() -> None:
    """The small bodies, as they stand in the description."""
    assert encode_consumer_ids(["a", "b"]) == b'{"consumerIdList":["a","b"]}'
    assert decode_consumer_ids(b'{"consumerIdList":["a"]}') == ["a"]
    assert encode_topic_list(["T"]) == b'{"topicList":["T"]}'
    assert encode_topic_list(["T"], "ip:1") == b'{"brokerAddr":"ip:1","topicList":["T"]}'
    assert decode_topic_list(b'{"topicList":["T"]}') == ["T"]
    assert encode_group_list(["g"]) == b'{"groupList":["g"]}'
    assert decode_group_list(b'{"groupList":null}') == []
    assert encode_kv_table({"a": "b"}) == b'{"table":{"a":"b"}}'
    assert decode_kv_table(b'{"table":{"a":1,"b":null,"c":true}}') == {"a": "1", "c": "true"}


def test_settings_text() -> None:
    """`key=value` lines; comments and blank lines do not count."""
    assert encode_settings({"a": "1", "b": "x=y"}) == b"a=1\nb=x=y\n"
    assert decode_settings(b"# c=d\n a = 1 \n\nb=x=y\r\n!e=f\nnothing\n=x\n") == {
        "a": "1",
        "b": "x=y",
    }


@pytest.mark.parametrize(
    "decode",
    [
        ClientHeartbeat.decode,
        LockBatchBody.decode,
        decode_topic_configs,
        decode_group_config_request,
        decode_group_configs,
        decode_data_version_request,
        lambda data: RegisterBrokerBody.decode(data, version=479),
    ],
    ids=range(7),
)
@pytest.mark.parametrize(
    "data",
    [b"", b"not json", b"[]", b"1", b"\xff", b"[" * 1000],
    ids=lambda data: repr(data[:20]),
)
def test_a_broken_request_is_answered(decode: Any, data: bytes) -> None:
    """Code 1, and the connection stays."""
    with pytest.raises(SystemError_, match="cannot be read"):
        decode(data)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (ClientHeartbeat.decode, b'{"clientID":{}}'),
        (ClientHeartbeat.decode, b"{}"),
        (ClientHeartbeat.decode, b'{"clientID":"c","producerDataSet":[{}]}'),
        (LockBatchBody.decode, b'{"clientId":"c","consumerGroup":"g","mqSet":[{}]}'),
        (decode_group_configs, b'{"groupConfigList":[{}]}'),
    ],
    ids=range(5),
)
def test_a_request_that_lacks_something_is_answered(decode: Any, data: bytes) -> None:
    """The remark says what is missing."""
    with pytest.raises(SystemError_, match=r"missing|not text"):
        decode(data)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_consumer_ids, b'{"consumerIdList":{}}'),
        (decode_consumer_ids, b'{"consumerIdList":[[]]}'),
        (decode_kv_table, b'{"table":[]}'),
        (decode_topic_config, b"{}"),
        (decode_topic_config, b'{"topicName":"T","perm":1.5}'),
        (decode_topic_config, b'{"topicName":"T","perm":true}'),
        (decode_topic_config, b'{"topicName":"T","order":[]}'),
        (GroupTable.decode, b'{"forbiddenTable":{"a":{"b":"c"}}}'),
        (LockedQueues.decode, b'{"lockOKMQSet":[{"topic":"T","queueId":"x"}]}'),
        (TopicTable.decode, b'{"topicConfigTable":{"T":1}}'),
    ],
    ids=range(10),
)
def test_a_broken_answer_breaks_the_protocol(decode: Any, data: bytes) -> None:
    """A server that answers nonsense is not to be talked to."""
    with pytest.raises(RemoteProtocolError):
        decode(data)
