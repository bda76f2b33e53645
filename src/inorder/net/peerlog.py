"""Log lines about peers: few of them, whatever the peers do."""

from __future__ import annotations

import logging


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
        """Log unless there were too many lines lately."""
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
        self._logger.warning(message, *args)
        return True


class Refusals:
    """Says which requests a server refuses: once a period for each client and code.

    A client is the machine that it runs on, so that one which reconnects with every request is not
    a new one each time. Refusals beyond the size of the table are only counted.
    """

    __slots__ = ("_left_out", "_logger", "_period_ms", "_room", "_seen")

    def __init__(self, logger: logging.Logger, *, period_ms: int = 60_000, room: int = 256) -> None:
        self._logger = logger
        self._period_ms = period_ms
        self._room = room
        self._seen: dict[tuple[str, int, int], list[int]] = {}
        self._left_out = 0

    def __len__(self) -> int:
        return len(self._seen)

    def refused(self, now_ms: int, peer: str, code: int, answered: int, remark: str | None) -> None:
        """Note a refusal, and log it unless its like was logged within the period."""
        key = (peer.rpartition(":")[0], code, answered)
        seen = self._seen.get(key)
        if seen is not None and now_ms - seen[0] < self._period_ms:
            seen[1] += 1
            return
        if seen is None and len(self._seen) >= self._room:
            self._forget(now_ms)
            if len(self._seen) >= self._room:
                self._left_out += 1
                return
        self._seen[key] = [now_ms, 0]
        self._logger.warning(
            "request refused peer=%s code=%d answered=%d: %s%s",
            peer, code, answered, (remark or "").strip(),
            f"; {seen[1]} more like it since the last line" if seen is not None and seen[1] else "",
        )  # fmt: skip

    def _forget(self, now_ms: int) -> None:
        ended = [key for key, seen in self._seen.items() if now_ms - seen[0] >= self._period_ms]
        for key in ended:
            del self._seen[key]
        if ended and self._left_out:
            self._logger.warning("suppressed=%d requests refused to others", self._left_out)
            self._left_out = 0
