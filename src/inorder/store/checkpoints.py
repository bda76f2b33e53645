"""How far the derived files go: RocketMQ's `checkpoint`, and the more exact `inorder/positions`.

`checkpoint` holds store times, up to which log, queues and index are on disk:

    0 physicMsgTimestamp | 8 logicsMsgTimestamp | 16 indexMsgTimestamp | 24 masterFlushedOffset
    32 confirmPhyOffset | zeros up to 4096

With a time alone, recovery must read whole segments after a crash. `inorder/positions`, which
RocketMQ ignores, holds three slots of log positions, each with a checksum:

    written  updated often, not synced. Queues and index are written below these positions. The
             slot counts while the operating system has not restarted: the page cache survived.
    synced   updated and synced after a flush. Queues and index are on disk below these positions.
    tail     updated with every write of the log, not synced: the end of the log. While the
             operating system has not restarted, a log that ends before it has lost its end.
             Without the slot, a missing, zeroed or older file would look like a torn write.

A slot counts only if its `token` is the content of the file `abort`. Every broker that opens the
directory writes a new token there, so a run of another broker makes the slots void. After a clean
stop there is no `abort`. Then `clean` is set, `checkpoint_crc` must match `checkpoint`, which
another broker's run would have changed, and `queue_count` must match the queues that exist. The
sizes tell an interrupted cut (a short file) from a directory that is opened with wrong settings.
Where recovery starts, and why: decision 5.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from inorder.disk import File, Files
from inorder.store.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES, Layout

SAFETY_MS: Final = 3000


@dataclass(slots=True)
class Checkpoint:
    """The fields, in milliseconds and positions."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    master_flushed_position: int = 0
    confirm_position: int = 0

    @classmethod
    def load(cls, files: Files, layout: Layout) -> Checkpoint:
        """Read the file; zeros if it is missing or short."""
        try:
            file = files.open(layout.checkpoint)
        except FileNotFoundError:
            return cls()
        try:
            data = file.pread(CHECKPOINT.size, 0)
        finally:
            file.close()
        return cls(*CHECKPOINT.unpack(data)) if len(data) == CHECKPOINT.size else cls()

    @property
    def min_ms(self) -> int:
        """Return the time before which log and queues are certainly on disk."""
        return max(0, min(self.log_ms, self.queues_ms) - SAFETY_MS)

    def crc(self) -> int:
        """Return a checksum of the fields."""
        return zlib.crc32(self.pack())

    def copy(self) -> Checkpoint:
        """Return a copy."""
        return replace(self)

    def without_derived(self) -> Checkpoint:
        """Return a copy without the times of queues and index."""
        return replace(self, queues_ms=0, index_ms=0)

    def pack(self) -> bytes:
        """Return the bytes of the fields."""
        return CHECKPOINT.pack(
            self.log_ms, self.queues_ms, self.index_ms, self.master_flushed_position,
            self.confirm_position,
        )  # fmt: skip

    def save(self, files: Files, layout: Layout) -> None:
        """Write the file and sync it."""
        file = files.open(layout.checkpoint, create=True, size=CHECKPOINT_FILE_BYTES)
        try:
            file.pwrite(self.pack(), 0)
            file.fdatasync()
        finally:
            file.close()


MAGIC: Final = b"inorder1"
SLOT: Final = struct.Struct(">8s64s64s?IqqqqqiqqqqI")
WRITTEN_AT: Final = 0
TAIL: Final = struct.Struct(">QI")
TAIL_BYTES: Final = TAIL.size + 4
TAIL_AT: Final = 2048
SYNCED_AT: Final = 4096
FILE_BYTES: Final = 8192
FILE_NAME: Final = "positions"


