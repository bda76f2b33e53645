"""All queues compared with the log: nothing is changed, everything that differs is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.errors import StoreError
from inorder.store.mending import compare
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, write_and_publish

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=200, index_slots=7, index_entries=400)


def filled(files: FakeFiles) -> Store:
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(40):
        append(store, "T", number % 2, b"message %d" % number, tag="a")
    write_and_publish(store)
    store.housekeep(1)
    return store


def test_right_queues_do_not_differ_also_while_the_store_is_open() -> None:
    """And the comparison changes nothing."""
    files = FakeFiles()
    store = filled(files)
    before = files.counts["change"]
    found = compare(files, ROOT, (1000,))
    assert (found.ok, found.queues, found.entries) == (True, 2, 40)
    assert files.counts["change"] == before
    append(store, "T", 0, b"more")
    write_and_publish(store)
    assert compare(files, ROOT, (1000,)).ok
    store.close()
    assert compare(files, ROOT, (1000,)).ok


def test_what_differs_is_named() -> None:
    """A flipped tag hash, which pulls do not see, a missing file, and records that are gone."""
    files = FakeFiles()
    filled(files).close()
    files.write(ROOT / "consumequeue" / "T" / "0" / f"{0:020d}", b"\x07", 39)
    files.remove(ROOT / "consumequeue" / "T" / "1" / f"{200:020d}")
    entry = files.read(ROOT / "consumequeue" / "T" / "0" / f"{0:020d}")[60:72]
    position, size = int.from_bytes(entry[:8], "big"), int.from_bytes(entry[8:], "big")
    files.write(ROOT / "commitlog" / f"{0:020d}", bytes(size), position)
    found = compare(files, ROOT, (1000,))
    assert [(one.queue_id, one.changed, one.lost) for one in found.differing] == [
        (0, 2, [(3, 4)]),
        (1, 10, []),
    ]
    assert not found.ok


def test_another_directory_is_refused() -> None:
    """It says what is missing."""
    files = FakeFiles()
    files.makedirs(ROOT)
    with pytest.raises(StoreError, match="no commitlog"):
        compare(files, ROOT, ())
