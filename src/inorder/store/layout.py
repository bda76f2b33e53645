"""Names, sizes and byte layouts of the data directory; all integers are big-endian and signed.

commitlog/<20 digits: position of the first byte>            records, then zeros
consumequeue/<topic>/<queue id>/<20 digits: byte offset>     20-byte entries, then zeros
index/<yyyyMMddHHmmssSSS>                                    header, slots, entries
checkpoint  abort  lock                                      as in RocketMQ
restoring                                                    while a backup is being restored
inorder/positions                                            inorder's own (`checkpoints.py`)

queue entry   | position 8 | size 4 | tag code 8 |
index header  | begin ms 8 | end ms 8 | begin position 8 | end position 8 |
              | slots used 4 | next entry 4 |
index entry   | key hash 4 | position 8 | seconds since begin 4 | previous entry of the slot 4 |
end of a log segment   | bytes left 4 | MAGIC_BLANK 4 |
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from inorder.errors import StoreError

NAME_DIGITS: Final = 20

BLANK: Final = struct.Struct(">ii")
BLANK_BYTES: Final = BLANK.size
RECORD_BYTES_MIN: Final = 91

ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = ENTRY.size
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)

INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_HEADER_BYTES: Final = INDEX_HEADER.size
INDEX_ENTRY: Final = struct.Struct(">iqii")
INDEX_ENTRY_BYTES: Final = INDEX_ENTRY.size
SLOT_BYTES: Final = 4

CHECKPOINT: Final = struct.Struct(">qqqqq")
CHECKPOINT_FILE_BYTES: Final = 4096

LOCK_CONTENT: Final = b"lock"
RESTORING: Final = "restoring"


class Layout:
    """The paths below one root."""

    __slots__ = ("abort", "checkpoint", "commitlog", "consumequeue", "index", "lock", "own", "root")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commitlog = root / "commitlog"
        self.consumequeue = root / "consumequeue"
        self.index = root / "index"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.own = root / "inorder"

    def queue(self, topic: str, queue_id: int) -> Path:
        """Return the directory of a queue's files."""
        return self.consumequeue / topic / str(queue_id)


def file_name(position: int) -> str:
    """Return RocketMQ's name of the file that begins at `position`."""
    return f"{position:0{NAME_DIGITS}d}"


def parse_name(name: str) -> int | None:
    """Return the position in a file name, None if it is not such a name."""
    if len(name) == NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None


def check_topic(topic: str) -> str:
    """Return `topic` if it may name a directory; the broker checks the full rules of names."""
    if not topic or "/" in topic or "\0" in topic or topic in {".", ".."}:
        raise StoreError(f"topic {topic!r} cannot name a directory of the store")
    return topic
