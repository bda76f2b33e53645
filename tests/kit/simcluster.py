"""Name servers, brokers and clients as nodes of a simulated loop, with faults.

The first name server lives on 10.0.0.1, others on 10.0.2.1 and up. Brokers live on 10.0.0.2 and up,
each with a fake disk. Each client has a host of its own. Brokers and clients may know different
name servers, so that their views differ. Everything follows from the seed of the loop: each user of
randomness gets an independent stream from it. The clocks of all nodes count the loop's time, but
each may show another time of day. How a whole cluster is simulated: decision 38.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from inorder.broker.broker import Broker
from inorder.client.identity import Identity
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig, NameServerConfig, NetConfig
from inorder.nameserver.server import NameServer
from tests.kit.clock import SimClock
from tests.kit.disk import FakeFiles
from tests.kit.simloop import Node, SimLoop


def stream(seed: int, *name: object) -> random.Random:
    """Return the random numbers of one part of a test.

    Parts with different names do not disturb each other: one more draw in the network does not
    change what a producer sends.
    """
    return random.Random("/".join(map(str, (*name, seed))))


NAMES_HOST = "10.0.0.1"
BROKER_HOST = "10.0.0.2"
NAMESRV = f"{NAMES_HOST}:9876"
PORT = 10911
NAMES_PORT = 9876
_NET = NetConfig(tls_mode="disabled")


def names_address(numbers: Iterable[int]) -> str:
    """Return the addresses of name servers by their numbers, as a client is given them."""
    hosts = (NAMES_HOST if not number else f"10.0.2.{number}" for number in numbers)
    return ";".join(f"{host}:{NAMES_PORT}" for host in hosts)


class SimNames:
    """One name server over its restarts; it keeps only its key-value table."""

    node: Node
    server: NameServer

    def __init__(self, loop: SimLoop, number: int) -> None:
        self.host = names_address([number]).partition(":")[0]
        self._loop = loop
        self._disk = FakeFiles()

    async def start(self) -> None:
        """Start on what the disk holds."""
        self.node = self._loop.node(self.host)
        config = NameServerConfig(host=self.host, data="/names", net=_NET)
        self.server = NameServer(config, SimClock(self._loop), self._disk)
        await self.node.run(self.server.start())

    def kill(self) -> None:
        """kill -9: the process is gone."""
        self._disk = self._disk.kill()
        self._loop.kill(self.node)


class SimBroker:
    """One broker over its restarts. `node`, `broker` and `disk` change with every crash."""

    node: Node
    broker: Broker

    def __init__(
        self, loop: SimLoop, config: BrokerConfig, host: str, namesrv: str = NAMESRV
    ) -> None:
        self.host = host
        self.name = config.name
        self.clock = SimClock(loop)
        self.disk = FakeFiles()
        self.crashes = 0
        self.on_made: Callable[[Broker], None] | None = None
        """Gets every broker before it starts."""
        self._loop = loop
        self._config = replace(
            config, host=host, port=PORT, namesrv=namesrv, data="/data", net=_NET
        )

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"{self.host}:{PORT}"

    async def start(self) -> None:
        """Start on what the disk holds."""
        node = self.node = self._loop.node(self.host)
        named = () if self.host == BROKER_HOST else (self.name,)
        randomness = stream(self._loop.seed, "broker", *named, self.crashes)
        self.broker = Broker(self._config, self.clock, self.disk, randomness=randomness)
        if self.on_made is not None:
            self.on_made(self.broker)
        await node.run(self.broker.start())

    async def stop(self) -> None:
        """Stop cleanly; `start` may follow."""
        await self.node.run(self.broker.stop())
        self.crashes += 1  # another life, with other random numbers

    def kill(self) -> None:
        """kill -9: the process is gone, what it wrote is in the page cache."""
        self.disk = self.disk.kill()
        self._end(silent=False)

    def cut_power(self) -> None:
        """The machine is gone: what was not synced may be lost, and peers see no reset."""
        named = () if self.host == BROKER_HOST else (self.name,)
        self.disk = self.disk.crash(stream(self._loop.seed, "power", *named, self.crashes))
        self._end(silent=True)

    def _end(self, *, silent: bool) -> None:
        self.crashes += 1
        self._loop.kill(self.node, silent=silent)


class SimCluster:
    """One simulated cluster. `broker`, `disk` and the like are those of the first broker."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        broker: BrokerConfig | None = None,
        brokers: int = 1,
        known_to: Sequence[Sequence[int]] = (),
    ) -> None:
        """`known_to` has the numbers of the name servers of each broker; all know the first."""
        self.loop = loop
        self.clock = SimClock(loop)
        config = broker or BrokerConfig()
        names = [config.name, *(f"broker-{chr(ord('a') + number)}" for number in range(1, brokers))]
        self.brokers = [
            SimBroker(
                loop, replace(config, name=name), f"10.0.0.{2 + number}",
                names_address(known_to[number] if known_to else [0]),
            )
            for number, name in enumerate(names)
        ]  # fmt: skip
        count = 1 + max((number for known in known_to for number in known), default=0)
        self.names = [SimNames(loop, number) for number in range(count)]
        self._clients = 0

    @property
    def broker(self) -> Broker:
        """Return the first broker as it runs now."""
        return self.brokers[0].broker

    @property
    def broker_node(self) -> Node:
        """Return the node of the first broker."""
        return self.brokers[0].node

    @property
    def disk(self) -> FakeFiles:
        """Return the disk of the first broker."""
        return self.brokers[0].disk

    @disk.setter
    def disk(self, disk: FakeFiles) -> None:
        self.brokers[0].disk = disk

    @property
    def crashes(self) -> int:
        """Return how often the first broker died."""
        return self.brokers[0].crashes

    async def start(self) -> None:
        """Start the name servers and the brokers."""
        for names in self.names:
            await names.start()
        for broker in self.brokers:
            await broker.start()

    async def start_broker(self) -> None:
        """Start the first broker on what its disk holds."""
        await self.brokers[0].start()

    def kill_broker(self) -> None:
        """kill -9 the first broker."""
        self.brokers[0].kill()

    def cut_power(self) -> None:
        """Cut the power of the first broker's machine."""
        self.brokers[0].cut_power()

    async def client(
        self, config: ClientConfig | None = None, *, names: Sequence[int] = (0,)
    ) -> tuple[Node, Session]:
        """Return a new client of these name servers: run its work in its node."""
        self._clients += 1
        host = f"10.0.1.{self._clients}"
        node = self.loop.node(host)
        session = Session(
            names_address(names),
            config=config,
            clock=SimClock(self.loop),
            identity=Identity(host, 1, self._clients),
        )
        await node.run(session.start())
        return node, session

    async def stop(self) -> None:
        """Stop all servers cleanly."""
        for broker in self.brokers:
            await broker.node.run(broker.broker.stop())
        for names in self.names:
            if names.node.alive:
                await names.node.run(names.server.stop())
