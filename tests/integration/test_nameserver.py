"""A name server over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inorder.clock import SystemClock
from inorder.config import NameServerConfig, NetConfig
from inorder.disk import OsFiles
from inorder.errors import AlreadyClosed, ConnectionLost
from inorder.model import DataVersion, TopicConfig
from inorder.nameserver.server import NameServer
from inorder.net.connection import Connection
from inorder.net.tls import client_context
from inorder.wire.header import Command
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.routes import TopicRoute

TOPICS = {name: TopicConfig(name, 4, 4) for name in ("TBW102", "orders", "broker-a")}
FIELDS = {
    "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C",
    "haServerAddr": "10.0.0.1:10912", "brokerId": "0",
}  # fmt: skip


class ShiftedClock(SystemClock):
    """The machine's clock, and a jump that tests may add."""

    ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


@asynccontextmanager
async def serving(data: Path, **settings: Any) -> AsyncIterator[tuple[NameServer, str]]:
    """Run a name server; yield it and its address."""
    clock = settings.pop("clock", SystemClock())
    config = replace(NameServerConfig(), port=0, data=str(data), **settings)
    server = NameServer(config, clock, OsFiles())
    host, port = await server.start()
    try:
        yield server, f"{host}:{port}"
    finally:
        await server.stop()


async def ask(connection: Connection, code: int, fields: Any = None, body: bytes = b"") -> Command:
    """Send a request and return the answer."""
    return await connection.request(Command.request(code, fields, body), 5000)


async def register(connection: Connection, **changes: str) -> Command:
    """Register broker-a, or another, over a connection."""
    body = RegisterBrokerBody(DataVersion(0, 1, 1), TOPICS).encode()
    return await ask(connection, 103, {**FIELDS, **changes}, body)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is the case."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_a_broker_registers_and_a_client_finds_it(tmp_path: Path, encrypted: bool) -> None:
    """Register, ask for the route, lose the broker's connection, and the route is gone."""

    async def story() -> None:
        async with serving(tmp_path) as (server, address):
            tls = client_context(trust_any=True) if encrypted else None
            broker = await Connection.open(address, NetConfig(), tls=tls)
            client = await Connection.open(address, NetConfig(), tls=tls)
            assert (await ask(client, 105, {"topic": "orders"})).code == 17
            assert (await register(broker)).code == 0
            route = TopicRoute.decode((await ask(client, 105, {"topic": "orders"})).body)
            assert route.brokers[0].addresses == {0: "10.0.0.1:10911"}
            assert server.statistics().routes.topics == 3
            broker.close()
            await until(lambda: server.statistics().routes.brokers == 0)
            assert (await ask(client, 105, {"topic": "orders"})).code == 17

    asyncio.run(story())


def test_a_silent_broker_is_dropped_and_its_connection_closed(tmp_path: Path) -> None:
    """The scan finds it by its timeout; a live one stays."""

    async def story() -> None:
        clock = ShiftedClock()
        async with serving(tmp_path, clock=clock, scan_interval_ms=5) as (server, address):
            silent = await Connection.open(address, NetConfig())
            alive = await Connection.open(address, NetConfig())
            await register(silent)
            await register(
                alive, brokerName="broker-b", brokerAddr="10.0.0.2:1",
                heartbeatTimeoutMillis="999000",
            )  # fmt: skip
            clock.ahead_ms = 125_000
            await silent.wait_closed()
            assert list(server.routes.cluster_info().brokers) == ["broker-b"]
            assert not alive.closed

    asyncio.run(story())


def test_one_way_requests_are_carried_out_and_not_answered(tmp_path: Path) -> None:
    """A one-way registration counts; the next answer is that of the next request."""

    async def story() -> None:
        async with serving(tmp_path) as (server, address):
            broker = await Connection.open(address, NetConfig())
            body = RegisterBrokerBody(DataVersion(0, 1, 1), TOPICS).encode()
            broker.notify(Command.request(103, FIELDS, body, oneway=True))
            broker.notify(Command.request(9999, oneway=True))
            assert (await ask(broker, 105, {"topic": "orders"})).code == 0
            assert broker.statistics().responses_received == 1
            assert server.statistics().requests_total == 3

    asyncio.run(story())


def test_values_survive_a_restart(tmp_path: Path) -> None:
    """What was acknowledged is there again, and routes are not."""

    async def story() -> None:
        async with serving(tmp_path) as (_server, address):
            admin = await Connection.open(address, NetConfig())
            fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"}
            assert (await ask(admin, 100, fields)).code == 0
            await register(admin)
        async with serving(tmp_path) as (server, address):
            admin = await Connection.open(address, NetConfig())
            reply = await ask(admin, 101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"})
            assert reply.fields == {"value": "broker-a:4"}
            assert server.routes.topics() == []

    asyncio.run(story())


def test_several_name_servers_side_by_side(tmp_path: Path) -> None:
    """They know nothing of each other; a broker registers with each."""

    async def story() -> None:
        async with (
            serving(tmp_path / "1") as (one, first),
            serving(tmp_path / "2") as (two, second),
        ):
            assert first != second
            broker = await Connection.open(first, NetConfig())
            await register(broker)
            assert one.statistics().routes.brokers == 1
            assert two.statistics().routes.brokers == 0

    asyncio.run(story())


def test_a_bad_header_closes_and_a_bad_body_does_not(tmp_path: Path) -> None:
    """What cannot be answered is closed; what can be is answered."""

    async def story() -> None:
        async with serving(tmp_path) as (_server, address):
            good = await Connection.open(address, NetConfig())
            reply = await ask(good, 103, FIELDS, b"{broken")
            assert reply.code == 1
            bad = await Connection.open(address, NetConfig())
            asked = asyncio.ensure_future(ask(bad, 106))
            await asyncio.sleep(0)
            bad.write(b"\x00\x00\x00\x0a\x00\x00\x00\x06{\xff\xff\xff\xff}")
            with pytest.raises(ConnectionLost):
                await asked
                await ask(bad, 106)
            assert (await ask(good, 106)).code == 0

    asyncio.run(story())


def test_a_stopped_name_server_does_not_start_again(tmp_path: Path) -> None:
    """Stopping twice is fine; a new object is needed to start."""

    async def story() -> None:
        async with serving(tmp_path) as (server, _address):
            with pytest.raises(AlreadyClosed):
                await server.start()
            await server.stop()
            assert "stopped" in repr(server)
            with pytest.raises(AlreadyClosed):
                await server.start()

    asyncio.run(story())
