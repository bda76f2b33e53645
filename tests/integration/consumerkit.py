"""A simulated cluster with consumers on it, for tests of the consumer: time costs nothing there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from unittest.mock import patch

import pytest

from inorder.client.api import BrokerApi
from inorder.client.consume.consumer import Consumer
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig
from inorder.model import ReceivedMessage, TopicConfig, TopicQueue
from tests.kit.simcluster import BROKER_HOST, SimCluster
from tests.kit.simloop import Node, SimLoop, run

T = TypeVar("T")

TOPIC = "orders"
GROUP = "billing"

leases_and_locks: Final = pytest.mark.parametrize("stock", [False, True], ids=["lease", "lock"])
"""For stories that hold under our leases and, with `play(stock=True)`, under RocketMQ's locks."""


@dataclass
class Kit:
    """The cluster, a producer, and what consumers handled."""

    loop: SimLoop
    cluster: SimCluster
    producer: Producer
    api: BrokerApi
    got: list[ReceivedMessage] = field(default_factory=list)
    started: list[tuple[Node, Session, Consumer]] = field(default_factory=list)

    async def client(self, config: ClientConfig | None = None) -> tuple[Node, Session]:
        """Return a new client with an id of its own."""
        return await self.cluster.client(config)

    async def start(self, node: Node, session: Session, consumer: Consumer) -> None:
        """Start a consumer on its node."""
        await node.run(consumer.start())
        self.started.append((node, session, consumer))

    async def send(self, count: int, *, key: str | None = None, **options: Any) -> None:
        """Send bodies b"0", b"1", ..."""
        for number in range(count):
            await self.producer.send(
                TOPIC, str(number).encode(), key=key or f"k{number % 5}", **options
            )

    async def until(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        """Wait in simulated time."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.005)

    async def committed(self, group: str = GROUP, queue: int = 0, topic: str = TOPIC) -> int:
        """Return what the broker has."""
        where = TopicQueue(topic, "broker-a", queue)
        return await self.api.query_offset(group, where, set_zero_if_not_found=False)

    async def stored(self, topic: str, queue: int = 0) -> list[ReceivedMessage]:
        """Return the messages of a queue."""
        from inorder.client.consume.pullconsumer import PullConsumer

        node, session = await self.client()
        reader = PullConsumer(session, group="reader")
        found = [m async for m in reader.pull_all(TopicQueue(topic, "broker-a", queue))]
        await session.close()
        del node
        return found

    def bodies(self) -> list[bytes]:
        """Return what was handled, in order."""
        return [message.body for message in self.got]


async def consumer_of(kit: Kit, config: ClientConfig | None = None, **options: Any) -> Consumer:
    """Return a consumer of a new client; `begin` starts it."""
    node, session = await kit.client(config)
    consumer = Consumer(session, group=GROUP, **{"consume_from": "first", **options})
    kit.started.append((node, session, consumer))
    return consumer


async def begin(kit: Kit, consumer: Consumer) -> None:
    """Start a consumer on its node."""
    node, _ = place(kit, consumer)
    await node.run(consumer.start())


async def handler_of(
    kit: Kit, *, order: str = "queue", seconds: float = 0.01, **options: Any
) -> tuple[Consumer, list[ReceivedMessage]]:
    """Return a consumer whose handler takes a while, and what it has handled."""
    consumer = await consumer_of(kit, **options)
    got: list[ReceivedMessage] = []

    @consumer.on(TOPIC, order=order, concurrency=8)  # type: ignore[arg-type]
    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(seconds)
        got.append(message)
        kit.got.append(message)

    return consumer, got


def place(kit: Kit, consumer: Consumer) -> tuple[Node, Session]:
    """Return the node and session of a consumer."""
    return next((node, session) for node, session, one in kit.started if one is consumer)


def twice(messages: Iterable[ReceivedMessage]) -> list[int]:
    """Return the offsets that were handled more than once."""
    return [offset for offset, count in Counter(m.offset for m in messages).items() if count > 1]


def left_behind(loop: SimLoop, node: Node) -> list[str]:
    """Return the tasks and connections that a node still has."""
    tasks = [task.get_name() for task in loop.open_tasks() if loop._tasks[task] is node]
    return tasks + [repr(connection) for connection in loop.network.connections(node.host)]


def play(
    story: Callable[[Kit], Coroutine[Any, Any, T]],
    *,
    seed: int = 1,
    queues: int = 1,
    broker: BrokerConfig | None = None,
    timeout: float = 100_000,
    stock: bool = False,
    brokers: int = 1,
) -> T:
    """Run a story on a simulated cluster; nothing of its consumers is left behind.

    With `stock` the broker does not say that it is ours: clients keep to RocketMQ's rules.
    """

    async def main(loop: SimLoop) -> T:
        cluster = SimCluster(loop, broker=broker, brokers=brokers)
        await cluster.start()
        node, session = await cluster.client()
        api = await session.broker_at(f"{BROKER_HOST}:10911")
        await api.create_topic(TopicConfig(TOPIC, queues, queues))
        kit = Kit(loop, cluster, Producer(session), api)
        async with asyncio.timeout(timeout):
            result = await story(kit)
            for its_node, its_session, consumer in kit.started:
                if its_node.alive:
                    await its_node.run(consumer.close())
                    await its_node.run(its_session.close())
                    await asyncio.sleep(1)  # the other side hears of it
                    left = left_behind(loop, its_node)
                    assert not left, left
            await kit.producer.close()
            await session.close()
            await cluster.stop()
        del node
        return result

    if not stock:
        return run(main, seed)
    with patch("inorder.broker.groups.handlers.CAPABILITY", "stock"):
        return run(main, seed)


Handle = Callable[[ReceivedMessage], Awaitable[Any]]
