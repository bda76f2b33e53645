"""The store as the broker uses it: ticks, housekeeping, flushes, time, keys, lifecycle."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inorder.config import StoreConfig
from inorder.disk import OsFiles
from inorder.errors import AlreadyClosed, DiskFull, StoreError, StoreFailed, StoreLocked
from inorder.store import scan
from inorder.store.queues import Cut
from inorder.store.segments import Segment
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles, Fault
from tests.kit.storing import append, contents, write_and_publish, write_synced

ROOT = Path("/data")
CONFIG = StoreConfig(segment_bytes=4096, queue_file_bytes=200, index_slots=7, index_entries=200)


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles()


@pytest.fixture
def store(files: FakeFiles) -> Iterator[Store]:
    opened = Store.open(ROOT, CONFIG, files, FakeClock())
    yield opened
    opened.abandon()


def test_a_tick_tells_end_time_and_queues(store: Store) -> None:
    """What was written, until where, and how far each queue is."""
    append(store, "T", 0, b"a", now_ms=11)
    append(store, "T", 0, b"b", now_ms=12)
    append(store, "T", 1, b"c", now_ms=13)
    tick = store.write_tick()
    assert tick is not None
    assert tick.end_position == store.log.end_position
    assert tick.stored_at_ms == 13
    assert tick.queues == [(store.queue("T", 0), 2), (store.queue("T", 1), 1)]
    assert store.write_tick() is None


def test_a_refused_tick_leaves_no_trace(files: FakeFiles, store: Store) -> None:
    """Offsets, entries, keys and bytes are as if it had not been."""
    append(store, "T", 0, b"kept", keys="k")
    write_and_publish(store)
    files.fail(Fault("write", 1, error=28, kept_bytes=40))
    append(store, "T", 0, b"refused", keys="k")
    append(store, "T", 7, b"refused", keys="k")
    with pytest.raises(DiskFull):
        store.write_tick()
    assert store.queue("T", 0).next_offset == 1
    assert store.queue("T", 7).next_offset == 0
    assert len(store.query_keys("T", "k", 9, 0, 1 << 62).positions) == 1
    assert append(store, "T", 0, b"next", keys="k") == 1
    write_and_publish(store)
    assert contents(store) == {("T", 0): [(0, b"kept"), (1, b"next")]}
    store.housekeep(1)
    assert contents(store) == {("T", 0): [(0, b"kept"), (1, b"next")]}


def test_publishing_late_or_out_of_order_never_goes_back(store: Store) -> None:
    """Two ticks published in the wrong order end at the newer one."""
    append(store, "T", 0, b"a")
    first = store.write_tick()
    append(store, "T", 0, b"b")
    second = store.write_tick()
    assert first is not None
    assert second is not None
    store.publish(second)
    store.publish(first)
    assert store.queue("T", 0).visible_offset == 2


def test_housekeeping_between_append_and_write_keeps_the_tick_apart(store: Store) -> None:
    """A housekeep in the middle of a tick writes only what the log has."""
    append(store, "T", 0, b"a")
    write_and_publish(store)
    append(store, "T", 0, b"b")
    assert not store.housekeep(1)
    assert store.queue("T", 0).tail_offset == 1
    write_and_publish(store)
    assert contents(store) == {("T", 0): [(0, b"a"), (1, b"b")]}


def test_housekeeping_is_bounded_and_says_what_is_left(store: Store) -> None:
    """With a budget of two queues five need three calls; new files cost more."""
    for _ in range(2):
        for queue_id in range(5):
            append(store, "T", queue_id, b"x")
        write_and_publish(store)
        calls = 1
        while store.housekeep(1, budget=2):
            calls += 1
        if store.queue("T", 4).next_offset == 1:
            assert calls == 5
        else:
            assert calls == 3


class SlowFiles(FakeFiles):
    """A disk on which each write takes a millisecond."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def _fault(self, operation: str, path: Path) -> Fault | None:
        if operation == "write":
            self.clock.advance(1)
        return super()._fault(operation, path)


