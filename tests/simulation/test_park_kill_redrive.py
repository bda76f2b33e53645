"""Park, kill, redrive, from one seed: keys fail and heal, operators redrive and drop, consumers and
the broker die; each effect happens once, in the order of its key, and nothing is left behind.

What happens, and when, is drawn from the seed. `make sim SEED=n` plays it again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict

import pytest

from inorder.client.admin import Admin
from inorder.client.consume.consumer import Consumer
from inorder.client.consume.rules.outcomes import Park
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig, ConsumerConfig, StoreConfig
from inorder.errors import InorderError
from inorder.model import ReceivedMessage, TopicConfig
from tests.kit.simcluster import SimCluster, stream
from tests.kit.simloop import Node, SimLoop, run

SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, 7)
TOPIC, GROUP, QUEUES, KEYS = "orders", "billing", 2, 8
QUICK = ClientConfig(consumer=ConsumerConfig(suspend_ms=20))


class World:
    """A cluster, consumers whose handlers fail for bad keys, and the store of their effects."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.draw = stream(seed, "parking")
        sync = StoreConfig(sync_flush=self.draw.random() < 0.3)
        self.cluster = SimCluster(loop, broker=BrokerConfig(store=sync))
        self.sync = sync.sync_flush
        self.members: list[tuple[Node, Consumer]] = []
        self.running: dict[str, Node] = {}
        self.bad: set[str] = set()
        self.poison: set[tuple[str, int]] = set()
        self.sent: defaultdict[str, list[int]] = defaultdict(list)
        self.applied: defaultdict[str, list[int]] = defaultdict(list)
        self.dropped: defaultdict[str, set[int]] = defaultdict(set)
        self.fences: dict[str, int] = {}
        self.attempts = self.parked = 0
        self.deaths = 0
        self.admin: Admin
        self.timeline: list[str] = []

    def note(self, what: str) -> None:
        """Keep what happened, for who reads a failure."""
        self.timeline.append(f"{self.loop.time():8.3f} {what}")

    async def handle(self, node: Node, message: ReceivedMessage) -> None:
        """Take the effect once, by its fence, unless the key is bad."""
        key, number = message.key or "", int(message.body)
        other = self.running.get(key)
        assert other is None or not other.alive, f"two handlers of {key}"
        self.running[key] = node
        try:
            await asyncio.sleep(self.draw.random() * 0.01)
            self.attempts += 1
            if key in self.bad or (key, number) in self.poison:
                raise ValueError(f"{key} {number}")
            sequence = message.fence.sequence
            assert sequence is not None
            if sequence > self.fences.get(key, -1):
                self.fences[key] = sequence
                self.applied[key].append(number)
                self.note(f"{node.host} did {key} {number} seq={sequence & 0xFFFF}")
            else:
                self.note(f"{node.host} skipped {key} {number}")
        finally:
            if self.running.get(key) is node:
                del self.running[key]

    async def join(self) -> None:
        """Let a consumer begin."""
        node, session = await self.cluster.client(QUICK)
        consumer = Consumer(session, group=GROUP, consume_from="first", lease=2.0, grace=0.5)

        @consumer.on(TOPIC, order="key", concurrency=6, on_failure=Park(attempts=1))
        async def handle(message: ReceivedMessage) -> None:
            await self.handle(node, message)

        self.members.append((node, consumer))
        await node.run(consumer.start())
        self.note(f"{node.host} joined")

    async def send(self, producer: Producer, count: int) -> None:
        """Send numbers of random keys; only what is acknowledged counts."""
        for _ in range(count):
            key = f"k{self.draw.randrange(KEYS)}"
            number = len(self.sent[key])
            while True:
                try:
                    await producer.send(TOPIC, str(number).encode(), key=key)
                    break
                except InorderError:
                    await asyncio.sleep(0.2)
            self.sent[key].append(number)
            await asyncio.sleep(self.draw.random() * 0.03)

    async def fault(self) -> None:
        """Do one thing that a storm does."""
        kind = self.draw.choice(
            ("bad", "bad", "heal", "poison", "redrive", "redrive", "redrive", "cancel", "drop",
             "kill", "close", "broker", "power")
        )  # fmt: skip
        key = f"k{self.draw.randrange(KEYS)}"
        self.note(f"fault {kind} {key}")
        if kind == "bad":
            self.bad.add(key)
        elif kind == "heal":
            self.bad.discard(key)
        elif kind == "poison":
            self.poison.add((key, len(self.sent[key])))
        elif kind in ("redrive", "cancel", "drop"):
            await self.operate(kind)
        elif kind in ("kill", "close") and self.members:
            node, consumer = self.members.pop(self.draw.randrange(len(self.members)))
            if kind == "kill":
                self.deaths += 1
                self.loop.kill(node, silent=self.draw.random() < 0.5)
            else:
                await node.run(consumer.close())
            await self.join()
        elif kind == "broker" or (kind == "power" and self.sync):
            self.deaths += 1
            cut = self.cluster.disk.crash(self.draw)
            self.cluster.kill_broker()
            if kind == "power":  # its peers see a reset: the machine is soon back
                self.cluster.disk = cut
            await asyncio.sleep(self.draw.random())
            await self.cluster.start_broker()

    async def operate(self, kind: str) -> None:
        """Be an operator."""
        try:
            keys = await self.admin.parked.list(GROUP)
            if not keys:
                return
            one = self.draw.choice(keys)
            if kind == "redrive":
                rate = self.draw.choice((None, None, 20.0))
                some = () if self.draw.random() < 0.5 else (one.key,)
                await self.admin.parked.redrive(GROUP, some, rate=rate)
            elif kind == "cancel":
                await self.admin.parked.cancel(GROUP)
            elif one.messages:
                first = (await self.admin.parked.show(GROUP, one.key, count=1))[0]
                number = int(first.body)
                # Whether it was handled or dropped is open if both happen at once.
                self.dropped[one.key].add(number)
                await self.admin.parked.drop(GROUP, [one.key], reason="storm", first=True)
        except InorderError as error:
            self.note(f"operator failed: {error}")

    async def calm(self) -> None:
        """Heal everything and redrive until all is done."""
        self.bad.clear()
        self.poison.clear()
        async with asyncio.timeout(300):
            while True:
                await asyncio.sleep(1)
                try:
                    keys = await self.admin.parked.list(GROUP)
                    idle = [one for one in keys if not one.redriving]
                    if idle:
                        await self.admin.parked.redrive(GROUP, {one.key for one in idle})
                except InorderError:
                    continue
                if not keys and all(self.is_done(key) for key in self.sent):
                    return

    def is_done(self, key: str) -> bool:
        """Tell whether every message of a key had its effect, or was dropped."""
        missing = set(self.sent[key]) - set(self.applied[key]) - self.dropped[key]
        return not missing


