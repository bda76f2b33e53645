"""Versions as files: decided once, read back whole, damage told, what is old removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.model import TopicQueue
from inorder.spark.ordered.deadletters import letter_message
from inorder.spark.ordered.records import Version, following
from inorder.spark.ordered.rules import Keys, Letter, Line, OrderedMessage
from inorder.spark.ordered.storage import DamagedState, QueueFolder, _cache, folders, of_topic

QUEUE = TopicQueue("%RETRY%a|b", "broker-a", 3)


@pytest.fixture
def folder(tmp_path: Path) -> QueueFolder:
    """Return an empty folder; nothing is in memory."""
    _cache.clear()
    return QueueFolder(str(tmp_path), "query", QUEUE)


def test_the_first_to_decide_wins(folder: QueueFolder) -> None:
    """Whoever comes later gets what the first one decided, rows and all."""
    first, second = Version(7, 0, 9, 10, [7]), Version(7, 0, 9, 10, [7], {"a": b"other"})
    assert folder.decide(first, b"rows").version is first
    late = folder.decide(second, b"others")
    assert (late.version, late.rows) == (first, b"rows")
    assert folder.decided(7) == late
    assert folder.decided(8) is None
    assert [path.name for path in folder.path.iterdir()] == ["0000000007"]


def test_a_chain_is_read_back(folder: QueueFolder) -> None:
    """From files, and from memory if the newest file is the one that memory belongs to."""
    keys = Keys({f"k{at}": b"x" * 50 for at in range(50)}, next_offset=0)
    before: Version | None = None
    for batch in (2, 3, 5, 9):
        keys.states[f"k{batch}"] = b"changed %d" % batch
        keys.changed.add(f"k{batch}")
        keys.next_offset = batch
        keys.held["w"] = Line([OrderedMessage("t", "b", 3, batch, "w")], 5, "why")
        version = following(before, keys, [], batch=batch, first=batch, last=batch)
        folder.decide(version, b"")
        folder.clean(version, before)
        keys.changed.clear()
        before = version
    assert before is not None
    assert before.chain == [2, 3, 5, 9]
    read, found = folder.before(10)
    assert read == before
    assert (found.states, found.held, found.next_offset) == (keys.states, keys.held, 9)
    assert folder.before(9)[1].states["k9"] == b"x" * 50
    assert folder.before(2) == (None, Keys())
    folder.keep(before, keys)
    assert folder.before(10)[1] is keys
    assert folder.before(10)[1] is not keys, "it belongs to whoever took it"


def test_old_versions_and_drafts_are_removed(folder: QueueFolder) -> None:
    """The last two can still be read."""
    before: Version | None = None
    for batch in range(5):
        keys = Keys({"a": b"1"}, next_offset=batch)
        version = following(None, keys, [], batch=batch, first=0, last=0)
        folder.decide(version, b"")
        (folder.path / f".{batch}-99").touch()
        folder.clean(version, before)
        before = version
    assert folder.batches() == [3, 4]
    assert sorted(path.name for path in folder.path.glob(".*")) == [".4-99"]


@pytest.mark.parametrize("at", [3, 20, 45, -1])
def test_damage_is_told(folder: QueueFolder, at: int) -> None:
    """A byte that changed, wherever it is."""
    folder.decide(Version(1, 0, 0, 1, [1], {"a": b"1"}), b"rows")
    path = folder.path / "0000000001"
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DamagedState):
        folder.decided(1)


def test_a_missing_link_is_told(folder: QueueFolder) -> None:
    """A state that is not whole is not used."""
    folder.decide(Version(4, 0, 0, 1, [2, 4]), b"")
    with pytest.raises(DamagedState, match="not whole"):
        folder.before(5)


def test_folders_are_found_by_their_names(folder: QueueFolder, tmp_path: Path) -> None:
    """Whatever characters a topic has."""
    folder.decide(Version(1, 0, 0, 1, [1]), b"")
    assert [(query, queue) for query, queue, _ in folders(str(tmp_path))] == [("query", QUEUE)]
    assert list(of_topic(str(tmp_path), "query", QUEUE.topic)) == [("broker-a", 3)]


def test_a_dead_letter_is_the_message_with_its_story() -> None:
    """Body, key, tag and own properties stay; numbers and what brokers set do not."""
    message = OrderedMessage(
        "orders", "broker-a", 2, 17, "k", b"body", "paid", "w1 w2",
        {"mine": "1", "UNIQ_KEY": "u", "INORDER_SEQ": "5", "__SHARDINGKEY": "k", "DELAY": "3"},
        "id-1", redeliveries=2,
    )  # fmt: skip
    found = letter_message(Letter(message, "ValueError:\n no\x01"), "billing")
    assert (found.topic, found.body, found.key, found.tag) == (
        "%DLQ%billing", b"body", "k", "paid",
    )  # fmt: skip
    assert found.keys == ("w1", "w2")
    assert found.properties == {
        "mine": "1", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "id-1",
        "INORDER_DEAD_ORIGIN": "orders/broker-a/2/17", "INORDER_DEAD_TRIES": "3",
        "INORDER_DEAD_ERROR": "ValueError: no",
    }  # fmt: skip
