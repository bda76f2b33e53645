"""A clock to set and a transport to look at, for tests of connections without sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from inorder.net.accepted import ServerConnection
from inorder.wire.frame import RawFrame, encode_frame
from inorder.wire.header import Command


class ManualClock:
    """Time that only the test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class FakeTransport(asyncio.Transport):
    """A transport that keeps what is written, as one piece per write."""

    def __init__(self, peer: tuple[str, int] = ("10.0.0.9", 4711)) -> None:
        super().__init__({"peername": peer, "sockname": ("10.0.0.1", 10911)})
        self.writes: list[bytes] = []
        self.unsent = 0
        self.reading = True
        self.closing = False
        self.aborted = False
        self.protocol: Any = None

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        if data:
            self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


class Recorder:
    """A frame handler that keeps what it is told."""

    def __init__(self) -> None:
        self.made: list[ServerConnection] = []
        self.lost: list[tuple[ServerConnection, str]] = []
        self.calls: list[list[RawFrame]] = []

    def connection_made(self, connection: ServerConnection) -> None:
        self.made.append(connection)

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        self.calls.append(frames)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        self.lost.append((connection, reason))


def frame_of(code: int = 105, body: bytes = b"", request_id: int = 7) -> bytes:
    """Return the bytes of a small request."""
    return encode_frame(Command.request(code, {"topic": "T"}, body, request_id=request_id))


async def tick() -> None:
    """Let the loop run what is scheduled."""
    for _ in range(3):
        await asyncio.sleep(0)
