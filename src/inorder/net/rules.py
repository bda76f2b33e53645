"""Limits on peers: how much of an address or a user is served each second, and failed logins.

Pure: time is an argument. `ServerConnection` holds back the requests that are over a limit, and
answers failed logins late.

A limit is a bucket that fills by its rate, up to one second's worth. Something may be taken while
it is not empty, and what is taken beyond that is a debt, which the next seconds pay: so a request
is never too large for its limit, and the average is kept.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionCode

Key = TypeVar("Key", bound=Hashable)

NEVER_DELAYED: Final = frozenset({
    RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
    ExtensionCode.LEASE, ExtensionCode.RELEASE, ExtensionCode.COMMIT,
})  # fmt: skip
"""Requests that limits do not hold back: without them a consumer would lose its queues."""


class Bucket:
    """What may be taken of something that comes at a rate."""

    __slots__ = ("_at_ms", "_level", "_rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        self._rate = rate
        self._level = float(rate)
        self._at_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return how long nothing may be taken."""
        level = self._filled(now_ms)
        return 0 if level > 0 else math.floor(-level * 1000 / self._rate) + 1

    def take(self, amount: int, now_ms: int) -> None:
        """Take an amount, also if it becomes a debt."""
        self._level = self._filled(now_ms) - amount

    def is_full(self, now_ms: int) -> bool:
        """Return whether forgetting the bucket would change nothing."""
        return self._filled(now_ms) >= self._rate

    def _filled(self, now_ms: int) -> float:
        if now_ms > self._at_ms:
            grown = self._level + (now_ms - self._at_ms) * self._rate / 1000
            self._level = min(float(self._rate), grown)
            self._at_ms = now_ms
        return self._level


class Meter:
    """What one address or user takes: requests, bytes, connections."""

    __slots__ = ("_bytes", "_requests", "connections")

    def __init__(self, requests_max: int, bytes_max: int, now_ms: int) -> None:
        self._requests = Bucket(requests_max, now_ms) if requests_max else None
        self._bytes = Bucket(bytes_max, now_ms) if bytes_max else None
        self.connections = 0

    def wait_ms(self, now_ms: int) -> int:
        """Return how long no further request may be served."""
        found = 0
        if self._requests is not None:
            found = self._requests.wait_ms(now_ms)
        if self._bytes is not None:
            found = max(found, self._bytes.wait_ms(now_ms))
        return found

    def take(self, requests: int, size: int, now_ms: int) -> None:
        """Count requests and bytes that are served."""
        if requests and self._requests is not None:
            self._requests.take(requests, now_ms)
        if self._bytes is not None:
            self._bytes.take(size, now_ms)

    def is_idle(self, now_ms: int) -> bool:
        """Return whether forgetting the meter would change nothing."""
        return not self.connections and all(
            one is None or one.is_full(now_ms) for one in (self._requests, self._bytes)
        )


class Meters(Generic[Key]):
    """The meters of all addresses, or of all users. Nothing is limited by 0.

    A meter without connections stays until its debt is paid, so that coming back helps nobody.
    """

    def __init__(self, *, requests_max: int, bytes_max: int, connections_max: int = 0) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._connections_max = connections_max
        self.counts = bool(requests_max or bytes_max)
        """Whether what is served is counted."""
        self.limits = self.counts or bool(connections_max)
        """Whether anything is limited; else nobody joins."""
        self._meters: dict[Key, Meter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def join(self, key: Key, now_ms: int) -> Meter | None:
        """Count one more connection; return its meter, or None if it is one too many."""
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = Meter(self._requests_max, self._bytes_max, now_ms)
        if self._connections_max and meter.connections >= self._connections_max:
            return None
        meter.connections += 1
        return meter

    def leave(self, key: Key, now_ms: int) -> None:
        """Count one connection less."""
        meter = self._meters[key]
        meter.connections -= 1
        if meter.is_idle(now_ms):
            del self._meters[key]

    def forget_idle(self, now_ms: int) -> None:
        """Forget the meters that nothing depends on."""
        for key in [key for key, meter in self._meters.items() if meter.is_idle(now_ms)]:
            del self._meters[key]


FAILURES_FREE: Final = 10
FAILURES_WINDOW_MS: Final = 60_000
PAUSE_FIRST_MS: Final = 100
PAUSE_MAX_MS: Final = 5000
FAILURE_KEYS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Pause:
    """How the answer to a failed login is given."""

    delay_ms: int
    close: bool
    """Whether the connection is closed after the answer."""


class Failures:
    """Failed logins by address and by user: after ten in a minute each answer takes longer.

    Only answers to failures are slow. A correct login never waits, so nobody can lock a user out by
    failing under its name.
    """

    def __init__(self) -> None:
        self._addresses: dict[bytes, tuple[float, int]] = {}
        self._users: dict[str, tuple[float, int]] = {}
        self.failed_total = 0
        self.slowed_total = 0
        self.closed_total = 0

    def __len__(self) -> int:
        return len(self._addresses) + len(self._users)

    def failed(self, address: bytes, user: str, now_ms: int) -> Pause:
        """Count a failed login; return how to answer it."""
        self.failed_total += 1
        count = max(_counted(self._addresses, address, now_ms), _counted(self._users, user, now_ms))
        delay_ms = _delay_ms(count)
        close = delay_ms >= PAUSE_MAX_MS
        self.slowed_total += delay_ms > 0
        self.closed_total += close
        return Pause(delay_ms, close)

    def delay_ms(self, address: bytes, user: str, now_ms: int) -> int:
        """Return how late a failure would be answered now; counts nothing."""
        counts = (_left(self._addresses, address, now_ms), _left(self._users, user, now_ms))
        return _delay_ms(max(counts))


def _delay_ms(count: float) -> int:
    over = math.ceil(count - FAILURES_FREE)
    if over <= 0:
        return 0
    return int(min(PAUSE_FIRST_MS * 2 ** min(over - 1, 16), PAUSE_MAX_MS))


_Name = TypeVar("_Name", bytes, str)


def _left(table: dict[_Name, tuple[float, int]], name: _Name, now_ms: int) -> float:
    count, at_ms = table.get(name, (0.0, now_ms))
    return max(0.0, count - (now_ms - at_ms) * FAILURES_FREE / FAILURES_WINDOW_MS)


def _counted(table: dict[_Name, tuple[float, int]], name: _Name, now_ms: int) -> float:
    count = _left(table, name, now_ms) + 1
    table.pop(name, None)
    if len(table) >= FAILURE_KEYS_MAX:
        del table[next(iter(table))]  # it failed longest ago
    table[name] = (count, now_ms)
    return count
