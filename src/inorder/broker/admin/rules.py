"""The broker's statistics: counters since the start, totals by day, and rates over three windows.

The counters are plain attributes. Sends and pulls count for themselves, and `Broker.count` copies
their counters here before a sample or a reply. `sample` runs about once a second. The rate of a
window is the difference to the sample that was taken a window's length ago.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

WINDOWS_MS: Final = (10_000, 60_000, 600_000)
DAY_MS: Final = 86_400_000


class _Sample(NamedTuple):
    at_ms: int
    put: int
    found: int
    missed: int
    transferred: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Events per second over ten seconds, a minute and ten minutes."""

    ten_seconds: float
    minute: float
    ten_minutes: float

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            self.ten_seconds + other.ten_seconds,
            self.minute + other.minute,
            self.ten_minutes + other.ten_minutes,
        )

    def __str__(self) -> str:
        return f"{self.ten_seconds} {self.minute} {self.ten_minutes}"


class BrokerStats:
    """Counters since the start, and samples of them for the rates."""

    __slots__ = (
        "_day",
        "_samples",
        "_today_got",
        "_today_put",
        "_yesterday_got",
        "_yesterday_put",
        "get_bytes",
        "get_messages",
        "pulls_found",
        "pulls_missed",
        "put_bytes",
        "put_failed",
        "put_messages",
    )

    def __init__(self, *, monotonic_ms: int, now_ms: int) -> None:
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failed = 0
        """Messages that the log could not take; those that were refused earlier do not count."""
        self.pulls_found = 0
        self.pulls_missed = 0
        self.get_messages = 0
        self.get_bytes = 0
        self._samples: deque[_Sample] = deque()
        self._day = now_ms // DAY_MS
        self._yesterday_put = self._yesterday_got = 0
        self._today_put = self._today_got = 0
        self.sample(monotonic_ms, now_ms)

    def __repr__(self) -> str:
        return f"BrokerStats(put={self.put_messages}, got={self.get_messages})"

    def sample(self, monotonic_ms: int, now_ms: int) -> None:
        """Keep the present counters for later rates; when a day begins (UTC), keep its totals."""
        self._samples.append(self._current(monotonic_ms))
        oldest_ms = monotonic_ms - WINDOWS_MS[-1]
        while len(self._samples) > 1 and self._samples[1].at_ms <= oldest_ms:
            self._samples.popleft()
        day = now_ms // DAY_MS
        if day != self._day:
            self._day = day
            self._yesterday_put, self._today_put = self._today_put, self.put_messages
            self._yesterday_got, self._today_got = self._today_got, self.get_messages

    def put_rates(self, monotonic_ms: int) -> Rates:
        """Return messages stored per second."""
        return self._rates(monotonic_ms, 1)

    def found_rates(self, monotonic_ms: int) -> Rates:
        """Return pulls per second that found messages."""
        return self._rates(monotonic_ms, 2)

    def missed_rates(self, monotonic_ms: int) -> Rates:
        """Return pulls per second that found no messages."""
        return self._rates(monotonic_ms, 3)

    def transferred_rates(self, monotonic_ms: int) -> Rates:
        """Return messages sent to consumers per second."""
        return self._rates(monotonic_ms, 4)

    def day_totals(self) -> dict[str, int]:
        """Return the totals by day under RocketMQ's names."""
        return {
            "msgPutTotalYesterdayMorning": self._yesterday_put,
            "msgPutTotalTodayMorning": self._today_put,
            "msgPutTotalTodayNow": self.put_messages,
            "msgGetTotalYesterdayMorning": self._yesterday_got,
            "msgGetTotalTodayMorning": self._today_got,
            "msgGetTotalTodayNow": self.get_messages,
        }

    def _current(self, monotonic_ms: int) -> _Sample:
        return _Sample(
            monotonic_ms, self.put_messages, self.pulls_found, self.pulls_missed, self.get_messages
        )

    def _rates(self, monotonic_ms: int, column: int) -> Rates:
        now = self._current(monotonic_ms)
        return Rates(*(self._rate(now, window_ms, column) for window_ms in WINDOWS_MS))

    def _rate(self, now: _Sample, window_ms: int, column: int) -> float:
        start = self._samples[0]
        for sample in reversed(self._samples):
            start = sample
            if now.at_ms - sample.at_ms >= window_ms:
                break
        elapsed_ms = now.at_ms - start.at_ms
        if elapsed_ms <= 0:
            return 0.0
        return float(now[column] - start[column]) * 1000 / elapsed_ms
