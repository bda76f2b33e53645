"""Accepting connections a few at a time, so that ten thousand that come at once stop nobody.

The loops that we run on accept everything that waits in one go: with a thousand in line that is a
stretch of 20 to 30 ms in which nobody else is served. Here a turn of the loop accepts ACCEPTED_MAX
and leaves the rest to the next one; who is here already is served in between. A loop that cannot
watch a socket (an in-memory one, or Windows' proactor) accepts in its own way.

A connection that would take a descriptor kept for files is closed at once (`descriptors.py`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from inorder.logs import get_logger

log = get_logger(__name__)

BACKLOG: Final = 1024
ACCEPTED_MAX: Final = 16
"""Connections accepted in one turn."""
PAUSE_S: Final = 1.0
"""How long nothing is accepted when there is no descriptor or memory for another connection."""
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
