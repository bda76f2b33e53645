"""The file of idempotent producers: its bytes, and the part of the log that it covers.

    magic 8 | replay from 8 | depends on 8 | log crc 4 | memory 8 | producers 4
    producer   flags 1 | id length 2 | queues 4 | id
    queue      topic length 2 | queue 4 | last 8 | end 8 | first 8 | value 8 | runs 4 | topic | runs
    crc 4

Integers are big-endian.

- `replay from`: everything before this position is in the file.
- `depends on`: the log was durable up to this position when the file was written, and nothing
  after it is in the file. The two differ if the table was encoded in several turns. Messages
  between them may be in the file already; replaying them changes nothing.
- `log crc`: the checksum of the log bytes before `depends on`. It tells this log from another one
  and from one that lost its end and grew again.

Why: decision 10.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from inorder.broker.producers.rules import Producer, ProducerTable
from inorder.errors import RemoteProtocolError

MAGIC: Final = b"INORDPN1"
STEP_QUEUES: Final = 250
_HEAD: Final = struct.Struct(">8sqqIqI")
_PRODUCER: Final = struct.Struct(">BHI")
_QUEUE: Final = struct.Struct(">HiqqqqI")
_CRC: Final = struct.Struct(">I")
_NAMED: Final = 1
_RUN: Final = 3


class SavedQueue(NamedTuple):
    """One producer on one queue in the file."""

    topic: str
    queue_id: int
    values: tuple[int, int, int, int]
    runs: array[int]


class SavedProducer(NamedTuple):
    """One producer in the file."""

    producer_id: str
    named: bool
    queues: list[SavedQueue]


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of the file."""

    replay_from: int
    depends_on: int
    log_crc: int
    memory: int
    producers: list[SavedProducer]

    def restore(self, table: ProducerTable[Any]) -> None:
        """Fill an empty table."""
        for saved in self.producers:
            producer = table.restore(saved.producer_id, named=saved.named)
            for queue in saved.queues:
                table.restore_queue(producer, *queue)
        table.memory = max(table.memory, self.memory)


class Encoder:
    """Encodes a table in steps; the table may change between them."""

    def __init__(self, table: ProducerTable[Any], replay_from: int) -> None:
        self._waiting = iter(list(table))
        self._parts: list[bytes] = []
        self._count = 0
        self._replay_from = replay_from
        self.memory = table.memory

    def step(self, queues: int = STEP_QUEUES) -> bool:
        """Encode some queues; tell whether any are left."""
        for producer in self._waiting:
            self._add(producer)
            queues -= len(producer.queues)
            if queues <= 0:
                return True
        return False

    def _add(self, producer: Producer[Hashable]) -> None:
        settled = [state.settled() for state in producer.queues.values()]
        settled = [state for state in settled if state.last >= 0]
        if not settled:
            return
        name = producer.id.encode()
        self._parts.append(_PRODUCER.pack(producer.named, len(name), len(settled)) + name)
        for state in settled:
            topic = state.topic.encode()
            values = (state.last, state.end, state.first, state.value)
            head = _QUEUE.pack(len(topic), state.queue_id, *values, len(state.runs))
            self._parts.append(head + topic + _big_endian(state.runs).tobytes())
        self._count += 1

    def finish(self, depends_on: int, log_crc: int) -> bytes:
        """Return the content of the file."""
        head = _HEAD.pack(MAGIC, self._replay_from, depends_on, log_crc, self.memory, self._count)
        content = b"".join([head, *self._parts])
        return content + _CRC.pack(zlib.crc32(content))


def decode(content: bytes) -> Saved:
    """Decode the file content.

    Raises:
        RemoteProtocolError: it is malformed or damaged.
    """
    if len(content) < _HEAD.size + _CRC.size or content[: len(MAGIC)] != MAGIC:
        raise RemoteProtocolError("not a file of producers")
    if _CRC.unpack(content[-_CRC.size :])[0] != zlib.crc32(memoryview(content)[: -_CRC.size]):
        raise RemoteProtocolError("the file of producers is damaged")
    _, replay_from, depends_on, log_crc, memory, count = _HEAD.unpack_from(content)
    if not 0 <= replay_from <= depends_on or memory < 0:
        raise RemoteProtocolError(f"positions {replay_from}, {depends_on} are inconsistent")
    reader = _Reader(content, _HEAD.size, len(content) - _CRC.size)
    try:
        producers = [reader.producer() for _ in range(count)]
    except (struct.error, UnicodeError, ValueError) as error:
        raise RemoteProtocolError(f"the file of producers is malformed: {error}") from None
    if reader.at != reader.end:
        raise RemoteProtocolError("the file of producers is longer than it says")
    return Saved(replay_from, depends_on, log_crc, memory, producers)


class _Reader:
    def __init__(self, content: bytes, at: int, end: int) -> None:
        self._content = content
        self.at = at
        self.end = end

    def _take(self, count: int) -> bytes:
        if count > self.end - self.at:
            raise ValueError("it ends too early")
        self.at += count
        return self._content[self.at - count : self.at]

    def producer(self) -> SavedProducer:
        flags, id_bytes, queues = _PRODUCER.unpack(self._take(_PRODUCER.size))
        producer_id = self._take(id_bytes).decode()
        return SavedProducer(
            producer_id, bool(flags & _NAMED), [self._queue() for _ in range(queues)]
        )

    def _queue(self) -> SavedQueue:
        topic_bytes, queue_id, last, end, first, value, count = _QUEUE.unpack(
            self._take(_QUEUE.size)
        )
        if last < 0 or not 0 <= first <= last + 1 or queue_id < 0 or count % _RUN:
            raise ValueError("numbers are inconsistent")
        topic = self._take(topic_bytes).decode()
        runs = array("q", self._take(count * 8))
        return SavedQueue(topic, queue_id, (last, end, first, value), _big_endian(runs))


def _big_endian(values: array[int]) -> array[int]:
    """Convert between the byte order of the machine and that of the file."""
    if sys.byteorder == "little":
        values = array("q", values)
        values.byteswap()
    return values
