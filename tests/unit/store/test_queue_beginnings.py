"""Where a queue begins is searched in its entries; a wrong one among them must not move it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, write_and_publish

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=1024, queue_file_bytes=200, index_slots=7, index_entries=400)
COUNT = 40


def store_of(files: FakeFiles) -> Store:
    return Store.open(ROOT, CONFIG, files, FakeClock())


def fill(files: FakeFiles) -> None:
    store = store_of(files)
    for number in range(COUNT):
        append(store, "T", 0, b"message %d" % number)
    write_and_publish(store)
    store.housekeep(1)
    store.close()


def set_position(files: FakeFiles, offset: int, position: int) -> None:
    name = f"{offset * 20 // 200 * 200:020d}"
    path = ROOT / "consumequeue" / "T" / "0" / name
    files.write(path, position.to_bytes(8, "big", signed=True), offset * 20 % 200)


@pytest.mark.parametrize("offset", [3, 19, 20, 29])
def test_a_negative_position_hides_nothing_before_it(offset: int) -> None:
    """The queue begins at 0 as before, no file of it goes, and all of its messages are there."""
    files = FakeFiles()
    fill(files)
    set_position(files, offset, -(2**63) + 77)
    store = store_of(files)
    queue = store.queues.get("T", 0)
    assert queue.min_offset == 0
    assert len(store.queues.file_names(queue)) == 4


@pytest.mark.parametrize("position", [0, 1, -5])
def test_retention_drops_no_file_for_a_wrong_entry(position: int) -> None:
    """The search ends behind an entry that names too early a record: the queue is damaged."""
    files = FakeFiles()
    fill(files)
    store = store_of(files)
    queue = store.queues.get("T", 0)
    store.log.segments.drop_first()
    oldest = store.log.min_position
    assert 0 < queue.find_first(oldest, 0) < COUNT // 2
    set_position(files, COUNT // 2, position)  # the first place that the search looks at
    store.queues.queue_files.forget_queue("T", 0)
    before = store.queues.file_names(queue)
    store.queues.set_min_offset(queue)
    assert queue.damaged
    assert queue.min_offset == 0
    assert store.queues.file_names(queue) == before


def test_retention_follows_the_log_where_entries_are_right() -> None:
    """Files before the first message that the log has go."""
    files = FakeFiles()
    fill(files)
    store = store_of(files)
    queue = store.queues.get("T", 0)
    before = len(store.queues.file_names(queue))
    for _ in range(3):
        store.log.segments.drop_first()
    store.queues.set_min_offset(queue)
    assert not queue.damaged
    assert queue.min_offset > 10
    assert len(store.queues.file_names(queue)) < before
