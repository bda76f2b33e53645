"""A network in memory: what TCP promises, and every way in which TCP can fail.

Bytes of one direction of a connection arrive whole and in order, cut and joined anywhere, after a
delay drawn from the seed. Hosts are names (IP literals); code inside `node.run(…)` has that node's
host as its source address, and callbacks of a connection's end run in the context of its node.

    partition   a link passes nothing, one way or both; sent bytes wait, a connect hangs
    stall       the same for one connection: half-open, neither side is told
    drop        both sides see a reset, bytes on the way are gone
    cut_after   the connection is dropped when n more bytes have arrived, at that very byte
    kill        all connections of a host are reset, or (silent, as by a power cut) just go quiet,
                until something listens there again and answers what comes over them with a reset

Buffers are bounded as in a kernel: at most WINDOW_BYTES of a direction are on the way or unread.
The rest stays in the sender's write buffer, with pause_writing and resume_writing as usual. How a
whole cluster is simulated: decision 38.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.kit.simloop import Node, SimLoop

WINDOW_BYTES: Final = 256 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024

Address = tuple[str, int]


class SimConnection:
    """Two transports and the bytes between them."""

    def __init__(
        self,
        loop: SimLoop,
        network: SimNetwork,
        name: str,
        addresses: tuple[Address, Address],
        server: SimServer,
    ) -> None:
        self.name = name
        self.stalled = False
        near, far = addresses
        self.hosts = (near[0], far[0])
        client = SimTransport(loop, network, self, (near, far), contextvars.copy_context())
        accepted = SimTransport(loop, network, self, (far, near), server.context.copy())
        self.ends = (client, accepted)
        client.peer, accepted.peer = accepted, client

    @property
    def gone(self) -> bool:
        """Return whether both ends know the end of the connection, or are dead."""
        return all(end.lost for end in self.ends)

    def drop(self) -> None:
        """Reset the connection on both sides at once."""
        for end in self.ends:
            end.reset_now()

    def stall(self) -> None:
        """Pass nothing more, and tell nobody; `SimNetwork.heal` ends it."""
        self.stalled = True

    def cut_after(self, size_bytes: int, *, toward: str) -> None:
        """Drop the connection when that many more bytes have reached the host `toward`."""
        for end in self.ends:
            if end.address[0] == toward:
                end.cut_bytes = size_bytes
                return
        raise ValueError(f"{toward} is no end of {self.name}")

    def pump(self) -> None:
        """Try again to move bytes, after a fault went away."""
        for end in self.ends:
            end.look_again()

    def __repr__(self) -> str:
        return f"SimConnection({self.name}{', stalled' if self.stalled else ''})"


class _End:
    """A marker in the stream: the sender closed, or was reset."""

    __slots__ = ("error",)

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    peer: SimTransport

    def __init__(
        self,
        loop: SimLoop,
        network: SimNetwork,
        connection: SimConnection,
        addresses: tuple[Address, Address],
        context: contextvars.Context,
    ) -> None:
        self.address, remote = addresses
        super().__init__({"sockname": self.address, "peername": remote})
        self._loop = loop
        self._network = network
        self._connection = connection
        self.context = context
        self.made: asyncio.Future[None] = loop.create_future()
        self.node: Node = loop.node_of(context)
        self._protocol: asyncio.Protocol | None = None
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._incoming: deque[tuple[float, bytes | _End]] = deque()
        self._incoming_bytes = 0
        self._last_arrival = 0.0
        self._low, self._high = HIGH_WATER_BYTES // 4, HIGH_WATER_BYTES
        self._paused_reading = False
        self._paused_writing = False
        self._closing = False
        self._eof_sent = False
        self.lost = False
        self.cut_bytes: int | None = None

    # What the network does.

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the transport its protocol; connection_made comes in the next tick."""
        assert isinstance(protocol, asyncio.Protocol), "only asyncio.Protocol is simulated"
        self._protocol = protocol
        self._soon(self._made)

    def _made(self) -> None:
        assert self._protocol is not None
        self.made.set_result(None)
        if self.lost:
            return
        self._protocol.connection_made(self)
        self.arrive()

    def arrive(self) -> None:
        """Deliver the bytes that have arrived by now; called when some are due or may go on."""
        if not self._readable:
            return
        chunks: list[bytes] = []
        while self._incoming and self._incoming[0][0] <= self._loop.time():
            item = self._incoming[0][1]
            if isinstance(item, _End):
                if not chunks:
                    self._incoming.popleft()
                    self._ended(item)
                    return
                break
            self._incoming.popleft()
            chunks.append(item)
        if chunks:
            self._receive(b"".join(chunks))
        if self._incoming and self._incoming[0][0] <= self._loop.time():
            self.look_again()

    def look_again(self) -> None:
        """Deliver in the next tick the bytes that may be delivered now."""
        self._soon(self.arrive)

    @property
    def _readable(self) -> bool:
        ready = self.made.done() and not self._paused_reading and not self.lost
        link = (self.peer.address[0], self.address[0])
        return ready and not self._connection.stalled and not self._network.blocked(*link)

    def _receive(self, data: bytes) -> None:
        assert self._protocol is not None
        if self.cut_bytes is not None:
            if len(data) >= self.cut_bytes:
                data = data[: self.cut_bytes]
                self._incoming.clear()
                self._soon(self._connection.drop)
            self.cut_bytes -= len(data)
        self._incoming_bytes -= len(data)
        if data and not self._closing:
            self._loop.note("data", self._connection.name, self.address[1], zlib.crc32(data))
            self._protocol.data_received(data)
        self.peer._push()

    def _ended(self, end: _End) -> None:
        assert self._protocol is not None
        if end.error is not None:
            self._lose(end.error)
        elif not self._closing and not self._protocol.eof_received():
            self.close()

    def reset_now(self) -> None:
        """Lose the connection in this tick, and all bytes with it."""
        if not self.lost:
            self._soon(self._lose, ConnectionResetError(errno.ECONNRESET, "reset by the network"))

    def reset_soon(self) -> None:
        """Learn of the peer's death after what it had sent before."""
        self._enqueue(_End(ConnectionResetError(errno.ECONNRESET, "the peer died")))

    def vanish(self) -> None:
        """Be dead: no callback comes any more, not even connection_lost."""
        self.lost = self._closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._incoming.clear()
        self._incoming_bytes = 0

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        unread = self._incoming_bytes > 0
        self.vanish()
        if unread:  # the kernel answers bytes without a reader with a reset
            self.peer.reset_soon()
        self._loop.note("lost", self._connection.name, self.address[1], type(error).__name__)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _push(self) -> None:
        """Move bytes from the write buffer to the wire as far as the window allows."""
        peer = self.peer
        while self._unsent and peer._incoming_bytes < WINDOW_BYTES:
            data = self._unsent.popleft()
            size = min(
                len(data), WINDOW_BYTES - peer._incoming_bytes, self._loop.draw_cut(len(data))
            )
            if size < len(data):
                self._unsent.appendleft(data[size:])
            self._unsent_bytes -= size
            peer._enqueue(data[:size])
        if self._paused_writing and self._unsent_bytes <= self._low and self._protocol is not None:
            self._paused_writing = False
            self._soon(self._protocol.resume_writing)
        if self._closing and not self._unsent and not self.lost:
            self._send_end()
            self._soon(self._lose, None)

    def _enqueue(self, item: bytes | _End) -> None:
        if self.lost:
            if isinstance(item, bytes):
                self.peer.reset_soon()
            return
        delay = self._network.draw_delay(self.peer.address[0], self.address[0])
        due = max(self._last_arrival, self._loop.time() + delay)
        self._last_arrival = due
        self._incoming.append((due, item))
        if isinstance(item, bytes):
            self._incoming_bytes += len(item)
        self._schedule_arrival(due)

    def _schedule_arrival(self, due: float) -> None:
        self._loop.call_at(due, self.arrive, context=self.context)

    def _send_end(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self.peer._enqueue(_End(None))

    def _soon(self, callback: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(callback, *args, context=self.context)

    # What the protocol calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        if self._eof_sent:
            raise RuntimeError("write after write_eof()")
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._push()
        if self._unsent_bytes > self._high and not self._paused_writing and self._protocol:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._push()
        self._send_end()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 4 * low if low is not None else HIGH_WATER_BYTES
        self._high = high
        self._low = high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        if self._paused_reading and not self._closing:
            self._paused_reading = False
            self.look_again()

    def is_reading(self) -> bool:
        return not self._paused_reading and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._push()

    def abort(self) -> None:
        if self.lost:
            return
        self._closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        if not self._eof_sent:
            self._eof_sent = True
            self.peer._enqueue(_End(ConnectionResetError(errno.ECONNRESET, "aborted by the peer")))
        self._soon(self._lose, None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def __repr__(self) -> str:
        return f"SimTransport({self._connection.name} at {self.address[0]}:{self.address[1]})"


EPHEMERAL_PORTS: Final = 40_000
ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})  # compared with, never bound

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
        """Let a restarted machine answer bytes on its former connections with a reset.

        A peer that sends nothing on such a connection still hears nothing.
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
