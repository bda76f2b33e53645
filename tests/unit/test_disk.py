"""The file system of the machine, behind the seam."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from inorder.disk import OsFiles


def no_room(_fd: int, _size: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_new_file_that_cannot_get_its_length_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left empty it would be taken for a complete one by whoever opens it next."""
    monkeypatch.setattr(os, "ftruncate", no_room)
    with pytest.raises(OSError, match="No space"):
        OsFiles().open(tmp_path / "new", create=True, size=100)
    assert OsFiles().listdir(tmp_path) == []


def test_a_file_that_was_there_stays_when_it_cannot_get_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are somebody's."""
    (tmp_path / "old").write_bytes(b"precious")
    monkeypatch.setattr(os, "ftruncate", no_room)
    with pytest.raises(OSError, match="No space"):
        OsFiles().open(tmp_path / "old", create=True, size=100)
    assert (tmp_path / "old").read_bytes() == b"precious"


def test_a_file_is_made_in_its_length_and_found_again(tmp_path: Path) -> None:
    """Sparse zeros; a second open with `create` changes nothing."""
    files = OsFiles()
    made = files.open(tmp_path / "f", create=True, size=5000)
    made.pwrite(b"x", 4999)
    made.close()
    again = files.open(tmp_path / "f", create=True, size=5000)
    assert (again.size(), again.pread(2, 4998)) == (5000, b"\0x")
    again.close()
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "missing")


def test_what_is_made_is_its_users_alone(tmp_path: Path) -> None:
    """Directories 0700 with all that had to be made above them, files 0600; what is there stays."""
    files = OsFiles()
    (tmp_path / "there").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        files.makedirs(tmp_path / "there" / "a" / "b")
        files.makedirs(tmp_path / "there")
        files.open(tmp_path / "there" / "file", create=True).close()
        with files.lock(tmp_path / "there" / "lock", b"lock"):
            pass
    finally:
        os.umask(before)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "there", *tmp_path.glob("there/**/*")]
    }
    assert modes == {"there": 0o755, "a": 0o700, "b": 0o700, "file": 0o600, "lock": 0o600}