@pytest.mark.parametrize("records", [40, 700])
def test_housekeeping_holds_the_loop_for_one_portion_of_each_kind(records: int) -> None:
    """On a slow disk each call writes little, all calls together write everything."""
    clock = FakeClock()
    files = SlowFiles(clock)
    config = dataclasses.replace(CONFIG, index_slots=50, index_entries=20_000)
    store = Store.open(ROOT, config, files, clock)
    for number in range(records):
        append(store, "T", number % 20, b"x", keys=f"k{number} other{number}")
        if number % 10 == 9:
            write_and_publish(store)
    took, more = [], True
    while more:
        before = clock.monotonic_ms()
        more = store.housekeep(len(took) * 4000)
        took.append(clock.monotonic_ms() - before)
        assert len(took) < 2000
    # A queue and its next file, a portion of keys and a new file, a region, two short notes.
    assert max(took) <= 8
    assert len(took) > 19
    assert all(
        store.queue("T", n).tail_offset == store.queue("T", n).next_offset for n in range(20)
    )
    found = store.query_keys("T", f"k{records - 1}", 9, 0, 1 << 62).positions
    assert len(found) == 1
    store.close()


def test_a_round_of_queues_that_is_cut_goes_on_with_the_rest_of_its_budget() -> None:
    """Many busy queues are not written all the time: each gathers entries between two rounds."""
    clock = FakeClock()
    store = Store.open(ROOT, CONFIG, SlowFiles(clock), clock)
    for _ in range(2):  # the first entries make the files
        for queue_id in range(20):
            append(store, "T", queue_id, b"x")
        write_and_publish(store)
        left = len(store.queues.unwritten)
        while store.housekeep(1):
            pass
    for queue_id in range(20):
        append(store, "T", queue_id, b"x")
    write_and_publish(store)
    calls = 0
    while True:
        store.housekeep(1, budget=6)
        calls += 1
        if store.queues.cut_short is Cut.NOT:
            break
    assert left == 20
    assert calls > 1
    assert len(store.queues.unwritten) == 14
    store.close()


def test_trouble_with_derived_files_makes_the_store_unwritable_until_it_passes(
    files: FakeFiles, store: Store
) -> None:
    """The log has everything; entries stay in memory and reads go on."""
    append(store, "T", 0, b"x")
    write_and_publish(store)
    files.fail(Fault("create", 1, error=28, forever=True))
    store.housekeep(1)
    assert not store.writable
    assert "cannot be written" in (store.unwritable_reason or "")
    assert contents(store) == {("T", 0): [(0, b"x")]}
    files.heal()
    store.housekeep(1)
    assert store.writable


def test_a_flush_can_be_planned_and_run_apart(files: FakeFiles, store: Store) -> None:
    """The plan syncs log, queues and index, and then notes how far they are."""
    for number in range(8):
        append(store, "T", number % 2, b"x" * 100, now_ms=1000 + number, keys=f"k{number}")
    write_and_publish(store)
    store.housekeep(2000)
    plan = store.plan_flush()
    append(store, "T", 0, b"later", now_ms=9999)
    write_and_publish(store)
    plan.run()
    assert plan.done
    assert store.log.durable_position == store.log.end_position
    checkpoint = files.read(ROOT / "checkpoint")
    assert int.from_bytes(checkpoint[8:16], "big") == 1007
    assert len(checkpoint) == 4096


def test_a_plan_that_was_never_run_is_taken_up_by_the_next(files: FakeFiles, store: Store) -> None:
    """What an abandoned plan should have synced is synced later."""
    append(store, "T", 0, b"x", keys="k")
    write_and_publish(store)
    store.housekeep(1)
    lost = store.plan_flush()
    assert store.plan_flush().paths == lost.paths
    assert any("consumequeue" in str(path) for path in lost.paths)
    store.flush_indexes()
    assert store.plan_flush().paths == []
    assert files.counts["sync"] > 0


def test_offsets_by_time(store: Store) -> None:
    """LOWER is the first at or after, UPPER the last at or before, both clamped."""
    for number, now_ms in enumerate((100, 200, 200, 300)):
        append(store, "T", 0, b"%d" % number, now_ms=now_ms)
    write_and_publish(store)

    def lower(at_ms: int) -> int:
        return store.offset_by_time("T", 0, at_ms, "LOWER")

    def upper(at_ms: int) -> int:
        return store.offset_by_time("T", 0, at_ms, "UPPER")

    assert [lower(t) for t in (0, 100, 150, 200, 201, 300, 301)] == [0, 0, 1, 1, 3, 3, 4]
    assert [upper(t) for t in (0, 100, 150, 200, 299, 300, 999)] == [0, 0, 0, 2, 2, 3, 3]
    assert store.earliest_time("T", 0) == 100
    assert store.stored_at("T", 0, 3) == 300
    assert store.stored_at("T", 0, 4) == -1
    assert store.earliest_time("no", 0) == -1
    assert store.offset_by_time("no", 0, 5) == 0


