"""Codes 25, 26 and 28."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inorder.errors import InvalidParameter, NoPermission, SystemError_

PARSED_BY_TOOLS = {
    "brokerVersionDesc", "brokerActive", "putTps", "getTransferredTps",
    "msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow",
    "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "earliestMessageTimeStamp",
    "commitLogDiskRatio", "timerReadBehind", "timerOffsetBehind", "timerCongestNum",
    "timerEnqueueTps", "timerDequeueTps", "bootTimestamp", "runtime", "putMessageTimesTotal",
    "putMessageSizeTotal", "putMessageAverageSize", "getFoundTps", "getMissTps", "getTotalTps",
    "commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes",
}  # fmt: skip


def table(broker: Any) -> dict[str, str]:
    """Ask for the numbers."""
    found: dict[str, str] = json.loads(broker.ask(28).body)["table"]
    return found


def test_runtime_info_has_what_tools_read(broker: Any) -> None:
    """Every key that the admin tools parse is there, and every value is text."""
    found = table(broker)
    assert set(found) >= PARSED_BY_TOOLS
    assert all(isinstance(value, str) for value in found.values())
    assert found["earliestMessageTimeStamp"] == "-1"
    assert [float(part) for part in found["putTps"].split(" ")] == [0.0, 0.0, 0.0]
    assert broker.counted == 1


def test_runtime_info_follows_the_broker(broker: Any) -> None:
    """Counters, rates, times and positions are those of this broker."""
    stored_ms = broker.clock.now_ms()
    broker.put("t", 0, b"x")
    broker.stats.put_messages, broker.stats.put_bytes = 10, 1000
    broker.stats.pulls_found, broker.stats.pulls_missed = 4, 6
    broker.clock.advance((86_400 + 3_661) * 1000)
    found = table(broker)
    assert found["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert found["putMessageAverageSize"] == "100.0"
    assert found["earliestMessageTimeStamp"] == str(stored_ms)
    assert int(found["commitLogMaxOffset"]) == broker.store.log.end_position
    assert float(found["getTotalTps"].split(" ")[0]) == pytest.approx(10 / 90_061)


def test_runtime_info_tells_of_limits_and_logins(broker: Any) -> None:
    """What waited, who failed to log in, and certificates that are not used; else no fields."""
    before = {name for name in table(broker) if name.startswith("inorder")}
    assert not [name for name in before if "Limited" in name or "Login" in name or "Tls" in name]
    broker.server.limited_total = 7
    broker.server.tls.problem = "tls_certificate='/etc/cert.pem': torn"
    for _ in range(17):
        broker.server.failures.failed(b"host", "alice", 0)
    found = {
        name: one
        for name, one in table(broker).items()
        if name.startswith("inorder") and name not in before
    }
    problem = found.pop("inorderTlsProblem")
    assert found == {
        "inorderLimitedRequests": "7", "inorderLoginFailures": "17",
        "inorderLoginFailuresSlowed": "7", "inorderLoginFailuresClosed": "1",
    }  # fmt: skip
    assert "cert.pem" not in problem


def test_neither_files_nor_secrets_are_shown(broker: Any) -> None:
    """Code 26 says how TLS is used, and not by which files and passwords."""
    files = {
        "tls_certificate": "c.pem", "tls_key": "k.pem", "tls_trust": "ca.pem",
        "tls_client_certificate": "cc.pem", "tls_client_key": "ck.pem",
        "tls_client_trust": "cca.pem", "tls_key_password": "open sesame",
        "tls_client_key_password": "open sesame", "tls_client_auth": "require",
    }  # fmt: skip
    broker.config = replace(broker.config, net=replace(broker.config.net, **files))
    body = bytes(broker.ask(26).body)
    assert b".pem" not in body
    assert b"sesame" not in body
    assert b"tls.server.need.client.auth=require" in body


def test_settings_are_shown_under_the_names_of_rocketmq(broker: Any) -> None:
    """Code 26 shows what RocketMQ has too, and no paths."""
    answer = broker.ask(26)
    assert json.loads(answer.fields["version"]) == {
        "counter": 0,
        "stateVersion": 0,
        "timestamp": broker.started_ms,
    }
    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert lines["brokerName"] == "broker-a"
    assert lines["flushDiskType"] == "ASYNC_FLUSH"
    assert lines["autoCreateTopicEnable"] == "true"
    assert lines["diskMaxUsedSpaceRatio"] == "75"
    assert list(lines) == sorted(lines)
    assert "storePathRootDir" not in lines
    assert broker.config.data not in answer.body.decode()


def test_settings_cannot_be_changed_by_clients(broker: Any) -> None:
    """Code 25 is refused unless the broker was started to allow it; nothing asked is no error."""
    with pytest.raises(NoPermission, match="remote_config"):
        broker.ask(25, body=b"longPollingEnable=false\n")
    assert broker.ask(25, body=b"").code == 0
    assert broker.config.long_polling


def allow(broker: Any) -> None:
    """Start the broker so that settings can be changed."""
    broker.config = replace(broker.config, remote_config=True)


def test_some_settings_can_be_changed_if_allowed(broker: Any) -> None:
    """What is looked up at each use may change."""
    allow(broker)
    body = b"longPollingEnable=false\nautoCreateTopicEnable=false\n"
    assert broker.ask(25, body=body).code == 0
    assert not broker.config.long_polling
    assert not broker.topics.auto_create
    assert broker.registration.refreshed == 0


def test_a_changed_permission_is_registered(broker: Any) -> None:
    """Name servers are told of new permissions with a new version."""
    allow(broker)
    version = broker.topics.data_version.counter
    broker.ask(25, body=b"brokerPermission=4")
    assert broker.config.perm == 4
    assert broker.registration.refreshed == 1
    assert broker.topics.data_version.counter == version + 1


@pytest.mark.parametrize(
    "body",
    [
        b"brokerConfigPath=x",
        b"storePathRootDir=/tmp/x",
        b"brokerName=other",
        b"tls.server.keyPath=/etc/shadow",
        b"longPollingEnable=false\nlistenPort=1",
    ],
)
def test_other_settings_never_change(broker: Any, body: bytes) -> None:
    """Paths, names and addresses are refused, and nothing of the request is applied."""
    allow(broker)
    before = broker.config
    with pytest.raises(NoPermission):
        broker.ask(25, body=body)
    assert broker.config == before


@pytest.mark.parametrize("name", ["noSuchKey", "haListenPort", "long_polling"])
def test_a_name_that_cannot_be_set_is_an_error(broker: Any, name: str) -> None:
    """A typing error, a setting without a meaning here: said, and nothing else is applied."""
    allow(broker)
    before = broker.config
    with pytest.raises(InvalidParameter, match=f"{name} is no setting .*brokerPermission"):
        broker.ask(25, body=f"longPollingEnable=false\n{name}=1\n".encode())
    assert broker.config == before


@pytest.mark.parametrize(
    "body",
    [b"brokerPermission=8", b"brokerPermission=x", b"longPollingEnable=yes",
     b"shortPollingTimeMills=" + b"9" * 5000],
)  # fmt: skip
def test_wrong_values_are_explained(broker: Any, body: bytes) -> None:
    """A value of the wrong kind is refused."""
    allow(broker)
    before = broker.config
    with pytest.raises(SystemError_):
        broker.ask(25, body=body)
    assert broker.config == before
