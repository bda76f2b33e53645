"""Codes 200, 201, 207, 225 and 352 against what a real broker answered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inorder.errors import InvalidParameter, SystemError_
from inorder.model import GroupConfig
from inorder.wire.requests.groups import encode_group_configs


def test_a_group_is_made_and_saved(broker: Any) -> None:
    """Code 200 takes the settings that an old or a new tool sends."""
    body = b'{"groupName": "g", "consumeEnable": true, "retryMaxTimes": 3}'
    answer = broker.ask(200, body=body)
    assert (answer.code, answer.remark, answer.has_fields) == (0, None, False)
    assert broker.groups.get("g") == GroupConfig("g", retry_max_times=3)
    assert broker.saved == ["groups"]


def test_illegal_names_are_refused(broker: Any) -> None:
    """A name that could not be auto-created cannot be created either; all or none of a list."""
    with pytest.raises(InvalidParameter, match="illegal characters"):
        broker.ask(200, body=b'{"groupName": "bad group"}')
    configs = [GroupConfig("one"), GroupConfig("bad group")]
    with pytest.raises(InvalidParameter):
        broker.ask(225, body=encode_group_configs(configs))
    assert "one" not in broker.groups
    assert broker.ask(225, body=encode_group_configs(configs[:1])).code == 0
    assert "one" in broker.groups
    with pytest.raises(SystemError_):
        broker.ask(200, body=b"{}")


def test_groups_are_listed(broker: Any) -> None:
    """Code 201 answers all groups with their version, without header fields."""
    answer = broker.ask(201, {"groupSeq": "0", "maxGroupNum": "3"})
    assert not answer.has_fields
    table = json.loads(answer.body)
    assert list(table) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]
    assert set(table["subscriptionGroupTable"]) == set(broker.groups.names())


def test_a_group_is_shown_and_thereby_made(broker: Any) -> None:
    """Code 352 makes an unknown group if groups are made on use, else it answers 26."""
    answer = broker.ask(352, {"group": "fresh"})
    assert answer.body == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"fresh","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )
    broker.config = replace(broker.config, auto_create_groups=False)
    answer = broker.ask(352, {"group": "other"})
    assert (answer.code, answer.remark) == (26, "No group in this broker")


def test_deleting_a_group(broker: Any) -> None:
    """Offsets go only if asked for; an unknown group is no error."""
    broker.groups.put(GroupConfig("g"), 1)
    broker.offsets.commit("g", "t", 0, 1, 1)
    assert broker.ask(207, {"groupName": "g", "cleanOffset": "false"}).code == 0
    assert "g" not in broker.groups
    assert broker.offsets.query("g", "t", 0) == 1
    assert broker.ask(207, {"groupName": "g", "cleanOffset": "true"}).code == 0
    assert broker.offsets.query("g", "t", 0) == -1
    assert broker.saved == ["groups"]
