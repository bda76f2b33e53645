"""A broker on a simulated machine: the disk of `tests.kit.disk`, the loop of `simloop`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inorder.broker.broker import Broker
from inorder.config import BrokerConfig, NetConfig, StoreConfig
from inorder.net.connection import Connection
from inorder.wire.header import Command
from tests.crash.load import connect
from tests.kit.clock import SimClock
from tests.kit.disk import FakeFiles
from tests.kit.simcluster import stream
from tests.kit.simloop import Node, SimLoop

HOST = "10.0.0.2"
STORE = StoreConfig(
    segment_bytes=64 * 1024, queue_file_bytes=20 * 50, index_slots=50, index_entries=300,
    message_bytes_max=16 * 1024, queue_write_interval_ms=20, flush_interval_ms=100,
)  # fmt: skip
BROKER = BrokerConfig(
    host=HOST, port=10911, data="/srv/broker/data", offset_save_interval_ms=300,
    net=NetConfig(tls_mode="disabled"),
)  # fmt: skip


class Machine:
    """A machine with a broker; kills and power cuts replace the disk by what they leave of it."""

    def __init__(
        self, loop: SimLoop, store: StoreConfig, disk: FakeFiles | None = None, **settings: Any
    ) -> None:
        self._loop = loop
        self._config = replace(BROKER, store=store, **settings)
        self._connections: list[Connection] = []
        self.disk = FakeFiles() if disk is None else disk
        self.crashes = 0
        self.node: Node
        self.broker: Broker

    async def start(self) -> None:
        """Start a broker on what the disk holds."""
        self.node = self._loop.node(HOST)
        randomness = stream(self._loop.seed, "broker", self.crashes)
        self.broker = Broker(self._config, SimClock(self._loop), self.disk, randomness=randomness)
        await self.node.run(self.broker.start())

    async def stop(self) -> None:
        """Stop it cleanly."""
        await self.node.run(self.broker.stop())
        self._close()

    async def connect(
        self, on_request: Callable[[Connection, Command], None] | None = None
    ) -> Connection:
        """Open a connection, which ends with the broker."""
        connection = await connect(f"{HOST}:10911", on_request)
        self._connections.append(connection)
        return connection

    def kill(self) -> None:
        """kill -9: what was written is there."""
        self.disk = self.disk.kill()
        self._end()

    def cut_power(self) -> None:
        """What was not synced may be gone."""
        self.disk = self.disk.crash(stream(self._loop.seed, "power", self.crashes))
        self._end()

    def _end(self) -> None:
        self.crashes += 1
        self._loop.kill(self.node)
        self._close()

    def _close(self) -> None:
        for connection in self._connections:
            connection.close("the machine is gone")
        self._connections.clear()
