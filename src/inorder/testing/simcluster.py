"""A name server, brokers and clients as nodes of a simulated loop, with faults.

The name server lives on 10.0.0.1, brokers on 10.0.0.2 and up, each with a fake disk, each client
on a host of its own. Everything that happens follows from the seed of the loop. Every node has a
clock; all of them count the loop's time, what day it is they may be told differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inorder.broker.broker import Broker
from inorder.client.ids import Identity
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig, NameServerConfig, NetConfig
from inorder.nameserver.server import NameServer
from inorder.testing.clock import SimClock
from inorder.testing.disk import FakeFiles
from inorder.testing.seeds import stream
from inorder.testing.simloop import Node, SimLoop

NAMES_HOST = "10.0.0.1"
BROKER_HOST = "10.0.0.2"
NAMESRV = f"{NAMES_HOST}:9876"
PORT = 10911
_NET = NetConfig(tls_mode="disabled")


class SimBroker:
    """One broker over its lives. `node`, `broker` and `disk` change with every crash."""

    node: Node
    broker: Broker

    def __init__(self, loop: SimLoop, config: BrokerConfig, host: str) -> None:
        self.host = host
        self.name = config.name
        self.clock = SimClock(loop)
        self.disk = FakeFiles()
        self.crashes = 0
        self.on_made: Callable[[Broker], None] | None = None
        """Gets every broker before it starts."""
        self._loop = loop
        self._config = replace(
            config, host=host, port=PORT, namesrv=NAMESRV, data="/data", net=_NET
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
        self, loop: SimLoop, *, broker: BrokerConfig | None = None, brokers: int = 1
    ) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        config = broker or BrokerConfig()
        names = [config.name, *(f"broker-{chr(ord('a') + number)}" for number in range(1, brokers))]
        self.brokers = [
            SimBroker(loop, replace(config, name=name), f"10.0.0.{2 + number}")
            for number, name in enumerate(names)
        ]
        self._names_node = loop.node(NAMES_HOST)
        self._names: NameServer
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
        """Start the name server and the brokers."""
        config = NameServerConfig(host=NAMES_HOST, data="/names", net=_NET)
        self._names = NameServer(config, self.clock, FakeFiles())
        await self._names_node.run(self._names.start())
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

    async def client(self, config: ClientConfig | None = None) -> tuple[Node, Session]:
        """Return a new client: run its work in its node."""
        self._clients += 1
        host = f"10.0.1.{self._clients}"
        node = self.loop.node(host)
        session = Session(
            NAMESRV,
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
        await self._names_node.run(self._names.stop())
