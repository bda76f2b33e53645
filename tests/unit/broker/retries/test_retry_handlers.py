"""Code 36: RocketMQ's checks and answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inorder.errors import GroupNotFound, NoPermission, SystemError_
from inorder.model import GroupConfig
from inorder.wire.properties import parse


def fields(position: int, **more: str) -> dict[str, str]:
    return {
        "offset": str(position), "group": "g", "delayLevel": "0", "originMsgId": "X",
        "originTopic": "t", "unitMode": "false", "maxReconsumeTimes": "16", **more,
    }  # fmt: skip


def test_a_message_is_stored_for_its_group(broker: Any) -> None:
    """In the retry topic, which is made; answered without fields when it is stored."""
    position = broker.put("t", 0, b"body", b"UNIQ_KEY\x01U\x02")
    answer = broker.ask(36, fields(position))
    assert (answer.code, answer.remark, answer.has_fields) == (0, None, False)
    ((record, queue_id, level),) = broker.appended
    assert (record.topic, queue_id, level, record.redeliveries) == ("%RETRY%g", 0, 3, 1)
    config = broker.topics.get("%RETRY%g")
    assert (config.read_queues, config.write_queues, config.perm, config.sys_flag) == (1, 1, 6, 0)
    assert "g" in broker.groups


def test_retries_are_spread_over_the_queues_of_the_group(broker: Any) -> None:
    """As many as its settings say; in unit mode the topic says so."""
    broker.groups.put(GroupConfig("g", retry_queues=4), 1)
    position = broker.put("t", 0, b"body")
    for _ in range(40):
        broker.ask(36, fields(position, unitMode="true"))
    assert {queue_id for _, queue_id, _ in broker.appended} == {0, 1, 2, 3}
    config = broker.topics.get("%RETRY%g")
    assert (config.write_queues, config.sys_flag) == (4, 2)


def test_a_group_without_retry_queues_drops_the_message(broker: Any) -> None:
    """That is what such a group asks for."""
    broker.groups.put(GroupConfig("g", retry_queues=0), 1)
    assert broker.ask(36, fields(10**12)).code == 0
    assert broker.appended == []


@pytest.mark.parametrize(
    ("most_of_group", "sent", "dead"),
    [(16, {}, False), (0, {"maxReconsumeTimes": ""}, True), (0, {}, False),
     (16, {"maxReconsumeTimes": "0"}, True), (16, {"delayLevel": "-1"}, True)],
)  # fmt: skip
def test_the_clients_limit_comes_before_the_groups(
    broker: Any, most_of_group: int, sent: dict[str, str], dead: bool
) -> None:
    """Beyond it the message goes to the dead letters, whose topic is made with one queue."""
    broker.groups.put(GroupConfig("g", retry_max_times=most_of_group), 1)
    broker.ask(36, fields(broker.put("t", 0, b"body"), **sent))
    ((record, queue_id, level),) = broker.appended
    assert record.topic == ("%DLQ%g" if dead else "%RETRY%g")
    if dead:
        assert (queue_id, level, parse(record.properties)["DELAY"]) == (0, 0, "0")
        assert broker.topics.get("%DLQ%g").write_queues == 1


def test_what_cannot_be_is_refused(broker: Any) -> None:
    """No such message, no such group, no permission: RocketMQ's codes and words."""
    position = broker.put("t", 0, b"body")
    with pytest.raises(SystemError_, match=r"^look message by offset failed, 1000000000000"):
        broker.ask(36, fields(10**12))
    with pytest.raises(SystemError_, match="look message by offset failed"):
        broker.ask(36, fields(position + 1))
    broker.config = replace(broker.config, auto_create_groups=False)
    with pytest.raises(GroupNotFound):
        broker.ask(36, fields(position, group="nobody"))
    broker.config = replace(broker.config, perm=4)
    with pytest.raises(NoPermission):
        broker.ask(36, fields(position))
    broker.config = replace(broker.config, perm=6)
    broker.topics.put(broker.topics.get("%RETRY%g").with_perm(4), 1)
    with pytest.raises(NoPermission, match="sending message is forbidden"):
        broker.ask(36, fields(position))
    assert broker.appended == []
