"""What strangers can make a broker keep in its tables."""

from __future__ import annotations

import pytest

from inorder.broker.groups.rules import GroupTable
from inorder.broker.offsets import rules as offset_rules
from inorder.broker.offsets.rules import OffsetTable
from inorder.broker.pulls import rules as pull_rules
from inorder.broker.pulls.rules import PullWaits, Wait
from inorder.errors import SystemError_
from inorder.wire import fastjson
from inorder.wire.requests.groups import GroupTable as GroupTableBody
from inorder.wire.requests.groups import decode_group_config


def test_offsets_have_a_limit_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known queues go on; a new one is refused until some group is gone."""
    monkeypatch.setattr(offset_rules, "OFFSETS_MAX", 2)
    table = OffsetTable(now_ms=1)
    table.commit("g", "t", 0, 5, 1)
    table.commit("h", "t", 0, 5, 1)
    with pytest.raises(SystemError_, match="2 offsets"):
        table.commit("g", "t", 1, 5, 1)
    table.commit("g", "t", 0, 6, 1)
    table.remove_group("h")
    table.commit("g", "t", 1, 5, 1)
    again = OffsetTable(now_ms=1)
    again.decode(table.encode())
    with pytest.raises(SystemError_, match="2 offsets"):
        again.commit("g", "t", 2, 5, 1)


def test_what_was_pulled_is_forgotten_before_it_grows_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a hint; the stored offset takes its place."""
    monkeypatch.setattr(offset_rules, "PULLED_MAX", 2)
    table = OffsetTable(now_ms=1)
    table.commit("g0", "t", 0, 3, 1)
    for number in range(3):
        table.commit_pull(f"g{number}", "t", 0, 9)
    assert [table.query_pull(f"g{number}", "t", 0) for number in range(3)] == [3, -1, 9]


def test_one_connection_may_hold_so_many_pulls() -> None:
    """Another connection is not affected."""
    held: PullWaits[str, int] = PullWaits(connection_waits_max=2)
    assert [held.hold(("t", n), Wait("a", n), 10) for n in range(3)] == [True, True, False]
    assert held.hold(("t", 0), Wait("b", 9), 10)
    held.drop_connection("a")
    assert held.hold(("t", 0), Wait("a", 9), 10)


def test_one_queue_may_hold_so_many_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of a queue looks at all of them."""
    monkeypatch.setattr(pull_rules, "QUEUE_WAITS_MAX", 2)
    held: PullWaits[str, int] = PullWaits()
    assert [held.hold(("t", 0), Wait(f"c{n}", n), 10) for n in range(3)] == [True, True, False]
    assert held.hold(("t", 1), Wait("c9", 9), 10)


def test_the_file_of_groups_is_the_same_whether_its_texts_are_kept_or_not() -> None:
    """The text of each group is kept; a change, a deletion and a new group show in the next one."""
    table = GroupTable(now_ms=1)

    def fresh() -> bytes:
        whole = GroupTableBody(table.data_version, table._table, table._forbidden)
        return fastjson.dumps(whole.to_json(), pretty=True)

    assert table.encode() == fresh()
    table.find_or_create("a", auto_create=True, now_ms=2)
    table.find_or_create("b", auto_create=True, now_ms=2)
    assert table.encode() == fresh()
    config = decode_group_config(b'{"groupName":"a","retryMaxTimes":3}')
    table.put(config, 3)
    table.delete("b", 4)
    table.forbid("a", "t", forbidden=True, now_ms=5)
    assert table.encode() == fresh()
