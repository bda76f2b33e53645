"""Versions of queues as files, one for each batch that had messages of the queue.

    <state>/<query id>/<topic>/<broker>/<queue>/0000000017

A file holds a version (`spark/ordered/records.py`) and the rows of its batch. It is written beside
its place, synced, and linked into it. Of two tasks that run the same batch one wins, and the other
takes what the winner decided. All executors must see the folder.

The worker that ran a queue last has its keys in memory. If the file that they belong to is still
the newest one, they are not read again. Why: decision 35.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from inorder.errors import StoreError
from inorder.model import TopicQueue
from inorder.spark.ordered.records import Past, Version, newest_below, removable, restored
from inorder.spark.ordered.rules import Keys

_HEAD: Final = struct.Struct(">8sIIQQ")
_MAGIC: Final = b"INORDER1"
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(Version).decode
CACHED_MAX: Final = 256

_cache: dict[str, tuple[Version, Keys]] = {}


class DamagedState(StoreError):
    """A state file cannot be read."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A version, and the rows of its batch as Arrow wrote them."""

    version: Version
    rows: bytes


class QueueFolder:
    """The versions of one queue in one query."""

    def __init__(self, root: str, query: str, queue: TopicQueue) -> None:
        names = (quote(queue.topic, safe=""), quote(queue.broker, safe=""), str(queue.index))
        self.path = Path(root, query, *names)

    def batches(self) -> list[int]:
        """Return the batches that have a version."""
        try:
            return sorted(int(name) for name in os.listdir(self.path) if name.isdigit())
        except FileNotFoundError:
            return []

    def decided(self, batch: int) -> Decided | None:
        """Return the decision about a batch; None if there is none."""
        try:
            data = self._file(batch).read_bytes()
        except FileNotFoundError:
            return None
        version, at = self._read_version(batch, data)
        _, _, rows_crc, _, size = _HEAD.unpack_from(data)
        rows = data[at : at + size]
        if len(rows) != size or zlib.crc32(rows) != rows_crc:
            raise DamagedState(f"the rows of {self._file(batch)} are damaged")
        return Decided(version, rows)

    def before(self, batch: int) -> tuple[Version | None, Keys]:
        """Return the newest version below a batch and its keys; they belong to the caller now."""
        newest = newest_below(self.batches(), batch)
        known = _cache.pop(str(self.path), None)
        if newest is None:
            return None, Keys()
        if known is not None and known[0].batch == newest:
            return known
        found = self.past(batch)
        assert found is not None, "it was there a moment ago"
        return found.version, found.keys

    def past(self, batch: int) -> Past | None:
        """Return the newest version below a batch to look at; None if there is none."""
        newest = newest_below(self.batches(), batch)
        if newest is None:
            return None
        version = self._version(newest)
        parts = [self._version(one) for one in version.chain[:-1]] + [version]
        return Past(version, restored(parts))

    def decide(self, version: Version, rows: bytes) -> Decided:
        """Make a version the one of its batch, unless there is one; return the one that is."""
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / f".{version.batch}-{os.getpid()}"
        head = _ENCODE(version)
        with draft.open("wb") as file:
            file.write(_HEAD.pack(_MAGIC, zlib.crc32(head), zlib.crc32(rows), len(head), len(rows)))
            file.write(head)
            file.write(rows)
            file.flush()
            os.fsync(file.fileno())
        try:
            if not _link(draft, self._file(version.batch)):
                other = self.decided(version.batch)
                assert other is not None, "a version is never taken back"
                return other
        finally:
            draft.unlink(missing_ok=True)
        return Decided(version, rows)

    def keep(self, version: Version, keys: Keys) -> None:
        """Remember the keys in memory for the next batch."""
        if len(_cache) >= CACHED_MAX:
            _cache.pop(next(iter(_cache)))
        keys.changed.clear()
        _cache[str(self.path)] = (version, keys)

    def clean(self, version: Version, before: Version | None) -> None:
        """Remove versions that no task needs any more; the last two stay readable."""
        names = os.listdir(self.path)
        chains = [version.chain, [] if before is None else before.chain]
        for batch in removable((int(n) for n in names if n.isdigit()), chains, version.batch):
            self._file(batch).unlink(missing_ok=True)
        for name in names:  # drafts of tasks that were killed
            if name.startswith(".") and int(name[1:].partition("-")[0]) < version.batch:
                (self.path / name).unlink(missing_ok=True)

    def _file(self, batch: int) -> Path:
        return self.path / f"{batch:010d}"

    def _version(self, batch: int) -> Version:
        """Read a version without its rows."""
        path = self._file(batch)
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD.size)
                size = _HEAD.unpack(head)[3] if len(head) == _HEAD.size else 0
                return self._read_version(batch, head + file.read(size))[0]
        except FileNotFoundError:
            raise DamagedState(
                f"{path} is missing; the state of this query is not whole. Begin with a new "
                "checkpoint and a new state"
            ) from None

    def _read_version(self, batch: int, data: bytes) -> tuple[Version, int]:
        path = self._file(batch)
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise DamagedState(f"{path} is no version of a queue")
        _, crc, _, size, _ = _HEAD.unpack_from(data)
        head = data[_HEAD.size : _HEAD.size + size]
        if len(head) != size or zlib.crc32(head) != crc:
            raise DamagedState(f"{path} is damaged")
        return _DECODE(head), _HEAD.size + size


def _link(draft: Path, place: Path) -> bool:
    """Put a file in its place; False if another one is there."""
    try:
        os.link(draft, place)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A file system without links: the last one wins. Two tasks of one batch are rare there
        # (no speculation), and give the same rows if the handler does.
        if place.exists():
            return False
        os.rename(draft, place)
    return True


def of_topic(root: str, query: str, topic: str) -> dict[tuple[str, int], QueueFolder]:
    """Return the folders of a topic's queues in a query, by broker and number."""
    folder = QueueFolder(root, query, TopicQueue(topic, "-", 0)).path.parents[1]
    found = {}
    for path in sorted(folder.glob("*/*")):
        if path.name.isdigit():
            queue = TopicQueue(topic, unquote(path.parent.name), int(path.name))
            found[queue.broker, queue.index] = QueueFolder(root, query, queue)
    return found


def folders(root: str) -> list[tuple[str, TopicQueue, QueueFolder]]:
    """Return the folders of all queries: query id, queue, folder."""
    found: list[tuple[str, TopicQueue, QueueFolder]] = []
    for path in sorted(Path(root).glob("*/*/*/*")):
        if path.name.isdigit():
            query, topic, broker = path.parts[-4], path.parts[-3], unquote(path.parts[-2])
            queue = TopicQueue(unquote(topic), broker, int(path.name))
            found.append((query, queue, QueueFolder(root, query, queue)))
    return found


def digest_of(queue: TopicQueue) -> str:
    """Return a short name for a queue whose own is too long."""
    text = f"{queue.topic}:{queue.broker}:{queue.index}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


__all__: list[Any] = [
    "DamagedState", "Decided", "QueueFolder", "digest_of", "folders", "of_topic"
]  # fmt: skip
