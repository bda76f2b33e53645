"""Numbered sends over kills, power cuts, drops and partitions, from one seed.

A small producer of this test pipelines numbered messages over raw connections, as the rules ask:
hello first, then the state of the queue, then everything that is not confirmed, again and again.
In the end every number lies in the log once, in order, and every answer told its place.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field, replace

import pytest

from inorder.broker import durability
from inorder.broker.producers import storage as producer_storage
from inorder.config import BrokerConfig, NetConfig, StoreConfig
from inorder.errors import InorderError
from inorder.net.connection import Connection
from inorder.wire.header import Command
from inorder.wire.requests.producers import read_numbered
from tests.kit.simcluster import BROKER_HOST, SimCluster, stream
from tests.kit.simloop import SimLoop, run

SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, 13)
TOPIC, QUEUES, WINDOW = "Orders", 2, 6
ADDRESS = f"{BROKER_HOST}:10911"
NET = NetConfig(tls_mode="disabled")
STORE = StoreConfig(
    segment_bytes=16 * 1024, queue_file_bytes=20 * 1000, index_slots=100, index_entries=400,
    message_bytes_max=4096,
)  # fmt: skip


class Lost(Exception):
    """The broker does not know what it had acknowledged."""


@dataclass
class Life:
    """One producer id on one queue."""

    producer_id: str
    queue_id: int
    confirmed: dict[int, int] = field(default_factory=dict)
    lost: bool = False
    ended_at: float = 0.0


class Client:
    """Sends `total` messages to a queue."""

    def __init__(self, name: str, queue_id: int, draw: random.Random) -> None:
        self.name = name
        self.draw = draw
        self.queue_id = queue_id
        self.lives = [Life(f"{name}.0", queue_id)]
        self.incarnation = 0

    @property
    def life(self) -> Life:
        return self.lives[-1]

    async def run(self, total: int) -> None:
        await self._run(total)
        self.life.ended_at = asyncio.get_running_loop().time()

    async def _run(self, total: int) -> None:
        while len(self.life.confirmed) < total:
            try:
                connection = await Connection.open(ADDRESS, NET)
                await self._talk(connection, total)
            except Lost:
                self.life.lost = True
                self.lives.append(Life(f"{self.name}.{len(self.lives)}", self.queue_id))
            except InorderError:
                await asyncio.sleep(self.draw.uniform(0.05, 0.5))

    async def _talk(self, connection: Connection, total: int) -> None:
        life = self.life
        self.incarnation += 1
        hello = {"producerId": life.producer_id, "incarnation": str(self.incarnation)}
        if (await connection.request(Command.request(7100, hello), 2000)).code != 0:
            return
        place = {"producerId": life.producer_id, "topic": TOPIC, "queueId": str(life.queue_id)}
        state = await connection.request(Command.request(7101, place), 2000)
        if int(state.fields["expected"]) <= max(life.confirmed, default=-1):
            raise Lost
        while len(life.confirmed) < total:
            wanted = [number for number in range(total) if number not in life.confirmed][:WINDOW]
            for result in await asyncio.gather(
                *(self._send(connection, number) for number in wanted), return_exceptions=True
            ):
                if isinstance(result, InorderError):
                    raise result
                assert not isinstance(result, BaseException)
            await asyncio.sleep(self.draw.uniform(0, 0.4))

    async def _send(self, connection: Connection, number: int) -> None:
        life = self.life
        properties = (
            f"UNIQ_KEY\x01{life.producer_id}-{number}\x02INORDER_PID\x01{life.producer_id}\x02"
            f"INORDER_SEQ\x01{number}\x02"
        )
        fields = {
            "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(life.queue_id), "f": "0",
            "g": "1", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        body = b"x" * self.draw.randint(1, 600)
        answer = await connection.request(Command.request(310, fields, body), 2000)
        assert answer.code not in (7103, 7104), answer
        if answer.code == 0:
            offset = int(answer.fields["queueOffset"])
            assert life.confirmed.setdefault(number, offset) == offset


class Scenario:
    """One run: clients, and what goes wrong meanwhile."""

    def __init__(self, loop: SimLoop, *, sync_flush: bool, power_cuts: bool) -> None:
        self.loop = loop
        self.draw = stream(loop.seed, "torment")
        self.sync_flush = sync_flush
        self.power_cuts = power_cuts
        self.cut_at = 0.0
        config = BrokerConfig(store=replace(STORE, sync_flush=sync_flush))
        self.cluster = SimCluster(loop, broker=config)
        self.clients = [
            Client(f"p{number}", number % QUEUES, stream(loop.seed, "client", number))
            for number in range(self.draw.randint(2, 4))
        ]

    async def play(self) -> list[Client]:
        await self.cluster.start()
        work = []
        for number, client in enumerate(self.clients):
            with self.loop.node(f"10.0.1.{number + 1}").here():
                work.append(asyncio.create_task(client.run(self.draw.randint(150, 300))))
        for _ in range(4):
            await asyncio.sleep(self.draw.uniform(0.05, 1.0))
            await self._pester()
            if self.power_cuts and self.draw.random() < 0.6:
                self.cut_at = self.loop.time()
                self.cluster.cut_power()
            else:
                self.cluster.kill_broker()
            await asyncio.sleep(self.draw.uniform(0.01, 0.5))
            await self.cluster.start_broker()
            self.loop.network.heal()
        await asyncio.gather(*work)
        self._check()
        await self.cluster.stop()
        return self.clients

    async def _pester(self) -> None:
        network = self.loop.network
        connections = network.connections(BROKER_HOST)
        for connection in self.draw.sample(connections, k=min(2, len(connections))):
            if self.draw.random() < 0.5:
                connection.drop()
            else:
                connection.cut_after(self.draw.randint(0, 2000), toward=BROKER_HOST)
        network.partition(f"10.0.1.{self.draw.randint(1, 3)}", BROKER_HOST, both_ways=False)
        await asyncio.sleep(self.draw.uniform(0.1, 2.0))
        network.heal()

    def _stored(self, queue_id: int) -> list[tuple[str, int]]:
        store = self.cluster.broker.store
        queue = store.find_queue(TOPIC, queue_id)
        assert queue is not None
        found = []
        for offset in range(queue.visible_offset):
            entry = queue.entry(offset)
            assert entry is not None
            raw = store.log.bytes_at(entry[0], entry[1])
            numbered = read_numbered(raw[raw.rindex(b"UNIQ_KEY") :].decode())
            assert numbered is not None
            found.append(numbered[:2])
        return found

    def _check(self) -> None:
        stored = {queue_id: self._stored(queue_id) for queue_id in range(QUEUES)}
        for client in self.clients:
            for life in client.lives:
                rows = stored[life.queue_id]
                numbers = [number for name, number in rows if name == life.producer_id]
                assert numbers == list(range(len(numbers))), f"seed {self.loop.seed}: {numbers}"
                told = not life.lost and (self.sync_flush or life.ended_at > self.cut_at)
                if told:  # else a cut may have taken it, and nobody asked since
                    for number, offset in life.confirmed.items():
                        assert rows[offset] == (life.producer_id, number)


def play(seed: int, *, sync_flush: bool, power_cuts: bool) -> list[Client]:
    """Play one seed; return the clients as they ended."""

    async def main(loop: SimLoop) -> list[Client]:
        return await Scenario(loop, sync_flush=sync_flush, power_cuts=power_cuts).play()

    return run(main, seed)


@pytest.fixture(autouse=True)
def _save_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "SAVE_INTERVAL_MS", 700)
    monkeypatch.setattr(producer_storage, "SAVE_LOG_BYTES", 20_000)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("power_cuts", [False, True], ids=["kills", "power cuts"])
def test_each_number_is_stored_once_and_its_answer_holds(seed: int, *, power_cuts: bool) -> None:
    """Nothing acknowledged is lost, twice or elsewhere: kills, and cuts with sync flush."""
    for client in play(seed, sync_flush=power_cuts, power_cuts=power_cuts):
        assert not any(life.lost for life in client.lives), f"make sim SEED={seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_async_flush_tells_producers_what_a_power_cut_took(seed: int) -> None:
    """What is left is in order and there once; who lost something learns it from the broker."""
    play(seed, sync_flush=False, power_cuts=True)


def test_power_cuts_under_async_flush_do_take_something() -> None:
    """The other side of the coin: where loss is allowed it happens, and the producer is told."""
    lost = [
        life.lost
        for seed in range(1, 9)
        for client in play(seed, sync_flush=False, power_cuts=True)
        for life in client.lives
    ]
    assert any(lost)
