"""Time as an injected dependency.

`now_ms` is wall-clock time and is only stored or shown. Everything that waits, expires or renews
counts in `monotonic_ms`, which includes the time of a suspended machine where the system reports
it.
"""

from __future__ import annotations

import time
from typing import Protocol


def stopwatch_s() -> float:
    """Return seconds from an unknown start, finely: to measure with, never to decide by."""
    return time.perf_counter()


class Clock(Protocol):
    """Where time comes from."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, by the wall clock."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back."""
        ...


class SystemClock:
    """The clock of the machine."""

    def __init__(self) -> None:
        self.clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(self.clock_id) // 1_000_000
