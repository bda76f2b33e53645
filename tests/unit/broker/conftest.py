"""A broker for handlers: the real tables and a real store, and no network."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from inorder.broker.admin.rules import BrokerStats
from inorder.broker.assignments.service import Assignments
from inorder.broker.damage.storage import Losses
from inorder.broker.delays.rules import Delays
from inorder.broker.durability import Safety
from inorder.broker.filters.service import FilterService
from inorder.broker.groups.rules import Departure, GroupTable, Members
from inorder.broker.leases.rules import LeaseTable
from inorder.broker.leases.service import LeaseExpiry, LeaseService
from inorder.broker.leases.storage import LeaseJournal
from inorder.broker.locks.rules import QueueLocks
from inorder.broker.locks.service import LockService
from inorder.broker.offsets.rules import CommitTable, OffsetTable
from inorder.broker.offsets.service import OffsetService
from inorder.broker.pops.rules import PopTable
from inorder.broker.producers.rules import ProducerTable
from inorder.broker.router import invoke
from inorder.broker.statistics.rules import Deliveries
from inorder.broker.timers.rules import TimerTable
from inorder.broker.topics.rules import TopicTable
from inorder.config import BrokerConfig, StoreConfig
from inorder.disk import OsFiles
from inorder.model import GroupConfig, TopicConfig
from inorder.ordering.fence import Generations
from inorder.ordering.keymap import version_of
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from inorder.wire.header import Command
from inorder.wire.ids import pack_host
from inorder.wire.record import Record, encode

SMALL = StoreConfig(segment_bytes=65536, queue_file_bytes=2000, index_slots=100, index_entries=400)

_IDS = itertools.count(1)


class FakeConnection:
    """A client."""

    def __init__(self, peer: str = "10.0.0.1:4000") -> None:
        self.id = next(_IDS)
        self.peer = peer
        self.closed = False


class FakeRegistration:
    """Name servers that are told what happens, and count how often they are waited for."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.waited = 0
        self.refreshed = 0

    def topic_changed(self, config: TopicConfig) -> None:
        self.changed.append(config.name)

    def refresh(self) -> None:
        self.refreshed += 1

    async def register_now(self) -> None:
        self.waited += 1


class FakeKeeping:
    """Timers that nobody sets."""

    def __init__(self) -> None:
        self.lock_deadlines = 0
        self.flushes = 0
        self.to_clean: list[int] = []

    def clean_now(self) -> int:
        return self.to_clean.pop(0) if self.to_clean else 0

    def lock_deadline_changed(self) -> None:
        self.lock_deadlines += 1

    async def flush_now(self) -> None:
        self.flushes += 1


class FakeNumbersFile:
    """Counts how often the producers were to be saved."""

    def __init__(self) -> None:
        self.saves = 0

    async def save_now(self) -> None:
        self.saves += 1


class FakeOffload:
    """Does at once what a thread would do."""

    async def call(self, function: Callable[[], Any]) -> Any:
        return function()


class FakeServer:
    """No connections."""

    connections: tuple[Any, ...] = ()


class FakeParking:
    """No parked keys."""

    def was_reset(self, group: str, topic: str, queues: Iterable[int]) -> list[asyncio.Task[None]]:
        """Nothing is parked that a reset could bring back."""
        return []

    def went_back(self, group: str, topic: str, queue_id: int) -> None:
        """Nothing is parked that would have to wait."""

    def topic_gone(self, topic: str) -> None:
        """Nothing is parked in it."""


class FakeResizing:
    """Key maps of which only the last version is remembered."""

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics
        self.deleted: dict[str, int] = {}
        self.rewinding = self
        self.rested: list[tuple[str, str, int]] = []
        self.forgotten: list[str] = []
        self.back_to: dict[str, int] = {}

    def last_version(self, topic: str) -> int:
        known = self._topics.get(topic)
        text = "" if known is None else known.attributes.get("inorder.keymap", "")
        return max(version_of(text), self.deleted.get(topic, 0))

    async def tell(self, topic: str, group: str) -> None:
        assert self.is_paused(topic, group)

    def is_paused(self, topic: str, group: str) -> bool:
        return any(one[:2] == (topic, group) for one in self.rested)

    async def group_deleted(self, group: str) -> None:
        self.forgotten.append(group)

    def version_touched(self, topic: str, group: str, targets: Mapping[int, int]) -> int | None:
        return self.back_to.get(topic)

    def read_queues(self, config: TopicConfig) -> int:
        return config.read_queues

    async def pause(self, topic: str, group: str, version: int) -> None:
        self.rested.append((topic, group, version))

    async def delete(self, topic: str, version: int) -> None:
        self.deleted[topic] = version


