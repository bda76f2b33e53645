"""Bytes of timers: the mark of a delivery, the snapshot, and RocketMQ's files of its timer wheel.

    INORDER_TIMER=offset     on each delivered message: the offset at which it waited
    inorderTimers.json       what a restart needs (`Saved`), and how far it depends on the log
    timercheck               56 bytes for RocketMQ: up to when timers were delivered, and from which
                             offset on the queue is to be read

RocketMQ keeps its timers in `timerwheel` and `timerlog` and knows by `timercheck` how far it is;
`units` reads `timerlog`. Why: decision 52.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from inorder.broker.timers.rules import Counted, Saved
from inorder.errors import RemoteProtocolError
from inorder.model import DataVersion
from inorder.wire import fastjson
from inorder.wire.extensions import SEND_PROPERTIES, TIMED
from inorder.wire.properties import append, get
from inorder.wire.requests.topics import data_version_to_json

MARK: Final = f"{TIMED}\x01".encode()

_SEND_PROPERTIES: Final = frozenset(name.encode() for name in SEND_PROPERTIES)
_REPLACED: Final = _SEND_PROPERTIES | {b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS"}
_OFFSET_DIGITS: Final = 18


def delivered_properties(properties: bytes, offset: int, stored_at_ms: int, now_ms: int) -> bytes:
    """Return the properties of a timer on delivery: those it waited with, RocketMQ's, the mark."""
    if b"INORDER_" in properties or b"QUEUE_MS" in properties:
        kept = [
            entry
            for entry in properties.split(b"\x02")
            if entry and entry.partition(b"\x01")[0] not in _REPLACED
        ]
        properties = b"".join(entry + b"\x02" for entry in kept)
    more = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02%s%d\x02"
    return append(properties, more % (stored_at_ms, now_ms, MARK, offset))


def mark(properties: bytes) -> int | None:
    """Return the offset at which a delivered message waited; None without a mark."""
    value = get(properties, TIMED.encode())
    if value is None or not value.isdigit() or len(value) > _OFFSET_DIGITS:
        return None
    return int(value)


class _File(msgspec.Struct, omit_defaults=False):
    """The snapshot as it lies on disk."""

    frontier: tuple[int, int]
    end: int
    done: list[tuple[int, int]]
    chunks: list[tuple[int, int]]
    recalled: dict[str, int]
    counts: dict[str, tuple[int, int]]
    counted_to: int
    version: tuple[int, int, int]
    position: int
    depends_on: int
    log_crc: int
    floor: int = 0
    format: int = 1


class File(NamedTuple):
    """The snapshot, and its place in the log."""

    saved: Saved
    position: int
    """Deliveries that it lacks lie in the log from here on."""
    depends_on: int
    log_crc: int


def encode(file: File) -> bytes:
    """Return the content of the snapshot."""
    saved = file.saved
    version = saved.version
    return msgspec.json.encode(
        _File(
            saved.frontier, saved.end, list(saved.done.items()), list(saved.chunks.items()),
            saved.recalled,
            {topic: (one.waiting, one.changed_ms) for topic, one in saved.counts.items()},
            saved.counted_to, (version.state_version, version.timestamp_ms, version.counter),
            file.position, file.depends_on, file.log_crc, saved.floor,
        )
    )  # fmt: skip


def decode(content: bytes) -> File:
    """Read a snapshot. Raises RemoteProtocolError if it is malformed."""
    try:
        found = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RemoteProtocolError(f"no snapshot of timers: {error}") from None
    saved = Saved(
        found.frontier, found.end, dict(found.done), dict(found.chunks), found.recalled,
        {topic: Counted(*one) for topic, one in found.counts.items()}, found.counted_to,
        found.floor, DataVersion(*found.version),
    )  # fmt: skip
    return File(saved, found.position, found.depends_on, found.log_crc)


def metrics(counts: dict[str, Counted], version: DataVersion) -> bytes:
    """Return the counts of waiting timers by topic, as RocketMQ's brokers answer them (61)."""
    table: dict[str, Any] = {
        "dataVersion": data_version_to_json(version),
        "timingCount": {
            topic: {"count": one.waiting, "timeStamp": one.changed_ms}
            for topic, one in sorted(counts.items())
        },
    }
    return fastjson.dumps(table)


CHECKPOINT: Final = struct.Struct(">7q")
CHECKPOINT_BYTES: Final = 4096


def checkpoint(read_ms: int, offset: int, version: DataVersion) -> bytes:
    """Return a checkpoint: timers before a time are delivered, the queue counts from an offset."""
    return CHECKPOINT.pack(
        read_ms, 0, offset, offset, version.state_version, version.timestamp_ms, version.counter
    )


class RocketCheck(NamedTuple):
    """What RocketMQ's `timercheck` says."""

    read_ms: int
    offset: int


def read_checkpoint(content: bytes) -> RocketCheck | None:
    """Return what a `timercheck` says; None if it is too short."""
    if len(content) < CHECKPOINT.size:
        return None
    read_ms, _, offset, *_ = CHECKPOINT.unpack_from(content)
    return RocketCheck(read_ms, offset)


UNIT: Final = struct.Struct(">iqiqiqiiq")
_MAGIC_MAX: Final = 0xF


def units(content: bytes) -> Iterable[tuple[int, int]]:
    """Give the units of a piece of a `timerlog` file: their time in the wheel, their position."""
    for unit in UNIT.iter_unpack(content[: len(content) // UNIT.size * UNIT.size]):
        size, _, magic, written_ms, delay_ms, position, _, _, _ = unit
        if size != UNIT.size or not 0 <= magic <= _MAGIC_MAX:
            return
        yield written_ms + delay_ms, position
