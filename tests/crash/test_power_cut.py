"""The machine goes down under a broker: what was not synced is lost, torn or reordered.

A broker on the disk of `inorder.testing.disk`, on a simulated loop: time jumps, threads are turns
of the loop, and everything follows from the seed. Producers and consumers as in the kill tests; at
a random instant power goes, and what `FakeFiles.crash` leaves is opened again, several times over.

Sync flush promises: nothing acknowledged is lost, and no (queue, offset) that a consumer was ever
shown names another message later. Async flush promises less (what was not yet synced may go, also
if a consumer has seen it, and its offsets are given again), but what is left is a prefix of every
queue, in order, with its index, and no committed offset lies beyond it.

`INORDER_POWER_SEEDS=30` plays more; `INORDER_SEED=n` one alone.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, replace

import pytest

from inorder.broker.broker import Broker
from inorder.client.api import BrokerApi
from inorder.config import BrokerConfig, NetConfig, StoreConfig
from inorder.net.connection import Connection
from inorder.testing.clock import SimClock
from inorder.testing.disk import FakeFiles
from inorder.testing.seeds import stream
from inorder.testing.simloop import Node, SimLoop, run
from tests.crash.load import LOSS, QUEUES, TOPICS, Book, Sender, connect, consume, make_topics

COUNT = int(os.environ.get("INORDER_POWER_SEEDS", "8"))
SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, COUNT + 1)
HOST = "10.0.0.2"
STORE = StoreConfig(
    segment_bytes=64 * 1024, queue_file_bytes=20 * 50, index_slots=50, index_entries=300,
    message_bytes_max=16 * 1024, queue_write_interval_ms=20, flush_interval_ms=100,
)  # fmt: skip
BROKER = BrokerConfig(
    host=HOST, port=10911, data="/srv/broker/data", offset_save_interval_ms=300,
    net=NetConfig(tls_mode="disabled"),
)  # fmt: skip


@dataclass
class Machine:
    """A machine with a broker; power cuts and kills change the disk."""

    loop: SimLoop
    sync: bool
    disk: FakeFiles
    crashes: int = 0

    def __post_init__(self) -> None:
        self.node: Node
        self.broker: Broker
        self._connections: list[Connection] = []

    async def start(self) -> None:
        store = replace(STORE, sync_flush=self.sync)
        self.node = self.loop.node(HOST)
        randomness = stream(self.loop.seed, "broker", self.crashes)
        self.broker = Broker(
            replace(BROKER, store=store), SimClock(self.loop), self.disk, randomness=randomness
        )
        await self.node.run(self.broker.start())

    async def connect(self) -> Connection:
        connection = await connect(f"{HOST}:10911")
        self._connections.append(connection)
        return connection

    def cut_power(self) -> None:
        self.disk = self.disk.crash(stream(self.loop.seed, "power", self.crashes))
        self._end()

    def kill(self) -> None:
        self.disk = self.disk.kill()
        self._end()

    def _end(self) -> None:
        self.crashes += 1
        self.loop.kill(self.node)
        for connection in self._connections:
            connection.close("the machine is gone")
        self._connections.clear()


@dataclass
class Outcome:
    """What one seed came to."""

    wrong: list[str]
    acknowledged: int
    shown: int
    lost: bool


async def play(loop: SimLoop, *, sync: bool) -> Outcome:
    """Load and crash, some rounds; judge after each."""
    draw = stream(loop.seed, "plan")
    machine = Machine(loop, sync, FakeFiles())
    book = Book()
    senders = [Sender(f"p{number}", book, loop.seed) for number in range(draw.randint(1, 3))]
    wrong: list[str] = []
    lost = made = False
    for number in range(draw.randint(2, 5)):
        await machine.start()
        made = await load(machine, book, senders, draw, made=made)
        machine.cut_power() if draw.random() < 0.75 else machine.kill()
        for _ in range(draw.choice((0, 0, 1, 2))):  # and again right after recovery
            await machine.start()
            await asyncio.sleep(draw.choice((0, 0, draw.uniform(0, 0.5))))
            machine.cut_power() if draw.random() < 0.5 else machine.kill()
        await machine.start()
        api = BrokerApi(await machine.connect(), timeout_ms=30_000)
        wrong += await judge(book, api, draw, sync=sync)
        lost = lost or bool(book.forgotten)
        if wrong:
            wrong.insert(0, f"seed {loop.seed} round {number}")
            break
        if draw.random() < 0.5:
            machine.cut_power()  # nothing was written since: nothing may change
        else:
            await machine.node.run(machine.broker.stop())
    return Outcome(wrong, book.acknowledged, len(book.shown), lost)


async def load(
    machine: Machine, book: Book, senders: list[Sender], draw: random.Random, *, made: bool
) -> bool:
    """Send and consume for a while; tell whether the topics are made."""
    api = BrokerApi(await machine.connect(), timeout_ms=30_000)
    if not made:
        await make_topics(api)
    tasks = [
        asyncio.create_task(
            sender.run(
                await machine.connect(), window=draw.choice((1, 4, 32)),
                pause_ms=lambda: draw.expovariate(0.3),
            )
        )
        for sender in senders
    ]  # fmt: skip
    places = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
    tasks.append(asyncio.create_task(consume(api, places, book, suspend_ms=200)))
    await asyncio.sleep(draw.choice((draw.uniform(0, 0.3), draw.uniform(0, 2), 12.0)) / 4)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return True


async def judge(book: Book, api: BrokerApi, draw: random.Random, *, sync: bool) -> list[str]:
    if sync:
        return [*await book.judge(api), *await book.judge_keys(api, draw)]
    return await book.judge_after_loss(api)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cut_under_sync_flush_loses_nothing_acknowledged_or_shown(seed: int) -> None:
    """C1 and C1': acknowledged is there; what was shown at an offset is there for ever."""
    outcome = run(lambda loop: play(loop, sync=True), seed)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.acknowledged, "a seed that proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cut_under_async_flush_leaves_a_consistent_prefix(seed: int) -> None:
    """The unsynced end may go; no gap, no swap, nothing from nowhere, no offset beyond the log."""
    outcome = run(lambda loop: play(loop, sync=False), seed)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
