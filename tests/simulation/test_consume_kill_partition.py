"""Consume, kill, cut off, restart, from one seed: ordered consumers of one group go on over crashes
of each other and of the broker, and the order checker judges what they did.

Which faults happen, and when, is drawn from the seed. A failing seed is printed; `make sim SEED=n`
plays it again.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass

import pytest

from inorder.checker import (
    Committed,
    Event,
    Handled,
    HandledResult,
    Rules,
    Sent,
    SentResult,
    Stored,
    check,
    queue_name,
)
from inorder.client.consume.consumer import Consumer
from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.consume.rules.outcomes import Retry
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.errors import InorderError
from inorder.model import ReceivedMessage, TopicConfig, TopicQueue
from tests.kit.simcluster import BROKER_HOST, SimCluster, stream
from tests.kit.simloop import Node, SimLoop, run

SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, 16)
TOPIC, GROUP, QUEUES, KEYS = "orders", "billing", 4, 9


@dataclass(frozen=True, slots=True)
class Plan:
    """What one seed does."""

    members: int
    sends: int
    faults: tuple[str, ...]
    handler_seconds: float
    fails: float

    @classmethod
    def of(cls, seed: int) -> Plan:
        draw = stream(seed, "consume plan")
        kinds = ("close", "kill", "partition", "broker", "join", "connections")
        return cls(
            members=draw.randint(1, 3),
            sends=draw.randint(100, 300),
            faults=tuple(draw.choice(kinds) for _ in range(draw.randint(2, 5))),
            handler_seconds=draw.choice((0.001, 0.01, 0.1)),
            fails=draw.choice((0.0, 0.02)),
        )


class World:
    """The cluster, its consumers, and the history."""

    def __init__(self, loop: SimLoop, seed: int, plan: Plan) -> None:
        self.loop = loop
        self.plan = plan
        self.draw: random.Random = stream(seed, "consume faults")
        self.cluster = SimCluster(loop)
        self.events: list[Event] = []
        self.members: list[tuple[Node, Session, Consumer]] = []
        self.done: set[str] = set()
        self.sent: set[str] = set()

    def now_ns(self) -> int:
        return int(self.loop.time() * 1e9)

    async def join(self) -> None:
        """Start another consumer."""
        node, session = await self.cluster.client()
        consumer = Consumer(session, group=GROUP, consume_from="first")

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            start_ns = self.now_ns()
            await asyncio.sleep(self.plan.handler_seconds * self.draw.random())
            failed = self.draw.random() < self.plan.fails
            result = HandledResult.FAILED if failed else HandledResult.DONE
            self.events.append(
                Handled(
                    node.host, queue_name(message.queue), message.offset, message.message_id,
                    message.key, start_ns, self.now_ns(), result,
                )
            )  # fmt: skip
            if failed:
                raise Retry(after=0.05)
            self.done.add(message.message_id)

        async with asyncio.timeout(60):
            while True:
                try:
                    await node.run(consumer.start())
                    break
                except InorderError:
                    await asyncio.sleep(0.5)
        self.members.append((node, session, consumer))

    async def feed(self) -> None:
        """Send to all keys; an unknown outcome is noted as such."""
        node, session = await self.cluster.client()
        producer = Producer(session)
        for number in range(self.plan.sends):
            key = f"k{number % KEYS}"
            try:
                receipt = await producer.send(TOPIC, b"%d" % number, key=key, timeout=120)
            except InorderError as error:
                self.events.append(Sent("p", key, number, f"?{number}", SentResult.UNKNOWN))
                print("send", number, error)
                continue
            self.sent.add(receipt.message_id)
            self.events.append(
                Sent(
                    "p", key, number, receipt.message_id,
                    queue=queue_name(receipt.queue), offset=receipt.offset,
                )
            )  # fmt: skip
            await asyncio.sleep(0.02)
        await producer.close()
        await session.close()
        del node

    async def watch_commits(self) -> None:
        """Note what the broker has of the group.

        A broker that is killed forgets up to 5 s of commits, as RocketMQ's does.
        """
        crashes = [0] * QUEUES
        while True:
            for index in range(QUEUES) if self.cluster.broker_node.alive else ():
                offset = self.cluster.broker.offsets.query(GROUP, TOPIC, index)
                queue = queue_name(TopicQueue(TOPIC, "broker-a", index))
                restarted = crashes[index] != self.cluster.crashes
                if offset >= 0:
                    crashes[index] = self.cluster.crashes
                    now_ns = self.now_ns()
                    self.events.append(Committed("broker", queue, offset, now_ns, restarted))
            await asyncio.sleep(0.25)

    async def fault(self, kind: str) -> None:
        """Let something happen."""
        alive = [one for one in self.members if one[0].alive]
        node, session, consumer = self.draw.choice(alive)
        match kind:
            case "join":
                await self.join()
            case "close" if len(alive) > 1:
                self.members.remove((node, session, consumer))
                await node.run(consumer.close())
                await node.run(session.close())
            case "kill" if len(alive) > 1:
                self.loop.kill(node, silent=self.draw.random() < 0.5)
            case "partition":
                self.loop.network.partition(node.host, BROKER_HOST)
                await asyncio.sleep(self.draw.choice((5, 40, 100)))
                self.loop.network.heal()
            case "connections":
                for connection in self.loop.network.connections(node.host):
                    connection.drop()
            case "broker":
                self.cluster.kill_broker()
                await asyncio.sleep(self.draw.random() * 3)
                await self.cluster.start_broker()
            case _:
                await self.join()


async def consume(loop: SimLoop, seed: int) -> str:
    plan = Plan.of(seed)
    world = World(loop, seed, plan)
    await world.cluster.start()
    node, session = await world.cluster.client()
    api = await session.broker_at(f"{BROKER_HOST}:10911")
    await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
    for _ in range(plan.members):
        await world.join()
    sending = asyncio.create_task(world.feed())
    watching = asyncio.create_task(world.watch_commits())
    for kind in plan.faults:
        await asyncio.sleep(world.draw.random() * 3)
        await world.fault(kind)
    async with asyncio.timeout(1000):
        await sending
        while not world.done >= world.sent:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.1)
    for its_node, its_session, consumer in world.members:
        if its_node.alive:
            await its_node.run(consumer.close())
            await its_node.run(its_session.close())
    watching.cancel()
    reader = PullConsumer(session, group="reader")
    for queue in await reader.queues(TOPIC):
        async for message in reader.pull_all(queue):
            world.events.append(
                Stored(queue_name(queue), message.offset, message.message_id, message.key)
            )
    await session.close()
    await world.cluster.stop()
    del node
    report = check(world.events, rules=Rules(stored_once=False, handled_once=False))
    assert report.ok, f"seed {seed} {plan}: {report}"
    assert report.counts["handled"] >= len(world.sent)
    return f"{plan} {report}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_ordered_consumers_survive(seed: int):
    """Every acknowledged message is handled; first effects are in order; no two handlers of a queue
    at a time; no commit passes an unfinished message or goes back."""
    print(run(lambda loop: consume(loop, seed), seed))
