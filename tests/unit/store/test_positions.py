"""The slot of the log's end: what it says after a kill, and when it does not count."""

from __future__ import annotations

import errno
import zlib
from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.store.ends import Notes
from inorder.store.layout import Layout
from inorder.store.positions import (
    FILE_BYTES,
    SLOT,
    SYNCED_AT,
    TAIL_AT,
    TAIL_BYTES,
    Positions,
    PositionsFile,
    Tail,
    run_of,
)
from inorder.store.recovery import known_end
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from inorder.testing.disk import FakeFiles, Fault
from inorder.testing.storing import append, write_and_publish

ROOT = Path("/data")
LOG = ROOT / "commitlog" / f"{0:020d}"
POSITIONS = ROOT / "inorder" / "positions"
CONFIG = StoreConfig(segment_bytes=4096, queue_file_bytes=200, index_slots=7, index_entries=200)
OURS, OTHER = "inorder 1 2", "inorder 3 4"


def opened(files: FakeFiles) -> Store:
    return Store.open(ROOT, CONFIG, files, FakeClock())


@pytest.mark.parametrize(
    ("noted", "tail", "known"),
    [
        (500, None, 500),
        (500, Tail(900, run_of(OURS)), 900),
        (500, Tail(500, run_of(OURS)), 500),
        (500, Tail(300, run_of(OURS)), 500),
        (0, Tail(900, run_of(OURS)), 900),
        (500, Tail(900, run_of(OTHER)), 500),
        (500, Tail(900, run_of("")), 500),
    ],
    ids=["no tail", "entries wait", "all noted", "older tail", "first", "other run", "no run"],
)
def test_the_log_was_written_as_far_as_the_higher_note_of_its_run_says(
    noted: int, tail: Tail | None, known: int
) -> None:
    """Entries of queues are noted in batches, the tail with each write; another run's is void."""
    assert known_end(Notes(token=OURS, position=noted), tail) == known


def test_every_flipped_bit_of_the_tail_makes_it_void() -> None:
    """So do zeros, as a file of a release before has them, and a slot that is cut."""
    files = FakeFiles()
    PositionsFile(files, Layout(ROOT)).write_tail(1 << 40, run_of(OURS))
    data = files.read(POSITIONS)[TAIL_AT : TAIL_AT + TAIL_BYTES]
    assert Tail.unpack(data) == (1 << 40, zlib.crc32(OURS.encode()))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert Tail.unpack(bytes(flipped)) is None
    for cut in (b"", data[:-1], bytes(TAIL_BYTES)):
        assert Tail.unpack(cut) is None


def test_the_slots_leave_each_other_alone() -> None:
    """Each is read back after all were written, in a file of the size that it always had."""
    files = FakeFiles()
    file = PositionsFile(files, Layout(ROOT))
    assert file.load_tail() is None
    file.write_tail(7, 8)
    file.write(Positions(queues=1))
    file.write_synced(Positions(queues=2))
    assert file.load_tail() == (7, 8)
    assert file.load() == (Positions(queues=1), Positions(queues=2))
    assert SLOT.size <= TAIL_AT
    assert TAIL_AT + TAIL_BYTES <= SYNCED_AT
    assert len(files.read(POSITIONS)) == FILE_BYTES


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_start_after_a_kill_knows_how_far_the_log_was_written(kept: int) -> None:
    """No entry of a queue was written; of three records the log has kept some, or all."""
    files = FakeFiles()
    store = opened(files)
    ends = [0]
    for number in range(3):
        append(store, "T", 0, b"%d" % number)
        write_and_publish(store)
        ends.append(store.log.end_position)
    after = files.kill()
    after.write(LOG, bytes(4096 - ends[kept]), ends[kept])
    found = opened(after)
    assert (found.log.end_position, found.recovery.noted_position) == (ends[kept], ends[-1])
    found.abandon()


def test_a_lost_end_is_known_until_it_is_dealt_with_and_then_forgotten() -> None:
    """A start that is broken off leaves it to the next one."""
    files = FakeFiles()
    store = opened(files)
    append(store, "T", 0, b"kept")
    write_and_publish(store)
    end = store.log.end_position
    append(store, "T", 0, b"lost")
    write_and_publish(store)
    was = store.log.end_position
    files = files.kill()
    files.write(LOG, bytes(4096 - end), end)
    for _ in range(3):
        found = opened(files)
        assert (found.log.end_position, found.recovery.noted_position) == (end, was)
        files = files.kill()
    found = opened(files)
    found.settle_tail()
    files = files.kill()
    assert opened(files).recovery.noted_position == end


def test_a_tail_that_cannot_be_noted_stops_writes_until_it_is() -> None:
    """The records are stored and acknowledged; no more are taken before the note is written."""
    files = FakeFiles()
    store = opened(files)
    files.fail(Fault("write", 0, errno.EIO, place="positions"))
    append(store, "T", 0, b"stored")
    write_and_publish(store)
    assert "the end of the log cannot be noted" in str(store.unwritable_reason)
    assert store.queue("T", 0).visible_offset == 1
    store.housekeep(1)
    assert store.unwritable_reason is not None
    files.heal()
    store.housekeep(1)
    assert store.unwritable_reason is None
    store.abandon()
    assert PositionsFile(files, Layout(ROOT)).load_tail() == (store.log.end_position, store._run)
