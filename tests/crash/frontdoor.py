"""A name server of ours that leads clients to another address than the broker's own.

A broker tells name servers where it listens; clients that are to go through a proxy must be told
otherwise. The broker is started without a name server and registered here by hand, ours or
Apache RocketMQ alike. The registration lives as long as its connection.
"""

from __future__ import annotations

from pathlib import Path

from inorder.clock import SystemClock
from inorder.config import NameServerConfig, NetConfig
from inorder.disk import OsFiles
from inorder.model import DataVersion, TopicConfig
from inorder.nameserver.server import NameServer
from inorder.net.connection import Connection
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.ids import show_address
from inorder.wire.record import body_crc
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.routes import RegisterBroker

BROKER = "broker-a"
CLUSTER = "DefaultCluster"
EXPIRY_MS = 24 * 3600 * 1000


class FrontDoor:
    """A name server with one registered broker."""

    def __init__(self, folder: Path) -> None:
        config = NameServerConfig(port=0, data=str(folder / "names"), broker_expiry_ms=EXPIRY_MS)
        self._server = NameServer(config, SystemClock(), OsFiles())
        self._connection: Connection | None = None
        self.namesrv = ""

    async def start(self, address: str, *topics: TopicConfig) -> None:
        """Serve, and lead whoever asks for these topics to an address."""
        self.namesrv = show_address(*await self._server.start())
        self._connection = await Connection.open(self.namesrv, NetConfig())
        # A first registration of a single topic is refused, as RocketMQ does: its own name is one.
        table = {topic.name: topic for topic in (TopicConfig(BROKER, 1, 1), *topics)}
        body = RegisterBrokerBody(DataVersion(0, 1, 1), table).encode()
        header = RegisterBroker(
            BROKER,
            address,
            CLUSTER,
            "",
            0,
            heartbeat_timeout_ms=EXPIRY_MS,
            body_crc32=body_crc(body),
        )
        command = Command.request(RegisterBroker.CODE, encode_fields(header), body)
        answer = await self._connection.request(command, 5000)
        assert answer.code == 0, answer.remark

    async def stop(self) -> None:
        """Let go."""
        if self._connection is not None:
            self._connection.close("done")
        await self._server.stop()
