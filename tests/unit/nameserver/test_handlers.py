"""Answers of a name server, by request code."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from inorder.config import NameServerConfig
from inorder.model import DataVersion, TopicConfig
from inorder.nameserver.handlers import HANDLERS, Call, Desk, answer
from inorder.nameserver.rules import KvTable, RouteTable
from inorder.wire.header import Command
from inorder.wire.names import ORDER_TOPIC_CONFIG
from inorder.wire.requests.nameserver import decode_kv_table, decode_topic_list
from inorder.wire.requests.registration import RegisterBrokerBody

VERSION = DataVersion(0, 1, 1)
TOPICS = {name: TopicConfig(name, 4, 4) for name in ("TBW102", "orders", "broker-a")}
BODY = RegisterBrokerBody(VERSION, TOPICS)
FIELDS = {
    "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C",
    "haServerAddr": "10.0.0.1:10912", "brokerId": "0",
}  # fmt: skip


class Disk:
    """Counts saves, and can fail."""

    def __init__(self) -> None:
        self.saves = 0
        self.full = False

    def save(self) -> None:
        if self.full:
            raise OSError("no space left")
        self.saves += 1


def new_desk(disk: Disk | None = None, **settings: Any) -> Desk:
    """Return a fresh name server's tables."""
    return Desk(NameServerConfig(**settings), RouteTable(), KvTable(), (disk or Disk()).save)


def ask(desk: Desk, code: int, fields: dict[str, str] | None = None, **more: Any) -> Command:
    """Return the answer to a request."""
    body = more.pop("body", b"")
    channel, now_ms = more.pop("channel", "channel"), more.pop("now_ms", 0)
    return answer(desk, Call(Command.request(code, fields, body, **more), channel, now_ms))


@pytest.fixture
def desk() -> Desk:
    """Return a name server that knows one broker."""
    made = new_desk()
    assert ask(made, 103, FIELDS, body=BODY.encode()).code == 0
    return made


@pytest.mark.parametrize(
    ("version", "fields", "quoted"),
    [
        (479, {}, True),
        (401, {}, True),
        (400, {}, False),
        (317, {}, False),
        (0, {"acceptStandardJsonOnly": "true"}, True),
        (317, {"acceptStandardJsonOnly": "false"}, False),
    ],
)
def test_route_keys_follow_the_version_of_the_client(
    desk: Desk, version: int, fields: dict[str, str], quoted: bool
) -> None:
    """New clients get standard JSON, old Go clients the bare keys that they need."""
    reply = ask(desk, 105, {"topic": "orders", **fields}, version=version)
    assert (b'{"0":"10.0.0.1:10911"}' in bytes(reply.body)) is quoted
    assert (b'{0:"10.0.0.1:10911"}' in bytes(reply.body)) is not quoted


def test_answers_keep_the_serializer_of_the_request(desk: Desk) -> None:
    """Who asks in binary is answered in binary."""
    assert ask(desk, 106, serializer=1).serializer == 1
    assert ask(desk, 106).serializer == 0


@pytest.mark.parametrize("enabled", [False, True])
def test_order_config_is_in_the_route_only_if_enabled(enabled: bool) -> None:
    """orderTopicConf comes from the key-value config, by topic."""
    desk = new_desk(order_message_enable=enabled)
    ask(desk, 103, FIELDS, body=BODY.encode())
    desk.kv.put(ORDER_TOPIC_CONFIG, "orders", "broker-a:4")
    reply = json.loads(bytes(ask(desk, 105, {"topic": "orders"}).body))
    assert reply.get("orderTopicConf") == ("broker-a:4" if enabled else None)


@pytest.mark.parametrize("enabled", [False, True])
def test_brokers_learn_the_order_topics(enabled: bool) -> None:
    """The table of order topics is the body of the answer, once there is one."""
    desk = new_desk(return_order_config=enabled)
    assert bytes(ask(desk, 103, FIELDS, body=BODY.encode()).body) == b""
    desk.kv.put(ORDER_TOPIC_CONFIG, "orders", "broker-a:4")
    body = bytes(ask(desk, 103, FIELDS, body=BODY.encode()).body)
    assert (decode_kv_table(body) if body else None) == (
        {"orders": "broker-a:4"} if enabled else None
    )


