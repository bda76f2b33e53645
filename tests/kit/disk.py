"""A disk in memory that forgets, tears, fills up and fails on demand.

It keeps apart what a real one keeps apart: bytes written (in the page cache) and bytes synced, and
names made and names made durable. From one run a test can take

    kill()         what is left when the process dies: everything written
    crash(random)  what may be left when the machine dies: synced bytes, and of the writes since any
                   subset, each whole, torn at any byte or lost; creates, renames and unlinks since
                   the directory's last sync survive in order up to some point only

A sync that fails loses what it should have written, as Linux does: a later sync of the same file
succeeds and does not bring it back.

The n-th operation of a kind can fail (`Fault`), at a torn byte if so set, or kill the process there
(`Killed`). Files are sparse, so that a gigabyte of zeros costs nothing. How a whole cluster is
simulated: decision 38.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from inorder.disk import Buffer, DiskUsage, FileInfo

PAGE: Final = 4096
ZERO_PAGE: Final = bytes(PAGE)
TOTAL_BYTES: Final = 1 << 40

Change = tuple[int, bytes | None]
"""A write (position, data), or a new length (size, None)."""


class Killed(BaseException):
    """The process died here. No `except Exception` of the code under test may stop it."""


@dataclass(slots=True)
class Fault:
    """The `nth` operation of a kind (1 is the next one) fails, and all later ones with `forever`.

    `kept_bytes` of a failing write still reach the file. With `place`, a pattern of paths, each
    such operation there fails until the disk is healed, and no other.
    """

    operation: str
    nth: int
    error: int | None = errno.EIO
    forever: bool = False
    kept_bytes: int = 0
    place: str = ""
    met: int = 0


@dataclass(slots=True)
class _Content:
    """Sparse bytes."""

    size: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> _Content:
        return _Content(self.size, dict(self.pages))

    def apply(self, change: Change) -> None:
        at, data = change
        if data is None:
            self._resize(at)
            return
        self.size = max(self.size, at + len(data))
        done = 0
        while done < len(data):
            number, inside = divmod(at + done, PAGE)
            step = min(PAGE - inside, len(data) - done)
            page = self.pages.get(number, ZERO_PAGE)
            page = page[:inside] + data[done : done + step] + page[inside + step :]
            if page == ZERO_PAGE:
                self.pages.pop(number, None)
            else:
                self.pages[number] = page
            done += step

    def _resize(self, size: int) -> None:
        last, inside = divmod(size, PAGE)
        for number in [n for n in self.pages if n > last or (n == last and not inside)]:
            del self.pages[number]
        if inside and last in self.pages:
            self.pages[last] = self.pages[last][:inside] + bytes(PAGE - inside)
        self.size = size

    def read(self, length: int, at: int) -> bytes:
        length = max(0, min(length, self.size - at))
        parts = []
        done = 0
        while done < length:
            number, inside = divmod(at + done, PAGE)
            step = min(PAGE - inside, length - done)
            parts.append(self.pages.get(number, ZERO_PAGE)[inside : inside + step])
            done += step
        return b"".join(parts)


class _Inode:
    """A file's bytes, without a name."""

    __slots__ = ("changes", "content", "durable", "lost", "mirror", "modified_ms", "spoilt")

    def __init__(self) -> None:
        self.content = _Content()
        self.durable = _Content()
        self.changes: list[Change] = []
        self.lost: list[Change] = []
        self.spoilt = False
        self.mirror: mmap.mmap | None = None
        self.modified_ms = 0

    def change(self, change: Change) -> None:
        at, data = change
        before = self.content.size
        held = tuple(self.content.pages) if data is None else ()
        self.content.apply(change)
        self.changes.append(change)
        if self.mirror is None:
            return
        if self.content.size > len(self.mirror):
            self.mirror = None
        elif data is not None:
            self.mirror[at : at + len(data)] = data
        else:  # no more than the pages that were there: a file may be sparse and large
            for number in held:
                start, end = max(at, number * PAGE), min(before, (number + 1) * PAGE)
                if start < end:
                    self.mirror[start:end] = bytes(end - start)

    def sync(self) -> None:
        """Put all writes since the last successful sync on disk."""
        if self.spoilt:
            for change in self.changes:
                self.durable.apply(change)
        else:
            self.durable = self.content.copy()
        self.changes.clear()
        self.lost.clear()

    def lose(self) -> None:
        """Lose the writes of this sync for good: no later sync brings them to disk."""
        self.lost += self.changes
        self.spoilt = True
        self.changes.clear()

    def copy(self) -> _Inode:
        other = _Inode()
        other.content = self.content.copy()
        other.durable = self.durable.copy()
        other.changes = list(self.changes)
        other.lost = list(self.lost)
        other.spoilt = self.spoilt
        other.modified_ms = self.modified_ms
        return other

    def after_crash(self, random: Random) -> _Inode:
        """Return the file with any subset of the unsynced changes, each possibly torn."""
        other = _Inode()
        other.durable = self.durable.copy()
        other.modified_ms = self.modified_ms
        fate = random.choice(("any", "any", "prefix", "all", "none"))
        changes = self.lost + self.changes
        cut = random.randint(0, len(changes))
        for index, (at, data) in enumerate(changes):
            if fate == "none" or (fate == "prefix" and index > cut):
                continue
            if fate == "any" and random.random() < 0.4:
                continue
            torn = data is not None and (
                (fate == "prefix" and index == cut) or (fate == "any" and random.random() < 0.3)
            )
            kept = data[: random.randint(0, len(data))] if torn and data is not None else data
            if kept is None or kept:
                other.durable.apply((at, kept))
        other.content = other.durable.copy()
        return other


