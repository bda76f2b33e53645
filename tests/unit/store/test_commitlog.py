"""The log: packing, rolling, one write a tick, taking back, syncing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from inorder.errors import DiskFull, RecordTooLarge, StoreBusy, StoreFailed
from inorder.store.commitlog import CommitLog
from inorder.store.layout import Layout
from inorder.store.segments import Segments
from tests.kit.disk import FakeFiles, Fault

ROOT = Path("/log")
SIZE = 1024


def make_log(files: FakeFiles, pending_bytes_max: int = 1 << 20) -> CommitLog:
    layout = Layout(ROOT)
    files.makedirs(layout.commitlog)
    log = CommitLog(Segments(files, layout, SIZE), pending_bytes_max)
    log.start_at(0, 0)
    return log


def put(log: CommitLog, size: int, fill: int = 7) -> int:
    at = log.reserve(size)
    log.pending[at : at + size] = bytes([fill]) * size
    return log.pending_base + at


def test_records_of_a_tick_reach_the_file_by_one_write() -> None:
    """However many records are reserved, `write` is one pwrite."""
    files = FakeFiles()
    log = make_log(files)
    assert [put(log, 100), put(log, 150), put(log, 91)] == [0, 100, 250]
    assert log.end_position == 0
    assert log.write()
    assert files.counts["write"] == 1
    assert log.end_position == 341
    assert not log.write(), "nothing is pending any more"


def test_a_segment_that_cannot_hold_the_next_record_ends_with_a_blank() -> None:
    """The blank holds the bytes left and its magic; the record goes to the next segment."""
    files = FakeFiles()
    log = make_log(files)
    put(log, 400)
    put(log, 400)
    assert put(log, 217) == SIZE, "217 + 8 do not fit into the 224 that are left"
    log.write()
    first = files.read(ROOT / "commitlog" / f"{0:020d}")
    assert first[800:808] == (224).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    assert first[808:] == bytes(SIZE - 808)
    assert log.end_position == SIZE + 217


def test_a_record_that_just_fits_leaves_room_for_the_blank() -> None:
    """Eight bytes always stay free at the end of a segment."""
    files = FakeFiles()
    log = make_log(files)
    put(log, 800)
    assert put(log, 216) == 800
    assert put(log, 91) == SIZE
    log.write()
    assert files.read(ROOT / "commitlog" / f"{0:020d}")[1016:1020] == (8).to_bytes(4, "big")


def test_a_tick_over_several_segments_writes_once_per_segment() -> None:
    """Rolling twice within a tick touches no file before the write."""
    files = FakeFiles()
    log = make_log(files)
    positions = [put(log, 900, fill) for fill in (1, 2, 3)]
    assert positions == [0, SIZE, 2 * SIZE]
    assert "write" not in files.counts
    log.write()
    assert files.counts["write"] == 3
    assert [bytes(log.view_at(p, 3) or b"") for p in positions] == [b"\1" * 3, b"\2" * 3, b"\3" * 3]


def test_limits_of_size_and_of_what_waits() -> None:
    """A record larger than a segment, and more pending than allowed, are refused."""
    log = make_log(FakeFiles(), pending_bytes_max=2500)
    with pytest.raises(RecordTooLarge):
        log.reserve(SIZE - 7)
    put(log, 900)
    put(log, 900)
    with pytest.raises(StoreBusy):
        put(log, 900)
    log.write()
    assert put(log, 900) == 2 * SIZE


def test_a_failed_write_leaves_zeros_and_the_same_positions() -> None:
    """ENOSPC in the second of two segments: both are as before, and the next write succeeds."""
    files = FakeFiles()
    log = make_log(files)
    put(log, 300)
    log.write()
    files.fail(Fault("write", 2, error=errno.ENOSPC, kept_bytes=50))
    put(log, 600)
    put(log, 600)
    with pytest.raises(DiskFull, match="position 300"):
        log.write()
    assert log.end_position == 300
    assert files.read(ROOT / "commitlog" / f"{0:020d}")[300:] == bytes(724)
    assert files.read(ROOT / "commitlog" / f"{SIZE:020d}") == bytes(SIZE)
    assert put(log, 600) == 300
    assert log.write()


def test_an_error_other_than_no_room_is_final() -> None:
    """EIO of a write: the bytes are taken back and no more is taken."""
    files = FakeFiles()
    log = make_log(files)
    files.fail(Fault("write", 1, error=errno.EIO, kept_bytes=10))
    put(log, 200)
    with pytest.raises(StoreFailed):
        log.write()
    with pytest.raises(StoreFailed):
        log.reserve(100)


def test_sync_returns_the_end_at_its_start_and_fails_for_good() -> None:
    """A failed fdatasync is never tried again."""
    files = FakeFiles()
    log = make_log(files)
    put(log, 200)
    log.write()
    assert log.sync() == 200 == log.durable_position
    put(log, 100)
    log.write()
    files.fail(Fault("sync", 1, error=errno.EIO))
    with pytest.raises(StoreFailed, match="restart to recover"):
        log.sync()
    with pytest.raises(StoreFailed):
        log.sync()
    assert log.durable_position == 200
    with pytest.raises(StoreFailed):
        log.reserve(100)


def test_sync_covers_all_segments_written_and_their_names() -> None:
    """A segment's name and length are durable when it is made, its bytes with the next sync."""
    files = FakeFiles()
    log = make_log(files)
    for _ in range(3):
        put(log, 900)
    log.write()
    assert files.counts["sync"] == 6, "three files and three times their directory"
    log.sync()
    assert files.counts["sync"] == 10, "three files and, the first time, their directory"
    log.sync()
    assert files.counts["sync"] == 10, "nothing new, nothing to sync"


def test_a_view_outlives_its_segment() -> None:
    """Readers may hold views of a segment that retention drops."""
    log = make_log(FakeFiles())
    put(log, 900, 1)
    put(log, 900, 2)
    log.write()
    view = log.view_at(0, 900)
    assert view is not None
    log.segments.drop_first()
    assert bytes(view) == b"\1" * 900
    assert log.view_at(0, 900) is None
    assert log.read_at(0, 900) is None
    assert log.min_position == SIZE


def test_the_buffer_grows_for_a_large_tick_and_shrinks_again() -> None:
    """`pending` stays the same object, whatever its length."""
    files = FakeFiles()
    layout = Layout(ROOT)
    files.makedirs(layout.commitlog)
    log = CommitLog(Segments(files, layout, 1 << 26), 1 << 26)
    log.start_at(0, 0)
    pending = log.pending
    before = len(pending)
    at = log.reserve(20_000_000)
    assert log.pending is pending
    assert len(pending) >= 20_000_000 + at
    log.write()
    log.reserve(91)
    assert len(pending) <= max(before, 8 * 1024 * 1024)
