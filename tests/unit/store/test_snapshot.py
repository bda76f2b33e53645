"""Small files that are replaced whole."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from inorder.disk import OsFile, OsFiles
from inorder.errors import RemoteProtocolError, StoreError
from inorder.store.snapshot import Snapshot


def strict(into: list[bytes]) -> Any:
    """Make a decoder that refuses what starts with `bad`."""

    def decode(content: bytes) -> None:
        if content.startswith(b"bad"):
            raise RemoteProtocolError("bad content")
        into.append(content)

    return decode


def loaded(snapshot: Snapshot) -> list[bytes]:
    """Load and return what the decoder got."""
    found: list[bytes] = []
    snapshot.load(strict(found))
    return found


def test_the_last_content_and_the_one_before_are_kept(tmp_path: Path) -> None:
    """Each save leaves the previous content under .bak and no draft behind."""
    snapshot = Snapshot(OsFiles(), tmp_path / "config" / "topics.json")
    assert loaded(snapshot) == []
    snapshot.save(b"one, which is long")
    snapshot.save(b"two")
    assert loaded(snapshot) == [b"two"]
    assert (tmp_path / "config" / "topics.json.bak").read_bytes() == b"one, which is long"
    assert sorted(p.name for p in (tmp_path / "config").iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]


@pytest.mark.parametrize("content", [b"", b"bad", None])
def test_a_missing_or_unreadable_file_is_replaced_by_the_one_before(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The .bak is taken, an unreadable file is set aside, and the log says so."""
    snapshot = Snapshot(OsFiles(), tmp_path / "f")
    snapshot.save(b"one")
    snapshot.save(b"two")
    if content is None:
        (tmp_path / "f").unlink()
    else:
        (tmp_path / "f").write_bytes(content)
    assert loaded(snapshot) == [b"one"]
    assert (tmp_path / "f.corrupt").exists() == (content == b"bad")
    assert bool(caplog.records) == (content == b"bad")


def test_two_unreadable_files_stop_the_start(tmp_path: Path) -> None:
    """An empty table in place of a lost one would forget progress: people decide."""
    snapshot = Snapshot(OsFiles(), tmp_path / "f")
    (tmp_path / "f").write_bytes(b"bad one")
    (tmp_path / "f.bak").write_bytes(b"bad two")
    with pytest.raises(StoreError, match="repair one of them"):
        loaded(snapshot)


def test_an_unreadable_file_without_a_copy_is_renamed(tmp_path: Path) -> None:
    """A first file that was torn is kept for people, and the start goes on as RocketMQ's does."""
    snapshot = Snapshot(OsFiles(), tmp_path / "f")
    (tmp_path / "f").write_bytes(b"bad")
    assert loaded(snapshot) == []
    assert (tmp_path / "f.corrupt").read_bytes() == b"bad"


class Crash(Exception):
    """The process ends here."""


class CrashingFiles(OsFiles):
    """Ends after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def _step(self) -> None:
        if self.steps == 0:
            raise Crash
        self.steps -= 1

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> OsFile:
        self._step()
        return super().open(path, create=create, size=size)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def fsync_dir(self, path: Path) -> None:
        self._step()
        super().fsync_dir(path)


@pytest.mark.parametrize("steps", range(5))
def test_a_crash_at_any_step_leaves_old_or_new(tmp_path: Path, steps: int) -> None:
    """Whatever step is the last, one whole content is found."""
    plain = Snapshot(OsFiles(), tmp_path / "f")
    plain.save(b"one")
    plain.save(b"two")
    crashed = False
    try:
        Snapshot(CrashingFiles(steps), tmp_path / "f").save(b"three")
    except Crash:
        crashed = True
    found = loaded(plain)
    assert found in ([b"two"], [b"three"])
    assert crashed or found == [b"three"]


class FullFile(OsFile):
    """Has no room."""

    def pwrite(self, data: Any, position: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class FullFiles(OsFiles):
    """A full disk."""

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> OsFile:
        file = super().open(path, create=create, size=size)
        return FullFile(file.path, file._fd) if create else file


def test_a_full_disk_keeps_the_old_content(tmp_path: Path) -> None:
    """The error is the caller's to handle; the draft does not keep the last of the room."""
    Snapshot(OsFiles(), tmp_path / "f").save(b"one")
    with pytest.raises(OSError, match="No space"):
        Snapshot(FullFiles(), tmp_path / "f").save(b"two")
    assert loaded(Snapshot(OsFiles(), tmp_path / "f")) == [b"one"]
    assert not (tmp_path / "f.tmp").exists()
