"""Two brokers that get the same bytes, one with the compiled module and one without.

Each has a disk in memory, a clock that stands still, and connections without sockets. What they
leave behind must be the same bytes: the log, queue entries, rows of the key index, sequence
numbers, answers and counters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from inorder.broker.broker import Broker
from inorder.broker.sends.service import Sends
from inorder.config import BrokerConfig, StoreConfig
from inorder.net import accepted
from inorder.net.accepted import ServerConnection
from inorder.store.keyindex import NotedRows, hashes_of
from inorder.testing.clock import FakeClock
from inorder.wire import frame
from inorder.wire.header import Command
from inorder.wire.ids import UniqueIds, pack_host
from tests.kit.disk import FakeFiles

NEVER_MS = 10**9
SMALL = StoreConfig(
    segment_bytes=64 * 1024, queue_file_bytes=2000, index_slots=500, index_entries=2000,
    queue_write_interval_ms=NEVER_MS, flush_interval_ms=NEVER_MS,
)  # fmt: skip


class FakeTransport(asyncio.Transport):
    """A client that takes every byte, or none while it is `full`."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.written = bytearray()
        self.full = False
        self.waiting = 0
        self.reading = True
        self.closed = False
        self.protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", self.port) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.written += data
        if self.full:
            self.waiting += len(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Left(NamedTuple):
    """What a broker holds in the end."""

    log: bytes
    entries: dict[tuple[str, int], bytes]
    offsets: dict[tuple[str, int], tuple[int, int, int]]
    keys: list[tuple[int, int, int]]
    numbers: dict[tuple[str, str, int], tuple[int, int, list[int | None]]]
    counters: dict[str, int]


@dataclass
class Side:
    """One of the two brokers, and its connections."""

    compiled: bool
    broker: Broker
    files: FakeFiles
    connections: dict[int, tuple[ServerConnection, FakeTransport]] = field(default_factory=dict)

    def connect(self, port: int) -> FakeTransport:
        """Return the transport of a client; another one if its last one is closed."""
        found = self.connections.get(port)
        if found is None or found[1].closed:
            transport = FakeTransport(port)
            connection = ServerConnection(self.broker.server)
            transport.protocol = connection
            connection.connection_made(transport)
            self.connections[port] = found = (connection, transport)
        return found[1]

    def feed(self, port: int, data: bytes) -> None:
        """Let a client's bytes arrive in one read."""
        self.connect(port)
        with way(self.compiled):
            self.connections[port][0].data_received(data)

    async def settle(self) -> None:
        """Return when the broker has done all that it can do now."""
        for _ in range(8):
            await asyncio.sleep(0)
        await self.broker.ticks.drain()
        for _ in range(8):
            await asyncio.sleep(0)

    def answers(self) -> dict[int, bytes]:
        """Return and forget what was written to each client."""
        found = {}
        for port, (_, transport) in self.connections.items():
            found[port] = bytes(transport.written)
            transport.written.clear()
        return found

    def left(self) -> Left:
        """Return what the broker holds."""
        store, table = self.broker.store, self.broker.producers
        queues = {(one.topic, one.queue_id): one for one in store.queues.loaded()}
        packer, pulls = self.broker.sends.packer, self.broker.pulls
        states = {
            (producer.id, *place): (
                state.last, state.settled_last, [state.find(n) for n in range(state.last + 2)]
            )
            for producer in table
            for place, state in producer.queues.items()
            if state.last < 10_000
        }  # fmt: skip
        self.broker.count()
        return Left(
            b"".join(
                self.files.read(segment.path)[: max(0, store.log.end_position - segment.position)]
                for segment in store.log.segments.items
            ),
            {place: bytes(queue.tail) for place, queue in queues.items()},
            {
                place: (queue.next_offset, queue.settled_offset, queue.visible_offset)
                for place, queue in queues.items()
            },
            rows_of(store.keys.waiting),
            states,
            {
                "messages": packer.messages, "bytes": packer.bytes, "found": pulls.found,
                "pulled": pulls.messages, "pulled bytes": pulls.bytes, "missed": pulls.missed,
                "failed": self.broker.stats.put_failed, "waiting": len(self.broker.waits),
                "frames": self.broker.server.frames_received,
            },
        )  # fmt: skip


def rows_of(waiting: list[Any]) -> list[tuple[int, int, int]]:
    """Return hash, position and store time of the keys that wait to be indexed."""
    found: list[tuple[int, int, int]] = []
    for noted in waiting:
        if isinstance(noted, NotedRows):
            hashes, places = memoryview(noted.hashes).cast("i"), memoryview(noted.positions)
            time_ms = noted.stored_at_ms
            found += [(one, at, time_ms) for one, at in zip(hashes, places.cast("q"), strict=True)]
        else:
            topic, properties, position, time_ms = noted
            found += [(one, position, time_ms) for one in hashes_of(topic, properties)]
    return found


@contextmanager
def way(compiled: bool) -> Iterator[None]:
    """Split frames by the compiled module, or without it."""
    saved = accepted.SPLIT
    if not compiled:
        accepted.SPLIT = None
    try:
        yield
    finally:
        accepted.SPLIT = saved


def without_module(broker: Broker) -> None:
    """Let a broker do everything in Python."""
    broker.sends._plain = broker.sends._split = None
    broker.pulls._plain = None


@asynccontextmanager
async def twins(store: StoreConfig = SMALL, **settings: object) -> AsyncIterator[tuple[Side, Side]]:
    """Start two brokers: the first with the compiled module, the second without."""
    sides = []
    for compiled in (True, False):
        files = FakeFiles()
        config = replace(BrokerConfig(port=0, data="/data", store=store), **settings)  # type: ignore[arg-type]
        broker = Broker(config, FakeClock(), files)
        await broker.start()
        broker.store_host = pack_host("127.0.0.1", 10911)  # not of the port that it got
        broker.sends = Sends(broker)
        broker.unique_ids = UniqueIds("127.0.0.1", 1, 2)
        broker.random = Random(1)
        if not compiled:
            without_module(broker)
        sides.append(Side(compiled, broker, files))
    try:
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.broker.abandon()


def send_fields(**changes: str) -> dict[str, str]:
    """Return the header of a send by letters."""
    return {
        "a": "PG", "b": "Orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
        "h": "0", "i": "UNIQ_KEY\x01AB12\x02TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false",
        **changes,
    }  # fmt: skip


LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip


def request(
    code: int, fields: dict[str, str], body: bytes = b"", *, number: int, serializer: int = 0,
    oneway: bool = False,
) -> bytes:  # fmt: skip
    """Return the frame of a request."""
    if code == 10:
        fields = {LONG_NAMES.get(name, name): value for name, value in fields.items()}
    command = Command.request(
        code, fields, body, request_id=number, serializer=serializer, oneway=oneway
    )
    return frame.encode_frame(command)
