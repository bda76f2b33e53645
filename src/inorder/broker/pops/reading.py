"""Reading what a pop may get: messages of a queue, from memory or in a thread.

A read raises `Cold` if the messages are probably not in memory. The caller then awaits `load`,
which reads them in a thread and compares them with their queue entries, and begins anew with what
was loaded in `Pop.known`. Why: decision 54.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from inorder.logs import get_logger
from inorder.store.intact import count_intact
from inorder.store.layout import ENTRY_BYTES
from inorder.store.reader import ReadResult, ReadStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inorder.broker.broker import Broker
    from inorder.broker.pops.service import Gathered, Pop
    from inorder.model import GroupQueue
    from inorder.store.consumequeue import QueueIndex

log = get_logger(__name__)

_SIZE: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_AT: Final = 20
_MOVED: Final = (
    ReadStatus.OFFSET_TOO_SMALL,
    ReadStatus.OFFSET_OVERFLOW_BADLY,
)


class Chunk(NamedTuple):
    """Messages of a queue, and how far they were read."""

    records: list[bytes]
    next_offset: int
    max_offset: int
    status: ReadStatus = ReadStatus.FOUND

    @property
    def offsets(self) -> list[int]:
        """Return the offsets of the messages."""
        return [offset_of(one) for one in self.records]


class Cold(Exception):
    """Messages are probably not in memory: they have to be read elsewhere."""

    def __init__(self, key: GroupQueue, start: int, queue: QueueIndex, result: ReadResult) -> None:
        super().__init__(key, start)
        self.key, self.start, self.queue, self.result = key, start, queue, result


class PopReader:
    """Reads messages of queues for pops."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.pop_table
        self._store = broker.store

    def records_of(self, key: GroupQueue, offsets: Iterable[int]) -> list[bytes]:
        queue = self._store.find_queue(key.topic, key.queue_id)
        found = []
        for offset in offsets:
            entry = None if queue is None else queue.entry(offset)
            raw = None if entry is None else self._store.log.read_at(entry[0], entry[1])
            if raw is not None and offset_of(raw) == offset:
                found.append(bytes(raw))
        return found

    def read(
        self, pop: Pop, key: GroupQueue, start: int, count: int, gathered: Gathered
    ) -> tuple[int, Chunk | None]:
        """Return messages of a queue and where they begin; None: there are none to see.

        Raises:
            Cold: they have to be read in a thread; only while nothing else was found.
        """
        if self._store.find_queue(key.topic, key.queue_id) is None:
            return start, None
        queue = self._store.queue(key.topic, key.queue_id)
        end = None
        if self._broker.resizing.is_resized(key.topic):
            end = self._broker.resizing.held_at(key.topic, key.group, key.queue_id, leased=True)
            if end is not None and start >= end:
                return start, None
        for _ in range(2):
            if (key, start) in pop.known:
                known = pop.known[key, start]
                return start, None if known is None else _first(known, count)
            result = self._result(pop, queue, start, count, size=gathered.size, end=end)
            if result.status not in _MOVED or result.next_offset == start:
                break
            log.warning(
                "an offset is not in its queue, the pop goes on elsewhere topic=%s queue=%d "
                "group=%s offset=%d next=%d",
                key.topic, key.queue_id, key.group, start, result.next_offset,
            )  # fmt: skip
            start = result.next_offset
            self._table.reset(key)
            self._broker.offsets.commit(*key, start, self._broker.clock.now_ms())
        if result.status is ReadStatus.QUEUE_DAMAGED:
            self._broker.mending.found(queue, start)
            return start, None
        if result.cold:
            if gathered.found:
                return start, None
            raise Cold(key, start, queue, result)
        records = _split(b"".join(result.views)) if result.views else []
        return start, Chunk(records, result.next_offset, result.max_offset, result.status)

    def _result(
        self, pop: Pop, queue: QueueIndex, start: int, count: int, *, size: int,
        end: int | None = None,
    ) -> ReadResult:  # fmt: skip
        config, reader = self._broker.config, self._store.reader
        bytes_max = max(1, config.transfer_bytes_max - size)
        scan_max = max(config.filter_scan_max, count)
        if pop.wanted.filter is not None:
            result = reader.get_filtered(
                queue, start, max_messages=count, max_bytes=bytes_max, scan_max=scan_max,
                wanted=pop.wanted.filter, end=end,
            )  # fmt: skip
            self._broker.filters.spent_ns += result.filter_ns
            return result
        return reader.get(
            queue, start, max_messages=count, max_bytes=bytes_max, scan_max=scan_max,
            wanted=pop.wanted.tags, end=end,
        )  # fmt: skip

    async def load(self, pop: Pop, cold: Cold) -> Chunk | None:
        """Read messages in a thread; None: they cannot be read."""
        reader, result, queue = self._store.reader, cold.result, cold.queue
        wanted, config = pop.wanted.filter, self._broker.config
        count = pop.request.max_messages
        if result.unfiltered:
            assert wanted is not None, "a filter is asked"
            selected = await self._broker.offload.call(
                lambda: reader.select(
                    result.entries, max_messages=count, max_bytes=config.transfer_bytes_max,
                    wanted=wanted,
                )
            )  # fmt: skip
            entries = result.entries[: selected.examined * ENTRY_BYTES]
            found = reader.selected(result, selected)
            records = list(selected.records)
        else:
            entries, found = result.entries, result
            parts = await self._broker.offload.call(lambda: reader.load(result.ranges))
            if parts is None:
                return None
            records = _split(b"".join(parts))
        tags = None if result.unfiltered else pop.wanted.tags
        right = count_intact(self._store.log, queue, entries, cold.start, tags)
        if right < len(entries) // ENTRY_BYTES:
            self._broker.mending.found(queue, cold.start + right)
            return None
        return Chunk(records, found.next_offset, found.max_offset, found.status)

    def peek(
        self, pop: Pop, key: GroupQueue, start: int, room: int, gathered: Gathered
    ) -> Chunk | None:
        queue = self._store.find_queue(key.topic, key.queue_id)
        if queue is None:
            return None
        if (key, start) in pop.known:
            known = pop.known[key, start]
            return None if known is None else _first(known, room)
        result = self._result(pop, queue, start, room, size=gathered.size)
        if result.cold:
            if gathered.found:
                return None
            raise Cold(key, start, queue, result)
        records = _split(b"".join(result.views)) if result.views else []
        return Chunk(records, result.next_offset, result.max_offset, result.status)


def offset_of(record: bytes) -> int:
    """Return the queue offset of a record."""
    found: int = _OFFSET.unpack_from(record, _OFFSET_AT)[0]
    return found


def _split(data: bytes) -> list[bytes]:
    """Return the records that lie one after another."""
    records, at = [], 0
    while at < len(data):
        size = _SIZE.unpack_from(data, at)[0]
        records.append(data[at : at + size])
        at += size
    return records


def _first(chunk: Chunk, count: int) -> Chunk:
    """Return the first messages of a chunk."""
    if len(chunk.records) <= count:
        return chunk
    last = chunk.offsets[count - 1]
    return chunk._replace(records=chunk.records[:count], next_offset=last + 1)
