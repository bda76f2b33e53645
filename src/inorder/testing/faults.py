"""Faults in front of a running broker: it gets requests late, never, or cannot answer them.

A `Faults` stands between the broker's connections and the broker. It lives on the broker's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque

from inorder.net.accepted import FrameHandler, ServerConnection
from inorder.wire.frame import RawFrame
from inorder.wire.header import decode_command


class Faults:
    """A frame handler that passes frames on as told. Frames never overtake each other."""

    def __init__(self, behind: FrameHandler) -> None:
        self.behind = behind
        self.frozen = False
        self.delay_ms = 0
        self.drop_left = 0
        self.drop_code: int | None = None
        self.lose_left = 0
        self.passed = 0
        self._held: deque[tuple[float, ServerConnection, list[RawFrame]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, connection: ServerConnection) -> None:
        """Pass it on."""
        self.behind.connection_made(connection)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """Pass it on."""
        self.behind.connection_lost(connection, reason)

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        """Drop, hold or pass on the frames of one read."""
        frames = [frame for frame in frames if not self._drops(frame)]
        if not frames:
            return
        if self.frozen or self.delay_ms or self._held:
            due = self._now() + self.delay_ms / 1000
            self._held.append((due, connection, frames))
            self.pump()
        else:
            self._pass(connection, frames)

    def pump(self) -> None:
        """Pass on what is due; look again when the next is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and not self.frozen:
            due, connection, frames = self._held[0]
            if due > self._now():
                self._timer = asyncio.get_running_loop().call_at(due, self.pump)
                return
            self._held.popleft()
            if not connection.closed:
                self._pass(connection, frames)

    def clear(self) -> None:
        """Be harmless again; what is held goes on at once."""
        self.frozen = False
        self.delay_ms = self.drop_left = self.lose_left = 0
        self._held = deque((0.0, connection, frames) for _, connection, frames in self._held)
        self.pump()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _drops(self, frame: RawFrame) -> bool:
        if self.drop_left and self.drop_code in (None, decode_command(frame).code):
            self.drop_left -= 1
            return True
        return False

    def _pass(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        self.passed += len(frames)
        self.behind.frames_received(connection, frames)
        if self.lose_left:
            self.lose_left -= 1
            connection.abort("the answer is lost: a fault of the test")
