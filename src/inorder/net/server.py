"""The listening side: many connections, one handler, one timer.

A connection cuts its input into frames and gives the handler *all* frames of one `data_received`
in one synchronous call. Output is queued and written once per tick of the loop, for all
connections of the server together. What a peer can cost is bounded:

- memory: the bytes it sent (up to one frame; where users are checked, long ones only from
  somebody who names a user, and before a login up to UNVERIFIED_BYTES_MAX of an address), and the
  replies it did not read. Above
  `write_buffer_bytes_max` nothing more is read from it, and frames that were read wait; above
  OUTPUT_FACTOR_MAX times that, or if it reads nothing for `frame_timeout_ms`, it is closed. When
  the unread replies of all connections exceed half of `unread_bytes_max`, each may have only a
  small part of its usual share; above all of it, those with most are closed;
- time: silence for `idle_timeout_ms`, or one frame that takes longer than `frame_timeout_ms`,
  closes the connection. The server has one timer, so an idle connection costs none;
- number: above `connections_max` or `connections_per_address_max` a new connection is closed at
  once. So is one whose descriptor is kept for files: the system gives out the lowest free number,
  so a descriptor below `limit - kept` leaves `kept` free, whatever else the process has open;
- rate: requests and bytes a second of an address, and of a user, if a setting limits them. What is
  over the limit waits, up to `accepted.WAITING_BYTES_MAX`; above that nothing is read. Heartbeats,
  locks, leases and responses do not wait (`rules.py`);
- turns: greedy peers, and thousands of new ones, wait in line (`fairness.py`). A turn of the loop
  accepts ACCEPTED_MAX connections. asyncio's own servers accept everything that waits, a stretch of
  20 to 30 ms for a thousand. A loop that cannot watch a socket (an in-memory one, or Windows'
  proactor) accepts in its own way.

A peer may speak TLS on the same port: the first byte tells (`net/tls.py`). Why so: decision 9.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inorder.errors import AlreadyClosed, ConfigError
from inorder.logs import get_logger
from inorder.net.accepted import (
    UNVERIFIED_BYTES_MAX,
    UNVERIFIED_TOTAL_MAX,
    FrameHandler,
    Screen,
    ServerConnection,
)
from inorder.net.fairness import Turns
from inorder.net.peerlog import QuietLog
from inorder.net.rules import Failures, Meters
from inorder.net.tls import ServerTls
from inorder.tasks import Tasks, periodic

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.config import NetConfig

log = get_logger(__name__)

BACKLOG: Final = 1024
ACCEPTED_MAX: Final = 16
"""Connections accepted in one turn."""
PAUSE_S: Final = 1.0
"""The pause of accepting when there is no descriptor or memory for another connection."""
_NO_ROOM: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

Factory = Callable[[], asyncio.Protocol]


class Listener:
    """Listening sockets of one address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: Factory,
        *,
        below: int | None = None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._below = below
        self._refused = refused
        self._factory = factory
        self._sockets: list[socket.socket] = []
        self._server: asyncio.Server | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.TimerHandle] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address that was bound (port 0 means any)."""
        loop = self._loop
        if type(loop).add_reader is asyncio.AbstractEventLoop.add_reader:  # it has none
            self._server = await loop.create_server(self._factory, host, port, backlog=BACKLOG)
            return _address(self._server.sockets[0].getsockname())
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_bound(family, kind, protocol, address))
            for one in self._sockets:
                loop.add_reader(one, self._accept, one)
        except BaseException:
            self.close()
            raise
        return _address(self._sockets[0].getsockname())

    def close(self) -> None:
        """Take no new connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for pause in self._pauses:
            pause.cancel()
        self._pauses.clear()
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._pause(listening, error)
                return
            if self._below is not None and accepted.fileno() >= self._below:
                accepted.close()
                self._refused()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._adopt(accepted))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted)
        except OSError as error:  # it is gone already
            log.debug("connection lost before it began error=%s", error)
            accepted.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        log.error(
            "no connection can be accepted for %.0f s: %s; raise the limit of open files (ulimit "
            "-n), or lower connections_max", PAUSE_S, error,
        )  # fmt: skip
        self._loop.remove_reader(listening)
        pause: asyncio.TimerHandle | None = None

        def again() -> None:
            assert pause is not None
            self._pauses.discard(pause)
            self._loop.add_reader(listening, self._accept, listening)

        pause = self._loop.call_later(PAUSE_S, again)
        self._pauses.add(pause)


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    return listening


def _address(bound: tuple[object, ...]) -> tuple[str, int]:
    host, port = bound[0], bound[1]
    assert isinstance(port, int)
    return str(host), port


WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Requests of all connections that wait for a limit; above, their connections are not read."""

SWEEP_INTERVAL_MS_MAX = 5000
SWEEP_INTERVAL_MS_MIN = 10


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """Counters of a server."""

    name: str
    address: str
    connections: int
    connections_total: int
    connections_refused: int
    tls_connections_total: int
    closed_for_protocol: int
    closed_for_silence: int
    closed_for_slowness: int
    limited_total: int
    """Requests that had to wait for a limit of their address or user."""
    frames_received: int
    bytes_received: int
    bytes_sent: int


class Server:
    """A listening address whose connections share a handler."""

    def __init__(
        self,
        handler: FrameHandler,
        config: NetConfig,
        clock: Clock,
        *,
        tls: ServerTls | None = None,
        name: str = "server",
    ) -> None:
        self.handler = handler
        self.config = config
        self.clock = clock
        self.name = name
        self.tls = tls if tls is not None else ServerTls.from_config(config)
        self.address: tuple[str, int] | None = None
        self._descriptors_below: int | None = None
        """The number that descriptors of connections stay below; set it before `start`."""
        self.quiet = QuietLog(log)
        self.connections_refused = 0
        self.tls_connections_total = 0
        self.closed_for_protocol = 0
        self.closed_for_silence = 0
        self.closed_for_slowness = 0
        self.frames_received = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.addresses: Meters[bytes] = Meters(
            requests_max=config.requests_per_address_max, bytes_max=config.bytes_per_address_max
        )
        self.users: Meters[str] = Meters(
            requests_max=config.requests_per_user_max,
            bytes_max=config.bytes_per_user_max,
            connections_max=config.connections_per_user_max,
        )
        self.failures = Failures()
        self.screen: Screen | None = None
        """Judges long frames by their header; None: whoever sends one may."""
        self._unverified: dict[bytes, int] = {}
        self._unverified_bytes = 0
        self.limited_total = 0
        self._waiting_bytes = 0
        self._connections: dict[int, ServerConnection] = {}
        self._of_address: dict[bytes, int] = {}
        self._last_connection_id = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: Listener | None = None
        self._tasks = Tasks(name)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self.turns = Turns(clock)
        self._dirty: list[ServerConnection] = []
        self._behind: set[ServerConnection] = set()
        self._unread_bytes = 0
        self._recount_above = config.unread_bytes_max // 2
        self.crowded = False
        """Whether the unread replies of all connections come near their limit."""
        self._flush_scheduled = False
        self._closed = False
        self._empty: asyncio.Future[None] | None = None
        limit_ms = min(config.idle_timeout_ms, config.frame_timeout_ms)
        self._sweep_ms = max(SWEEP_INTERVAL_MS_MIN, min(limit_ms // 4, SWEEP_INTERVAL_MS_MAX))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that the server runs on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    @property
    def connections(self) -> Iterable[ServerConnection]:
        """Return the open connections, oldest first."""
        return self._connections.values()

    def find(self, connection_id: object) -> ServerConnection | None:
        """Return an open connection by its number."""
        return self._connections.get(connection_id)  # type: ignore[call-overload,no-any-return]

    def judge_long(self, screen: Screen) -> None:
        """Receive the body of a long frame only if this says so of its header."""
        self.screen = screen

    def keep_descriptors(self, below: int | None) -> None:
        """Close new connections whose descriptor is not below this: files need the others."""
        self._descriptors_below = below

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address that was bound (port 0 means any)."""
        if self._closed:
            raise AlreadyClosed(f"{self!r} was closed; make a new one")
        self._listener = Listener(
            self.loop,
            lambda: ServerConnection(self),
            below=self._descriptors_below,
            refused=self._no_descriptor,
        )
        self.address = await self._listener.start(host, port)
        self._arm_sweep()
        if self.tls.watches:
            watch = periodic(
                lambda: self.tls.refresh(self.clock.now_ms()),
                interval_ms=self.config.tls_reload_interval_ms,
                clock=self.clock,
                name="watch of TLS files",
            )
            self._tasks.start(watch, name="tls")
        return self.address

    def stop_accepting(self) -> None:
        """Take no new connections; those that are open go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def pause_reading(self) -> None:
        """Read nothing more from any connection: the first step of a shutdown."""
        for connection in self._connections.values():
            connection.pause_reading()

    async def close(self, drain_ms: int = 0) -> None:
        """Stop: send queued bytes for up to `drain_ms`, then close every connection."""
        self._closed = True
        self.stop_accepting()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        await self._tasks.stop()
        for connection in list(self._connections.values()):
            connection.close("the server stops")
        if self._connections:
            self._empty = self.loop.create_future()
            if drain_ms > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain_ms / 1000):
                        await asyncio.shield(self._empty)
            for connection in list(self._connections.values()):
                connection.abort("the server stops")
            self.turns.finish()
            await self._empty

    def flush(self) -> None:
        """Write the queued bytes of all connections, one write each."""
        self._flush_scheduled = False
        dirty = self._dirty
        self._dirty = []
        for connection in dirty:
            connection.flush()

    def statistics(self) -> ServerStatistics:
        """Return a snapshot of the counters."""
        return ServerStatistics(
            name=self.name,
            address="" if self.address is None else f"{self.address[0]}:{self.address[1]}",
            connections=len(self._connections),
            connections_total=self._last_connection_id - self.connections_refused,
            connections_refused=self.connections_refused,
            tls_connections_total=self.tls_connections_total,
            closed_for_protocol=self.closed_for_protocol,
            closed_for_silence=self.closed_for_silence,
            closed_for_slowness=self.closed_for_slowness,
            limited_total=self.limited_total,
            frames_received=self.frames_received,
            bytes_received=self.bytes_received,
            bytes_sent=self.bytes_sent,
        )

    def __repr__(self) -> str:
        where = "not started" if self.address is None else f"{self.address[0]}:{self.address[1]}"
        state = ", closed" if self._closed else ""
        return f"Server({self.name!r}, {where}, connections={len(self._connections)}{state})"

    def _no_descriptor(self) -> None:
        self.connections_refused += 1
        self.quiet.warning(
            self.clock.monotonic_ms(),
            "server=%s refused a connection: the other descriptors are kept for files; raise the "
            "limit (ulimit -n), or find who opens so many connections=%d below=%d",
            self.name,
            len(self._connections),
            self._descriptors_below,
        )

    # What connections call.

    def add(self, connection: ServerConnection) -> int | None:
        """Register a new connection and return its number; None if it is one too many."""
        self._last_connection_id += 1
        if self._closed or len(self._connections) >= self.config.connections_max:
            self.connections_refused += 1
            return None
        address = connection.peer_host[:-4]
        count = self._of_address.get(address, 0)
        if count >= self.config.connections_per_address_max:
            self.connections_refused += 1
            return None
        self._of_address[address] = count + 1
        self._connections[self._last_connection_id] = connection
        return self._last_connection_id

    def remove(self, connection: ServerConnection) -> None:
        """Forget a connection that is gone."""
        self._connections.pop(connection.id, None)
        address = connection.peer_host[:-4]
        left = self._of_address.get(address, 1) - 1
        if left:
            self._of_address[address] = left
        else:
            self._of_address.pop(address, None)
        self.note_unread(connection, 0)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def charge(self, address: bytes, size: int) -> bool:
        """Count a long frame before any login, or discount it; return whether there is room."""
        self._unverified_bytes += size
        held = self._unverified.get(address, 0) + size
        if held:
            self._unverified[address] = held
        else:
            self._unverified.pop(address, None)
        return held <= UNVERIFIED_BYTES_MAX and self._unverified_bytes <= UNVERIFIED_TOTAL_MAX

    def note_unread(self, connection: ServerConnection, size: int) -> None:
        """Count the bytes that a peer has not read yet."""
        self._unread_bytes += size - connection.noted_bytes
        connection.noted_bytes = size
        if size:
            self._behind.add(connection)
        else:
            self._behind.discard(connection)
        if self._unread_bytes > self._recount_above:
            self._recount()

    def note_waiting(self, count: int, size: int) -> None:
        """Count requests that begin to wait for a limit, or no longer do."""
        self.limited_total += max(count, 0)
        self._waiting_bytes += size

    @property
    def waiting_full(self) -> bool:
        """Return whether so much waits for limits that those who wait are not read."""
        return self._waiting_bytes > WAITING_BYTES_MAX

    def _recount(self) -> None:
        """Count unread bytes anew, since peers have read; close those with most if needed."""
        total = 0
        for connection in list(self._behind):
            connection.noted_bytes = connection.unsent_bytes
            total += connection.noted_bytes
            if not connection.noted_bytes:
                self._behind.discard(connection)
        limit = self.config.unread_bytes_max
        worst = sorted(self._behind, key=lambda one: one.noted_bytes) if total > limit else []
        while total > limit and worst:
            connection = worst.pop()
            total -= connection.noted_bytes
            connection.noted_bytes = 0
            self._behind.discard(connection)
            connection.drop_unread()
        self._unread_bytes = total
        self.crowded = total > limit // 2
        self._recount_above = max(limit // 2, total + limit // 16)

    def mark_dirty(self, connection: ServerConnection) -> None:
        """Remember that a connection has output; it is written at the end of this tick."""
        self._dirty.append(connection)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self.flush)

    def _arm_sweep(self) -> None:
        self._sweep_timer = self.loop.call_later(self._sweep_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        now_ms = self.clock.monotonic_ms()
        for connection in list(self._connections.values()):
            connection.sweep(now_ms)
        if self._behind:
            self._recount()
        self.addresses.forget_idle(now_ms)
        self.users.forget_idle(now_ms)
        self._arm_sweep()


OWN: Final = 24
"""Descriptors for everything else: standard streams, the loop, ports, outgoing connections."""
CONNECTIONS_MIN: Final = 32
"""A server with fewer descriptors for connections does not start."""


def connections_below(limit: int, kept: int, *, server: str) -> int:
    """Return the number that descriptors of connections stay below; `kept` are kept for files.

    Raises:
        ConfigError: too few are left for connections.
    """
    needed = OWN + kept + CONNECTIONS_MIN
    if limit < needed:
        raise ConfigError(
            f"{server} may open {limit} files and connections (ulimit -n) and needs {needed} at "
            f"least: {kept} for files, {CONNECTIONS_MIN} for connections, {OWN} besides; raise the "
            "limit (ulimit -n, LimitNOFILE= of systemd)"
        )
    return limit - kept
