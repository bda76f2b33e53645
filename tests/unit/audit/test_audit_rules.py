"""Which requests the audit log tells of, and what its lines hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from inorder.audit.rules import CHANGES, NAMES_MAX, Event, audits, line, lost_line
from inorder.broker.router import HANDLERS as BROKER_HANDLERS
from inorder.config import AccessConfig, AuditConfig, BrokerConfig, NameServerConfig
from inorder.nameserver.handlers import HANDLERS as NAME_SERVER_HANDLERS

NOW_MS = 1_700_000_000_007

OF_CLIENTS = {
    14, 15, 34, 35, 36, 37, 41, 42, 46, 324, 325, 370, 400, 7100, 7101, 7120, 7121, 7122,
    7130, 7135, 7136, 7138, 200050, 200051, 200052, 200053, 200054, 200151,
}  # fmt: skip
"""What clients send in their work: it may change much, and no operator asked for it."""

READS = {
    12, 21, 26, 28, 29, 30, 31, 32, 33, 38, 43, 45, 60, 61, 201, 202, 203, 204, 208, 223, 300, 303,
    305, 307, 308, 309, 315, 317, 321, 328, 343, 345, 351, 352, 402, 7103, 7123, 7131, 7132, 7133,
    7143, 7170, 200055, 3004, 3005, 3009, 3010,
}  # fmt: skip
OF_NAME_SERVERS = {101, 103, 105, 106, 206, 219, 224, 304, 311, 312, 313, 319, 322, 901, 904,
                   7180}  # fmt: skip
"""Reads, and what brokers say of themselves: registrations, their users and rules."""


def test_every_request_is_a_change_or_is_none() -> None:
    """A new request code has to be put into one of the lists."""
    assert set(BROKER_HANDLERS) - set(CHANGES) <= OF_CLIENTS | READS
    assert set(NAME_SERVER_HANDLERS) - set(CHANGES) <= OF_NAME_SERVERS | READS
    assert (OF_CLIENTS | READS | OF_NAME_SERVERS) & set(CHANGES) == set()


EVENT = Event("refused", "alice", "10.0.0.9:4711", 310, "Topic:orders", "Pub", "deny", "acl-7",
              "no policy", 42)  # fmt: skip


def test_a_line_is_one_json_object() -> None:
    """Who, from where, what, which verdict by which rule, and the id of the request."""
    data = line(EVENT, NOW_MS)
    assert json.loads(data) == {
        "time": "2023-11-14T22:13:20.007Z", "event": "refused", "user": "alice",
        "peer": "10.0.0.9:4711", "code": 310, "request": "SEND_MESSAGE_V2",
        "resource": "Topic:orders", "action": "Pub", "verdict": "deny", "rule": "acl-7",
        "reason": "no policy", "id": 42,
    }  # fmt: skip
    assert (data[-1:], data.count(b"\n")) == (b"\n", 1)
    assert json.loads(line(replace(EVENT, code=7124), NOW_MS))["request"] == "LEASE_FREE"
    assert json.loads(line(replace(EVENT, code=99_999), NOW_MS))["request"] == ""
    assert json.loads(lost_line(3, NOW_MS))["reason"] == "3 lines could not be written"


@pytest.mark.parametrize(
    "text",
    ["a\r\nb", "\x1b[31mred", "\x7f\x9b", "\u202eevil", "\ud800", "\x00", '"},{"', "x" * 100_000],
)
def test_texts_of_peers_stay_in_their_place(text: str) -> None:
    """One line of ASCII whatever a name holds, and a short one."""
    data = line(replace(EVENT, user=text, resource=text, peer=text, reason=text), NOW_MS)
    assert data.isascii()
    assert data.count(b"\n") == 1
    assert data[:-1].decode().isprintable()
    assert len(data) < 6000
    assert json.loads(data)["code"] == 310


@pytest.mark.parametrize(
    ("code", "fields", "body", "resource"),
    [
        (17, {"topic": "orders", "perm": "6"}, b"", "Topic:orders"),
        (215, {"topic": "orders"}, b"", "Topic:orders"),
        (207, {"groupName": "g"}, b"", "Group:g"),
        (222, {"topic": "t", "group": "g", "timestamp": "1"}, b"", "Topic:t,Group:g"),
        (314, {"srcGroup": "a", "destGroup": "b", "topic": "t"}, b"", "Topic:t,Group:b"),
        (200, {}, b'{"groupName":"g","retryMaxTimes":16}', "Group:g"),
        (225, {}, b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b"}]}', "Group:a,Group:b"),
        (18, {}, b'{"topicConfigList":[{"topicName":"a"}]}', "Topic:a"),
        (401, {}, b'{"topic":"t","consumerGroup":"g","mode":"POP"}', "Topic:t,Group:g"),
        (25, {}, b"traceOn=true\nsecret=open sesame\n", "Setting:traceOn,Setting:secret"),
        (318, {}, b"listenPort=1", "Setting:listenPort"),
        (3001, {"username": "bob"}, b'{"password":"open sesame"}', "User:bob"),
        (3006, {"subject": "User:bob"}, b"{}", "Subject:User:bob"),
        (100, {"namespace": "n", "key": "k", "value": "open sesame"}, b"", "Namespace:n,Key:k"),
        (205, {"brokerName": "broker-a"}, b"", "Broker:broker-a"),
        (7102, {"producerId": "p"}, b"", "Producer:p"),
        (7124, {"group": "g", "topic": "t", "queueId": "3"}, b"", "Topic:t,Group:g,Queue:3"),
        (7134, {"group": "g"}, b"", "Group:g"),
        (7147, {"group": "g", "topic": "t"}, b"", "Topic:t,Group:g"),
        (306, {}, b"", ""),
        (200, {}, b"no json", ""),
        (200, {}, b"\xff\xfe", ""),
        (200, {}, b"[" * 5000, ""),
        (200, {}, b'{"groupName":7}', ""),
        (200, {}, b'{"groupName":"g"}' + b" " * 70_000, "(70017 bytes)"),
        (25, {}, b"x" * 70_000, "(70000 bytes)"),
    ],
)
def test_what_a_change_touches(
    code: int, fields: dict[str, str], body: bytes, resource: str
) -> None:
    """Names only, from the header or from the body; values never."""
    found = CHANGES[code].resource(fields, body)
    assert found == resource
    assert "sesame" not in found


def test_long_lists_are_cut() -> None:
    """A request that names a thousand topics gives a line of usual length."""
    body = json.dumps({"topicConfigList": [{"topicName": f"t{n}"} for n in range(1000)]})
    found = CHANGES[18].resource({}, body.encode())
    assert found.endswith(f"t{NAMES_MAX - 1} and {1000 - NAMES_MAX} more")


class Checked:
    """Settings as far as `audits` reads them."""

    def __init__(self, mode: str, access: str) -> None:
        self.audit = AuditConfig(mode=mode)
        self.access = AccessConfig(level=access)


def test_when_there_is_an_audit_log() -> None:
    """By default where users are checked or only counted; always or never if set."""
    assert not audits(BrokerConfig())
    assert not audits(NameServerConfig())
    assert audits(BrokerConfig(audit=AuditConfig(mode="on")))
    found = {
        (mode, access): audits(Checked(mode, access))  # type: ignore[arg-type]
        for mode in ("auto", "on", "off")
        for access in ("off", "log", "enforce")
    }
    assert [key for key, on in found.items() if on] == [
        ("auto", "log"), ("auto", "enforce"), ("on", "off"), ("on", "log"), ("on", "enforce"),
    ]  # fmt: skip
