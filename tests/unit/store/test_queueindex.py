"""One queue: offsets, the tail in memory, the entries in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.store.consumequeue import QueueFiles, QueueIndex
from inorder.store.layout import ENTRY, FILLER, Layout
from tests.kit.disk import FakeFiles

ROOT = Path("/store")


@pytest.fixture
def files() -> FakeFiles:
    made = FakeFiles()
    made.makedirs(ROOT)
    return made


def make_queue(files: FakeFiles, dirty: list[QueueIndex] | None = None) -> QueueIndex:
    pool = QueueFiles(files, Layout(ROOT), size=100, open_max=2)
    return QueueIndex("T", 3, pool, [] if dirty is None else dirty)


def fill(queue: QueueIndex, count: int) -> None:
    for _ in range(count):
        queue.append(queue.next_offset * 1000, 100, queue.next_offset)
    queue.settled_offset = queue.next_offset


def positions(data: bytes | bytearray) -> list[int]:
    return [position for position, _, _ in ENTRY.iter_unpack(data)]


def test_offsets_count_up_and_the_queue_registers_once_a_tick(files: FakeFiles) -> None:
    """However many appends, a queue is in the list of touched queues once."""
    dirty: list[QueueIndex] = []
    queue = make_queue(files, dirty)
    assert [queue.append(i, 91, 0) for i in range(4)] == [0, 1, 2, 3]
    assert dirty == [queue]
    assert queue.visible_offset == 0


def test_bytes_of_records_that_are_rolled_back_do_not_count(files: FakeFiles) -> None:
    """One by one and packed; what is settled stays counted."""
    queue = make_queue(files)
    queue.append(0, 100, 1)
    queue.append_many([100, 50, 1, 150, 60, 1], 110)
    assert queue.stored_bytes == 210
    queue.settled_offset = queue.next_offset
    queue.append(210, 70, 1)
    queue.append_many([280, 30, 1], 30)
    assert queue.stored_bytes == 310
    queue.roll_back()
    assert queue.stored_bytes == 210


def test_roll_back_forgets_exactly_the_unsettled_offsets(files: FakeFiles) -> None:
    """After a failed tick the next offset is the one given before."""
    queue = make_queue(files)
    fill(queue, 3)
    queue.append(7, 91, 0)
    queue.append(8, 91, 0)
    queue.roll_back()
    assert queue.next_offset == 3
    assert queue.append(3000, 91, 0) == 3
    assert positions(queue.read(0, 9)) == [0, 1000, 2000, 3000]


def test_entries_go_to_files_of_the_configured_size(files: FakeFiles) -> None:
    """Twelve entries fill two files of five and begin a third; the bytes are RocketMQ's."""
    queue = make_queue(files)
    fill(queue, 12)
    queue.write_out()
    directory = ROOT / "consumequeue" / "T" / "3"
    assert files.listdir(directory) == [f"{base:020d}" for base in (0, 100, 200)]
    assert {files.info(directory / name).size for name in files.listdir(directory)} == {100}
    third = files.read(directory / f"{200:020d}")
    assert third[:40] == ENTRY.pack(10_000, 100, 10) + ENTRY.pack(11_000, 100, 11)
    assert third[40:] == bytes(60)
    assert queue.tail == b""


def test_reads_cross_from_the_file_into_the_tail(files: FakeFiles) -> None:
    """A read that begins in a file goes on in memory; it ends at the end of a file."""
    queue = make_queue(files)
    fill(queue, 7)
    queue.write_out()
    fill(queue, 2)
    assert positions(queue.read(5, 10)) == [5000, 6000, 7000, 8000]
    assert positions(queue.read(7, 1)) == [7000]
    assert positions(queue.read(1, 9)) == [1000, 2000, 3000, 4000], "one file per call"
    assert queue.read(9, 5) == b""


def test_only_settled_entries_are_written(files: FakeFiles) -> None:
    """Entries of the running tick stay in memory: the log may yet refuse them."""
    queue = make_queue(files)
    fill(queue, 2)
    queue.append(99, 91, 0)
    queue.write_out()
    assert queue.tail_offset == 2
    assert len(queue.tail) == 20
    queue.roll_back()
    assert queue.tail == b""


def test_a_bounded_number_of_files_is_open(files: FakeFiles) -> None:
    """Reading many queues through a small pool opens and closes files."""
    pool = QueueFiles(files, Layout(ROOT), size=100, open_max=2)
    queues = [QueueIndex("T", number, pool, []) for number in range(6)]
    for queue in queues:
        fill(queue, 3)
        queue.write_out()
    assert pool.open_count == 2
    assert len(files.open_now) == 2
    for queue in queues:
        assert positions(queue.read(0, 3)) == [0, 1000, 2000]
    assert pool.open_count == 2


def test_a_queue_that_begins_late_has_fillers_before(files: FakeFiles) -> None:
    """Beginning at offset 7 puts two fillers into the second file; they are no messages."""
    queue = make_queue(files)
    queue.start_with_filler(7)
    assert (queue.min_offset, queue.next_offset) == (7, 7)
    fill(queue, 1)
    queue.write_out()
    data = files.read(ROOT / "consumequeue" / "T" / "3" / f"{100:020d}")
    assert data[:60] == FILLER + FILLER + ENTRY.pack(7000, 100, 7)
    assert queue.entry(6) is None
    assert queue.entry(7) == (7000, 100, 7)


def test_leading_files_go_but_the_last_stays(files: FakeFiles) -> None:
    """Dropping below an offset keeps the file that holds it, and always the last."""
    queue = make_queue(files)
    fill(queue, 12)
    queue.write_out()
    queue.drop_files_before(7)
    directory = ROOT / "consumequeue" / "T" / "3"
    assert files.listdir(directory) == [f"{base:020d}" for base in (100, 200)]
    queue.drop_files_before(12)
    assert files.listdir(directory) == [f"{200:020d}"]
    assert queue.read(3, 1) == b"", "its file is gone"


def test_the_first_entry_at_or_after_a_position_is_found(files: FakeFiles) -> None:
    """A binary search over files and tail."""
    queue = make_queue(files)
    fill(queue, 12)
    queue.write_out()
    fill(queue, 3)
    assert [queue.find_first(p, 0) for p in (0, 1, 1000, 9500, 14_000, 14_001)] == [
        0, 1, 1, 10, 14, 15,
    ]  # fmt: skip