@pytest.mark.parametrize("flag", ["true", "false"], ids=["4.9", "5.3.3 says false"])
@pytest.mark.parametrize("version", [409, 479])
def test_compressed_registration(flag: str, version: int) -> None:
    """Both the honest flag and the wrong one of 5.3.3 are understood."""
    desk = new_desk()
    data = BODY.encode(compressed=True)
    fields = {**FIELDS, "compressed": flag, "bodyCrc32": str(zlib.crc32(data) & 0x7FFFFFFF)}
    assert ask(desk, 103, fields, body=data, version=version).code == 0
    assert sorted(desk.routes.topics()) == sorted(TOPICS)


def test_a_wrong_checksum_is_refused() -> None:
    """The body must be what the broker sent."""
    desk = new_desk()
    reply = ask(desk, 103, {**FIELDS, "bodyCrc32": "12345"}, body=BODY.encode())
    assert (reply.code, reply.remark, reply.has_fields) == (1, "crc32 not match", True)
    assert desk.routes.topics() == []


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"x\x9cgarbage", b'{"topicConfigSerializeWrapper":7}', b"[" * 9999]
)
def test_a_body_that_cannot_be_read_is_answered(body: bytes) -> None:
    """Garbage in a body costs its answer, not the connection."""
    reply = ask(new_desk(), 103, FIELDS, body=body)
    assert reply.code == 1
    assert "body" in (reply.remark or "")


def test_registration_without_a_body_registers_the_address() -> None:
    """An empty table is fine, as with RocketMQ."""
    desk = new_desk()
    assert ask(desk, 103, FIELDS).code == 0
    assert desk.routes.members("C", "broker-a").addresses == {0: "10.0.0.1:10911"}


def test_one_topic_of_a_stranger_is_refused() -> None:
    """The remark is RocketMQ's."""
    body = RegisterBrokerBody(VERSION, {"orders": TopicConfig("orders")}).encode()
    reply = ask(new_desk(), 103, FIELDS, body=body)
    assert (reply.code, reply.remark) == (1, "register broker failed")


def test_a_slave_is_told_its_master(desk: Desk) -> None:
    """Both addresses are in the fields of the answer."""
    slave = {**FIELDS, "brokerId": "1", "brokerAddr": "10.0.0.2:10911"}
    reply = ask(desk, 103, slave, body=BODY.encode())
    assert reply.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


def test_the_heartbeat_timeout_is_the_brokers_or_the_configured_one() -> None:
    """5.x brokers bring their own; the default is 120 s."""
    for fields, last_ms in (
        (FIELDS, 120_000),
        ({**FIELDS, "heartbeatTimeoutMillis": "10000"}, 10_000),
    ):
        desk = new_desk()
        ask(desk, 103, fields, body=BODY.encode())
        assert desk.routes.expire(last_ms) == []
        assert len(desk.routes.expire(last_ms + 1)) == 1


@pytest.mark.parametrize("code", [322, 904])
def test_heartbeats_keep_a_broker_alive(desk: Desk, code: int) -> None:
    """The question for the data version is a sign of life too."""
    body = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    assert ask(desk, code, FIELDS, body=body, now_ms=100_000).code == 0
    assert desk.routes.expire(200_000) == []


@pytest.mark.parametrize(
    ("counter", "address", "changed", "known"),
    [
        (1, "10.0.0.1:10911", "false", True),
        (2, "10.0.0.1:10911", "true", True),
        (1, "1.1.1.1:1", "true", False),
    ],
)
def test_data_version(desk: Desk, counter: int, address: str, changed: str, known: bool) -> None:
    """A broker learns whether it has to register, and what is known of it."""
    body = json.dumps({"counter": counter, "stateVersion": 0, "timestamp": 1}).encode()
    reply = ask(desk, 322, {**FIELDS, "brokerAddr": address}, body=body)
    assert reply.fields == {"changed": changed}
    assert bytes(reply.body) == (b'{"counter":1,"stateVersion":0,"timestamp":1}' if known else b"")


def test_farewell(desk: Desk) -> None:
    """After UNREGISTER_BROKER the topics are gone."""
    assert ask(desk, 104, FIELDS).code == 0
    assert ask(desk, 105, {"topic": "orders"}).code == 17


