"""Asking the other brokers of a topic, found by a name server; one connection to each, kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.errors import ConnectFailed, broker_error
from inorder.model import MASTER_ID
from inorder.net.connection import Connection
from inorder.net.tls import client_context
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.requests.routes import GetRoute, TopicRoute

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

TIMEOUT_MS: Final = 3000


class Peers:
    """The other brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: dict[str, Connection] = {}

    def __repr__(self) -> str:
        return f"Peers({sorted(self._connections)})"

    async def ask(self, topic: str, name: str, command: Command) -> Command:
        """Ask a broker of a topic; return its answer if the code is 0.

        Raises TransportError if it cannot be reached, the BrokerError that it answers.
        """
        connection = await self.connect(topic, name)
        answer = await connection.request(command, TIMEOUT_MS)
        if answer.code != 0:
            raise broker_error(answer.code, answer.remark, answer.fields)
        return answer

    async def connect(self, topic: str, name: str) -> Connection:
        """Return the connection to a broker of a topic."""
        known = self._connections.get(name)
        if known is not None and not known.closed:
            return known
        address = await self._address(topic, name)
        config = self._broker.config.net
        tls = client_context(trust_any=True) if config.tls_mode == "enforcing" else None
        found = self._connections[name] = await Connection.open(address, config, tls=tls)
        return found

    async def _address(self, topic: str, name: str) -> str:
        """Return where a broker is now, as any name server knows."""
        request = Command.request(GetRoute.CODE, encode_fields(GetRoute(topic)))
        for answer in await self._broker.registration.ask_all(request):
            for data in TopicRoute.decode(answer.body).brokers:
                if data.name == name and MASTER_ID in data.addresses:
                    return data.addresses[MASTER_ID]
        raise ConnectFailed(f"no name server knows broker {name} of topic {topic} at present")

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close("the broker stops")
        self._connections.clear()
