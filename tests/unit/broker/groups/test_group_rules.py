"""Consumer groups: how they come into being, and the file that holds them."""

from __future__ import annotations

import pytest

from inorder.broker.groups.rules import GroupTable
from inorder.errors import SystemError_
from inorder.model import GroupConfig


def test_system_groups_are_there_from_the_start() -> None:
    """A new broker has RocketMQ's eight groups."""
    groups = GroupTable(now_ms=1)
    assert len(groups) == 8
    assert "TOOLS_CONSUMER" in groups


def test_groups_are_made_on_use() -> None:
    """With auto-creation an unknown group is made once; without it only system groups are."""
    groups = GroupTable(now_ms=1)
    made = groups.find_or_create("g", auto_create=True, now_ms=2)
    assert made == GroupConfig("g")
    assert groups.find_or_create("g", auto_create=False, now_ms=3) is made
    assert groups.data_version.counter == 1
    assert groups.find_or_create("h", auto_create=False, now_ms=3) is None
    assert groups.find_or_create("CID_RMQ_SYS_x", auto_create=False, now_ms=3) is not None
    assert groups.find_or_create("bad group", auto_create=True, now_ms=3) is None
    assert groups.find_or_create("", auto_create=True, now_ms=3) is None


def test_the_number_of_groups_is_limited() -> None:
    """At the limit no group is made on use, and an explicit one is refused with the reason."""
    groups = GroupTable(now_ms=1, groups_max=8)
    assert groups.find_or_create("g", auto_create=True, now_ms=2) is None
    with pytest.raises(SystemError_, match="groups_max"):
        groups.put(GroupConfig("g"), 2)
    groups.put(GroupConfig("TOOLS_CONSUMER", consume_enable=False), 2)


def test_the_file_comes_back_with_what_is_forbidden() -> None:
    """Groups, version and the forbidden table survive, and both layouts hold the same."""
    groups = GroupTable(now_ms=1)
    groups.put(GroupConfig("g", retry_max_times=3), 5)
    groups.decode(
        b'{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":7},"forbiddenTable":{"g":{"t":4}},'
        b'"subscriptionGroupTable":{"h":{"groupName":"h","consumeEnable":false}}}'
    )
    again = GroupTable(now_ms=2)
    again.decode(groups.encode())
    compact = GroupTable(now_ms=2)
    compact.decode(groups.encode(pretty=False))
    for loaded in (again, compact):
        assert loaded.get("g") == GroupConfig("g", retry_max_times=3)
        assert loaded.get("h") == GroupConfig("h", consume_enable=False)
        assert loaded.data_version.counter == 9
        assert loaded.is_forbidden("g", "t")
        assert not loaded.is_forbidden("g", "u")
    assert b'\n\t"forbiddenTable":{' in groups.encode()


def test_deleting_a_group_also_lifts_what_is_forbidden() -> None:
    """A group that is made again starts without the old bans."""
    groups = GroupTable(now_ms=1)
    groups.decode(b'{"forbiddenTable":{"g":{"t":4}},"subscriptionGroupTable":{"g":{}}}')
    assert groups.is_forbidden("g", "t")
    assert groups.delete("g", 2) is not None
    assert groups.delete("g", 3) is None
    assert not groups.is_forbidden("g", "t")
