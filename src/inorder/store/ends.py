"""Where each queue ends, noted apart from the queue's own files: `inorder/ends.NNNNNN`.

A consume queue that lost a file looks like a queue with fewer messages. Its offsets would begin
again, and offsets that were given once would be given twice. So the ends are noted here as entries
are written, before `positions` moves past them. Each block has a length and a checksum:

    0        4        8
    +--------+--------+---------------+
    | length |  crc32 |    payload    |   msgpack lists, the kind first; big-endian
    +--------+--------+---------------+

    begun    an inorder broker opens the directory: the token in `abort`, the size of queue files
    ends     the ends of some queues, and the end of the log when they were noted
    emptied  the same for queues whose last message retention removed
    dropped  a topic was deleted, with all its records before a position of the log
    firsts   the first file of queues that do not begin with the file named 0
    kept     the log begins here: retention removes everything before
    clean    a clean stop, with the checksums that `checkpoint` may have

The notes count only if no other broker has used the directory since: the token is the one in
`abort`, or the last run stopped cleanly and `checkpoint` is the one that it left. A note is written
with every batch of queue entries and so survives a kill; a flush puts the notes on disk after the
log. A flush also folds older files into one, so the files do not grow for ever. What happens to a
damaged queue: decision 45.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from inorder.disk import File, Files
from inorder.store.faults import NO_ROOM
from inorder.store.layout import Layout

_HEAD: Final = struct.Struct(">II")
_NAME: Final = re.compile(r"ends\.(\d{6,})")
PAYLOAD_BYTES_MAX: Final = 1 << 24
FILE_BYTES_MAX: Final = 1 << 30
ROWS_PER_BLOCK: Final = 4096
FOLD_BYTES_MIN: Final = 1024 * 1024
"""A file of this size is folded, unless four times the size of the last fold is larger."""

Key = tuple[str, int]
Row = tuple[str, int, int]
"""Topic, queue, the offset after its last message."""


class _Block(msgspec.Struct, frozen=True, array_like=True):
    pass


class Begun(_Block, frozen=True, tag="b"):
    """An inorder broker opens the directory."""

    token: str
    queue_file_bytes: int


class Ends(_Block, frozen=True, tag="e"):
    """Where queues end."""

    position: int
    rows: list[Row]


class Emptied(_Block, frozen=True, tag="r"):
    """Where queues end whose last message retention removed."""

    position: int
    rows: list[Row]


class Firsts(_Block, frozen=True, tag="f"):
    """The first file of each queue: earlier files are deleted or being deleted."""

    rows: list[Row]


class Dropped(_Block, frozen=True, tag="d"):
    """A topic was deleted: its records before a position count no more."""

    topic: str
    position: int


class Kept(_Block, frozen=True, tag="k"):
    """The log begins at a position."""

    position: int


class Clean(_Block, frozen=True, tag="c"):
    """A clean stop."""

    position: int
    checkpoints: list[int]


Block: TypeAlias = Begun | Ends | Emptied | Firsts | Dropped | Kept | Clean

_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Block] = msgspec.msgpack.Decoder(Block).decode


class Noted(NamedTuple):
    """The end of a queue, and whether retention had removed everything before it."""

    end: int
    position: int
    emptied: bool = False


@dataclass(slots=True)
class Notes:
    """The state that all blocks together describe."""

    ends: dict[Key, Noted] = field(default_factory=dict)
    firsts: dict[Key, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    token: str = ""
    queue_file_bytes: int = 0
    checkpoints: list[int] = field(default_factory=list)
    clean: bool = False
    position: int = 0
    """The highest end of the log that was noted."""
    kept: int = 0
    """Where the log begins according to retention."""
    damaged: str = ""
    """The faults of the files; empty if there are none."""

    def take(self, block: Block) -> None:
        """Fold one more block."""
        if isinstance(block, Ends | Emptied):
            emptied = isinstance(block, Emptied)
            self.position = max(self.position, block.position)
            for topic, queue_id, end in block.rows:
                self.ends[topic, queue_id] = Noted(end, block.position, emptied)
        elif isinstance(block, Dropped):
            self.dropped[block.topic] = block.position
            self.position = max(self.position, block.position)
            for table in (self.ends, self.firsts):
                for key in [key for key in table if key[0] == block.topic]:
                    del table[key]
        elif isinstance(block, Firsts):
            self.firsts.update({(topic, queue): base for topic, queue, base in block.rows})
        elif isinstance(block, Kept):
            self.kept = block.position
        elif isinstance(block, Begun):
            self.token, self.queue_file_bytes, self.clean = (
                block.token, block.queue_file_bytes, False,
            )  # fmt: skip
        else:
            self.clean, self.checkpoints = True, block.checkpoints
            self.position = max(self.position, block.position)

    def fit(self, abort: str | None, checkpoint: int, queue_file_bytes: int) -> bool:
        """Return whether no other broker has used the directory since the notes were written."""
        if self.queue_file_bytes != queue_file_bytes:
            return False
        if abort is None:
            return self.clean and checkpoint in self.checkpoints
        return bool(self.token) and abort == self.token

    def blocks(self) -> Iterator[Block]:
        """Yield blocks that say the same, without how the last run ended."""
        yield Kept(self.kept)
        yield from (Dropped(topic, position) for topic, position in self.dropped.items())
        firsts = [(*key, base) for key, base in self.firsts.items()]
        for at in range(0, len(firsts), ROWS_PER_BLOCK):
            yield Firsts(firsts[at : at + ROWS_PER_BLOCK])
        for kind, emptied in ((Ends, False), (Emptied, True)):
            rows: dict[int, list[Row]] = {}
            for (topic, queue_id), noted in self.ends.items():
                if noted.emptied == emptied:
                    rows.setdefault(noted.position, []).append((topic, queue_id, noted.end))
            for position, found in rows.items():
                for at in range(0, len(found), ROWS_PER_BLOCK):
                    yield kind(position, found[at : at + ROWS_PER_BLOCK])

    def without_gone(self, oldest: int) -> Notes:
        """Drop notes of deleted topics that have no record left in the log."""
        kept = {topic: at for topic, at in self.dropped.items() if at > oldest}
        self.dropped = kept
        return self

    def without_lost(self, log_end: int, there: Container[Key]) -> None:
        """Forget the ends of queues whose files a power cut took with the end of the log.

        They begin anew, in the generation that such a log begins. A queue that retention emptied
        has no files either, and keeps its end.
        """
        for key, noted in list(self.ends.items()):
            if noted.position > log_end and not noted.emptied and key not in there:
                del self.ends[key]
                self.firsts.pop(key, None)


def pack(block: Block) -> bytes:
    """Return the bytes of a block."""
    payload = _encode(block)
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def fold(files: Iterable[tuple[str, bytes]]) -> Notes:
    """Read files in order; a damaged block ends its file and is reported."""
    notes = Notes()
    for name, data in files:
        at = 0
        while at < len(data):
            block, end = _block_at(data, at)
            if block is None:
                notes.damaged = notes.damaged or f"{name} is damaged at byte {at}"
                break
            notes.take(block)
            at = end
    return notes


def _block_at(data: bytes, at: int) -> tuple[Block | None, int]:
    if at + _HEAD.size > len(data):
        return None, at
    length, checksum = _HEAD.unpack_from(data, at)
    start, end = at + _HEAD.size, at + _HEAD.size + length
    payload = data[start:end]
    if not 0 < length <= PAYLOAD_BYTES_MAX or len(payload) < length:
        return None, at
    if zlib.crc32(payload) != checksum:
        return None, at
    try:
        return _decode(payload), end
    except (msgspec.MsgspecError, UnicodeError):
        return None, at


class EndsFile:
    """Keeps the notes. One thread owns it; any thread may run what `plan_flush` returns."""

    __slots__ = ("_file", "_files", "_fold_above", "_folder", "_number", "_size", "_torn")

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self._folder = layout.own
        self._file: File | None = None
        self._number = 0
        self._size = 0
        self._torn = False
        self._fold_above = FOLD_BYTES_MIN

    def load(self) -> Notes | None:
        """Return the noted ends; None if none were ever noted."""
        numbers = self._numbers()
        if not numbers:
            return None
        self._number = numbers[-1]
        return fold((self._path(number).name, self._read(number)) for number in numbers)

    def begin(self, notes: Notes, begun: Begun, rows: Iterable[Row], position: int) -> None:
        """Begin a run: write the present state to a new durable file that replaces the older ones.

        Raises:
            OSError: the file is not durable; no offset may be given out.
        """
        self.close()
        older = self._numbers()
        self._number = max([self._number, *older]) + 1
        for topic, queue_id, end in rows:
            if notes.ends.get((topic, queue_id), Noted(-1, 0)).end != end:
                notes.ends[topic, queue_id] = Noted(end, position)
        self._write_whole(self._number, [*notes.blocks(), begun])
        self._file = self._files.open(self._path(self._number))
        self._size = self._file.size()
        self._fold_above = max(FOLD_BYTES_MIN, 4 * self._size)
        for number in older:
            self._files.remove(self._path(number))
        self._files.fsync_dir(self._folder)

    def note(self, blocks: Iterable[Block]) -> None:
        """Write blocks after the others; they survive a kill when this returns.

        Raises:
            OSError: they do not.
        """
        assert self._file is not None, "begin first"
        data = b"".join(map(pack, blocks))
        if self._torn:
            self._file.truncate(self._size)
            self._torn = False
        try:
            self._file.pwrite(data, self._size)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # then before the next one
                self._file.truncate(self._size)
                self._torn = False
            raise
        self._size += len(data)

    def note_ends(self, rows: list[Row], position: int) -> None:
        """Write down where queues end now."""
        if rows:
            self.note(
                Ends(position, rows[at : at + ROWS_PER_BLOCK])
                for at in range(0, len(rows), ROWS_PER_BLOCK)
            )

    def plan_flush(self) -> Callable[[], None]:
        """Return a function that puts the notes so far on disk; any thread may call it.

        If the file has grown, the function also folds it; what is noted from now on goes into
        another one.
        """
        number = self._number
        if self._file is None:
            return lambda: None
        if self._size <= self._fold_above or self._torn:
            return lambda: self._sync(number)
        try:
            following = self._files.open(self._path(number + 1), create=True, size=0)
        except OSError:  # disk full, or no descriptor: the next flush folds
            return lambda: self._sync(number)
        self._file.close()
        self._file, self._number, self._size = following, number + 1, 0
        return lambda: self._fold(number)

    def _sync(self, last: int) -> None:
        """Sync files through descriptors of their own, so that a close meanwhile does no harm."""
        for number in [number for number in self._numbers() if number <= last]:
            file = self._files.open(self._path(number))
            try:
                file.fdatasync()
            finally:
                file.close()

    def _fold(self, last: int) -> None:
        try:
            self._fold_into(last)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._sync(last)  # the next fold takes more

    def _fold_into(self, last: int) -> None:
        older = [number for number in self._numbers() if number <= last]
        notes = fold((self._path(one).name, self._read(one)) for one in older)
        blocks = list(notes.blocks())
        if notes.token:
            blocks.append(Begun(notes.token, notes.queue_file_bytes))
        if notes.clean:
            blocks.append(Clean(notes.position, notes.checkpoints))
        self._write_whole(last, blocks)
        for number in older[:-1]:
            self._files.remove(self._path(number))
        self._files.fsync_dir(self._folder)

    def _write_whole(self, number: int, blocks: Iterable[Block]) -> None:
        """Write a file that is complete, and on disk, before it has its name."""
        draft = self._folder / "ends.tmp"
        data = b"".join(map(pack, blocks))
        file = self._files.open(draft, create=True, size=len(data))
        try:
            file.pwrite(data, 0)
            file.fdatasync()
        finally:
            file.close()
        self._files.rename(draft, self._path(number))
        self._files.fsync_dir(self._folder)

    def _numbers(self) -> list[int]:
        found = (_NAME.fullmatch(name) for name in self._files.listdir(self._folder))
        return sorted(int(match[1]) for match in found if match is not None)

    def _path(self, number: int) -> Path:
        return self._folder / f"ends.{number:06d}"

    def _read(self, number: int) -> bytes:
        file = self._files.open(self._path(number))
        try:
            return file.pread(min(file.size(), FILE_BYTES_MAX), 0)
        finally:
            file.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __repr__(self) -> str:
        return f"EndsFile({self._number}, {self._size} bytes)"
