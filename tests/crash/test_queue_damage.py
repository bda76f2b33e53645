"""The store over damaged queue files: what it makes again, what it reports, where queues go on."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from inorder.config import StoreConfig
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import Contents, append, contents, write_and_publish

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=200, index_slots=7, index_entries=400)
QUEUE = ROOT / "consumequeue" / "T" / "0"


def filled(*, clean: bool, old: int = 5, messages: int = 60) -> tuple[FakeFiles, Contents]:
    """Return a disk with a queue of old messages alone, one of many, and one of a few."""
    files, clock = FakeFiles(), FakeClock()
    store = Store.open(ROOT, CONFIG, files, clock)
    for number in range(old + messages):
        topic, queue_id = ("Old", 0) if number < old else ("T", 1 if number % 20 == 0 else 0)
        append(store, topic, queue_id, b"message %03d" % number, now_ms=1000 + number, tag="a")
        write_and_publish(store)
        if number % 3 == 0:
            store.housekeep(1000 + number)
    store.housekeep(2000)
    found = contents(store)
    store.close() if clean else store.abandon()
    return files, found


def reopen(files: FakeFiles) -> Store:
    return Store.open(ROOT, CONFIG, files, FakeClock())


both = pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])


@both
def test_any_file_of_a_queue_may_be_gone(clean: bool) -> None:
    """Each one removed, or all of a queue: the queue is whole again and goes on at its end."""
    files, expected = filled(clean=clean)
    names = files.listdir(QUEUE)
    assert len(names) > 4
    for gone in [QUEUE / name for name in names] + [QUEUE]:
        image = files.kill()
        image.remove_tree(gone)
        store = reopen(image)
        queue = store.queue("T", 0)
        assert queue.next_offset == len(expected["T", 0]), gone
        if queue.damaged:  # a file in the middle is seen when the queue is used
            store.abandon()
            continue
        assert contents(store) == expected
        assert append(store, "T", 0, b"next") == len(expected["T", 0])
        store.abandon()


@both
def test_a_queue_without_a_record_left_goes_on_where_it_was_noted(clean: bool) -> None:
    """Its log files are gone and its queue, too: the next message does not get offset 0."""
    files, _ = filled(clean=clean)
    files.remove(ROOT / "commitlog" / f"{0:020d}")
    files.remove_tree(ROOT / "consumequeue" / "Old")
    store = reopen(files)
    assert append(store, "Old", 0, b"next") == 5
    assert store.recovery.uncertain == ([] if clean else [("Old", 0, 5)])
    assert [loss.topic for loss in store.recovery.losses] == [""]
    assert (store.recovery.losses[0].low, store.recovery.losses[0].high) == (0, 2048)
    write_and_publish(store)
    store.close()
    again = reopen(files)
    assert again.queue("Old", 0).next_offset == 6
    assert again.recovery.losses == []
    again.close()


def test_a_record_that_names_another_topic_is_reported_as_a_loss_of_its_queue() -> None:
    """A bit of its topic flipped before a kill: the log is rebuilt from, and has a hole there."""
    files, clock = FakeFiles(), FakeClock()
    store = Store.open(ROOT, CONFIG, files, clock)
    for number in range(12):
        append(store, "T", 0, b"message %02d" % number)
        write_and_publish(store)
    store.abandon()
    segment = ROOT / "commitlog" / f"{0:020d}"
    data = files.read(segment)
    at = data.index(b"\x01T", data.index(b"message 07")) + 1
    files.write(segment, b"U", at)
    again = reopen(files)
    assert [str(loss) for loss in again.recovery.losses] == [
        "T/0 offsets 7 to 7: its records are not in the log"
    ]
    assert contents(again)["T", 0] == [
        (number, b"message %02d" % number) for number in range(12) if number != 7
    ]
    assert append(again, "T", 0, b"next") == 12
    again.close()


def test_a_topic_that_was_deleted_does_not_come_back() -> None:
    """Made again from the whole log, a deleted topic has no queues, one made anew its new ones."""
    files = FakeFiles()
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(12):
        append(store, "T", 0, b"old %d" % number)
        append(store, "Gone", 0, b"old %d" % number)
    write_and_publish(store)
    store.drop_topic("T")
    store.drop_topic("Gone")
    append(store, "T", 0, b"new")
    write_and_publish(store)
    store.close()
    files.remove_tree(ROOT / "consumequeue")
    again = reopen(files)
    assert contents(again) == {("T", 0): [(0, b"new")]}
    assert again.recovery.uncertain == []
    again.close()


@both
def test_an_older_copy_of_the_notes_lets_no_offset_be_given_twice(clean: bool) -> None:
    """Queues that go on behind their noted ends are believed."""
    files = FakeFiles()
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    older: dict[str, bytes] = {}
    for number in range(40):
        append(store, "T", 0, b"message %d" % number)
        write_and_publish(store)
        store.housekeep(1)
        if number == 20:
            names = [n for n in files.listdir(ROOT / "inorder") if n.startswith("ends.")]
            older = {name: files.read(ROOT / "inorder" / name) for name in names}
    expected = contents(store)
    store.close() if clean else store.abandon()
    for name in files.listdir(ROOT / "inorder"):
        if name.startswith("ends."):
            files.remove(ROOT / "inorder" / name)
    for name, data in older.items():
        files.open(ROOT / "inorder" / name, create=True, size=len(data)).pwrite(data, 0)
    again = reopen(files)
    assert contents(again) == expected
    assert append(again, "T", 0, b"next") == 40
    again.close()


@both
def test_a_directory_without_notes_is_looked_at_and_noted(clean: bool) -> None:
    """One of a release before: opened as before, with queues that are damaged made again."""
    files, expected = filled(clean=clean)
    for name in files.listdir(ROOT / "inorder"):
        if name.startswith("ends."):
            files.remove(ROOT / "inorder" / name)
    last = QUEUE / files.listdir(QUEUE)[-1]
    whole = files.kill()
    store = reopen(whole)
    assert contents(store) == expected
    assert store.recovery.problems == []
    store.close()
    at = (len(expected["T", 0]) - 1) * 20 - int(last.name)
    files.write(last, bytes([files.read(last)[at + 6] ^ 2]), at + 6)
    store = reopen(files)
    assert contents(store) == expected
    assert "was damaged" in store.recovery.problems[0]
    store.close()


@pytest.mark.slow
@both
def test_any_bytes_of_queue_files_may_be_anything_at_a_start(clean: bool) -> None:
    """No offset is given twice, whatever the entries say; and the notes of the start say so."""
    files, expected = filled(clean=clean)
    random = Random(3)
    paths = [path for path in map(Path, files.tree()) if "consumequeue" in str(path)]
    for _ in range(200):
        image = files.kill()
        path = random.choice([one for one in paths if one.suffix == "" and one.name.isdigit()
                              and len(one.name) == 20])  # fmt: skip
        at = random.randrange(200)
        garbage = random.randbytes(random.randrange(1, 60))
        image.write(path, garbage[: 200 - at], at)
        store = reopen(image)
        for key, entries in expected.items():
            assert store.queue(*key).next_offset == len(entries)
        store.abandon()
