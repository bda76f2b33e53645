"""Send, kill, recover, from one seed: producers go on over crashes of the broker, and the order
checker judges what is stored in the end.

Which faults happen, how often, and how the broker is configured is drawn from the seed. A failing
seed is printed; `make sim SEED=n` plays it again.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import zlib
from dataclasses import dataclass, replace

import pytest

from inorder.checker import (
    Event,
    Kind,
    Report,
    Rules,
    Sent,
    SentResult,
    Stored,
    check,
    queue_name,
)
from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig, StoreConfig
from inorder.errors import FlushTimeout, InorderError, TransportError
from inorder.model import TopicConfig
from tests.kit.simcluster import BROKER_HOST, NAMES_HOST, SimCluster, stream
from tests.kit.simloop import SimLoop, run

SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, 21)
TOPIC = "orders"


@dataclass(frozen=True, slots=True)
class Plan:
    """What one seed does."""

    producers: int
    keys: int
    sends: int
    crashes: int
    sync_flush: bool
    power_cuts: bool
    partitions: bool
    drops: bool
    segment_bytes: int

    @classmethod
    def of(cls, seed: int) -> Plan:
        draw = stream(seed, "plan")
        sync_flush = draw.random() < 0.5
        return cls(
            producers=draw.randint(1, 4),
            keys=draw.randint(1, 12),
            sends=draw.randint(3, 12),
            crashes=draw.randint(1, 4),
            sync_flush=sync_flush,
            power_cuts=sync_flush and draw.random() < 0.7,
            partitions=draw.random() < 0.4,
            drops=draw.random() < 0.5,
            segment_bytes=draw.choice((16 * 1024, 64 * 1024, 1024 * 1024)),
        )

    def broker_config(self) -> BrokerConfig:
        store = StoreConfig(
            segment_bytes=self.segment_bytes,
            queue_file_bytes=20 * 1000,
            index_slots=100,
            index_entries=400,
            sync_flush=self.sync_flush,
            message_bytes_max=4096,
        )
        return BrokerConfig(store=store)


class Scenario:
    """One run."""

    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.loop = loop
        self.plan = plan
        self.cluster = SimCluster(loop, broker=plan.broker_config())
        self.history: list[Event] = []

    async def play(self) -> Report:
        cluster, plan = self.cluster, self.plan
        await cluster.start()
        node, session = await cluster.client()
        await node.run(self.make_topic(session))
        work = []
        for number in range(plan.producers):
            node, client = await cluster.client(ClientConfig(send_timeout_ms=60_000))
            with node.here():
                work.append(asyncio.create_task(self.produce(client, f"p{number}")))
        await self.torment()
        await asyncio.gather(*work)
        node, session = await cluster.client()
        await node.run(self.pull(session))
        rules = Rules(acknowledged_min=plan.producers * plan.keys)
        report = check(self.history, rules=rules)
        await cluster.stop()
        return report

    async def make_topic(self, session: Session) -> None:
        api = await session.broker_at(f"{BROKER_HOST}:10911")
        await api.create_topic(TopicConfig(TOPIC, 4, 4))

    async def produce(self, session: Session, name: str) -> None:
        """Send each key's messages in order, all keys side by side, two calls at a time."""
        draw = stream(self.loop.seed, name)
        producer = Producer(session)

        async def walk(key: str) -> None:
            for sequence in range(0, self.plan.sends, 2):
                await asyncio.sleep(draw.expovariate(2))
                pair = [self.send(producer, name, key, sequence + n, draw) for n in range(2)]
                await asyncio.gather(*pair)

        await asyncio.gather(*(walk(f"key-{number}") for number in range(self.plan.keys)))

    async def send(
        self, producer: Producer, name: str, key: str, sequence: int, draw: random.Random
    ) -> None:
        id_ = f"{name}/{key}/{sequence}"
        body = id_.encode() + bytes([sequence % 256]) * draw.randint(0, 2000)
        result, receipt = SentResult.OK, None
        try:
            receipt = await producer.send(
                TOPIC, body, key=key, properties={"id": id_, "sequence": str(sequence)}
            )
        except (TransportError, FlushTimeout):
            result = SentResult.UNKNOWN
        except InorderError:
            result = SentResult.FAILED
        queue = None if receipt is None else queue_name(receipt.queue)
        offset = None if receipt is None else receipt.offset
        digest = f"{zlib.crc32(body):08x}"
        self.history.append(Sent(name, key, sequence, id_, result, queue, offset, digest))

    async def torment(self) -> None:
        """Crash the broker now and then; between crashes drop, cut and delay."""
        draw = stream(self.loop.seed, "torment")
        for _ in range(self.plan.crashes):
            await asyncio.sleep(draw.uniform(0.1, 2.0))
            await self.pester(draw)
            if self.plan.power_cuts and draw.random() < 0.5:
                self.cluster.cut_power()
            else:
                self.cluster.kill_broker()
            await asyncio.sleep(draw.uniform(0.01, 1.5))
            await self.cluster.start_broker()
            self.loop.network.heal()

    async def pester(self, draw: random.Random) -> None:
        network = self.loop.network
        if self.plan.drops:
            connections = network.connections(BROKER_HOST)
            for connection in draw.sample(connections, k=min(2, len(connections))):
                if draw.random() < 0.5:
                    connection.drop()
                else:
                    connection.cut_after(draw.randint(0, 3000), toward=BROKER_HOST)
        if self.plan.partitions:
            client = f"10.0.1.{draw.randint(1, self.plan.producers + 1)}"
            server = draw.choice((BROKER_HOST, NAMES_HOST))
            network.partition(client, server, both_ways=draw.random() < 0.5)
            await asyncio.sleep(draw.uniform(0.1, 4.0))
            network.heal()

    async def pull(self, session: Session) -> None:
        consumer = PullConsumer(session, group="judge")
        for queue in await consumer.queues(TOPIC):
            async for message in consumer.pull_all(queue):
                self.history.append(
                    Stored(
                        queue_name(queue),
                        message.offset,
                        message.properties.get("id", message.message_id),
                        message.key,
                        int(message.properties.get("sequence", -1)),
                        f"{zlib.crc32(message.body):08x}",
                    )
                )


