"""Offsets: what is stored, what counts as none, and the file that holds them."""

from __future__ import annotations

import pytest

from inorder.broker.offsets.rules import QUEUES_MAX, Clamped, OffsetTable
from inorder.errors import InvalidParameter, RemoteProtocolError


def test_the_last_commit_counts() -> None:
    """Any order of offsets is stored, also backwards."""
    offsets = OffsetTable(now_ms=1)
    assert offsets.query("g", "t", 0) == -1
    offsets.commit("g", "t", 0, 10, 1)
    offsets.commit("g", "t", 0, 4, 1)
    assert offsets.query("g", "t", 0) == 4
    assert offsets.query("h", "t", 0) == -1


def test_minus_one_says_nothing() -> None:
    """A commit of -1 reads back as none, and does not erase what another member committed."""
    offsets = OffsetTable(now_ms=1)
    offsets.commit("g", "t", 0, -1, 1)
    assert offsets.query("g", "t", 0) == -1
    assert offsets.revision == 0
    offsets.commit("g", "t", 0, 7, 1)
    offsets.commit("g", "t", 0, -1, 1)
    assert offsets.query("g", "t", 0) == 7


def test_the_version_counts_every_500_commits() -> None:
    """The data version moves once per 500 commits, the revision with each."""
    offsets = OffsetTable(now_ms=1)
    for number in range(999):
        offsets.commit("g", "t", 0, number, 50)
    assert offsets.data_version.counter == 1
    assert offsets.revision == 999


def test_pull_offsets_live_in_memory_only() -> None:
    """How far a group pulled is remembered apart from what it committed."""
    offsets = OffsetTable(now_ms=1)
    offsets.commit("g", "t", 0, 3, 1)
    assert offsets.query_pull("g", "t", 0) == 3
    offsets.commit_pull("g", "t", 0, 9)
    assert offsets.query_pull("g", "t", 0) == 9
    assert offsets.query("g", "t", 0) == 3
    assert b"9" not in offsets.encode()


def test_topics_and_groups_can_be_removed() -> None:
    """Removal takes one topic or one group and nothing that only looks like it."""
    offsets = OffsetTable(now_ms=1)
    for topic in ("t", "tt"):
        for group in ("g", "gg"):
            offsets.commit(group, topic, 0, 1, 1)
            offsets.commit_pull(group, topic, 0, 2)
    assert offsets.topics_of("g") == ["t", "tt"]
    assert offsets.groups_of("t") == ["g", "gg"]
    assert offsets.remove_topic("t") == 2
    assert offsets.query("g", "t", 0) == -1
    assert offsets.query_pull("g", "t", 0) == -1
    assert offsets.query("g", "tt", 0) == 1
    assert offsets.remove_group("gg") == 1
    assert offsets.queues("g", "tt") == {0: 1}
    assert offsets.queues("gg", "tt") == {}


def test_the_file_has_the_form_of_rocketmq() -> None:
    """Byte for byte what a real broker writes for the same table."""
    offsets = OffsetTable(now_ms=1794716721266)
    for queue_id in range(4):
        offsets.commit("GoldCG", "GoldOrders", queue_id, 120, 1)
    offsets.commit("GoldRG", "%RETRY%GoldRG", 0, 2, 1)
    offsets.commit("GoldRG", "GoldRetry", 0, 3, 1)
    offsets.commit("GoldRG", "GoldRetry", 1, 3, 1)
    assert offsets.encode().decode() == (
        "{\n"
        '\t"dataVersion":{\n'
        '\t\t"counter":0,\n'
        '\t\t"stateVersion":0,\n'
        '\t\t"timestamp":1794716721266\n'
        "\t},\n"
        '\t"groupTopicMap":{\n'
        '\t\t"GoldCG":["GoldOrders"],\n'
        '\t\t"GoldRG":["%RETRY%GoldRG","GoldRetry"]\n'
        "\t},\n"
        '\t"offsetTable":{\n'
        '\t\t"GoldOrders@GoldCG":{0:120,1:120,2:120,3:120\n'
        "\t\t},\n"
        '\t\t"%RETRY%GoldRG@GoldRG":{0:2\n'
        "\t\t},\n"
        '\t\t"GoldRetry@GoldRG":{0:3,1:3\n'
        "\t\t}\n"
        "\t}\n"
        "}"
    )


def test_the_file_comes_back() -> None:
    """Bare and quoted queue ids are read; a stored -1 is none; what is no table is refused."""
    offsets = OffsetTable(now_ms=1)
    offsets.commit("g", "t", 3, 5, 1)
    again = OffsetTable(now_ms=2)
    again.decode(offsets.encode())
    assert again.queues("g", "t") == {3: 5}
    again.decode(b'{"offsetTable":{"t@g":{"0":7,1:-1}}}')
    assert again.queues("g", "t") == {0: 7}
    for text in (b"[]", b'{"offsetTable":[]}', b'{"offsetTable":{"t@g":{"x":1}}}', b"{"):
        with pytest.raises(RemoteProtocolError):
            again.decode(text)


def test_offsets_beyond_the_log_are_cut_back() -> None:
    """After a power cut an offset never lies beyond the end: new messages are not skipped."""
    offsets = OffsetTable(now_ms=1)
    offsets.commit("g", "t", 0, 10, 1)
    offsets.commit("g", "t", 1, 3, 1)
    before = offsets.revision
    assert offsets.clamp(lambda _topic, _queue_id: 8) == [Clamped("t", "g", 0, 10, 8)]
    assert offsets.query("g", "t", 0) == 8
    assert offsets.query("g", "t", 1) == 3
    assert offsets.revision > before


def test_garbage_queue_ids_are_bounded() -> None:
    """One group cannot fill the memory with queue ids."""
    offsets = OffsetTable(now_ms=1)
    with pytest.raises(InvalidParameter):
        offsets.commit("g", "t", -1, 1, 1)
    for queue_id in range(QUEUES_MAX):
        offsets.commit("g", "t", queue_id, 1, 1)
    with pytest.raises(InvalidParameter):
        offsets.commit("g", "t", QUEUES_MAX, 1, 1)
    offsets.commit("g", "t", 5, 2, 1)


def test_a_reset_holds_until_it_is_taken() -> None:
    """Commits and pulled offsets of before do not count; topic and group take it with them."""
    table = OffsetTable(now_ms=1)
    table.commit("g", "t", 0, 9, 1)
    table.commit_pull("g", "t", 0, 12)
    table.reset("g", "t", 0, 3, 1)
    table.commit("g", "t", 0, 10, 1)
    table.commit("g", "t", 1, 10, 1)
    assert (table.query("g", "t", 0), table.query_pull("g", "t", 0)) == (3, 3)
    assert table.query("g", "t", 1) == 10
    assert table.take_reset("g", "t", 1) is None
    assert table.take_reset("other", "t", 0) is None
    assert [table.take_reset("g", "t", 0), table.take_reset("g", "t", 0)] == [3, None]
    table.commit("g", "t", 0, 10, 1)
    assert table.query("g", "t", 0) == 10
    for remove, name in ((table.remove_topic, "t"), (table.remove_group, "g")):
        table.reset("g", "t", 0, 3, 1)
        assert remove(name) == 1
        assert not table.has_reset("g", "t", 0)
