"""How long to wait before trying again: twice as long each time, up to a limit."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """A series of delays. Pure: it tells how long, the caller waits.

    `draw` returns numbers from 0 to 1; with it each delay is spread over its upper half, so that
    many clients that lost the same server do not come back at the same time.
    """

    __slots__ = ("_draw", "_factor", "_first_ms", "_max_ms", "attempts")

    def __init__(
        self,
        first_ms: int,
        max_ms: int,
        *,
        factor: float = 2.0,
        draw: Callable[[], float] | None = None,
    ) -> None:
        if not 0 < first_ms <= max_ms or factor < 1:
            raise ValueError(f"Backoff({first_ms}, {max_ms}, factor={factor}): 0 < first <= max")
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._factor = factor
        self._draw = draw
        self.attempts = 0

    def next_ms(self) -> int:
        """Return the next delay."""
        delay = float(self._first_ms)
        for _ in range(self.attempts):
            delay *= self._factor
            if delay >= self._max_ms:
                delay = float(self._max_ms)
                break
        self.attempts += 1
        if self._draw is not None:
            delay = delay / 2 + delay / 2 * self._draw()
        return max(1, int(delay))

    def reset(self) -> None:
        """Start again with the shortest delay: it worked."""
        self.attempts = 0

    def __repr__(self) -> str:
        return f"Backoff({self._first_ms}..{self._max_ms} ms, attempts={self.attempts})"
