"""A simulated cluster of two brokers with a mapped topic, producers and consumers on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inorder.broker.broker import Broker
from inorder.client.admin import Admin
from inorder.client.consume.consumer import Consumer
from inorder.client.rules.resizing import spread
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig, StoreConfig
from inorder.model import ReceivedMessage
from inorder.ordering.keymap import KeyMap
from tests.kit.simcluster import SimCluster
from tests.kit.simloop import Node, SimLoop, run

T = TypeVar("T")

TOPIC = "orders"
GROUP = "billing"
KEYS = [f"key-{number}" for number in range(12)]


@dataclass
class Town:
    """The cluster, an operator, and what consumers handled: (key, number) in order."""

    loop: SimLoop
    cluster: SimCluster
    session: Session
    admin: Admin
    handled: list[tuple[str, int]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    consumers: list[tuple[Node, Consumer]] = field(default_factory=list)
    producer: Producer | None = None

    def broker(self, number: int) -> Broker:
        """Return a broker as it runs now."""
        return self.cluster.brokers[number].broker

    def keys_moved(self, queues: int) -> list[str]:
        """Return keys of one queue of the first broker, all of which a resize takes to the last."""
        names = [one.broker.config.name for one in self.cluster.brokers]
        before = KeyMap.decode(self.broker(0).resizing.versions(TOPIC).map)
        after = KeyMap.of(2, spread(names, queues))
        found = [
            text for text in map("k{}".format, range(1000))
            if before.queue(text)[0] == names[0] and after.queue(text)[0] == names[-1]
            and before.queue(text) != after.queue(text)
        ]  # fmt: skip
        return [text for text in found if before.queue(text) == before.queue(found[0])]

    async def send(self, rounds: int = 1, keys: list[str] = KEYS) -> None:
        """Send the next numbers of keys, each key's in order."""
        if self.producer is None:
            self.producer = Producer(self.session)
        waits = []
        for _ in range(rounds):
            for key in keys:
                number = self.sent[key] = self.sent.get(key, -1) + 1
                waits.append(self.producer.send_nowait(TOPIC, b"%d" % number, key=key))
        await asyncio.gather(*waits)

    async def two_versions(self, key: str, queues: int) -> None:
        """Let the group handle two messages of a key, then, after a resize, two more."""
        for _ in range(2):
            await self.send(2, keys=[key])
            await self.all_handled()
            if self.sent[key] == 1:
                await self.admin.topics.resize(TOPIC, queues=queues)
                await self.released(2)

    async def consume(
        self, *, order: Any = "key", pause: float = 0.0, group: str = GROUP, start: bool = True
    ) -> Consumer:
        """Start a consumer that notes what it handles; each message takes a while."""

        async def handle(message: ReceivedMessage) -> None:
            self.handled.append((message.key or "", int(message.body)))
            await asyncio.sleep(pause)

        return await self.handle(handle, order=order, group=group, start=start)

    async def handle(
        self,
        handle: Callable[[ReceivedMessage], Awaitable[None]],
        *,
        order: Any = "key",
        group: str = GROUP,
        start: bool = True,
    ) -> Consumer:
        """Start a consumer with a handler."""
        node, session = await self.cluster.client()
        consumer = Consumer(session, group=group, consume_from="first")
        consumer.on(TOPIC, order=order)(handle)
        self.consumers.append((node, consumer))
        if start:
            await node.run(consumer.start())
        return consumer

    async def until(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        """Wait in simulated time."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.01)

    async def all_handled(self) -> None:
        """Wait until everything sent was handled."""
        wanted = {(key, number) for key, last in self.sent.items() for number in range(last + 1)}
        await self.until(lambda: wanted <= set(self.handled))

    def inversions(self) -> list[tuple[str, int]]:
        """Return the first deliveries that came after a newer one of their key."""
        seen: set[tuple[str, int]] = set()
        highest: dict[str, int] = {}
        found = []
        for key, number in self.handled:
            if (key, number) in seen:
                continue
            seen.add((key, number))
            if number < highest.get(key, -1):
                found.append((key, number))
            highest[key] = max(number, highest.get(key, -1))
        return found

    async def released(self, version: int, group: str = GROUP) -> None:
        """Wait until a group reads a version on all brokers."""
        await self.until(
            lambda: all(
                one.broker.resizing.view(TOPIC, group).groups[0].version == version
                for one in self.cluster.brokers
            )
        )


def play(
    story: Callable[[Town], Coroutine[Any, Any, T]],
    *,
    seed: int = 1,
    queues: int = 2,
    brokers: int = 2,
    store: StoreConfig | None = None,
    client: ClientConfig | None = None,
) -> T:
    """Run a story; `queues` is per broker."""

    async def main(loop: SimLoop) -> T:
        config = BrokerConfig() if store is None else BrokerConfig(store=store)
        cluster = SimCluster(loop, broker=config, brokers=brokers)
        await cluster.start()
        node, session = await cluster.client(client)
        admin = Admin(session)
        await admin.topics.create(TOPIC, queues=queues)
        town = Town(loop, cluster, session, admin)
        result = await story(town)
        for its_node, consumer in town.consumers:
            if its_node.alive:
                await its_node.run(consumer.close())
        if town.producer is not None:
            await town.producer.close()
        await session.close()
        await cluster.stop()
        del node
        return result

    return run(main, seed)
