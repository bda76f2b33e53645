"""Output to a transport, and outstanding calls: requests that wait for their replies.

Queued output reaches the transport with few system calls and without a copy of large parts. Calls
are futures over an `Exchange`, with one timer for all deadlines. Why output is written once per
tick: decision 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

from inorder.accelerated import native
from inorder.errors import RequestTimeout
from inorder.wire.exchange import Exchange

if TYPE_CHECKING:
    from inorder.wire.frame import Split
    from inorder.wire.header import Command

Buffer = bytes | bytearray | memoryview

SPLIT: Split | None = None if native is None else native.split_frames
"""Splits a read into frames by the compiled module; None: Python does."""

JOIN_BYTES_MAX = 128 * 1024
"""Joining costs a copy, a write a system call; above this the copy costs more."""


def write_out(transport: asyncio.WriteTransport, parts: list[Buffer]) -> None:
    """Write the parts in order: runs of small ones joined, large ones as they are."""
    if len(parts) == 1:
        transport.write(parts[0])
        return
    run: list[Buffer] = []
    run_bytes = 0
    for part in parts:
        size = len(part)
        if run_bytes + size > JOIN_BYTES_MAX and run:
            transport.write(run[0] if len(run) == 1 else b"".join(run))
            run = []
            run_bytes = 0
        run.append(part)
        run_bytes += size
    if run:
        transport.write(run[0] if len(run) == 1 else b"".join(run))


def write_last(transport: asyncio.Transport, parts: list[Buffer]) -> int:
    """Write the last bytes of a connection, their end in the same packet; return how many.

    A transport would write later and end later still, so the bytes go through the socket. Where
    that is impossible (a simulated transport, other output waits) they are written as usual.
    """
    data = b"".join(parts)
    shown = transport.get_extra_info("socket")
    sent = 0
    if shown is not None and not transport.get_write_buffer_size():
        with (
            contextlib.suppress(OSError),  # the peer is gone, or takes nothing now
            socket.socket(fileno=os.dup(shown.fileno())) as own,
        ):
            sent = own.send(data, socket.MSG_DONTWAIT | getattr(socket, "MSG_MORE", 0))
            if sent == len(data):
                own.shutdown(socket.SHUT_WR)
    if sent < len(data):
        transport.write(data[sent:])
    return len(data)


class _Call(asyncio.Future["Command"]):
    """The future of one reply; it remembers the request for the error message."""

    code: int = 0
    timeout_ms: int = 0


class Calls:
    """The outstanding requests of one connection. Deadlines are in the loop's own time."""

    __slots__ = ("_exchange", "_loop", "_peer", "_timer", "_timer_at_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, outstanding_max: int, peer: str) -> None:
        self._loop = loop
        self._peer = peer
        self._exchange: Exchange[_Call] = Exchange(outstanding_max)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    def open(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Give a request its id and return the future of its reply; the caller sends it."""
        call = _Call(loop=self._loop)
        call.code = command.code
        call.timeout_ms = timeout_ms
        deadline_ms = int(self._loop.time() * 1000) + timeout_ms
        command.request_id = self._exchange.open(call, deadline_ms)
        if self._timer is None or deadline_ms < self._timer_at_ms:
            self._arm(deadline_ms)
        return call

    def next_id(self) -> int:
        """Return an id for a request that has no future here."""
        return self._exchange.next_id()

    def number(self, command: Command) -> None:
        """Give a one-way request an id of its own."""
        command.request_id = self._exchange.next_id()

    def take(self, response: Command) -> bool:
        """Give a response to its future; False for a stray one, which is dropped."""
        call = self._exchange.take(response.request_id)
        if call is None or call.done():
            return False
        call.set_result(response)
        return True

    def forget(self, request_id: int) -> None:
        """Drop a request whose caller stopped waiting."""
        self._exchange.take(request_id)

    def fail(self, error: Exception) -> None:
        """End all requests: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in self._exchange.drain():
            if not call.done():
                call.set_exception(error)
                call.exception()  # a caller that stopped waiting is no reason for a warning

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        # One millisecond later than the deadline, as times are rounded down.
        delay = (deadline_ms + 1) / 1000 - self._loop.time()
        self._timer = self._loop.call_later(max(delay, 0.0), self._expire)

    def _expire(self) -> None:
        self._timer = None
        for call in self._exchange.expire(int(self._loop.time() * 1000)):
            if not call.done():
                call.set_exception(
                    RequestTimeout(
                        f"{self._peer} did not answer request {call.code} in {call.timeout_ms} ms; "
                        "it may or may not have been carried out"
                    )
                )
        if self._exchange.next_deadline_ms is not None:
            self._arm(self._exchange.next_deadline_ms)

    def __len__(self) -> int:
        return len(self._exchange)
