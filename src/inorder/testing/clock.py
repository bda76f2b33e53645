"""Clocks for tests: moved by hand, or ahead of the machine's."""

from __future__ import annotations

from inorder.clock import SystemClock

EPOCH_MS = 1_700_000_000_000
"""Wall-clock time at which tests begin."""


class FakeClock:
    """Time stands still until it is moved."""

    def __init__(self, now_ms: int = EPOCH_MS, monotonic_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, duration_ms: int) -> None:
        """Let time pass."""
        assert duration_ms >= 0, "monotonic time does not go back; see set_wall_clock"
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def set_wall_clock(self, now_ms: int) -> None:
        """Set the wall clock; monotonic time does not change."""
        self._now_ms = now_ms


class MovableClock:
    """The machine's clock, ahead by as much as it was moved; for brokers that run."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return self._system.now_ms() + self._ahead_ms

    def monotonic_ms(self) -> int:
        return self._system.monotonic_ms() + self._ahead_ms

    def advance(self, duration_ms: int) -> None:
        """Let time jump ahead."""
        assert duration_ms >= 0, "monotonic time does not go back"
        self._ahead_ms += duration_ms
