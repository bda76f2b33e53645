"""The disk as an injected dependency: everything that inorder does to files goes through `Files`.

All writes are `pwrite` on a descriptor and all mappings are read-only. A full disk is therefore an
error of the write that hit it and never a SIGBUS, and a fake disk sees every write
(`tests/kit/disk.py`). A write is whole or raises; after an error nothing is known about the bytes
of that call.

New files and directories are readable by their owner alone, since they hold messages. Existing ones
keep their mode. How bytes are written: decision 4.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview

_locked: set[str] = set()


UNLIMITED = 1 << 20
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Size, time of change and permissions of a file; a new file has another inode."""

    size: int
    modified_ms: int
    mode: int = FILE_MODE
    inode: int = 0


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Room on the file system of a path."""

    total: int
    free: int

    @property
    def used_ratio(self) -> float:
        """Return the used share, 0..1."""
        return 1.0 - self.free / self.total if self.total else 1.0


class File(Protocol):
    """One open file."""

    path: Path

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position` or raise OSError."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Read up to `length` bytes at `position`; fewer only at the end of the file."""
        ...

    def view(self) -> memoryview:
        """Return a read-only mapping of the file; it shows later writes and outlives close()."""
        ...

    def fdatasync(self) -> None:
        """Return when the file's bytes are on disk. May be called from another thread."""
        ...

    def truncate(self, size: int) -> None:
        """Set the file's length; new bytes read as zero."""
        ...

    def size(self) -> int:
        """Return the file's length."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class Files(Protocol):
    """A file system."""

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> File:
        """Open for reading and writing. With `create`, make it, sparse, `size` bytes long.

        If it cannot be given its length, a new file is taken away again.
        """
        ...

    def exists(self, path: Path) -> bool: ...

    def info(self, path: Path) -> FileInfo:
        """Return size and time of change; FileNotFoundError if absent."""
        ...

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist."""
        ...

    def is_dir(self, path: Path) -> bool: ...

    def makedirs(self, path: Path) -> None:
        """Make a directory and its parents; fine if it exists."""
        ...

    def remove(self, path: Path) -> None:
        """Unlink a file; fine if it is gone."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Unlink a directory and all below; fine if it is gone."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Move atomically over the target."""
        ...

    def fsync_dir(self, path: Path) -> None:
        """Make creates, renames and unlinks in a directory durable."""
        ...

    def write_back(self) -> None:
        """Write everything dirty to disk: makes many single syncs cheap; only those tell errors."""
        ...

    def usage(self, path: Path) -> DiskUsage: ...

    def lock(self, path: Path, content: bytes) -> contextlib.AbstractContextManager[None]:
        """Hold the POSIX lock on byte 0 of a file; BlockingIOError if another process has it."""
        ...

    def boot_id(self) -> str:
        """Name this start of the system: while it is the same, the page cache survived."""
        ...

    def descriptors_max(self) -> int:
        """Return how many files and connections this process may have open."""
        ...


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_view", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._view: memoryview | None = None

    def pwrite(self, data: Buffer, position: int) -> None:
        done = os.pwrite(self._fd, data, position)
        if done == len(data):
            return
        rest = memoryview(data)
        while done < len(rest):
            count = os.pwrite(self._fd, rest[done:], position + done)
            if count == 0:
                raise OSError(f"{self.path}: wrote {done} of {len(rest)} bytes at {position}")
            done += count

    def pread(self, length: int, position: int) -> bytes:
        return os.pread(self._fd, length, position)

    def view(self) -> memoryview:
        if self._view is None:
            self._view = memoryview(mmap.mmap(self._fd, 0, prot=mmap.PROT_READ))
        return self._view

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        self._view = None  # the last outside view frees the mapping
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __repr__(self) -> str:
        return f"OsFile({str(self.path)!r}, fd={self._fd})"


class OsFiles:
    """The file system of the machine."""

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        made = False
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            if not create:
                raise
            fd = os.open(path, flags | os.O_CREAT, FILE_MODE)
            made = True
        try:
            if create and size is not None and os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            if made:  # the next open must not take it for a complete file
                os.unlink(path)
            raise
        return OsFile(path, fd)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def info(self, path: Path) -> FileInfo:
        found = path.stat()
        return FileInfo(
            found.st_size, found.st_mtime_ns // 1_000_000, found.st_mode & 0o777, found.st_ino
        )

    def listdir(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def makedirs(self, path: Path) -> None:
        try:
            path.mkdir(DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            self.makedirs(path.parent)  # with the same mode, unlike `parents=True`
            path.mkdir(DIRECTORY_MODE, exist_ok=True)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_back(self) -> None:
        os.sync()

    def usage(self, path: Path) -> DiskUsage:
        found = os.statvfs(path)
        return DiskUsage(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    @contextlib.contextmanager
    def lock(self, path: Path, content: bytes) -> Iterator[None]:
        # fcntl, as Java's FileChannel.tryLock(0, 1, false): flock(2) would not conflict with it.
        # It does not conflict within one process either, and closing any descriptor of the file
        # drops it: so a second holder here must be refused before the file is opened.
        name = os.path.realpath(path)
        if name in _locked:
            raise BlockingIOError(f"{path} is locked by this process")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        _locked.add(name)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(fd, content, 0)
            yield
        finally:
            _locked.discard(name)
            os.close(fd)

    def descriptors_max(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return UNLIMITED if soft == resource.RLIM_INFINITY else soft

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""
