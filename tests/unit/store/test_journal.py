"""The journal: what was appended is read back, what is torn is cut off."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from inorder.disk import Files, OsFiles
from inorder.store.journal import Journal, pack, split
from tests.kit.disk import FakeFiles, Fault

FOLDER = Path("/data/inorder")

PAYLOADS = [b"one", b"two" * 100, b"\0"]


def opened(folder: Path, files: Files | None = None) -> tuple[Journal, list[bytes]]:
    journal = Journal(files or OsFiles(), folder, "journal")
    return journal, journal.open()


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    """Records survive without a sync: a kill loses nothing that was written."""
    journal, found = opened(tmp_path / "inorder")
    assert found == []
    journal.append(PAYLOADS[:1])
    journal.append(PAYLOADS[1:])
    journal.close()
    assert opened(tmp_path / "inorder")[1] == PAYLOADS


def test_a_tear_at_any_byte_leaves_the_whole_records() -> None:
    """A record counts whole or not at all."""
    data = b"".join(map(pack, PAYLOADS))
    ends = [0]
    for payload in PAYLOADS:
        ends.append(ends[-1] + len(pack(payload)))
    for size in range(len(data) + 1):
        whole = sum(end <= size for end in ends[1:])
        assert split(data[:size]) == (PAYLOADS[:whole], ends[whole])


def test_a_torn_tail_is_cut_off_and_written_over(tmp_path: Path) -> None:
    """What follows the tear does not come back after the next append."""
    path = tmp_path / "journal.000001"
    path.write_bytes(pack(b"good") + pack(b"torn")[:-1] + pack(b"later"))
    journal, found = opened(tmp_path)
    assert found == [b"good"]
    journal.append([b"next"])
    journal.close()
    assert opened(tmp_path)[1] == [b"good", b"next"]


@pytest.mark.parametrize("place", [0, 4, 8])
def test_a_damaged_record_ends_the_journal(place: int) -> None:
    """A flipped bit in length, checksum or payload is noticed."""
    data = bytearray(pack(b"good") + pack(b"bad") + pack(b"later"))
    data[len(pack(b"good")) + place] ^= 0x40
    assert split(bytes(data))[0] == [b"good"]


def test_a_new_file_takes_over_and_the_old_ones_are_dropped(tmp_path: Path) -> None:
    """Until they are dropped the older ones count, and come first."""
    journal, _ = opened(tmp_path)
    journal.append(PAYLOADS)
    journal.switch(journal.prepare())
    journal.append([b"sum"])
    assert opened(tmp_path)[1] == [*PAYLOADS, b"sum"]
    assert (journal.has_older, journal.size) == (True, len(pack(b"sum")))
    journal.plan_sync()()
    journal.plan_drop()()
    journal.dropped()
    journal.append([b"more"])
    journal.close()
    assert opened(tmp_path)[1] == [b"sum", b"more"]
    assert [path.name for path in tmp_path.iterdir()] == ["journal.000002"]


def test_a_file_that_was_prepared_and_not_used_is_made_again(tmp_path: Path) -> None:
    """A fold that failed half way leaves nothing behind that counts."""
    journal, _ = opened(tmp_path)
    journal.prepare().pwrite(b"rubbish", 0)
    journal.switch(journal.prepare())
    journal.append([b"one"])
    journal.close()
    assert opened(tmp_path)[1] == [b"one"]


@pytest.mark.parametrize("kept", [0, 5])
def test_a_failed_append_leaves_nothing(kept: int) -> None:
    """The disk is full: none of the records counts, and later ones are taken."""
    files = FakeFiles()
    journal, _ = opened(FOLDER, files)
    journal.append([b"good"])
    files.fail(Fault("write", 1, errno.ENOSPC, kept_bytes=kept))
    with pytest.raises(OSError, match="space"):
        journal.append([b"bad", b"worse"])
    journal.append([b"next"])
    assert opened(FOLDER, files.kill())[1] == [b"good", b"next"]


@pytest.mark.parametrize("switching", [False, True])
def test_a_failure_that_could_not_be_undone_is_before_anything_follows(switching: bool) -> None:
    """What was half written is cut off first, when the disk takes that again."""
    files = FakeFiles()
    journal, _ = opened(FOLDER, files)
    journal.append([b"good"])
    files.fail(Fault("write", 1, errno.EIO, kept_bytes=5))
    files.fail(Fault("truncate", 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        journal.append([b"bad"])
    if switching:
        journal.switch(journal.prepare())
    journal.append([b"x"])
    assert opened(FOLDER, files.kill())[1] == [b"good", b"x"]


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_leaves_what_was_synced(seed: int) -> None:
    """Behind it some records may follow, in order, none of them torn."""
    files = FakeFiles()
    files.makedirs(FOLDER.parent)
    files.fsync_dir(Path("/"))
    journal, _ = opened(FOLDER, files)
    journal.append([b"a", b"b"])
    journal.plan_sync()()
    for payload in (b"c", b"d", b"e"):
        journal.append([payload])
    found = opened(FOLDER, files.crash(Random(seed)))[1]
    assert found == [b"a", b"b", b"c", b"d", b"e"][: len(found)]
    assert len(found) >= 2
