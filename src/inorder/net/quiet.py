"""Log lines about peers: few of them whatever the peers do, and never with their control bytes."""

from __future__ import annotations

import logging

TEXT_MAX = 200


def printable(text: str, limit: int = TEXT_MAX) -> str:
    """Return the text with everything but printable characters escaped, cut at `limit`."""
    cut = text[: limit + 1]
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return cut if len(cut) <= limit else cut[:limit] + "..."


class QuietLog:
    """A logger that says at most `burst` lines per period, and how many it kept back."""

    __slots__ = ("_burst", "_left", "_logger", "_period_ms", "_since_ms", "suppressed")

    def __init__(self, logger: logging.Logger, *, burst: int = 10, period_ms: int = 10_000) -> None:
        self._logger = logger
        self._burst = burst
        self._period_ms = period_ms
        self._left = burst
        self._since_ms: int | None = None
        self.suppressed = 0

    def warning(self, now_ms: int, message: str, *args: object) -> bool:
        """Log unless there were too many lines lately; strings among `args` are escaped."""
        if self._since_ms is None or now_ms - self._since_ms >= self._period_ms:
            if self.suppressed:
                self._logger.warning("suppressed=%d similar lines", self.suppressed)
            self._since_ms = now_ms
            self._left = self._burst
            self.suppressed = 0
        if self._left <= 0:
            self.suppressed += 1
            return False
        self._left -= 1
        safe = tuple(printable(a) if isinstance(a, str) else a for a in args)
        self._logger.warning(message, *safe)
        return True