def test_topics_by_hand(desk: Desk) -> None:
    """217 adds, 216 deletes, 206 and 224 list."""
    queue = {"brokerName": "broker-a", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    body = json.dumps({"queueDatas": [queue]}).encode()
    assert ask(desk, 217, {"topic": "made"}, body=body).code == 0
    assert "made" in decode_topic_list(ask(desk, 206).body)
    assert "made" in decode_topic_list(ask(desk, 224, {"cluster": "C"}).body)
    assert decode_topic_list(ask(desk, 224, {"cluster": "nowhere"}).body) == []
    assert ask(desk, 216, {"topic": "made", "clusterName": "nowhere"}).code == 0
    assert "made" in decode_topic_list(ask(desk, 206).body)
    assert ask(desk, 216, {"topic": "made", "clusterName": "C"}).code == 0
    assert "made" not in decode_topic_list(ask(desk, 206).body)


def test_write_permission(desk: Desk) -> None:
    """205 and 327 say how many topics they changed."""
    assert ask(desk, 205, {"brokerName": "broker-a"}).fields == {"wipeTopicCount": "3"}
    assert ask(desk, 327, {"brokerName": "broker-a"}).fields == {"addTopicCount": "3"}


def test_values_are_saved_before_the_answer() -> None:
    """Every change reaches the disk; asking and deleting nothing does not."""
    disk = Disk()
    desk = new_desk(disk)
    key = {"namespace": "NS", "key": "k"}
    assert ask(desk, 100, {**key, "value": "v"}).code == 0
    assert disk.saves == 1
    assert ask(desk, 101, key).fields == {"value": "v"}
    assert decode_kv_table(ask(desk, 219, {"namespace": "NS"}).body) == {"k": "v"}
    assert [ask(desk, 102, key).code for _ in range(2)] == [0, 0]
    assert disk.saves == 2
    assert (ask(desk, 101, key).code, ask(desk, 219, {"namespace": "NOPE"}).code) == (22, 22)


def test_a_full_disk_refuses_and_changes_nothing() -> None:
    """What could not be kept is not pretended to be kept."""
    disk = Disk()
    desk = new_desk(disk)
    key = {"namespace": "NS", "key": "k"}
    ask(desk, 100, {**key, "value": "old"})
    disk.full = True
    reply = ask(desk, 100, {**key, "value": "new"})
    assert (reply.code, reply.remark) == (1, "the value was not kept: no space left")
    assert ask(desk, 102, key).code == 1
    assert ask(desk, 101, key).fields == {"value": "old"}
    assert ask(desk, 100, {"namespace": "NS", "key": "k2", "value": "v"}).code == 1
    assert ask(desk, 101, {"namespace": "NS", "key": "k2"}).code == 22


def test_settings_can_be_read_and_not_changed(desk: Desk) -> None:
    """318 is refused whatever it asks for; 319 shows no path."""
    for body in (b"clusterTest=false\n", b"kvConfigPath=/etc/passwd\n", b""):
        assert ask(desk, 318, body=body).code == 16
    text = bytes(ask(desk, 319).body).decode()
    assert "scanNotActiveBrokerInterval=5000\n" in text
    assert "/" not in text


def test_unknown_codes() -> None:
    """The remark starts with a blank, as RocketMQ's does."""
    reply = ask(new_desk(), 9999)
    assert (reply.code, reply.remark) == (3, " request type 9999 not supported")


@pytest.mark.parametrize(
    "code", sorted(set(HANDLERS) - {105, 106, 206, 304, 311, 312, 313, 318, 319, 7180})
)
def test_missing_fields_are_named(code: int) -> None:
    """A request without its fields is answered 1, never with a crash."""
    reply = ask(new_desk(), code)
    assert reply.code == 1
    assert reply.remark


def test_users_are_not_taken_where_access_is_not_controlled() -> None:
    """A broker's users are refused as an unknown code is."""
    assert ask(new_desk(), 7180).code == 3


@pytest.mark.parametrize("value", ["", "x", "9" * 30, "-1", "1.5"])
def test_odd_broker_ids(value: str) -> None:
    """Numbers that are none, or too large, are refused or taken, never a crash."""
    assert ask(new_desk(), 103, {**FIELDS, "brokerId": value}, body=BODY.encode()).code in (0, 1)


def test_a_deleted_topic_takes_its_key_map_along(desk: Desk) -> None:
    """216, as mqadmin sends it; what lies in the table of another cluster's topic stays."""
    kv = {"namespace": "INORDER_KEYMAP", "key": "orders"}
    assert ask(desk, 100, {**kv, "value": "1/broker-a:0-3"}).code == 0
    assert ask(desk, 216, {"topic": "orders", "clusterName": "D"}).code == 0
    assert ask(desk, 101, kv).fields["value"] == "1/broker-a:0-3"
    assert ask(desk, 216, {"topic": "orders"}).code == 0
    assert ask(desk, 101, kv).code == 22
