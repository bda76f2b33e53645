"""The fake disk itself: what it forgets, tears, refuses and counts."""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from inorder.disk import OsFiles
from tests.kit.disk import FakeFiles, Fault, Killed

ROOT = Path("/d")


@pytest.fixture
def files() -> FakeFiles:
    made = FakeFiles()
    made.makedirs(ROOT)
    made.fsync_dir(Path("/"))
    return made


def test_a_gigabyte_of_zeros_is_sparse(files: FakeFiles) -> None:
    """Only pages with bytes in them count."""
    file = files.open(ROOT / "big", create=True, size=1 << 30)
    file.pwrite(b"x", 1 << 29)
    assert files.used_bytes == 4096
    assert file.pread(3, (1 << 29) - 1) == b"\0x\0"
    assert file.size() == 1 << 30
    assert len(file.view()) == 1 << 30


def test_a_view_shows_later_writes_and_cuts(files: FakeFiles) -> None:
    """Like a shared mapping."""
    file = files.open(ROOT / "f", create=True, size=10_000)
    file.pwrite(b"before", 4090)
    view = file.view()
    file.pwrite(b"after!", 4093)
    assert bytes(view[4088:4100]) == b"\0\0befafter!\0"
    file.truncate(4095)
    file.truncate(10_000)
    assert bytes(view[4088:4100]) == b"\0\0befaf\0\0\0\0\0"
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_kill_keeps_what_was_written_and_a_crash_what_was_synced(files: FakeFiles) -> None:
    """Unsynced bytes survive a kill; of a crash any part of them may."""
    file = files.open(ROOT / "f", create=True, size=8)
    files.fsync_dir(ROOT)
    file.pwrite(b"AAAA", 0)
    file.fdatasync()
    file.pwrite(b"BBBB", 4)
    assert files.kill().read(ROOT / "f") == b"AAAABBBB"
    seen = {files.crash(Random(seed)).read(ROOT / "f") for seed in range(200)}
    assert seen == {b"AAAA" + b"BBBB"[:n] + bytes(4 - n) for n in range(5)}
    assert files.kill().boot_id() == files.boot_id() != files.crash(Random(1)).boot_id()


def test_a_crash_may_keep_a_later_write_and_lose_an_earlier_one(files: FakeFiles) -> None:
    """The page cache writes back in any order."""
    file = files.open(ROOT / "f", create=True, size=2)
    file.fdatasync()
    files.fsync_dir(ROOT)
    file.pwrite(b"1", 0)
    file.pwrite(b"2", 1)
    seen = {files.crash(Random(seed)).read(ROOT / "f") for seed in range(200)}
    assert seen == {b"\0\0", b"1\0", b"\0" + b"2", b"12"}


def test_names_need_a_sync_of_their_directory(files: FakeFiles) -> None:
    """Creates, renames and removes may be undone by a crash until then."""
    files.open(ROOT / "a", create=True, size=1).fdatasync()
    assert {files.crash(Random(s)).exists(ROOT / "a") for s in range(50)} == {True, False}
    files.fsync_dir(ROOT)
    files.rename(ROOT / "a", ROOT / "b")
    for seed in range(50):
        left = files.crash(Random(seed)).listdir(ROOT)
        assert left in (["a"], ["b"]), "a rename is atomic"
    files.fsync_dir(ROOT)
    files.remove(ROOT / "b")
    assert {files.crash(Random(s)).exists(ROOT / "b") for s in range(50)} == {True, False}


def test_a_file_whose_directory_is_lost_is_lost(files: FakeFiles) -> None:
    """Directories have names too."""
    files.makedirs(ROOT / "sub")
    files.open(ROOT / "sub" / "f", create=True, size=1)
    files.fsync_dir(ROOT / "sub")
    found = {files.crash(Random(s)).exists(ROOT / "sub" / "f") for s in range(50)}
    assert found == {True, False}
    files.fsync_dir(ROOT)
    assert all(files.crash(Random(s)).exists(ROOT / "sub" / "f") for s in range(50))