class FakeFile:
    """One open file of a `FakeFiles`."""

    def __init__(self, files: FakeFiles, path: Path, inode: _Inode) -> None:
        self._files = files
        self._inode = inode
        self._open = True
        self.path = path

    def _check(self) -> None:
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))

    def pwrite(self, data: Buffer, position: int) -> None:
        self._check()
        self._files._write(self.path, self._inode, bytes(data), position)

    def pread(self, length: int, position: int) -> bytes:
        self._check()
        self._files._count("read", self.path)
        return self._inode.content.read(length, position)

    def view(self) -> memoryview:
        self._check()
        inode = self._inode
        if inode.mirror is None:
            inode.mirror = mmap.mmap(-1, inode.content.size)
            for number, page in inode.content.pages.items():
                end = min((number + 1) * PAGE, inode.content.size)
                inode.mirror[number * PAGE : end] = page[: end - number * PAGE]
        return memoryview(inode.mirror).toreadonly()

    def fdatasync(self) -> None:
        self._check()
        try:
            self._files._count("sync", self.path)
        except OSError:
            self._inode.lose()
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._check()
        self._files._count("truncate", self.path)
        self._inode.change((size, None))

    def size(self) -> int:
        return self._inode.content.size

    def close(self) -> None:
        self._open = False
        self._files.open_now.discard(self)