def test_key_queries_check_topic_and_key(store: Store) -> None:
    """Other topics and colliding hashes are left out; fresh keys are found at once."""
    append(store, "T", 0, b"one", keys="Aa x")
    append(store, "T", 0, b"two", keys="BB")  # the hash of "BB" is that of "Aa"
    append(store, "U", 0, b"three", keys="Aa", unique="id-3")
    write_and_publish(store)
    hits = store.query_keys("T", "Aa", 9, 0, 1 << 62)
    assert hits.positions == [0]
    assert hits.last_update_position > 0
    assert len(store.query_keys("U", "id-3", 9, 0, 1 << 62).positions) == 1


def test_a_record_is_returned_only_from_its_start(store: Store) -> None:
    """Positions inside of a record, or outside of the log, give nothing."""
    append(store, "T", 0, b"body")
    write_and_publish(store)
    record = store.record_at(0)
    assert record is not None
    assert len(record) == store.log.end_position
    assert [store.record_at(at) for at in (-1, 1, 8, store.log.end_position, 1 << 40)] == [None] * 5


def test_a_dropped_topic_begins_again_at_zero(files: FakeFiles, store: Store) -> None:
    """Its queues and files are gone; other topics are untouched."""
    append(store, "T", 0, b"old")
    append(store, "U", 0, b"other")
    write_and_publish(store)
    store.housekeep(1)
    store.drop_topic("T")
    assert not files.exists(ROOT / "consumequeue" / "T")
    assert append(store, "T", 0, b"new") == 0
    write_and_publish(store)
    assert contents(store) == {("T", 0): [(0, b"new")], ("U", 0): [(0, b"other")]}


def test_sync_flush_shows_nothing_before_the_sync(files: FakeFiles, store: Store) -> None:
    """A failed sync means: not visible, not acknowledged, and no more writes."""
    append(store, "T", 0, b"a")
    write_synced(store)
    files.fail(Fault("sync", 1))
    append(store, "T", 0, b"b")
    with pytest.raises(StoreFailed):
        write_synced(store)
    assert contents(store) == {("T", 0): [(0, b"a")]}
    with pytest.raises(StoreFailed):
        append(store, "T", 0, b"c")


def test_close_is_clean_and_final(files: FakeFiles) -> None:
    """No abort, no lock, everything closed; a closed store says so."""
    store = Store.open(ROOT, CONFIG, files, FakeClock())
    append(store, "T", 0, b"pending at close")
    store.close()
    store.close()
    assert not files.exists(ROOT / "abort")
    assert files.open_now == set()
    with pytest.raises(AlreadyClosed):
        store.housekeep(1)
    again = Store.open(ROOT, CONFIG, files, FakeClock())
    assert again.recovery.method == "closed"
    assert contents(again) == {("T", 0): [(0, b"pending at close")]}
    again.close()


def test_names_that_cannot_be_directories_are_refused(store: Store) -> None:
    """No topic leads out of the data directory."""
    for topic in ("", ".", "..", "a/b", "../x", "a\0b"):
        with pytest.raises(StoreError):
            store.queue(topic, 0)
    with pytest.raises(StoreError):
        store.queue("T", -1)


@pytest.mark.parametrize(
    "wrong", [{"queue_file_bytes": 101}, {"segment_bytes": 100}, {"index_entries": 1}]
)
def test_sizes_that_cannot_work_are_refused(files: FakeFiles, wrong: dict[str, Any]) -> None:
    """Before anything is touched."""
    with pytest.raises(StoreError):
        Store.open(ROOT, dataclasses.replace(CONFIG, **wrong), files, FakeClock())
    assert files.tree() == {}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a runner with threads