class FakeBroker:
    """What handlers need of a broker, and what they made it do."""

    def __init__(self, data: Path) -> None:
        self.config = BrokerConfig(data=str(data), store=SMALL)
        self.clock = FakeClock()
        self.files = OsFiles()
        self.address = "127.0.0.1:10911"
        self.started_ms = self.clock.now_ms()
        now_ms = self.started_ms
        self.topics = TopicTable(cluster="DefaultCluster", broker="broker-a", now_ms=now_ms)
        self.groups = GroupTable(now_ms=now_ms)
        self.offsets = OffsetTable(now_ms=now_ms)
        self.delays = Delays((1000, 5000), now_ms=now_ms)
        self.timer_table = TimerTable(now_ms=now_ms)
        self.members: Members[Any] = Members()
        self.pop_table = PopTable()
        self.leases = LeaseTable(is_popped=self.pop_table.in_flight)
        self.locks = QueueLocks(self.leases)
        self.commits = CommitTable()
        self.generations = Generations()
        self.server = FakeServer()
        self.offload = FakeOffload()
        self.producers: ProducerTable[Any] = ProducerTable()
        self.producer_snapshot = FakeNumbersFile()
        self.deliveries = Deliveries()
        self.stats = BrokerStats(monotonic_ms=0, now_ms=now_ms)
        self.registration = FakeRegistration()
        self.housekeeping = FakeKeeping()
        self.resizing = FakeResizing(self.topics)
        self.parking = FakeParking()
        self.store = Store.open(data, SMALL, self.files, self.clock)
        self.safety = Safety(data / "inorder")
        self.losses = Losses(self.files, data / "inorder" / "losses.json", self.clock)
        self.filters = FilterService(self)  # type: ignore[arg-type]
        self.assignments = Assignments(self)  # type: ignore[arg-type]
        self.lease_journal = LeaseJournal(self)  # type: ignore[arg-type]
        self.lease_journal.load()
        self.lease_journal.begin()
        self.lease_service = LeaseService(self)  # type: ignore[arg-type]
        self.lock_service = LockService(self)  # type: ignore[arg-type]
        self.offset_service = OffsetService(self)  # type: ignore[arg-type]
        self.lease_expiry = LeaseExpiry(self)  # type: ignore[arg-type]
        self.accounts = None
        self.guard = None
        self.notified: list[tuple[str, list[Any]]] = []
        self.saved: list[str] = []
        self.gone: list[str] = []
        self.woken: list[tuple[str, int]] = []
        self.counted = 0
        self.store_host = pack_host("127.0.0.1", 10911)
        self.random = random.Random(1)
        self.appended: list[tuple[Record, int, int]] = []
        self.answer: Command | None = None

    def find_group(self, name: str) -> GroupConfig | None:
        return self.groups.find_or_create(
            name, auto_create=self.config.auto_create_groups, now_ms=self.clock.now_ms()
        )

    def save_topics(self) -> None:
        self.saved.append("topics")

    def save_groups(self) -> None:
        self.saved.append("groups")

    def ensure_topic(self, name: str, *, queues: int, sys_flag: int = 0) -> TopicConfig:
        self.topics.create_internal(name, queues, self.clock.now_ms(), sys_flag=sys_flag)
        found = self.topics.get(name)
        assert found is not None
        return found

    def append(self, record: Record, queue_id: int, *, level: int, **answering: Any) -> None:
        self.appended.append((record, queue_id, level))
        self.answer = answering["answer"]

    def notify_ids_changed(self, group: str, connections: Iterable[Any] | None = None) -> None:
        targets = self.members.connections(group) if connections is None else connections
        self.notified.append((group, list(targets)))

    def notify_unlocked(self, group: str, *, by: str | None = None) -> None:
        self.notify_ids_changed(group)

    def apply_departure(self, departure: Departure[Any]) -> None:
        for notice in departure.notices:
            self.notify_ids_changed(notice.group, notice.connections)

    def wake(self, topic: str, queue_id: int) -> None:
        self.woken.append((topic, queue_id))

    def topic_gone(self, topic: str) -> None:
        self.gone.append(topic)

    def count(self) -> None:
        self.counted += 1

    # What tests use.

    def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        connection: Any = None,
    ) -> Command:
        """Hand a request to its handler and return the answer."""
        command = Command.request(code, fields or {}, body, request_id=7)
        result = invoke(self, connection or FakeConnection(), command)  # type: ignore[arg-type]
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        if result is None:  # it comes with the tick
            result, self.answer = self.answer, None
        assert isinstance(result, Command)
        assert (result.request_id, result.flag) == (7, 1)
        return result

    def put(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"") -> int:
        """Store a message as a send would; return its position."""
        store, now_ms = self.store, self.clock.now_ms()
        queue = store.queue(topic, queue_id)
        record = Record(topic, queue_id, queue.next_offset, 0, body, properties)
        record.stored_at_ms = now_ms
        at = store.log.reserve(len(encode(record)))
        record.position = store.log.pending_base + at
        data = encode(record)
        store.log.pending[at : at + len(data)] = data
        queue.append(record.position, len(data), 0)
        store.note_keys(topic, properties, record.position, now_ms)
        tick = store.write_tick()
        assert tick is not None
        store.publish(tick)
        return record.position


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FakeBroker]:
    """Give each test a broker of its own."""
    fake = FakeBroker(tmp_path)
    yield fake
    fake.lease_journal.close()
    fake.store.abandon()


@pytest.fixture
def connect() -> type[FakeConnection]:
    """Make connections."""
    return FakeConnection
