"""Files that are torn, flipped, missing, stale or foreign: start or refuse, never lose silently."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import pytest

from inorder.config import StoreConfig
from inorder.errors import StoreError, StoreLocked
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import Contents, append, contents, write_and_publish

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=100, index_slots=7, index_entries=40)


def filled(files: FakeFiles, messages: int = 20, *, close: bool = False) -> Contents:
    """Write messages over two queues and leave the store, killed or closed."""
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(messages):
        body = b"body %03d" % number + bytes(range(65, 65 + number % 20))
        append(store, "T", number % 2, body, now_ms=1000 + number, keys=f"k{number}")
        write_and_publish(store)
        if number % 7 == 6:
            store.housekeep(1000 + number)
    found = contents(store)
    store.close() if close else store.abandon()
    return found


def reopen(files: FakeFiles, config: StoreConfig = CONFIG) -> Store:
    return Store.open(ROOT, config, files, FakeClock())


def last_segment(files: FakeFiles) -> Path:
    return ROOT / "commitlog" / files.listdir(ROOT / "commitlog")[-1]


def record_starts(files: FakeFiles, path: Path) -> list[int]:
    data = files.read(path)
    starts, at = [], 0
    while data[at + 4 : at + 7] == b"\xda\xa3\x20":
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return [*starts, at]


@pytest.mark.slow
@pytest.mark.parametrize("trusted", [True, False])
def test_a_tail_torn_at_every_byte_is_cut_at_the_last_whole_record(trusted: bool) -> None:
    """Zeros from any byte of the last three records on: what is whole before stays, no more."""
    files = FakeFiles()
    everything = filled(files)
    if not trusted:
        files.remove(ROOT / "inorder" / "positions")
    path = last_segment(files)
    starts = record_starts(files, path)
    total = sum(map(len, everything.values()))
    end = starts[-1]
    for at in range(starts[-4], end):
        image = files.kill()
        image.write(path, bytes(end - at), at)
        whole = sum(1 for start in starts[:-1] if start >= starts[-4] and _end(starts, start) <= at)
        lost = 3 - whole
        store = reopen(image)
        found = contents(store)
        # A cut that only removes zero bytes of a record's own end changes nothing.
        assert sum(map(len, found.values())) >= total - lost
        for key, entries in found.items():
            assert entries == everything[key][: len(entries)]
        offset = append(store, "T", 0, b"after", now_ms=5000)
        write_and_publish(store)
        assert offset == len(found[("T", 0)])
        after = contents(store)
        store.abandon()
        again = reopen(image)
        assert contents(again) == after
        again.abandon()


def _end(starts: list[int], start: int) -> int:
    return starts[starts.index(start) + 1]


def test_damage_in_the_middle_is_refused_with_what_to_do() -> None:
    """Valid records behind a broken one may have been acknowledged: the directory is refused."""
    files = FakeFiles()
    filled(files, close=True)
    files.remove(ROOT / "inorder" / "positions")
    path = ROOT / "commitlog" / f"{0:020d}"
    at = record_starts(files, path)[2] + 90
    files.write(path, bytes([files.read(path)[at] ^ 1]), at)
    store = reopen(files)  # clean, so only what follows the last queue entry is read
    store.abandon()
    files.remove(ROOT / "inorder" / "positions")
    files.remove_tree(ROOT / "checkpoint")
    files.remove_tree(ROOT / "consumequeue")
    _note_flushed(files, 1 << 40)
    with pytest.raises(StoreError, match="cut_corrupt_log=true") as refused:
        reopen(files)
    assert f"{0:020d}" in str(refused.value)
    cut = reopen(files, dataclasses.replace(CONFIG, cut_corrupt_log=True))
    assert sum(map(len, contents(cut).values())) == 2
    assert "damaged" in cut.recovery.problems[0]
    cut.close()
    assert reopen(files).recovery.method == "closed"


def _note_flushed(files: FakeFiles, until_ms: int) -> None:
    """Write a checkpoint that says that the log was flushed, as a broker that crashed leaves it."""
    file = files.open(ROOT / "checkpoint", create=True, size=4096)
    file.pwrite(until_ms.to_bytes(8, "big"), 0)
    file.close()


@pytest.mark.slow
def test_a_flipped_bit_in_derived_files_is_rebuilt_or_harmless() -> None:
    """Bits flipped in checkpoint and our notes never change what is read after a crash."""
    files = FakeFiles()
    everything = filled(files)
    random = Random(5)
    for path in (ROOT / "checkpoint", ROOT / "inorder" / "positions", ROOT / "abort"):
        size = len(files.read(path))
        for _ in range(40):
            image = files.kill()
            at = random.randrange(min(size, 260))
            image.write(path, bytes([image.read(path)[at] ^ (1 << random.randrange(8))]), at)
            store = reopen(image)
            assert contents(store) == everything
            hits = store.query_keys("T", "k19", 9, 0, 1 << 62)
            assert len(hits.positions) == 1
            store.abandon()


@pytest.mark.parametrize(
    "missing",
    ["checkpoint", "inorder", "consumequeue", "index", "consumequeue/T/1", "lock", "abort"],
)
@pytest.mark.parametrize("close", [True, False])
def test_derived_files_that_are_missing_are_made_again(missing: str, close: bool) -> None:
    """The log alone is enough: any other file may be gone."""
    files = FakeFiles()
    everything = filled(files, close=close)
    files.remove_tree(ROOT / missing)
    store = reopen(files)
    assert contents(store) == everything
    assert len(store.query_keys("T", "k3", 9, 0, 1 << 62).positions) == 1
    store.close()


def test_a_missing_segment_is_named() -> None:
    """A hole in the chain of segments is refused by name."""
    files = FakeFiles()
    filled(files, 40)
    files.remove(ROOT / "commitlog" / f"{2048:020d}")
    with pytest.raises(StoreError, match=f"{2048:020d} is missing"):
        reopen(files)


def test_queues_without_a_log_are_refused() -> None:
    """An empty log beside existing queues means that something is lost."""
    files = FakeFiles()
    filled(files, close=True)
    files.remove_tree(ROOT / "commitlog")
    with pytest.raises(StoreError, match="restore the log"):
        reopen(files)


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [
        ("segment_bytes", 4096, "mappedFileSizeCommitLog=4096"),
        ("queue_file_bytes", 200, "mappedFileSizeConsumeQueue=200"),
        ("index_slots", 9, "maxHashSlotNum=9"),
    ],
)
def test_wrong_sizes_are_refused_with_file_and_setting(setting: str, value: int, name: str) -> None:
    """A directory written with other sizes is refused; the message names the setting."""
    files = FakeFiles()
    filled(files, close=True)
    changed: dict[str, Any] = {setting: value}
    wrong = dataclasses.replace(CONFIG, **changed)
    with pytest.raises(StoreError, match=name):
        contents(reopen(files, wrong))


def test_a_stray_file_is_refused() -> None:
    """Files that no broker would put there are not touched."""
    files = FakeFiles()
    filled(files, close=True)
    files.open(ROOT / "commitlog" / "notes.txt", create=True, size=5).close()
    with pytest.raises(StoreError, match=r"notes\.txt does not belong here"):
        reopen(files)


def test_an_empty_last_segment_is_removed() -> None:
    """A last segment of length zero, left by a crash while it was made, is no obstacle."""
    files = FakeFiles()
    everything = filled(files)
    last = int(last_segment(files).name)
    files.open(ROOT / "commitlog" / f"{last + 2048:020d}", create=True, size=0).close()
    store = reopen(files)
    assert contents(store) == everything
    store.abandon()


def test_a_segment_made_ahead_is_no_obstacle_and_goes_at_close() -> None:
    """RocketMQ's pre-created segment of zeros is accepted, and gone after a clean close."""
    files = FakeFiles()
    everything = filled(files)
    last = int(last_segment(files).name)
    files.open(ROOT / "commitlog" / f"{last + 2048:020d}", create=True, size=2048).close()
    store = reopen(files)
    assert contents(store) == everything
    store.close()
    assert not files.exists(ROOT / "commitlog" / f"{last + 2048:020d}")


