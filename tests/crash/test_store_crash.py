"""The store killed, cut off, filled up and failed at every point of a small workload."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from inorder.config import StoreConfig
from inorder.errors import DiskFull, StoreError, StoreFailed, WriteInDoubt
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles, Fault, Killed
from tests.kit.storing import Contents, append, contents

ROOT = Path("/data/store")
CONFIG = StoreConfig(segment_bytes=2048, queue_file_bytes=100, index_slots=7, index_entries=30)
TICKS = 12


class Workload:
    """A few ticks over three queues; remembers what was acknowledged and what was refused."""

    def __init__(self, *, sync: bool = False) -> None:
        self.sync = sync
        self.acked: Contents = {}
        self.attempted: Contents = {}
        self.refused: set[bytes] = set()
        self.clock = FakeClock()
        self.number = 0

    def tick(self, store: Store) -> None:
        added = []
        for _ in range(1 + self.number % 3):
            queue_id = self.number % 3
            body = b"message %03d " % self.number + b"x" * (self.number * 37 % 150)
            key = f"k{self.number}"
            self.number += 1
            now_ms = self.clock.now_ms()
            try:
                offset = append(
                    store, "T", queue_id, body, now_ms=now_ms, keys=key, unique="U" + key
                )
            except StoreError:
                self.refused.add(body)
                continue
            added.append((("T", queue_id), (offset, body)))
            self.attempted.setdefault(("T", queue_id), []).append((offset, body))
        self.clock.advance(10)
        try:
            written = store.write_tick()
            if self.sync:
                store.sync()
        except StoreError:
            for key_, entry in added:
                self.attempted[key_].remove(entry)
                self.refused.add(entry[1])
            raise
        if written is not None:
            store.publish(written)
        for key_, entry in added:
            self.acked.setdefault(key_, []).append(entry)

    def run(self, files: FakeFiles, *, close: bool = True) -> None:
        store = Store.open(ROOT, CONFIG, files, self.clock)
        for number in range(TICKS):
            self.tick(store)
            self.keep(store, number)
        if close:
            store.close()

    def keep(self, store: Store, number: int) -> None:
        if number % 3 == 1:
            store.housekeep(self.clock.now_ms())
            self.clock.advance(2000)
        if number % 5 == 4:
            store.flush_indexes()

    def check(self, store: Store) -> None:
        """Everything acknowledged is there, in order, and nothing that was not sent."""
        found = contents(store)
        for key, attempted in self.attempted.items():
            have = found.get(key, [])
            assert have == attempted[: len(have)], "not what was sent, in the order of sending"
            assert len(have) >= len(self.acked.get(key, [])), "acknowledged messages are lost"
        assert set(found) <= set(self.attempted)
        self.check_keys(store, found)

    def check_keys(self, store: Store, found: Contents) -> None:
        """Each message is found by its keys exactly once."""
        bodies = {body for entries in found.values() for _, body in entries}
        for number in range(self.number):
            for key in (f"k{number}", f"Uk{number}"):
                hits = store.query_keys("T", key, 64, 0, 1 << 62).positions
                there = any(body.startswith(b"message %03d " % number) for body in bodies)
                assert len(hits) == there, f"{key}: {hits}"


def changes_of(run: Workload) -> int:
    files = FakeFiles()
    run.run(files)
    return files.counts["change"]


def open_again(files: FakeFiles, run: Workload) -> Store:
    return Store.open(ROOT, CONFIG, files, run.clock)


@pytest.mark.slow
@pytest.mark.parametrize("kept_bytes", [0, 1, 50, 10_000])
def test_killed_at_every_change_nothing_acknowledged_is_lost(kept_bytes: int) -> None:
    """kill -9 at any write, torn or not: reopening finds all that was acknowledged, in order."""
    total = changes_of(Workload())
    assert total > 100
    for point in range(1, total + 1):
        run = Workload()
        files = FakeFiles()
        files.fail(Fault("change", point, error=None, kept_bytes=kept_bytes))
        with pytest.raises(Killed):
            run.run(files)
        left = files.kill()
        store = open_again(left, run)
        run.check(store)
        before = contents(store)
        store.close()
        again = open_again(left, run)
        assert again.recovery.method == "closed", point
        assert contents(again) == before
        again.abandon()


@pytest.mark.slow
def test_recovery_killed_at_every_change_ends_in_the_same_state() -> None:
    """Recovery is idempotent: killed anywhere and started again it gives the same contents."""
    total = changes_of(Workload())
    for point in (total // 3, total // 2, total - 3):
        run = Workload()
        files = FakeFiles()
        files.fail(Fault("change", point, error=None, kept_bytes=60))
        with pytest.raises(Killed):
            run.run(files)
        for image in (files.kill(), files.crash(Random(point))):
            whole = image.kill()
            store = open_again(whole, run)
            expected = contents(store)
            store.abandon()
            for at in range(1, whole.counts["change"] + 1):
                broken = image.kill()
                broken.fail(Fault("change", at, error=None, kept_bytes=13))
                with pytest.raises(Killed):
                    open_again(broken, run)
                again = open_again(broken.kill(), run)
                assert contents(again) == expected
                again.abandon()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_power_cut_under_sync_flush_loses_nothing_acknowledged(seed: int) -> None:
    """With the page cache gone, torn and reordered, everything acknowledged is there."""
    random = Random(seed)
    total = changes_of(Workload(sync=True))
    for _ in range(6):
        run = Workload(sync=True)
        files = FakeFiles()
        files.fail(Fault("change", random.randint(5, total), error=None))
        with pytest.raises(Killed):
            run.run(files)
        left = files.crash(random)
        store = open_again(left, run)
        run.check(store)
        left_again = left.crash(random)  # and once more, right after recovery
        store.abandon()
        store = open_again(left_again, run)
        run.check(store)
        before = contents(store)
        store.close()
        store = open_again(left_again, run)
        assert contents(store) == before
        store.abandon()


@pytest.mark.parametrize("seed", range(20))
def test_what_a_restart_shows_survives_a_power_cut(seed: int) -> None:
    """Written, not synced, killed, recovered and shown: from then on it must not be lost."""
    run = Workload(sync=True)
    files = FakeFiles()
    store = Store.open(ROOT, CONFIG, files, run.clock)
    for number in range(TICKS):
        run.tick(store)
        run.keep(store, number)
    run.sync = False
    for _ in range(5):
        run.tick(store)
    store.housekeep(run.clock.now_ms())
    store.abandon()
    killed = files.kill()
    store = open_again(killed, run)
    shown = contents(store)
    store.abandon()
    again = open_again(killed.crash(Random(seed)), run)
    assert contents(again) == shown == run.acked
    run.check(again)
    again.abandon()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_a_start_shows_that_follows_one_that_died_survives_a_power_cut(seed: int) -> None:
    """After a power cut a start dies at any change; what it made need not be durable."""
    random = Random(seed)
    run = Workload(sync=True)
    files = FakeFiles()
    files.fail(Fault("change", random.randint(15, 45), error=None))  # before the first flush
    with pytest.raises(Killed):
        run.run(files)
    left = files.crash(random)
    whole = left.kill()
    open_again(whole, run).abandon()
    for at in range(1, whole.counts["change"] + 1):
        broken = left.kill()
        broken.fail(Fault("change", at, error=None, kept_bytes=13))
        with pytest.raises(Killed):
            open_again(broken, run)
        broken = broken.kill()
        store = open_again(broken, run)
        shown = contents(store)
        store.abandon()
        again = open_again(broken.crash(random), run)
        assert contents(again) == shown, f"the start before died at change {at}"
        again.abandon()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_power_cut_under_async_flush_leaves_a_consistent_prefix(seed: int) -> None:
    """What survives is a prefix of every queue, with matching keys; offsets are used once."""
    random = Random(1000 + seed)
    total = changes_of(Workload())
    run = Workload()
    files = FakeFiles()
    files.fail(Fault("change", random.randint(5, total), error=None))
    with pytest.raises(Killed):
        run.run(files)
    left = files.crash(random)
    store = open_again(left, run)
    run.acked.clear()
    run.check(store)
    kept = contents(store)
    run.attempted = {key: list(entries) for key, entries in kept.items()}
    run.tick(store)
    run.check(store)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kept_bytes", [0, 1, 70, 10_000])
def test_disk_full_at_every_write_refuses_and_comes_back(kept_bytes: int) -> None:
    """ENOSPC refuses the tick, never half of it; reads go on; writes return with the room."""
    total = FakeFiles()
    Workload().run(total)
    refused = 0
    for point in range(1, total.counts["write"] + 1):
        run = Workload()
        files = FakeFiles()
        store = None
        fault = Fault("write", point, error=errno.ENOSPC, kept_bytes=kept_bytes)
        files.fail(fault)
        try:
            store = Store.open(ROOT, CONFIG, files, run.clock)
        except OSError:
            files.heal()
            store = Store.open(ROOT, CONFIG, files.kill(), run.clock)
        for number in range(TICKS):
            try:
                run.tick(store)
            except DiskFull:
                refused += 1
                assert {b for e in contents(store).values() for _, b in e}.isdisjoint(run.refused)
                restarted = open_again(files.kill(), run)
                run.check(restarted)
                restarted.abandon()
            if number % 3 == 1:
                store.housekeep(run.clock.now_ms())
        files.heal()
        store.housekeep(run.clock.now_ms())
        assert store.writable
        run.tick(store)
        run.check(store)
        store.abandon()
        again = open_again(files.kill(), run) if files.counts["write"] > 10 else None
        if again is not None and again.log.end_position:
            run.check(again)
            found = {body for entries in contents(again).values() for _, body in entries}
            assert found.isdisjoint(run.refused), "a refused message came back"
    assert refused > 5


@pytest.mark.slow
def test_a_failed_sync_is_final() -> None:
    """EIO from fdatasync: no acknowledgement after it, reads go on, a restart recovers."""
    counting = FakeFiles()
    Workload(sync=True).run(counting, close=False)
    opening = FakeFiles()
    Store.open(ROOT, CONFIG, opening, FakeClock()).abandon()
    for point in range(opening.counts["sync"] + 1, counting.counts["sync"] + 1):
        run = Workload(sync=True)
        files = FakeFiles()
        store = Store.open(ROOT, CONFIG, files, run.clock)
        files.faults.append(Fault("sync", point, error=errno.EIO))
        failed = False
        for number in range(TICKS):
            try:
                run.tick(store)
                assert not failed, "acknowledged after a failed sync"
                run.keep(store, number)
            except StoreFailed:
                failed = True
        assert failed
        assert not store.writable
        assert "restart" in (store.unwritable_reason or "")
        visible = contents(store)
        assert visible == {key: entries for key, entries in run.acked.items() if entries}
        with pytest.raises(StoreFailed):
            store.close()
        assert files.exists(ROOT / "abort")
        again = open_again(files.crash(Random(point)), run)
        for key, entries in run.acked.items():
            assert contents(again)[key][: len(entries)] == entries
        again.abandon()


@pytest.mark.slow
def test_an_error_that_cannot_be_undone_fails_the_store() -> None:
    """If cutting off a failed write fails too, the store takes nothing more."""
    run = Workload()
    files = FakeFiles()
    store = Store.open(ROOT, CONFIG, files, run.clock)
    run.tick(store)
    files.fail(Fault("write", 1, error=errno.ENOSPC, kept_bytes=120))
    files.fail(Fault("truncate", 1, error=errno.EIO, forever=True))
    with pytest.raises(WriteInDoubt, match="taking the bytes back"):
        run.tick(store)
    files.heal()
    assert not store.writable
    with pytest.raises(StoreFailed):
        run.tick(store)
    run.check_keys(store, contents(store))
    store.abandon()


def test_a_small_disk_fills_up_and_works_again_when_room_returns() -> None:
    """On a disk with a limit writes are refused when it is full, and taken when it has grown."""
    run = Workload()
    files = FakeFiles(capacity=9 * 4096)
    store = Store.open(ROOT, CONFIG, files, run.clock)
    refused = 0
    for _ in range(60):
        try:
            run.tick(store)
        except DiskFull:
            refused += 1
    assert refused
    assert contents(store) == run.acked
    files.capacity = None
    store.housekeep(run.clock.now_ms())
    run.tick(store)
    run.check(store)
    store.close()
    again = open_again(files, run)
    run.check(again)
    again.abandon()
