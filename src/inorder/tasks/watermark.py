"""Wait until a number that only grows has reached a mark."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Watermark:
    """A number that grows, and those who wait for it.

    Waiters are woken in the order of their marks, equal marks in the order of arrival. After
    `fail` everybody who waits, now or later, for a mark not yet reached gets the error.
    """

    __slots__ = ("_error", "_order", "_waiters", "reached")

    def __init__(self, reached: int = 0) -> None:
        self.reached = reached
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._error: Exception | None = None

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return sum(not future.done() for _, _, future in self._waiters)

    def advance(self, mark: int) -> None:
        """Say that `mark` is reached; a lower one than before changes nothing."""
        if mark <= self.reached:
            return
        self.reached = mark
        waiters = self._waiters
        while waiters and waiters[0][0] <= mark:
            future = heapq.heappop(waiters)[2]
            if not future.done():
                future.set_result(None)

    async def wait_reached(self, mark: int) -> None:
        """Return when `mark` is reached. Raises what `fail` was given."""
        if mark <= self.reached:
            return
        if self._error is not None:
            raise self._error
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (mark, next(self._order), future))
        await future

    def fail(self, error: Exception) -> None:
        """Say that no further mark will ever be reached."""
        self._error = error
        waiters, self._waiters = self._waiters, []
        for _, _, future in sorted(waiters):
            if not future.done():
                future.set_exception(error)

    def __repr__(self) -> str:
        failed = f", failed: {self._error}" if self._error is not None else ""
        return f"Watermark(reached={self.reached}, waiting={self.waiting}{failed})"
