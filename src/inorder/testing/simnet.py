"""A network in memory: what TCP promises, and every way in which it can let one down.

Bytes of one direction of a connection arrive whole and in order, cut and joined anywhere, after a
delay drawn from the seed. Hosts are names (IP literals); whoever runs inside `node.run(…)` has that
node's host as its source address.

    partition   a link passes nothing, one way or both; what was sent waits, a connect hangs
    stall       the same for one connection: half-open, neither side is told
    drop        both sides see a reset, bytes on the way are gone
    cut_after   the connection is dropped when n more bytes have arrived, at that very byte
    kill        all connections of a host are reset, or (silent, as by a power cut) just go quiet,
                until something listens there again and answers what comes over them with a reset

Buffers are bounded as in a kernel: at most WINDOW_BYTES of a direction are on the way or unread;
what is above stays in the sender's write buffer, with pause_writing and resume_writing as usual.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from inorder.testing.simtransport import Address, SimConnection, SimTransport

if TYPE_CHECKING:
    from inorder.testing.simloop import Node, SimLoop

EPHEMERAL_PORTS: Final = 40_000
ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared with, never bound

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class SimNetwork:
    """All hosts, listeners and connections of one loop."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._listeners: dict[Address, SimServer] = {}
        self._connections: list[SimConnection] = []
        self._delays_ms: dict[tuple[str, str], tuple[float, float]] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._next_port = EPHEMERAL_PORTS
        self._made = 0
        self.delay_ms: tuple[float, float] = (0.05, 1.0)
        """Least and most delay of a link that has none of its own."""

    # Faults.

    def set_delay(self, source: str, target: str, least_ms: float, most_ms: float) -> None:
        """Set the delay of the link from one host to another."""
        self._delays_ms[source, target] = (least_ms, most_ms)

    def partition(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """Let nothing pass from one host to the other (and back)."""
        self._blocked.add((one, other))
        if both_ways:
            self._blocked.add((other, one))

    def heal(self) -> None:
        """End all partitions and stalls; what waited goes on."""
        self._blocked.clear()
        for connection in self._connections:
            connection.stalled = False
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        for connection in self.connections():
            connection.pump()

    def connections(self, host: str | None = None) -> list[SimConnection]:
        """Return the open connections, oldest first; of one host if given."""
        self._connections = [each for each in self._connections if not each.gone]
        return [each for each in self._connections if host is None or host in each.hosts]

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """Take a node's sockets away; peers see a reset, or nothing at all."""
        for address in [a for a, server in self._listeners.items() if server.node is node]:
            del self._listeners[address]
        for connection in self.connections():
            for end in connection.ends:
                if end.node is node:
                    end.vanish()
                    if silent:
                        connection.stalled = True
                    else:
                        end.peer.reset_soon()

    def blocked(self, source: str, target: str) -> bool:
        """Tell whether a link passes nothing."""
        return (source, target) in self._blocked

    def draw_delay(self, source: str, target: str) -> float:
        """Return a delay for the link, in seconds."""
        least, most = self._delays_ms.get((source, target), self.delay_ms)
        return self._loop.random.uniform(least, most) / 1000

    # What the loop offers.

    def listen(self, factory: ProtocolFactory, host: str, port: int) -> SimServer:
        """Bind an address; port 0 takes a free one."""
        if port == 0:
            port = self._take_port()
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use on the simulated network")
        server = SimServer(self._loop, self, factory, (host, port))
        self._listeners[host, port] = server
        self._back(host)
        return server

    def _back(self, host: str) -> None:
        """Let a machine that is up again answer what is sent over connections of before: a reset.

        Whoever says nothing on them still hears nothing.
        """
        for connection in self.connections(host):
            if connection.stalled and any(e.lost and e.address[0] == host for e in connection.ends):
                connection.stalled = False
                connection.pump()

    def unlisten(self, address: Address) -> None:
        """Give an address back."""
        self._listeners.pop(address, None)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Open a connection from the current node."""
        loop = self._loop
        source = loop.current_host
        await self._pass(source, host)
        await asyncio.sleep(self.draw_delay(source, host))
        server = self._listeners.get((host, port)) or self._wildcard(port)
        if server is None:
            await self._pass(host, source)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        self._made += 1
        name = f"{self._made}:{source}>{host}:{port}"
        addresses = ((source, self._take_port()), (host, port))
        connection = SimConnection(loop, self, name, addresses, server)
        self._connections.append(connection)
        loop.note("connect", name)
        near, far = connection.ends
        far.attach(far.context.run(server.factory))
        await self._pass(host, source)
        await asyncio.sleep(self.draw_delay(host, source))
        protocol = factory()
        near.attach(protocol)
        await near.made
        return near, protocol

    async def _pass(self, source: str, target: str) -> None:
        """Wait while a link is cut: the handshake is sent again until it gets through."""
        while self.blocked(source, target):
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    def _wildcard(self, port: int) -> SimServer | None:
        return next(
            (self._listeners[h, port] for h in ANY_HOST if (h, port) in self._listeners), None
        )

    def _take_port(self) -> int:
        self._next_port += 1
        return self._next_port


class SimServer(asyncio.AbstractServer):
    """A listening address."""

    def __init__(
        self, loop: SimLoop, network: SimNetwork, factory: ProtocolFactory, address: Address
    ) -> None:
        self._loop = loop
        self._network = network
        self._address = address
        self._open = True
        self.factory = factory
        self.context = contextvars.copy_context()
        self.node = loop.node_of(self.context)

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        """Return what asyncio's servers return: something with getsockname()."""
        return (SimSocket(self._address),) if self._open else ()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._network.unlisten(self._address)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    def is_serving(self) -> bool:
        return self._open

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def start_serving(self) -> None:
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        await self._loop.create_future()


class SimSocket:
    """The name of a socket."""

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        """Return host and port."""
        return self._address

    def setsockopt(self, *_: object) -> None:
        """Take any option; none has a meaning here."""
