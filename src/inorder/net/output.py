"""How queued output reaches a transport: few system calls, and no copy of what is large."""

from __future__ import annotations

import asyncio

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
