"""Finding the records of the log that hold a mark."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from inorder.config import StoreConfig
from inorder.store.scan import marked_records
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, write_and_publish

CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=100, index_slots=7, index_entries=12)
MARK = b"UNIQ_KEY\x01M"


def open_store() -> Store:
    """Return an empty store with small segments."""
    return Store.open(Path("/data"), CONFIG, FakeFiles(), FakeClock())


@pytest.mark.parametrize("seed", range(8))
def test_all_marked_records_are_found_from_any_record_on(seed: int) -> None:
    """Over segments, between others, and not where the mark stands in a body."""
    draw, store = Random(seed), open_store()
    wanted, starts = [], [0]
    for number in range(120):
        marked = draw.random() < (0.1, 0.5, 0.9)[seed % 3]
        body = MARK if draw.random() < 0.2 else b"x" * draw.randint(1, 300)
        append(store, "T", 0, body, unique=f"M{number}" if marked else f"N{number}")
        write_and_publish(store)
        if marked:
            wanted.append((starts[-1], number))
        starts.append(store.log.end_position)
    end = store.log.end_position
    for start in starts[:: 1 + seed]:
        found = [
            record.queue_offset for record in marked_records(store.log.segments, start, end, MARK)
        ]
        assert found == [number for position, number in wanted if position >= start]
    store.close()


def test_nothing_is_found_where_nothing_is() -> None:
    """An empty log, and one without marks."""
    store = open_store()
    assert list(marked_records(store.log.segments, 0, store.log.end_position, MARK)) == []
    for _ in range(50):
        append(store, "T", 0, MARK)
        write_and_publish(store)
    assert list(marked_records(store.log.segments, 0, store.log.end_position, MARK)) == []
    store.close()
