"""RocketMQ's `checkpoint`: up to which store time log, queues and index are on disk.

0 physicMsgTimestamp | 8 logicsMsgTimestamp | 16 indexMsgTimestamp | 24 masterFlushedOffset
32 confirmPhyOffset | zeros up to 4096
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Final

from inorder.disk import Files
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
        """Return the time before which log and queues are surely on disk."""
        return max(0, min(self.log_ms, self.queues_ms) - SAFETY_MS)

    def crc(self) -> int:
        """Return a checksum of the fields."""
        return zlib.crc32(self.pack())

    def copy(self) -> Checkpoint:
        """Return another one with the same fields."""
        return replace(self)

    def without_derived(self) -> Checkpoint:
        """Return another one that says nothing of queues and index."""
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