def test_a_real_directory_is_locked_against_this_and_other_processes(tmp_path: Path) -> None:
    """fcntl does not conflict within a process: the second open is refused all the same."""
    first = Store.open(tmp_path, CONFIG, OsFiles(), FakeClock())
    with pytest.raises(StoreLocked):
        Store.open(tmp_path, CONFIG, OsFiles(), FakeClock())
    child = os.fork()
    if child == 0:
        try:
            Store.open(tmp_path, CONFIG, OsFiles(), FakeClock())
        except BlockingIOError:
            os._exit(2)
        except StoreLocked:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    append(first, "T", 0, b"x", now_ms=5)
    write_synced(first)
    first.close()
    second = Store.open(tmp_path, CONFIG, OsFiles(), FakeClock())
    assert contents(second) == {("T", 0): [(0, b"x")]}
    second.close()


@pytest.mark.slow
def test_many_queues_need_few_descriptors_and_start_fast(tmp_path: Path) -> None:
    """2,000 queues through 16 descriptors; a start opens none of them."""
    config = dataclasses.replace(CONFIG, segment_bytes=1 << 20, open_files_max=16)
    store = Store.open(tmp_path, config, OsFiles(), FakeClock())
    for number in range(2000):
        append(store, f"topic{number % 500}", number // 500, b"x")
    write_and_publish(store)
    while store.housekeep(1):
        pass
    assert store.queues.queue_files.open_count <= 16
    store.close()
    before = time.process_time()
    again = Store.open(tmp_path, config, OsFiles(), FakeClock())
    assert time.process_time() - before < 1.0
    assert again.queues.queue_files.open_count == 0
    assert again.queues.count == 2000
    assert sum(map(len, contents(again).values())) == 2000
    assert again.queues.queue_files.open_count <= 16
    again.close()


@pytest.mark.parametrize("gone", ["all", "one"])
def test_queues_removed_after_a_kill_are_made_again_from_the_log(
    files: FakeFiles, gone: str
) -> None:
    """Also if no later message would show that they are missing."""
    first = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(5):
        append(first, "T", 0, b"%d" % number)
        append(first, "U", 1, b"%d" % number)
    write_and_publish(first)
    while first.housekeep(1):
        pass
    expected = contents(first)
    first.abandon()
    killed = files.kill()
    for topic in ("T", "U") if gone == "all" else ("U",):
        killed.remove_tree(ROOT / "consumequeue" / topic)
    second = Store.open(ROOT, CONFIG, killed, FakeClock())
    try:
        assert contents(second) == expected
    finally:
        second.abandon()


def test_a_topic_dropped_before_a_kill_does_not_look_like_queues_removed(
    files: FakeFiles,
) -> None:
    """What is left is taken up where it was noted, not from the whole log."""
    first = Store.open(ROOT, CONFIG, files, FakeClock())
    for topic in ("T", "U"):
        append(first, topic, 0, b"x")
    write_and_publish(first)
    while first.housekeep(1):
        pass
    first.drop_topic("T")
    first.abandon()
    second = Store.open(ROOT, CONFIG, files.kill(), FakeClock())
    try:
        assert second.recovery.method == "written"
        assert contents(second) == {("U", 0): [(0, b"x")]}
    finally:
        second.abandon()


def test_recovery_reads_the_log_without_its_map(
    files: FakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the end there may be a hole, and on a full tmpfs to touch one kills the process."""
    first = Store.open(ROOT, CONFIG, files, FakeClock())
    for number in range(40):  # over several segments, with blanks at their ends
        append(first, "T", 0, b"%d" % number * 100)
        write_and_publish(first)
    expected = contents(first)
    first.abandon()
    killed = files.kill()
    killed.remove_tree(ROOT / "consumequeue" / "T")
    with monkeypatch.context() as patch:

        def touched(_: Segment) -> memoryview:
            raise AssertionError("the map was used")

        patch.setattr(Segment, "view", touched)
        second = Store.open(ROOT, CONFIG, killed, FakeClock())
    try:
        assert second.recovery.method != "closed"
        assert contents(second) == expected
    finally:
        second.abandon()


def test_a_record_longer_than_a_window_is_recovered(
    files: FakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read in windows; one that is too short for its first record is read again."""
    monkeypatch.setattr(scan, "CHUNK_BYTES", 256)
    first = Store.open(ROOT, CONFIG, files, FakeClock())
    for size in (10, 1000, 100, 2000, 90):
        append(first, "T", 0, bytes(size))
        write_and_publish(first)
    expected = contents(first)
    first.abandon()
    second = Store.open(ROOT, CONFIG, files.kill(), FakeClock())
    try:
        assert contents(second) == expected
    finally:
        second.abandon()
