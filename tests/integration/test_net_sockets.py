"""Server, Connection and Pool over real sockets on the loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

import inorder
from inorder.clock import Clock, SystemClock
from inorder.config import NetConfig
from inorder.errors import AlreadyClosed, ConnectFailed, ConnectionLost
from inorder.net.accepted import ServerConnection
from inorder.net.connection import Connection
from inorder.net.pool import Pool
from inorder.net.server import Server
from inorder.net.tls import client_context
from inorder.wire.frame import RawFrame, encode_frame
from inorder.wire.header import Command, decode_command

HOST = "127.0.0.1"
OURS = str(Path(inorder.__file__).parent)


class Echo:
    """Answer each request with its own body."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.connections: list[ServerConnection] = []
        self.body: bytes | None = None

    def connection_made(self, connection: ServerConnection) -> None:
        self.connections.append(connection)

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        for frame in frames:
            command = decode_command(frame)
            if command.is_response:
                assert connection.take_response(command)
            else:
                connection.send(command.reply(0, body=self.body or command.body))

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        self.lost.append(reason)


@asynccontextmanager
async def serving(
    *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[Server, Echo, str]]:
    """Run an echo server; yield it and its address."""
    echo = Echo()
    config = replace(NetConfig(), **settings)
    server = Server(echo, config, clock or SystemClock(), name="echo")
    host, port = await server.start(HOST, 0)
    try:
        yield server, echo, f"{host}:{port}"
    finally:
        await server.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is the case."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def raw_connect(address: str) -> socket.socket:
    """Return a plain non-blocking socket to an address."""
    host, _, port = address.rpartition(":")
    plain = socket.socket()
    plain.setblocking(False)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    return plain


async def read_end(plain: socket.socket) -> bytes:
    """Read until the other side closes."""
    data = b""
    async with asyncio.timeout(30):
        while True:
            try:
                piece = await asyncio.get_running_loop().sock_recv(plain, 65536)
            except ConnectionResetError:
                break
            if not piece:
                break
            data += piece
    plain.close()
    return data


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_requests_in_both_directions(encrypted: bool) -> None:
    """Client asks server, server asks client, small and large, on one port."""

    def answer(connection: Connection, command: Command) -> None:
        connection.send(command.reply(0, "from the client"))

    async def story() -> None:
        async with serving() as (server, echo, address):
            tls = client_context(trust_any=True) if encrypted else None
            config = NetConfig()
            connection = await Connection.open(address, config, on_request=answer, tls=tls)
            bodies = [b"", b"x", b"y" * 3_000_000]
            answers = await asyncio.gather(
                *(connection.request(Command.request(1, body=body), 5000) for body in bodies)
            )
            assert [reply.body for reply in answers] == bodies
            asked = await echo.connections[0].request(Command.request(307), 5000)
            assert asked.remark == "from the client"
            assert server.statistics().tls_connections_total == int(encrypted)
            connection.close()
            await until(lambda: echo.lost == ["the peer closed"])

    asyncio.run(story())


def test_verified_tls_with_a_configured_certificate(tmp_path: Path) -> None:
    """enforcing: a client that trusts the authority connects, plain text is closed."""
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    pem, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(pem)
    certificate.private_key_pem.write_to_path(key)

    async def story() -> None:
        settings = {"tls_mode": "enforcing", "tls_certificate": pem, "tls_key": key}
        async with serving(**settings) as (server, _echo, address):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            good = await Connection.open(address, NetConfig(), tls=context)
            assert (await good.request(Command.request(1, body=b"hi"), 5000)).body == b"hi"
            with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
                await Connection.open(address, NetConfig(), tls=client_context())
            plain = await Connection.open(address, NetConfig())
            with pytest.raises(ConnectionLost):
                await plain.request(Command.request(1), 5000)
            assert server.statistics().closed_for_protocol == 2

    asyncio.run(story())


