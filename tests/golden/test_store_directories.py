"""Data directories written by Apache RocketMQ 5.3.3, opened by inorder.

`store/*.tar.xz` are the directories, `store/*.json` what that broker said about them and
`store/messages.jsonl.xz` every message as its Java client decoded it.
"""

from __future__ import annotations

import json
import lzma
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from inorder.config import StoreConfig
from inorder.disk import OsFiles
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from inorder.wire.ids import offset_message_id
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.properties import parse
from inorder.wire.record import Record, decode
from tests.kit.storing import append, contents, read_queue, write_and_publish

HERE = Path(__file__).parent / "store"
SAMPLES = ("clean", "killed", "torn")
CONFIG = StoreConfig(
    segment_bytes=1_048_576, queue_file_bytes=2000, index_slots=500, index_entries=2000
)
NOW_MS = 1_794_720_000_000


def manifest(sample: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{sample}.json").read_text())
    return found


def unpack(sample: str, target: Path) -> Path:
    with tarfile.open(HERE / f"{sample}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target


def messages(sample: str) -> list[dict[str, Any]]:
    with lzma.open(HERE / "messages.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if sample in row["samples"]]


def open_store(root: Path) -> Store:
    return Store.open(root, CONFIG, OsFiles(), FakeClock(NOW_MS))


def shape(store: Store) -> dict[str, dict[str, tuple[int, int]]]:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for topic in store.queues.topics():
        for queue in store.queues_of(topic):
            if queue.visible_offset:
                span = (queue.min_offset, queue.visible_offset)
                found.setdefault(topic, {})[str(queue.queue_id)] = span
    return found


def expected_shape(sample: str) -> dict[str, dict[str, tuple[int, int]]]:
    return {
        topic: {
            number: (queue["minOffset"], queue["maxOffset"])
            for number, queue in described["queues"].items()
        }
        for topic, described in manifest(sample)["topics"].items()
        if described["queues"]
    }


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_offsets_and_log_end_are_those_the_broker_reported(sample: str, tmp_path: Path) -> None:
    """Every queue has RocketMQ's min and max offset, and the log RocketMQ's end."""
    store = open_store(unpack(sample, tmp_path))
    assert store.log.end_position == manifest(sample)["runtime"]["commitLogMaxOffset"]
    assert store.log.min_position == manifest(sample)["runtime"]["commitLogMinOffset"]
    assert shape(store) == expected_shape(sample)
    assert store.recovery.clean == (sample == "clean")
    assert store.recovery.problems == []
    store.close()


@pytest.mark.slow
def test_messages_are_those_the_java_client_saw(sample: str, tmp_path: Path) -> None:
    """Each message is found at its offset and position with the same fields and bytes."""
    store = open_store(unpack(sample, tmp_path))
    rows = messages(sample)
    assert len(rows) > 1000
    queues: dict[tuple[str, int], dict[int, Record]] = {}
    for row in rows:
        key = (row["topic"], row["queueId"])
        if key not in queues:
            queue = store.find_queue(*key)
            assert queue is not None
            queues[key] = {r.queue_offset: r for r in read_queue(store, queue)}
        record = queues[key].pop(row["queueOffset"])
        assert record.position == row["commitLogOffset"]
        assert record.size == row["storeSize"]
        assert record.stored_at_ms == row["storeTimestamp"]
        assert record.born_at_ms == row["bornTimestamp"]
        assert record.body_crc == row["bodyCRC"] == zlib.crc32(record.body) & 0x7FFFFFFF
        assert record.redeliveries == row["reconsumeTimes"]
        assert record.prepared_position == row["preparedTransactionOffset"]
        assert offset_message_id(record.store_host, record.position) == row["offsetMsgId"]
        stored = parse(record.properties)
        assert {name: stored.get(name) for name in row["properties"]} == row["properties"]
    assert not any(queues.values()), "more messages than the client saw"
    store.close()


@pytest.mark.slow
def test_key_queries_give_the_same_hits(sample: str, tmp_path: Path) -> None:
    """Key queries, also for keys only in the rebuilt part of the index, hit what RocketMQ hit."""
    store = open_store(unpack(sample, tmp_path))
    for asked in manifest(sample)["keyQueries"]:
        hits = store.query_keys(asked["topic"], asked["key"], 64, 0, 1 << 62)
        assert sorted(hits.positions) == sorted(hit["commitLogOffset"] for hit in asked["hits"])
    store.close()


@pytest.mark.slow
def test_rebuilt_queues_equal_the_ones_rocketmq_wrote(tmp_path: Path) -> None:
    """Without consumequeue, index and our notes everything is made from the log, byte for byte.

    Only in the queue of timers the tag code is ours: the time of the message.
    """
    root = unpack("clean", tmp_path)
    before = {path.relative_to(root): path.read_bytes() for path in root.glob("consumequeue/*/*/*")}
    files = OsFiles()
    files.remove_tree(root / "consumequeue")
    files.remove_tree(root / "index")
    store = open_store(root)
    asked = manifest("clean")["keyQueries"][0]
    hits = store.query_keys(asked["topic"], asked["key"], 64, 0, 1 << 62)
    assert len(hits.positions) == len(asked["hits"])
    store.close()
    after = {path.relative_to(root): path.read_bytes() for path in root.glob("consumequeue/*/*/*")}
    for content in (before, after):
        content.update({
            path: b"".join(data[at : at + 12] for at in range(0, len(data), 20))
            for path, data in content.items()
            if path.parts[1] == TIMER_TOPIC
        })  # fmt: skip
    assert after == before


@pytest.mark.slow
def test_a_directory_of_ours_keeps_the_rules_of_a_clean_stop(sample: str, tmp_path: Path) -> None:
    """After our close: no abort, exact file sizes, zero tails, an entry for every record."""
    root = unpack(sample, tmp_path)
    store = open_store(root)
    for number in range(300):
        append(store, "GoldOrders", number % 4, b"more %d" % number, now_ms=NOW_MS, keys="more")
        if number % 20 == 19:
            write_and_publish(store)
    all_before = contents(store)
    end = store.log.end_position
    store.close()
    assert not (root / "abort").exists()
    assert {path.stat().st_size for path in root.glob("commitlog/*")} == {CONFIG.segment_bytes}
    assert {path.stat().st_size for path in root.glob("consumequeue/*/*/*")} == {2000}
    assert {path.stat().st_size for path in root.glob("index/*")} == {40 + 500 * 4 + 2000 * 20}
    assert (root / "lock").read_bytes() == b"lock"
    last = sorted(root.glob("commitlog/*"))[-1]
    tail = last.read_bytes()[end - int(last.name) :]
    assert tail.strip(b"\0") == b""
    _assert_queues_cover_the_log(root, end)
    again = open_store(root)
    assert again.recovery.method == "closed"
    assert again.recovery.scanned_records == 0
    assert contents(again) == all_before
    assert len(again.query_keys("GoldOrders", "more", 64, 0, 1 << 62).positions) == 64
    again.close()


def _assert_queues_cover_the_log(root: Path, end: int) -> None:
    log = {int(path.name): path.read_bytes() for path in root.glob("commitlog/*")}
    ends = []
    for queue in root.glob("consumequeue/*/*"):
        data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
        entries = [data[at : at + 20] for at in range(0, len(data), 20)]
        used = [entry for entry in entries if entry.strip(b"\0")]
        assert entries[: len(used)] == used, f"hole in {queue}"
        for offset, entry in enumerate(used):
            position = int.from_bytes(entry[:8], "big")
            base = position - position % CONFIG.segment_bytes
            record = decode(log[base], position - base)
            assert (record.topic, str(record.queue_id)) == (queue.parent.name, queue.name)
            assert record.queue_offset == offset
            assert record.size == int.from_bytes(entry[8:12], "big")
        if used:
            ends.append(int.from_bytes(used[-1][:8], "big") + int.from_bytes(used[-1][8:12], "big"))
    assert max(ends) == end


@pytest.mark.slow
def test_a_torn_directory_is_cleared_behind_its_end(tmp_path: Path) -> None:
    """The torn record and the stale queue entry, which RocketMQ leaves behind, are zeroed."""
    root = unpack("torn", tmp_path)
    store = open_store(root)
    end = store.log.end_position
    assert store.recovery.truncated_bytes > 0
    store.abandon()
    segment = (root / "commitlog" / f"{1_048_576:020d}").read_bytes()
    assert segment[end - 1_048_576 :].strip(b"\0") == b""
    queue = root / "consumequeue" / "GoldFlood" / "0"
    data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
    assert data[409 * 20 :].strip(b"\0") == b""
