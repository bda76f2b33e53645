"""Damaged queues and the log: what is made again, what is lost, what is no damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.store import recovery
from inorder.store.intact import count_intact, looks_intact
from inorder.store.keyindex import KeyIndex
from inorder.store.layout import ENTRY, FILLER
from inorder.store.mending import Mended, surviving
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, contents, write_and_publish

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=200, index_slots=7, index_entries=400)
FILE = ROOT / "consumequeue" / "T" / "0" / f"{0:020d}"
COUNT = 30


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles()


@pytest.fixture
def store(files: FakeFiles) -> Iterator[Store]:
    opened = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(COUNT):
        append(opened, "T", 0, b"message %d" % number, tag="a")
        append(opened, "U", 0, b"another")
    write_and_publish(opened)
    opened.housekeep(1)
    yield opened
    opened.abandon()


def mended(store: Store) -> Mended:
    queue = store.queue("T", 0)
    (done,) = store.plan_mending([queue])()
    store.queues.take_over(done)
    return done


def test_a_queue_that_is_right_stays_as_it_is(store: Store, files: FakeFiles) -> None:
    """Nothing is changed, nothing lost."""
    before = files.read(FILE)
    done = mended(store)
    assert (done.changed, done.lost, done.holds_last, done.first) == (0, [], True, 0)
    assert files.read(FILE) == before


@pytest.mark.parametrize("garbage", [bytes(20), FILLER[:12] + b"\1" * 8, b"\xff" * 20])
def test_wrong_entries_are_made_again(store: Store, files: FakeFiles, garbage: bytes) -> None:
    """Whatever stands there, but for a filler, which says that there is nothing."""
    before, expected = files.read(FILE), contents(store)
    files.write(FILE, garbage, 40)
    queue = store.queue("T", 0)
    filler = garbage[8:12] == FILLER[8:12]
    data = queue.read(0, COUNT)
    assert count_intact(store.log, queue, data, 0) == (10 if filler else 2)
    assert mended(store).changed == 1
    assert files.read(FILE) == before
    assert contents(store) == expected


def test_a_flipped_tag_hash_is_seen_by_a_comparison_alone(store: Store, files: FakeFiles) -> None:
    """Pulls do not read tags; a full comparison does."""
    before = files.read(FILE)
    files.write(FILE, b"\7", 19)
    queue = store.queue("T", 0)
    assert looks_intact(store.log, queue)
    assert mended(store).changed == 1
    assert files.read(FILE) == before


def test_a_record_that_is_gone_becomes_a_filler_and_a_loss(store: Store, files: FakeFiles) -> None:
    """The messages before and behind it are served; the gap is named, once."""
    queue = store.queue("T", 0)
    position, size, _ = ENTRY.unpack(queue.read(4, 1))
    files.write(ROOT / "commitlog" / f"{0:020d}", bytes(size), position)
    assert count_intact(store.log, queue, queue.read(0, COUNT), 0) == 4
    done = mended(store)
    assert (done.changed, done.lost) == (1, [(4, 5)])
    offsets = [offset for offset, _ in contents(store)["T", 0]]
    assert offsets == [*range(4), *range(5, COUNT)]
    assert mended(store).lost == []
    assert queue.min_offset == 0


def test_a_file_that_is_gone_comes_back_while_messages_come(store: Store, files: FakeFiles) -> None:
    """What is given out meanwhile lies behind what is compared."""
    names = files.listdir(FILE.parent)
    files.remove(FILE.parent / names[-1])
    work = store.plan_mending([store.queue("T", 0)])
    for number in range(COUNT, COUNT + 15):
        assert append(store, "T", 0, b"message %d" % number, tag="a") == number
    write_and_publish(store)
    store.housekeep(1)
    (done,) = work()
    store.queues.take_over(done)
    assert [body for _, body in contents(store)["T", 0]] == [
        b"message %d" % number for number in range(COUNT + 15)
    ]


def test_an_offset_that_cannot_be_is_not_believed(store: Store, files: FakeFiles) -> None:
    """A flipped offset in the head of a record makes no queue of a million fillers."""
    queue = store.queue("T", 0)
    position, _, _ = ENTRY.unpack(queue.read(4, 1))
    files.write(ROOT / "commitlog" / f"{0:020d}", b"\1", position + 22)
    done = mended(store)
    assert (done.end, done.lost) == (COUNT, [(4, 5)])


def test_records_behind_damage_are_found(store: Store, files: FakeFiles) -> None:
    """A hole of any size in the log hides what lies in it, no more."""
    log = store.log
    every = [record.position for record in surviving(log.segments, 0, log.end_position)]
    for first, last in ((0, 1), (3, 7), (10, 11), (0, 12)):
        image = files.kill()
        start, end = every[first], every[last]
        image.write(ROOT / "commitlog" / f"{0:020d}", b"\xa5" * (min(end, 2048) - start), start)
        again = Store.open(ROOT, CONFIG, image, FakeClock())
        found = [one.position for one in surviving(again.log.segments, 0, log.end_position)]
        assert found == [one for one in every if not start <= one < end]
        again.abandon()


def test_the_first_message_is_found_among_fillers(store: Store) -> None:
    """Gaps anywhere in a queue do not hide the messages before them."""
    queue = store.queue("T", 0)
    first, _, _ = ENTRY.unpack(queue.read(0, 1))
    for gap in (1, 10, 15, COUNT - 2):
        file = store.queues.queue_files.get(("T", 0, gap * 20 // 200 * 200))
        file.pwrite(FILLER, gap * 20 % 200)
    assert queue.find_first(first, 0) == 0
    fifth, _, _ = ENTRY.unpack(queue.read(5, 1))
    assert queue.find_first(fifth, 0) == 5
    assert queue.find_first(fifth + 1, 0) == 6


def test_what_neither_log_nor_queue_has_is_lost_and_said(store: Store, files: FakeFiles) -> None:
    """A whole file of zeros, whose records are gone as well: fillers, or it is found again."""
    lost_to = 2 * CONFIG.queue_file_bytes // 20
    for name in (0, CONFIG.queue_file_bytes):
        files.write(FILE.with_name(f"{name:020d}"), bytes(CONFIG.queue_file_bytes))
    queue = store.queue("T", 0)
    for segment in store.log.segments.items:
        for record in list(surviving(store.log.segments, segment.position, segment.end)):
            if record.topic == "T" and record.queue_offset < lost_to:
                path = ROOT / "commitlog" / f"{segment.position:020d}"
                files.write(path, bytes(record.size), record.position - segment.position)
    done = mended(store)
    assert (done.changed, done.lost) == (lost_to, [(0, lost_to)])
    assert queue.min_offset == lost_to
    assert looks_intact(store.log, queue)
    assert mended(store).lost == []


def test_a_kill_while_the_index_lags_behind_the_queues_is_no_damage(
    files: FakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that writes what it has read so far still finds the records of later entries."""
    monkeypatch.setattr(recovery, "WRITE_OUT_RECORDS", 4)
    killed = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(COUNT):
        append(killed, "T", 0, b"message %d" % number)
    write_and_publish(killed)
    with monkeypatch.context() as patch:
        patch.setattr(KeyIndex, "build", lambda *_: None)
        killed.housekeep(1)
    append(killed, "T", 0, b"message %d" % COUNT)
    write_and_publish(killed)
    opened = Store.open(ROOT, CONFIG, files.kill(), FakeClock())
    try:
        report = opened.recovery
        assert (report.method, report.problems) == ("written", [])
        assert report.scanned_records == COUNT + 1, "the index had no records yet"
        assert len(contents(opened)["T", 0]) == COUNT + 1
    finally:
        opened.abandon()
