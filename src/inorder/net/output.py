"""How queued output reaches a transport: few system calls, and no copy of what is large."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

Buffer = bytes | bytearray | memoryview

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

    By a socket of its own: a transport writes later and ends later still. Where that cannot be
    (a simulated transport, others wait before these) they are written as usual.
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
