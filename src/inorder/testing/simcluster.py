"""A name server, a broker and clients as nodes of a simulated loop, with faults.

The name server lives on 10.0.0.1, the broker on 10.0.0.2 with a fake disk, each client on a host of
its own. Everything that happens follows from the seed of the loop.
"""

from __future__ import annotations

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
_NET = NetConfig(tls_mode="disabled")


class SimCluster:
    """One simulated cluster. `broker` and `disk` change with every crash."""

    def __init__(self, loop: SimLoop, *, broker: BrokerConfig | None = None) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.disk = FakeFiles()
        self.crashes = 0
        self._config = replace(
            broker or BrokerConfig(),
            host=BROKER_HOST,
            port=10911,
            namesrv=NAMESRV,
            data="/data",
            net=_NET,
        )
        self._names_node = loop.node(NAMES_HOST)
        self._names: NameServer
        self._clients = 0
        self.broker_node: Node
        self.broker: Broker

    async def start(self) -> None:
        """Start the name server and the broker."""
        config = NameServerConfig(host=NAMES_HOST, data="/names", net=_NET)
        self._names = NameServer(config, self.clock, FakeFiles())
        await self._names_node.run(self._names.start())
        await self.start_broker()

    async def start_broker(self) -> None:
        """Start a broker on what the disk holds."""
        node = self.broker_node = self.loop.node(BROKER_HOST)
        randomness = stream(self.loop.seed, "broker", self.crashes)
        self.broker = Broker(self._config, self.clock, self.disk, randomness=randomness)
        await node.run(self.broker.start())

    def kill_broker(self) -> None:
        """kill -9: the process is gone, what it wrote is in the page cache."""
        self.disk = self.disk.kill()
        self._end(silent=False)

    def cut_power(self) -> None:
        """The machine is gone: what was not synced may be lost, and peers see no reset."""
        self.disk = self.disk.crash(stream(self.loop.seed, "power", self.crashes))
        self._end(silent=True)

    def _end(self, *, silent: bool) -> None:
        self.crashes += 1
        self.loop.kill(self.broker_node, silent=silent)

    async def client(self, config: ClientConfig | None = None) -> tuple[Node, Session]:
        """Return a new client: run its work in its node."""
        self._clients += 1
        host = f"10.0.1.{self._clients}"
        node = self.loop.node(host)
        session = Session(
            NAMESRV, config=config, clock=self.clock, identity=Identity(host, 1, self._clients)
        )
        await node.run(session.start())
        return node, session

    async def stop(self) -> None:
        """Stop both servers cleanly."""
        await self.broker_node.run(self.broker.stop())
        await self._names_node.run(self._names.stop())