def play(seed: int) -> tuple[Report, str]:
    """Return the verdict on one seed, and the digest of everything that happened."""

    async def main(loop: SimLoop) -> tuple[Report, str]:
        report = await Scenario(loop, Plan.of(seed)).play()
        return report, loop.trace_digest()

    return run(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_there_in_order_after_crashes(seed: int):
    """Nothing acknowledged is lost, nothing is inverted, offsets have no gaps."""
    print(f"seed {seed}: {Plan.of(seed)}")
    report, _ = play(seed)
    print(f"seed {seed}: {report}")
    assert report.ok, f"make sim SEED={seed}\n{report}"


def play_async_power_cut(seed: int) -> Report:
    """Return the verdict on power cuts under async flush, which may lose what was not synced."""

    async def main(loop: SimLoop) -> Report:
        plan = replace(Plan.of(loop.seed), sync_flush=False, power_cuts=True, crashes=3)
        return await Scenario(loop, plan).play()

    return run(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_async_flush_loses_only_the_end_in_a_power_cut(seed: int):
    """The broker starts again; no gap, no inversion, nothing damaged or from nowhere."""
    print(f"seed {seed}: power cuts under async flush")
    report = play_async_power_cut(seed)
    assert report.by_kind.keys() <= {Kind.LOST, Kind.OFFSET_CONFLICT}, f"seed {seed}: {report}"


def test_the_judge_sees_what_async_flush_loses():
    """The other side of the coin: where loss is allowed it happens, and is found."""
    assert any(Kind.LOST in play_async_power_cut(seed).by_kind for seed in (8, 10, 13))


@pytest.mark.slow
def test_a_seed_is_played_again_exactly():
    """Twice in this process, and once in another with another hash seed: the same digest."""
    seed = next(iter(SEEDS))
    _, digest = play(seed)
    assert play(seed)[1] == digest
    script = f"import runpy; print(runpy.run_path({__file__!r})['play']({seed})[1])"
    other = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert other.stdout.split()[-1] == digest
