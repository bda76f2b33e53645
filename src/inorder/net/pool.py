"""Shared connections: one per address, opened when needed and opened again when lost.

After a failed attempt an address is not tried for a while, longer each time. A caller who asks
meanwhile gets the last error at once and decides whether to wait or to go elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inorder.errors import AlreadyClosed, ConnectFailed, TransportError
from inorder.net.connection import CONNECT_TIMEOUT_MS, Connection, OnDenied, OnLost, OnRequest
from inorder.tasks import Backoff

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.config import NetConfig
    from inorder.credentials import Credentials

PAUSE_FIRST_MS = 50
PAUSE_MAX_MS = 2000


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The addresses of a pool."""

    connected: tuple[str, ...]
    connecting: tuple[str, ...]
    paused: tuple[str, ...]
    """Addresses that are not tried again yet, because the last attempt failed."""


@dataclass(slots=True)
class _Slot:
    """The state of one address."""

    connection: Connection | None = None
    attempt: asyncio.Task[Connection] | None = None
    pause: Backoff = field(default_factory=lambda: Backoff(PAUSE_FIRST_MS, PAUSE_MAX_MS))
    paused_until_ms: int = 0
    error: str = ""


class Pool:
    """The connections of one client."""

    def __init__(
        self,
        config: NetConfig,
        clock: Clock,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        on_denied: OnDenied | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        greet: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> None:
        """`greet` gets every new connection before callers do."""
        self._config = config
        self._clock = clock
        self._connect_timeout_ms = connect_timeout_ms
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_denied = on_denied
        self._tls = tls
        self._credentials = credentials
        self._greet = greet
        self._slots: dict[str, _Slot] = {}
        self._closed = False

    async def get(self, address: str) -> Connection:
        """Return the connection to an address, connecting if there is none.

        Callers that ask at the same time share one attempt. Raises ConnectFailed.
        """
        if self._closed:
            raise AlreadyClosed("the connection pool was closed")
        slot = self._slots.setdefault(address, _Slot())
        if slot.connection is not None and not slot.connection.closed:
            return slot.connection
        if slot.attempt is None:
            wait_ms = slot.paused_until_ms - self._clock.monotonic_ms()
            if wait_ms > 0:
                raise ConnectFailed(f"{slot.error}; the next attempt is in {wait_ms} ms")
            slot.attempt = asyncio.get_running_loop().create_task(
                self._connect(address, slot), name=f"connect {address}"
            )
            slot.attempt.add_done_callback(_retrieve)
        return await asyncio.shield(slot.attempt)

    def peek(self, address: str) -> Connection | None:
        """Return the open connection to an address, if there is one."""
        slot = self._slots.get(address)
        if slot is None or slot.connection is None or slot.connection.closed:
            return None
        return slot.connection

    def drop(self, address: str, reason: str) -> None:
        """Close the connection to an address; the next `get` makes a new one."""
        slot = self._slots.get(address)
        if slot is not None and slot.connection is not None:
            slot.connection.close(reason)
            slot.connection = None

    async def close(self) -> None:
        """Close all connections and wait until they are gone."""
        self._closed = True
        attempts = [slot.attempt for slot in self._slots.values() if slot.attempt is not None]
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        connections = [s.connection for s in self._slots.values() if s.connection is not None]
        for connection in connections:
            connection.close("the client stops")
        for connection in connections:
            await connection.wait_closed()
        self._slots.clear()

    def statistics(self) -> PoolStatistics:
        """Return which addresses are in which state."""
        now_ms = self._clock.monotonic_ms()
        return PoolStatistics(
            connected=tuple(a for a in self._slots if self.peek(a) is not None),
            connecting=tuple(a for a, s in self._slots.items() if s.attempt is not None),
            paused=tuple(
                a for a, s in self._slots.items()
                if s.attempt is None and self.peek(a) is None and s.paused_until_ms > now_ms
            ),
        )  # fmt: skip

    def __repr__(self) -> str:
        state = "closed" if self._closed else ", ".join(self.statistics().connected) or "empty"
        return f"Pool({state})"

    async def _connect(self, address: str, slot: _Slot) -> Connection:
        try:
            connection = await self._open(address)
        except ConnectFailed as error:
            slot.error = str(error)
            slot.paused_until_ms = self._clock.monotonic_ms() + slot.pause.next_ms()
            raise
        finally:
            slot.attempt = None
        slot.pause.reset()
        slot.connection = connection
        return connection

    async def _open(self, address: str) -> Connection:
        connection = await Connection.open(
            address,
            self._config,
            connect_timeout_ms=self._connect_timeout_ms,
            on_request=self._on_request,
            on_lost=self._on_lost,
            on_denied=self._on_denied,
            tls=self._tls,
            credentials=self._credentials,
        )
        if self._greet is not None:
            try:
                await self._greet(connection)
            except TransportError as error:
                connection.close("it did not answer the first request")
                raise ConnectFailed(f"{address} does not answer: {error}") from error
            except BaseException:
                connection.close("the client gave up")
                raise
        return connection


def _retrieve(attempt: asyncio.Task[Connection]) -> None:
    """Retrieve the error, in case all callers stopped waiting."""
    if not attempt.cancelled():
        attempt.exception()