def test_slow_loris_and_silence_are_closed_by_the_shared_timer() -> None:
    """One dribbles, one says nothing, one works: only the last one stays."""

    class Turns(SystemClock):
        """Time goes by only while the one that works does: the machine may stop for a while."""

        ms = 0

        def monotonic_ms(self) -> int:
            return self.ms

    async def story() -> None:
        clock = Turns()
        limits = {"frame_timeout_ms": 80, "idle_timeout_ms": 80}
        async with serving(clock=clock, **limits) as (server, echo, address):
            worker = await Connection.open(address, NetConfig())
            silent = await raw_connect(address)
            loris = await raw_connect(address)
            frame = encode_frame(Command.request(1, body=b"x" * 1000))
            loop = asyncio.get_running_loop()
            sent = 0
            while len(echo.lost) < 2:
                await worker.request(Command.request(1), 5000)
                if sent < 500 and "a frame did not complete in time" not in echo.lost:
                    await loop.sock_sendall(loris, frame[sent : sent + 1])
                    sent += 1
                clock.ms += 2
                await asyncio.sleep(0.002)
            assert sorted(echo.lost) == ["a frame did not complete in time", "silent for too long"]
            assert await read_end(silent) == b""
            assert not worker.closed
            assert server.statistics().connections == 1
            loris.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.0\r\n\r\n", b"\x16garbage that is no TLS", b"\xff" * 99]
)
def test_garbage_is_closed_and_others_go_on(garbage: bytes) -> None:
    """A port scan costs one connection and disturbs nobody."""

    async def story() -> None:
        async with serving() as (server, _echo, address):
            worker = await Connection.open(address, NetConfig())
            bad = await raw_connect(address)
            await asyncio.get_running_loop().sock_sendall(bad, garbage)
            await read_end(bad)
            assert (await worker.request(Command.request(1, body=b"ok"), 5000)).body == b"ok"
            assert server.statistics().closed_for_protocol == 1

    asyncio.run(story())


def test_a_peer_that_does_not_read_is_paused_then_served_in_full() -> None:
    """Back-pressure: requests stop being read; when the peer reads, nothing is missing."""

    async def story() -> None:
        async with serving(write_buffer_bytes_max=512 * 1024) as (server, echo, address):
            echo.body = b"z" * 50_000
            plain = await raw_connect(address)
            loop = asyncio.get_running_loop()
            request = encode_frame(Command.request(1))
            sent = 0
            while not (echo.connections and echo.connections[0].congested):
                await loop.sock_sendall(plain, request)
                sent += 1
                await asyncio.sleep(0)
            frames_then = server.statistics().frames_received
            for _ in range(20):
                await loop.sock_sendall(plain, request)
                sent += 1
            await asyncio.sleep(0.02)
            assert server.statistics().frames_received == frames_then
            assert echo.connections[0].unsent_bytes < 8 * 1024 * 1024
            answer = len(encode_frame(Command.request(1).reply(0, body=echo.body)))
            received = 0
            while received < sent * answer:
                received += len(await loop.sock_recv(plain, 1 << 20))
            assert received == sent * answer
            plain.close()

    asyncio.run(story())


def test_a_peer_that_never_reads_is_closed() -> None:
    """Nothing taken for frame_timeout_ms: the connection and its buffers are given up."""

    async def story() -> None:
        limits = {"write_buffer_bytes_max": 64 * 1024, "frame_timeout_ms": 60}
        async with serving(**limits) as (server, echo, address):
            echo.body = b"z" * 1_000_000
            plain = await raw_connect(address)
            request = encode_frame(Command.request(1))
            loop = asyncio.get_running_loop()
            while not (echo.connections and echo.connections[0].congested):
                await loop.sock_sendall(plain, request)
                await asyncio.sleep(0)
            await until(lambda: bool(echo.lost))
            assert echo.lost == ["the peer does not read its answers"]
            assert server.statistics().closed_for_slowness == 1
            plain.close()

    asyncio.run(story())


