"""Retention: the decision, and what follows from dropping segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.disk import DiskUsage
from inorder.store.reader import ReadStatus
from inorder.store.retention import Decision, decide
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, contents, write_and_publish

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=1024, queue_file_bytes=100, index_slots=7, index_entries=12)
HOUR_MS = 3_600_000
OLD, YOUNG = 73 * HOUR_MS, 71 * HOUR_MS
EMPTY, FULL = DiskUsage(100, 90), DiskUsage(100, 12)


@pytest.mark.parametrize(
    ("ages", "hour", "used", "expected"),
    [
        ([OLD, OLD, YOUNG], 4, 0.5, 2),
        ([OLD, OLD, YOUNG], 5, 0.5, 0),
        ([OLD, OLD, YOUNG], 5, 0.76, 2),
        ([YOUNG, OLD], 4, 0.8, 0),
        ([YOUNG, YOUNG], 5, 0.86, 2),
        ([YOUNG] * 30, 5, 0.99, 10),
        ([OLD] * 30, 4, 0.1, 10),
        ([], 4, 0.99, 0),
    ],
)
def test_which_segments_go(ages: list[int], hour: int, used: float, expected: int) -> None:
    """By age in the right hour or when fuller than 75 %, regardless of age above 85 %."""
    found = decide(ages, config=StoreConfig(), local_hour=hour, used_ratio=used, full_before=None)
    assert found.segments == expected


def test_writes_are_refused_above_one_ratio_until_below_another() -> None:
    """Full above 90 %, still full at 88 %, free again at 85 %."""

    def full(used: float, before: str | None) -> str | None:
        return decide(
            [], config=StoreConfig(), local_hour=1, used_ratio=used, full_before=before
        ).disk_full

    reason = full(0.91, None)
    assert reason is not None
    assert "91%" in reason
    assert full(0.88, reason) == reason
    assert full(0.88, None) is None
    assert full(0.85, reason) is None


def test_hours_may_be_several() -> None:
    """deleteWhen is a list separated by semicolons."""
    config = StoreConfig(delete_when="02;14")
    found = [
        decide([OLD], config=config, local_hour=hour, used_ratio=0, full_before=None)
        for hour in (2, 3, 14)
    ]
    assert found == [Decision(1, None), Decision(0, None), Decision(1, None)]


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles()


@pytest.fixture
def store(files: FakeFiles) -> Iterator[Store]:
    opened = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(40):
        append(opened, "T", number % 2, b"body %02d" % number, keys=f"k{number}")
        write_and_publish(opened)
    append(opened, "idle", 0, b"last")
    write_and_publish(opened)
    opened.housekeep(1)
    opened.flush_indexes()
    yield opened
    opened.abandon()


def test_queues_and_index_follow_the_log(files: FakeFiles, store: Store) -> None:
    """Min offsets move, files of entries and keys that only point below go."""
    assert len(store.log.segments.items) >= 5
    view = store.log.view_at(0, 100)
    for segment in store.log.segments.items[:2]:
        files.touch(segment.path, 0)
    for segment in store.log.segments.items[2:]:
        files.touch(segment.path, OLD)
    report = store.clean(OLD + 1, 4, EMPTY)
    assert report.segments == 2
    assert report.queue_files > 0
    assert report.index_files > 0
    assert store.log.min_position == 2048
    queue = store.queue("T", 0)
    assert queue.min_offset > 0
    first = queue.entry(queue.min_offset)
    before = queue.entry(queue.min_offset - 1)
    assert first is not None
    assert first[0] >= 2048
    assert before is None or before[0] < 2048
    assert store.query_keys("T", "k0", 9, 0, 1 << 62).positions == []
    assert view is not None
    assert bytes(view[4:8]) == b"\xda\xa3\x20\xa7", "a reader's view stays good"
    result = store.reader.get(queue, 0, max_messages=9, max_bytes=9999, scan_max=9, wanted=None)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, queue.min_offset)
    found = contents(store)
    store.close()
    again = Store.open(ROOT, CONFIG, files, FakeClock())
    assert contents(again) == found
    assert again.queue("T", 0).min_offset == queue.min_offset
    again.abandon()


def test_a_full_disk_refuses_writes_and_cleans_at_once(store: Store) -> None:
    """Above 85 % segments go whatever their age; above 90 % the store is unwritable."""
    before = len(store.log.segments.items)
    report = store.clean(1, 12, DiskUsage(100, 5))
    assert report.segments == before - 1
    assert not store.writable
    store.clean(1, 12, FULL)
    assert not store.writable
    store.clean(1, 12, EMPTY)
    assert store.writable


def test_what_is_not_synced_stays(store: Store) -> None:
    """A segment whose queue entries are not on disk is never dropped."""
    for number in range(40):
        append(store, "T", 0, b"later %d" % number)
        write_and_publish(store)
    before = store.log.segments.items[-1].position
    noted = store.flushed_position
    assert store.clean(1, 12, FULL).segments == noted // 1024
    assert store.log.min_position <= noted < before


def test_an_emptied_queue_keeps_its_numbers(store: Store) -> None:
    """When all its records have gone a queue is empty and goes on counting."""
    queue = store.queue("T", 1)
    following = queue.next_offset
    for number in range(40):
        append(store, "U", 0, b"filler %d" % number)
        write_and_publish(store)
    store.housekeep(1)
    store.flush_indexes()
    store.clean(1, 12, FULL)
    assert queue.min_offset == queue.visible_offset == following
    assert append(store, "T", 1, b"new") == following
    write_and_publish(store)
    assert contents(store)[("T", 1)] == [(following, b"new")]


def test_queues_that_were_not_loaded_follow_when_they_are(files: FakeFiles, store: Store) -> None:
    """After a restart a queue nobody asked for is brought to the log's beginning on first use."""
    store.close()
    again = Store.open(ROOT, CONFIG, files, FakeClock())
    again.clean(1, 12, FULL)
    assert list(again.queues.loaded()) == []
    queue = again.queue("T", 0)
    first = queue.entry(queue.min_offset)
    assert first is not None
    assert again.log.min_position <= first[0]
    assert queue.min_offset == 18
    assert len(files.listdir(ROOT / "consumequeue" / "T" / "0")) == 1
    again.abandon()