def test_the_nth_operation_fails_and_may_be_torn(files: FakeFiles) -> None:
    """Once or for ever; some bytes of a failing write may stay."""
    file = files.open(ROOT / "f", create=True, size=9)
    files.fail(Fault("write", 2, error=errno.ENOSPC, kept_bytes=2))
    file.pwrite(b"111", 0)
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"222", 3)
    file.pwrite(b"333", 6)
    assert files.read(ROOT / "f") == b"11122\x00333"
    files.fail(Fault("sync", 1, forever=True))
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            file.fdatasync()
    files.heal()
    file.fdatasync()


def test_after_its_death_a_process_changes_nothing(files: FakeFiles) -> None:
    """Neither `except Exception` nor a finally block writes on."""
    file = files.open(ROOT / "f", create=True, size=3)
    files.fail(Fault("change", 1, error=None, kept_bytes=1))
    with pytest.raises(Killed):
        file.pwrite(b"abc", 0)
    with pytest.raises(Killed):
        file.pwrite(b"xyz", 0)
    assert files.kill().read(ROOT / "f") == b"a\0\0"
    assert not issubclass(Killed, Exception)


def test_a_small_disk_takes_what_fits() -> None:
    """The part of a write that fits is there when ENOSPC is raised."""
    files = FakeFiles(capacity=2 * 4096)
    files.makedirs(ROOT)
    file = files.open(ROOT / "f", create=True, size=100_000)
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"x" * 10_000, 1000)
    assert files.read(ROOT / "f")[1000:10_000].count(b"x") == 8192 - 1000
    file.pwrite(b"y" * 100, 1000)
    assert files.usage(ROOT).free == 0


def test_short_writes_of_the_system_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real file goes on until all is written."""
    import os

    real = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    file = OsFiles().open(tmp_path / "f", create=True, size=10)
    file.pwrite(b"0123456789", 0)
    assert file.pread(10, 0) == b"0123456789"
    file.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_directory_made_again_is_empty_whatever_the_crash_keeps(seed: int) -> None:
    """A directory whose removal is durable takes its files along; a new one of its name is new."""
    files = FakeFiles()
    files.makedirs(Path("/a/b"))
    files.open(Path("/a/b/old"), create=True, size=4).fdatasync()
    for directory in ("/", "/a", "/a/b"):
        files.fsync_dir(Path(directory))
    files.remove_tree(Path("/a/b"))
    files.fsync_dir(Path("/a"))
    files.makedirs(Path("/a/b"))
    files.open(Path("/a/b/new"), create=True, size=4)
    assert "old" not in files.crash(Random(seed)).listdir(Path("/a/b"))


@pytest.mark.parametrize("seed", range(8))
def test_a_directory_made_again_has_nothing_of_the_one_before(seed: int) -> None:
    """Names that came and went in the old one do not take those away that are synced in the new."""
    files, home = FakeFiles(), Path("/a/b/c")
    files.makedirs(home)
    files.open(home / "file", create=True, size=4)
    files.remove_tree(Path("/a"))
    files.fsync_dir(Path("/"))
    files.makedirs(home)
    files.open(home / "file", create=True, size=4)
    for directory in (home, *home.parents):
        files.fsync_dir(directory)
    assert files.crash(Random(seed)).listdir(home) == ["file"]


def test_names_are_read_while_a_thread_makes_others(files: FakeFiles) -> None:
    """A broker deletes a topic while another thread saves a file."""

    def save() -> None:
        for number in range(1000):
            files.open(ROOT / f"saved{number}", create=True, size=1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    saver = threading.Thread(target=save)
    try:
        saver.start()
        while saver.is_alive():
            files.makedirs(Path("/topic"))
            files.open(Path("/topic/0"), create=True, size=1)
            files.remove_tree(Path("/topic"))
            files.listdir(ROOT)
    finally:
        saver.join()
        sys.setswitchinterval(before)
    assert len(files.listdir(ROOT)) == 1000
