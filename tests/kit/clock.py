"""The clock of a machine on a simulated loop (`simloop`)."""

from __future__ import annotations

import asyncio

from inorder.testing.clock import EPOCH_MS


class SimClock:
    """The clock of a machine on a simulated loop, `skew_ms` off, with a `drift`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0, drift: float = 0.0
    ) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self._drift = 1.0 + drift

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * self._drift * 1000)