def test_a_directory_in_use_is_refused_and_untouched() -> None:
    """The lock is taken before anything else is looked at."""
    files = FakeFiles()
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    before = files.counts["change"]
    with pytest.raises(StoreLocked, match="in use"):
        reopen(files)
    assert files.counts["change"] == before
    store.close()
    reopen(files).close()


def test_a_foreign_abort_file_makes_our_notes_void() -> None:
    """Another broker ran and crashed: its `abort` replaces ours; the log is read by its rules."""
    files = FakeFiles()
    everything = filled(files)
    file = files.open(ROOT / "abort", create=True, size=5)
    file.pwrite(b"12345", 0)
    file.close()
    store = reopen(files)
    assert store.recovery.method in ("checkpoint", "whole")
    assert contents(store) == everything
    store.abandon()
    assert reopen(files).recovery.method == "written"


def test_a_foreign_run_after_our_close_is_noticed_by_the_checkpoint() -> None:
    """A changed checkpoint means that somebody else used the directory: its queues are verified."""
    files = FakeFiles()
    everything = filled(files, close=True)
    data = files.read(ROOT / "checkpoint")
    files.write(ROOT / "checkpoint", (int.from_bytes(data[:8], "big") + 1).to_bytes(8, "big"))
    store = reopen(files)
    assert store.recovery.method == "foreign"
    assert contents(store) == everything
    store.close()