async def storm(loop: SimLoop, seed: int) -> World:
    """Play one seed."""
    world = World(loop, seed)
    await world.cluster.start()
    node, session = await world.cluster.client()
    _, operator = await world.cluster.client()
    world.admin = Admin(operator)
    await _create(session)
    for _ in range(world.draw.randint(1, 3)):
        await world.join()
    producer = Producer(session)
    sending = asyncio.ensure_future(node.run(world.send(producer, 150)))
    faults = random.Random(world.draw.random())
    while not sending.done():
        await asyncio.sleep(faults.random() * 0.5)
        await world.fault()
    await sending
    await world.calm()
    for its_node, consumer in world.members:
        world.parked += consumer.statistics().parked
        await its_node.run(consumer.close())
    await node.run(producer.close())
    await session.close()
    await operator.close()
    await world.cluster.stop()
    return world


async def _create(session: Session) -> None:
    api = await session.broker_at("10.0.0.2:10911")
    await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_effects_happen_once_and_in_order(seed: int) -> None:
    """Whatever dies: per key the effects are those sent, in order, but for what was dropped."""
    worlds: list[World] = []

    async def main(loop: SimLoop) -> None:
        worlds.append(await storm(loop, seed))

    run(main, seed)
    (world,) = worlds
    shown = "\n".join(world.timeline[-400:])
    assert world.attempts >= sum(map(len, world.applied.values()))
    for key, numbers in world.sent.items():
        done = world.applied[key]
        assert done == sorted(done), f"seed {seed}: {key} {done}\n{shown}"
        lost = set(numbers) - set(done) - world.dropped[key]
        assert not lost, f"seed {seed}: {key} lost {sorted(lost)}\n{shown}"