@dataclass(frozen=True, slots=True)
class IndexState:
    """Name, time and count of the last key-index file."""

    file_number: int = 0
    end_ms: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Positions:
    """One slot of log positions."""

    token: str = ""
    boot_id: str = ""
    clean: bool = False
    checkpoint_crc: int = 0
    segment_bytes: int = 0
    queue_file_bytes: int = 0
    queues: int = 0
    index: int = 0
    log: int = 0
    index_state: IndexState = field(default_factory=IndexState)
    queue_count: int = 0
    stored_at_ms: int = 0

    def pack(self) -> bytes:
        """Return the slot's bytes."""
        state = self.index_state
        body = SLOT.pack(
            MAGIC, self.token.encode()[:64], self.boot_id.encode()[:64], self.clean,
            self.checkpoint_crc, self.segment_bytes, self.queue_file_bytes, self.queues,
            self.index, self.log, state.count, state.file_number, state.end_ms, self.queue_count,
            self.stored_at_ms, 0,
        )  # fmt: skip
        return body[:-4] + zlib.crc32(body[:-4]).to_bytes(4, "big")

    @classmethod
    def unpack(cls, data: bytes) -> Positions | None:
        """Return the slot in `data`, None if it is void."""
        if len(data) != SLOT.size or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
            return None
        (
            magic, token, boot_id, clean, checkpoint_crc, segment_bytes, queue_file_bytes, queues,
            index, log, count, number, end_ms, queue_count, stored_at_ms, _,
        ) = SLOT.unpack(data)  # fmt: skip
        if magic != MAGIC:
            return None
        return cls(
            token.rstrip(b"\0").decode("ascii", "replace"),
            boot_id.rstrip(b"\0").decode("ascii", "replace"),
            clean, checkpoint_crc, segment_bytes, queue_file_bytes, queues, index, log,
            IndexState(number, end_ms, count), queue_count, stored_at_ms,
        )  # fmt: skip

    def moved(self, **changes: object) -> Positions:
        """Return a copy with other values."""
        return replace(self, **changes)  # type: ignore[arg-type]


class Tail(NamedTuple):
    """Where the log ended, and in which run."""

    position: int
    run: int

    @classmethod
    def unpack(cls, data: bytes) -> Tail | None:
        """Return the slot in `data`, None if it is void."""
        body, crc = data[: TAIL.size], data[TAIL.size :]
        if len(data) != TAIL_BYTES or zlib.crc32(body) != int.from_bytes(crc, "big"):
            return None
        return cls(*TAIL.unpack(body))


def run_of(token: str) -> int:
    """Return the short form of a run's token that the tail slot holds."""
    return zlib.crc32(token.encode())


class PositionsFile:
    """The file with its slots."""

    __slots__ = ("_file", "_files", "_layout")

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self._layout = layout
        self._file: File | None = None

    def _open(self) -> File:
        if self._file is None:
            self._files.makedirs(self._layout.own)
            path = self._layout.own / FILE_NAME
            self._file = self._files.open(path, create=True, size=FILE_BYTES)
        return self._file

    def exists(self) -> bool:
        """Return whether an inorder broker has ever opened the directory."""
        return self._files.exists(self._layout.own / FILE_NAME)

    def remove(self) -> None:
        """Clear all slots and sync that."""
        self.close()
        self._files.remove(self._layout.own / FILE_NAME)
        self._files.fsync_dir(self._layout.own)

    def load(self) -> tuple[Positions | None, Positions | None]:
        """Return the slots (written, synced)."""
        if not self.exists():
            return None, None
        file = self._open()
        return (
            Positions.unpack(file.pread(SLOT.size, WRITTEN_AT)),
            Positions.unpack(file.pread(SLOT.size, SYNCED_AT)),
        )

    def load_tail(self) -> Tail | None:
        """Return the slot of the log's end."""
        return Tail.unpack(self._open().pread(TAIL_BYTES, TAIL_AT)) if self.exists() else None

    # hot: 0.5 µs and the pwrite
    def write_tail(self, position: int, run: int) -> None:
        """Replace the slot of the log's end."""
        body = TAIL.pack(position, run)
        self._open().pwrite(body + zlib.crc32(body).to_bytes(4, "big"), TAIL_AT)

    def write(self, positions: Positions) -> None:
        """Replace the written slot."""
        self._open().pwrite(positions.pack(), WRITTEN_AT)

    def write_synced(self, positions: Positions) -> None:
        """Replace the synced slot and sync the file; may run in another thread."""
        file = self._open()
        file.pwrite(positions.pack(), SYNCED_AT)
        file.fdatasync()

    def sync_directory(self) -> None:
        """Make the file's name durable."""
        self._files.fsync_dir(self._layout.own)
        self._files.fsync_dir(self._layout.root)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