def test_stale_entries_left_by_another_broker_are_dropped() -> None:
    """Entries that name no record of theirs, as RocketMQ's cut leaves them, are not served."""
    files = FakeFiles()
    everything = filled(files, close=True)
    files.remove(ROOT / "inorder" / "positions")
    queue = ROOT / "consumequeue" / "T" / "0"
    names = files.listdir(queue)
    used = len(everything[("T", 0)]) * 20
    stale = files.read(ROOT / "consumequeue" / "T" / "1" / f"{0:020d}")[:20]
    files.write(queue / names[-1], stale, used - int(names[-1])) if used % 100 else files.open(
        queue / f"{used:020d}", create=True, size=100
    ).pwrite(stale, 0)
    store = reopen(files)
    assert contents(store) == everything
    assert append(store, "T", 0, b"next") == len(everything[("T", 0)])
    store.abandon()


def test_numbering_that_starts_again_is_followed_and_reported() -> None:
    """A topic deleted and made anew: reading the whole log keeps the newer life of the queue."""
    files = FakeFiles()
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(12):
        append(store, "T", 0, b"old %d" % number)
    write_and_publish(store)
    store.drop_topic("T")
    assert store.find_queue("T", 0) is None
    for number in range(3):
        assert append(store, "T", 0, b"new %d" % number) == number
    write_and_publish(store)
    newer = contents(store)
    store.abandon()
    killed = files.kill()
    again = reopen(killed)
    assert contents(again) == newer
    assert again.recovery.problems == []
    again.abandon()
    files.remove_tree(ROOT / "inorder")
    whole = reopen(files)
    assert contents(whole) == newer
    assert "starts again" in whole.recovery.problems[0]
    whole.abandon()


def test_a_queue_whose_first_records_expired_keeps_its_numbers() -> None:
    """Rebuilt from a log that begins late, a queue begins late too, after fillers in its file."""
    files = FakeFiles()
    everything = filled(files, 30, close=True)
    files.remove(ROOT / "commitlog" / f"{0:020d}")
    for path in ("consumequeue", "index", "inorder"):
        files.remove_tree(ROOT / path)
    store = reopen(files)
    found = contents(store)
    for key, entries in found.items():
        assert entries == everything[key][-len(entries) :]
        queue = store.queue(*key)
        assert queue.min_offset == entries[0][0] > 0
        assert queue.visible_offset == everything[key][-1][0] + 1
    assert store.recovery.problems == []
    store.close()
    again = reopen(files)
    assert contents(again) == found
    again.abandon()