@pytest.mark.slow
def test_a_thousand_idle_connections_are_cheap() -> None:
    """Our part of an idle connection is about 2 KB, and all of them can be closed at once."""

    async def story() -> None:
        async with serving() as (server, echo, address):
            loop = asyncio.get_running_loop()
            first = await raw_connect(address)
            await until(lambda: len(echo.connections) == 1)
            tracemalloc.start()
            request = encode_frame(Command.request(1))
            clients = [first]
            for _ in range(999):
                client = await raw_connect(address)
                await loop.sock_sendall(client, request)
                clients.append(client)
            await until(lambda: server.statistics().frames_received == 999)
            for _ in range(2):
                for connection in echo.connections:
                    connection.sweep(1)
            snapshot = tracemalloc.take_snapshot()
            tracemalloc.stop()
            ours = sum(
                stat.size
                for stat in snapshot.statistics("filename")
                if stat.traceback[0].filename.startswith(OURS)
            )
            assert ours / 999 < 2048
            assert server.statistics().connections == 1000
            await server.close()
            assert len(echo.lost) == 1000
            for client in clients:
                client.close()

    asyncio.run(story())


def test_close_delivers_what_is_queued() -> None:
    """Stopping a server within its time to drain loses no answer that was given."""

    async def story() -> None:
        async with serving() as (server, echo, address):
            echo.body = b"z" * 2_000_000
            connection = await Connection.open(address, NetConfig())
            asked = asyncio.ensure_future(connection.request(Command.request(1), 5000))
            await until(lambda: server.statistics().bytes_sent > 0)
            await server.close(drain_ms=5000)
            assert len((await asked).body) == 2_000_000
            with pytest.raises(AlreadyClosed):
                await server.start(HOST, 0)

    asyncio.run(story())


def test_the_pool_shares_one_connection_and_makes_a_new_one_when_lost() -> None:
    """Callers at the same time share an attempt; after a loss the next `get` connects again."""

    async def story() -> None:
        async with serving() as (_server, echo, address):
            pool = Pool(NetConfig(), SystemClock())
            first, second = await asyncio.gather(pool.get(address), pool.get(address))
            assert first is second
            assert await pool.get(address) is first
            assert pool.peek(address) is first
            assert pool.statistics().connected == (address,)
            echo.connections[0].close("maintenance")
            await first.wait_closed()
            assert pool.peek(address) is None
            third = await pool.get(address)
            assert third is not first
            pool.drop(address, "a test")
            assert third.closed
            await pool.get(address)
            await pool.close()
            with pytest.raises(AlreadyClosed):
                await pool.get(address)

    asyncio.run(story())


def test_an_address_is_avoided_after_a_failure_and_recovers() -> None:
    """Meanwhile the last error comes at once; later the address is tried again."""

    class Clock(SystemClock):
        ahead_ms = 0

        def monotonic_ms(self) -> int:
            return super().monotonic_ms() + self.ahead_ms

    async def story() -> None:
        clock = Clock()
        server = Server(Echo(), NetConfig(), clock)
        host, port = await server.start(HOST, 0)
        await server.close()
        address = f"{host}:{port}"
        pool = Pool(NetConfig(), clock)
        with pytest.raises(ConnectFailed, match="Connect call failed"):
            await pool.get(address)
        with pytest.raises(ConnectFailed, match="the next attempt is in"):
            await pool.get(address)
        assert pool.statistics().paused == (address,)
        again = Server(Echo(), NetConfig(), clock)
        await again.start(host, port)
        clock.ahead_ms = 60_000
        connection = await pool.get(address)
        assert (await connection.request(Command.request(1), 5000)).code == 0
        await pool.close()
        await again.close()

    asyncio.run(story())


def test_a_caller_that_gives_up_does_not_spoil_it_for_others() -> None:
    """Cancelling one of two callers leaves the attempt to the other."""

    async def story() -> None:
        async with serving() as (_server, _echo, address):
            pool = Pool(NetConfig(), SystemClock())
            impatient = asyncio.ensure_future(pool.get(address))
            patient = asyncio.ensure_future(pool.get(address))
            await asyncio.sleep(0)
            impatient.cancel()
            assert (await patient).address == address
            await pool.close()

    asyncio.run(story())
