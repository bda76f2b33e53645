"""How long a stop waits for what still runs; the most impatient of those who ask decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from inorder.clock import Clock


class Patience:
    """A time limit that can only come nearer, also while somebody waits."""

    def __init__(self, timeout_ms: int, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._until_ms = clock.monotonic_ms() + timeout_ms
        self._timer = self._loop.call_later(timeout_ms / 1000, self._end)

    def at_most(self, timeout_ms: int) -> None:
        """Wait no longer than that from now on."""
        until_ms = self._clock.monotonic_ms() + timeout_ms
        if until_ms < self._until_ms:
            self._timer.cancel()
            self._until_ms = until_ms
            self._timer = self._loop.call_later(timeout_ms / 1000, self._end)

    async def wait_for(self, work: Iterable[asyncio.Future[Any]]) -> bool:
        """Wait until all of it has ended or the time is up; tell whether it has ended."""
        left = set(work)
        while left and not self._over.done():
            done, _ = await asyncio.wait({*left, self._over}, return_when=asyncio.FIRST_COMPLETED)
            left -= done
        return not left

    def close(self) -> None:
        """Forget the time limit."""
        self._timer.cancel()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