class FakeFiles:
    """A file system in memory. `counts` tells how many operations of each kind there were."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.counts: dict[str, int] = {}
        self.faults: list[Fault] = []
        self.dead = False
        self.now_ms = 0
        self.open_now: set[FakeFile] = set()
        self._boot = 1
        self._locked: set[Path] = set()
        self._names: dict[Path, _Inode | None] = {Path("/"): None}  # None: a directory
        self._durable_names: dict[Path, _Inode | None] = dict(self._names)
        self._name_changes: list[tuple[Path, list[tuple[Path, bool, _Inode | None]]]] = []

    def fail(self, fault: Fault) -> None:
        """Let an operation fail, counted from now."""
        fault.nth += self.counts.get(fault.operation, 0)
        self.faults.append(fault)

    def heal(self) -> None:
        """Let everything succeed again."""
        self.faults.clear()

    def kill(self) -> FakeFiles:
        """Return the disk as the next process finds it after a kill."""
        copies: dict[int, _Inode] = {}

        def copy(names: dict[Path, _Inode | None]) -> dict[Path, _Inode | None]:
            return {
                path: None if inode is None else copies.setdefault(id(inode), inode.copy())
                for path, inode in list(names.items())  # a thread of the dead process may still run
            }

        other = FakeFiles(self.capacity)
        other._boot = self._boot
        other.now_ms = self.now_ms
        other._names = copy(self._names)
        other._durable_names = copy(self._durable_names)
        other._name_changes = [
            (
                directory,
                [
                    (path, present, None if inode is None else copies.get(id(inode), inode))
                    for path, present, inode in steps
                ],
            )
            for directory, steps in self._name_changes
        ]
        return other

    def crash(self, random: Random) -> FakeFiles:
        """Return the disk as the machine may find it after a power cut."""
        names = dict(self._durable_names)
        kept: dict[Path, int] = {}
        seen: dict[Path, int] = {}
        for directory, _ in self._name_changes:
            seen[directory] = seen.get(directory, 0) + 1
        for directory, total in seen.items():
            kept[directory] = random.choice((0, total, random.randint(0, total)))
        for directory, steps in self._name_changes:
            if kept[directory] > 0:
                kept[directory] -= 1
                for path, present, inode in steps:
                    if present:
                        names[path] = inode
                    else:
                        _forget(names, path)
        inodes: dict[int, _Inode] = {}
        other = FakeFiles(self.capacity)
        other._boot = self._boot + 1
        other.now_ms = self.now_ms
        for path in sorted(names):
            if path != Path("/") and path.parent not in other._names:
                continue  # its directory did not survive
            inode = names[path]
            if inode is not None:
                inode = inodes.setdefault(id(inode), inode.after_crash(random))
            other._names[path] = inode
        other._durable_names = dict(other._names)
        return other

    # ---- Files

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> FakeFile:
        self._alive()
        inode = self._names.get(path)
        made = inode is None
        if inode is None:
            if path in self._names:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if not create or path.parent not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._count("create", path)
            inode = _Inode()
            inode.modified_ms = self.now_ms
            self._rename_steps(path.parent, [(path, True, inode)])
        if create and size is not None and inode.content.size != size:
            try:
                self._count("truncate", path)
            except OSError:
                if made:
                    self._rename_steps(path.parent, [(path, False, None)])
                raise
            inode.change((size, None))
        file = FakeFile(self, path, inode)
        self.open_now.add(file)
        return file

    def exists(self, path: Path) -> bool:
        return path in self._names

    def info(self, path: Path) -> FileInfo:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return FileInfo(inode.content.size, inode.modified_ms)

    def listdir(self, path: Path) -> list[str]:
        start = os.path.join(path, "")  # in text: comparing paths costs ten times as much
        names = (os.fspath(name) for name in [*self._names])  # a thread may write another file
        below = (name[len(start) :] for name in names if name.startswith(start))
        return sorted(name for name in below if name and "/" not in name)

    def is_dir(self, path: Path) -> bool:
        return path in self._names and self._names[path] is None

    def makedirs(self, path: Path) -> None:
        self._alive()
        for directory in [*reversed(path.parents), path]:
            if directory not in self._names:
                self._count("create", directory)
                # What became of names in an earlier directory of this name has nothing to do with
                # it; of those that are not durable none survives a power cut then.
                self._name_changes = [one for one in self._name_changes if one[0] != directory]
                self._rename_steps(directory.parent, [(directory, True, None)])

    def remove(self, path: Path) -> None:
        self._alive()
        if path in self._names:
            self._count("remove", path)
            self._rename_steps(path.parent, [(path, False, None)])

    def remove_tree(self, path: Path) -> None:
        self._alive()
        below = [name for name in [*self._names] if path == name or path in name.parents]
        for name in sorted(below, reverse=True):
            self._count("remove", name)
            self._rename_steps(name.parent, [(name, False, None)])

    def rename(self, source: Path, target: Path) -> None:
        self._count("rename", source)
        inode = self._names[source]
        self._rename_steps(target.parent, [(source, False, None), (target, True, inode)])

    def fsync_dir(self, path: Path) -> None:
        self._alive()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._count("sync", path)
        left = []
        changes, self._name_changes = self._name_changes, []  # a thread may write another file
        for directory, steps in changes:
            if directory != path:
                left.append((directory, steps))
                continue
            for name, present, inode in steps:
                if present:
                    self._durable_names[name] = inode
                else:
                    _forget(self._durable_names, name)
        self._name_changes[:0] = left

    def write_back(self) -> None:
        """Do nothing: no code may rely on it."""

    def usage(self, path: Path) -> DiskUsage:
        total = TOTAL_BYTES if self.capacity is None else self.capacity
        return DiskUsage(total, max(0, total - self.used_bytes))

    @contextlib.contextmanager
    def lock(self, path: Path, content: bytes) -> Iterator[None]:
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        file = self.open(path, create=True, size=len(content))
        file.pwrite(content, 0)
        self._locked.add(path)
        try:
            yield
        finally:
            file.close()
            self._locked.discard(path)

    def descriptors_max(self) -> int:
        return 1 << 20

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    # ---- for tests

    @property
    def used_bytes(self) -> int:
        """Return the bytes that files occupy, in whole pages."""
        inodes = {id(inode): inode for inode in [*self._names.values()] if inode is not None}
        return PAGE * sum(len(inode.content.pages) for inode in inodes.values())

    def read(self, path: Path) -> bytes:
        """Return a file's bytes."""
        inode = self._names[path]
        assert inode is not None, f"{path} is a directory"
        return inode.content.read(inode.content.size, 0)

    def write(self, path: Path, data: bytes, position: int = 0) -> None:
        """Damage a file: change bytes durably, without counting an operation."""
        inode = self._names[path]
        assert inode is not None, f"{path} is a directory"
        inode.content.apply((position, data))
        inode.durable.apply((position, data))
        inode.mirror = None

    def touch(self, path: Path, modified_ms: int) -> None:
        """Set the time of the last change."""
        inode = self._names[path]
        assert inode is not None, f"{path} is a directory"
        inode.modified_ms = modified_ms

    def tree(self) -> dict[str, int]:
        """Return all files with their sizes."""
        return {
            str(path): inode.content.size
            for path, inode in sorted(self._names.items())
            if inode is not None
        }

    def _rename_steps(self, directory: Path, steps: list[tuple[Path, bool, _Inode | None]]) -> None:
        for path, present, inode in steps:
            if present:
                self._names[path] = inode
            else:
                self._names.pop(path, None)
        self._name_changes.append((directory, steps))

    def _alive(self) -> None:
        if self.dead:
            raise Killed

    def _fault(self, operation: str, path: Path) -> Fault | None:
        self._alive()
        number = self.counts[operation] = self.counts.get(operation, 0) + 1
        kinds = (operation, "change") if operation in _CHANGES else (operation,)
        if operation in _CHANGES:
            self.counts["change"] = self.counts.get("change", 0) + 1
        for fault in self.faults:
            if fault.operation in kinds and fault.place:
                if path.match(fault.place):
                    fault.met += 1
                    return fault
            elif fault.operation in kinds:
                at = self.counts["change"] if fault.operation == "change" else number
                if at == fault.nth or (fault.forever and at > fault.nth):
                    return fault
        return None

    def _count(self, operation: str, path: Path) -> None:
        fault = self._fault(operation, path)
        if fault is not None:
            self._raise(fault, path)

    def _raise(self, fault: Fault, path: Path) -> None:
        if fault.error is None:
            self.dead = True
            raise Killed
        raise OSError(fault.error, os.strerror(fault.error), str(path))

    def _write(self, path: Path, inode: _Inode, data: bytes, position: int) -> None:
        fault = self._fault("write", path)
        if fault is not None:
            if fault.kept_bytes:
                inode.change((position, data[: fault.kept_bytes]))
            self._raise(fault, path)
        if self.capacity is not None and data:
            self._write_within(path, inode, data, position)
        else:
            inode.change((position, data))
        inode.modified_ms = self.now_ms

    def _write_within(self, path: Path, inode: _Inode, data: bytes, position: int) -> None:
        """Write page by page while there is room."""
        assert self.capacity is not None
        free = (self.capacity - self.used_bytes) // PAGE
        done = 0
        while done < len(data):
            number, inside = divmod(position + done, PAGE)
            step = min(PAGE - inside, len(data) - done)
            if number not in inode.content.pages:
                if free <= 0:
                    if done:
                        inode.change((position, data[:done]))
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
                free -= 1
            done += step
        inode.change((position, data))


def _forget(names: dict[Path, _Inode | None], gone: Path) -> None:
    """Remove a name; of a directory also everything in it, for a new one of that name is empty."""
    if names.pop(gone, gone) is None:
        for name in [name for name in names if gone in name.parents]:
            del names[name]


_CHANGES: Final = frozenset({"write", "truncate", "create", "remove", "rename", "sync"})
