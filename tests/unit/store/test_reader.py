"""Reading a queue: RocketMQ's statuses and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.store.reader import Reader, ReadResult, ReadStatus
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from inorder.wire.ids import java_hash
from inorder.wire.record import decode_all
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, write_and_publish

CONFIG = StoreConfig(segment_bytes=8192, queue_file_bytes=2000, index_slots=7, index_entries=500)


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store.open(Path("/data"), CONFIG, FakeFiles(), FakeClock())
    yield opened
    opened.abandon()


def fill(store: Store, count: int, *, queues: int = 1) -> None:
    for number in range(count):
        append(store, "T", number % queues, b"%04d" % number, tag=f"tag{number % 4}")
    write_and_publish(store)


def get(store: Store, offset: int, **changed: object) -> ReadResult:
    limits = {"max_messages": 32, "max_bytes": 1 << 20, "scan_max": 800, "wanted": None} | changed
    return store.reader.get(store.queue("T", 0), offset, **limits)  # type: ignore[arg-type]


def bodies(result: ReadResult) -> list[bytes]:
    return [record.body for view in result.views for record in decode_all(view)]


def test_an_empty_queue_has_no_message(store: Store) -> None:
    """Whatever the offset asked for, it begins at 0."""
    assert get(store, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    result = get(store, 9)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (3, ReadStatus.OFFSET_TOO_SMALL, 5),
        (20, ReadStatus.OFFSET_OVERFLOW_ONE, 20),
        (21, ReadStatus.OFFSET_OVERFLOW_BADLY, 20),
        (5, ReadStatus.FOUND, 20),
    ],
)
def test_offsets_outside_of_the_queue(
    store: Store, offset: int, status: ReadStatus, following: int
) -> None:
    """Too small, one past the end and far past it are told apart and corrected."""
    fill(store, 20)
    store.queue("T", 0).min_offset = 5
    result = get(store, offset)
    assert (result.status, result.next_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (5, 20)


def test_what_is_not_published_is_not_seen(store: Store) -> None:
    """Between write and publish a message is in the log but not for readers."""
    append(store, "T", 0, b"one")
    tick = store.write_tick()
    assert get(store, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert tick is not None
    store.publish(tick)
    assert bodies(get(store, 0)) == [b"one"]


def test_neighbours_come_as_one_view(store: Store) -> None:
    """Contiguous records are one slice of the log."""
    fill(store, 10)
    result = get(store, 2, max_messages=5)
    assert len(result.views) == 1
    assert result.count == 5
    assert result.size == len(result.views[0]) == result.ranges[0][1]
    assert bodies(result) == [b"%04d" % n for n in range(2, 7)]
    assert result.next_offset == 7


def test_scattered_records_come_as_several_views(store: Store) -> None:
    """Records of two interleaved queues are not merged."""
    fill(store, 10, queues=2)
    result = get(store, 0)
    assert bodies(result) == [b"%04d" % n for n in range(0, 10, 2)]
    assert len(result.views) == 5


def test_a_read_crosses_segments(store: Store) -> None:
    """Records on both sides of a segment's end come in one result, as two views."""
    fill(store, 100)
    assert len(store.log.segments.items) > 1
    seen, offset = [], 0
    while offset < 100:
        result = get(store, offset)
        seen += bodies(result)
        offset = result.next_offset
    assert seen == [b"%04d" % n for n in range(100)]


def test_the_first_record_always_fits_and_bytes_limit_the_rest(store: Store) -> None:
    """A limit below one record gives one record; otherwise whole records below the limit."""
    fill(store, 10)
    one = get(store, 0, max_bytes=1)
    assert (one.count, one.next_offset) == (1, 1)
    size = one.size
    three = get(store, 0, max_bytes=3 * size + size // 2)
    assert (three.count, three.next_offset) == (3, 3)


def test_filters_compare_hashes_and_say_how_far_they_looked(store: Store) -> None:
    """Only wanted tags come back; the next offset is behind the last entry examined."""
    fill(store, 20)
    wanted = frozenset({java_hash("tag1")})
    result = get(store, 0, wanted=wanted, max_messages=3)
    assert bodies(result) == [b"0001", b"0005", b"0009"]
    assert result.next_offset == 10, "a full answer stops before the next entry"
    few = get(store, 2, wanted=wanted, scan_max=3)
    assert (few.status, few.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 5)
    none = get(store, 0, wanted=frozenset({1}))
    assert (none.status, none.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 20)


def test_a_missing_queue_file_is_damage(store: Store) -> None:
    """RocketMQ skips to the next file; here nothing behind it is given out before it is back."""
    fill(store, 150)
    store.housekeep(1)
    store.queues.queue_files.remove(("T", 0, 0))
    result = get(store, 5)
    assert (result.status, result.next_offset) == (ReadStatus.QUEUE_DAMAGED, 5)


def test_records_whose_segment_is_gone_are_passed_over(store: Store) -> None:
    """MESSAGE_WAS_REMOVING when nothing is left of what was asked for."""
    fill(store, 150)
    store.log.segments.drop_first()
    result = get(store, 0)
    assert result.status is ReadStatus.MESSAGE_WAS_REMOVING
    assert result.next_offset == 32
    assert result.views == []


def test_cold_reads_are_told_and_loaded_apart(store: Store) -> None:
    """Far behind the end a result says so, and `load` gives the same bytes without the map."""
    fill(store, 50)
    reader = Reader(store.log, hot_bytes=1000)
    queue = store.queue("T", 0)
    limits = {"max_messages": 4, "max_bytes": 1 << 20, "scan_max": 800}
    old = reader.get(queue, 0, wanted=None, **limits)
    new = reader.get(queue, 46, wanted=None, **limits)
    assert (old.cold, new.cold) == (True, False)
    assert reader.load(old.ranges) == [bytes(view) for view in old.views]
    store.log.segments.drop_first()
    assert reader.load(old.ranges) is None
