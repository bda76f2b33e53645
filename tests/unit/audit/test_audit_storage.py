"""The files of the audit log: appended to, turned over, cut, moved away."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from inorder.audit.storage import AuditFiles
from inorder.disk import OsFiles

LINE = b"x" * 99 + b"\n"


def audit(tmp_path: Path, *, file_bytes_max: int = 1000, files_max: int = 3) -> AuditFiles:
    """Return the files of a new audit log."""
    return AuditFiles(
        OsFiles(), tmp_path / "audit", file_bytes_max=file_bytes_max, files_max=files_max
    )


def names(tmp_path: Path) -> list[str]:
    """Return the names of the files."""
    return sorted(path.name for path in (tmp_path / "audit").iterdir())


def test_files_turn_over_and_the_oldest_goes(tmp_path: Path) -> None:
    """Never more than files_max files of file_bytes_max; the newest lines stay."""
    files = audit(tmp_path)
    for number in range(100):
        files.append(b"%099d\n" % number)
        assert len(names(tmp_path)) <= 3
    assert names(tmp_path) == ["audit.1.log", "audit.2.log", "audit.log"]
    found = [(tmp_path / "audit" / name).read_bytes() for name in
             ("audit.2.log", "audit.1.log", "audit.log")]  # fmt: skip
    assert [len(one) for one in found] == [1000, 1000, 1000]
    assert [int(one) for one in b"".join(found).split()] == list(range(70, 100))
    files.close()


def test_one_file_may_be_all(tmp_path: Path) -> None:
    """With files_max=1 the full file goes."""
    files = audit(tmp_path, files_max=1)
    for _ in range(11):
        files.append(LINE)
    assert names(tmp_path) == ["audit.log"]
    assert files.path.read_bytes() == LINE
    files.close()


def test_files_are_their_owners(tmp_path: Path) -> None:
    """Nobody else reads them."""
    files = audit(tmp_path)
    files.append(LINE * 9)
    files.append(LINE * 9)
    for name in names(tmp_path):
        assert (tmp_path / "audit" / name).stat().st_mode & 0o777 == 0o600
    files.close()


def test_a_start_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """After a torn last line a new one begins; a file that is full already is turned over."""
    first = audit(tmp_path)
    first.append(LINE)
    first.close()
    first.path.write_bytes(first.path.read_bytes() + b'{"torn')
    second = audit(tmp_path)
    second.append(LINE)
    assert second.path.read_bytes() == LINE + b'{"torn\n' + LINE
    second.close()
    third = audit(tmp_path, file_bytes_max=200)
    third.append(LINE)
    assert third.path.read_bytes() == LINE
    third.close()


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    """Whoever moves the file of a running server loses no line."""
    files = audit(tmp_path)
    files.append(LINE)
    files.path.rename(tmp_path / "elsewhere")
    files.append(LINE)
    assert files.path.read_bytes() == LINE
    files.close()


class Full(OsFiles):
    """A disk that is full for a while."""

    full = False

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> FullFile:  # type: ignore[override]
        return FullFile(self, super().open(path, create=create, size=size))


class FullFile:
    """A file on it: half of a write fits."""

    def __init__(self, files: Full, inner: object) -> None:
        self._files = files
        self._inner = inner

    def pwrite(self, data: bytes, position: int) -> None:
        if self._files.full:
            self._inner.pwrite(data[: len(data) // 2], position)  # type: ignore[attr-defined]
            raise OSError(errno.ENOSPC, "no space left")
        self._inner.pwrite(data, position)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_a_write_that_fails_leaves_no_half_line(tmp_path: Path) -> None:
    """A full disk is an error of that write alone; later ones go on behind the last whole line."""
    disk = Full()
    files = AuditFiles(disk, tmp_path / "audit", file_bytes_max=1000, files_max=2)
    files.append(LINE)
    disk.full = True
    for _ in range(3):
        with pytest.raises(OSError, match="no space"):
            files.append(LINE)
    disk.full = False
    files.append(LINE)
    assert files.path.read_bytes() == LINE * 2
    files.close()
