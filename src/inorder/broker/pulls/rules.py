"""Pulls that found nothing and wait for a message (long polling).

A wait belongs to one (topic, queue) and ends once: taken because something was stored, expired at
its deadline, or dropped with its connection or topic. Deadlines are a heap; a wait that ended early
leaves its entry behind, and the heap is rebuilt when most of it is such entries.
Time is monotonic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)

Key = tuple[str, int]
"""Topic and queue id."""

QUEUE_WAITS_MAX = 10_000
"""Every message of a queue looks at all pulls that wait there."""


class Wait(Generic[C, R]):
    """One held pull: whose it is, and what is needed to run it again. It may be held once."""

    __slots__ = ("connection", "deadline_ms", "ended", "key", "request")

    def __init__(self, connection: C, request: R) -> None:
        self.connection = connection
        self.request = request
        self.key: Key = ("", -1)
        self.deadline_ms = 0
        self.ended = False

    def __repr__(self) -> str:
        return f"Wait({self.key}, deadline_ms={self.deadline_ms}, ended={self.ended})"


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """How many pulls wait, and how the others ended."""

    waiting: int
    held: int
    woken: int
    expired: int
    dropped: int
    refused: int


class PullWaits(Generic[C, R]):
    """(topic, queue) to the pulls that wait there, oldest first."""

    def __init__(self, *, waits_max: int = 200_000, connection_waits_max: int = 4096) -> None:
        self.waits_max = waits_max
        self.queue_waits_max = QUEUE_WAITS_MAX
        self.connection_waits_max = connection_waits_max
        self._by_key: dict[Key, dict[Wait[C, R], None]] = {}
        self._by_connection: dict[C, dict[Wait[C, R], None]] = {}
        self._deadlines: list[tuple[int, int, Wait[C, R]]] = []
        self._count = 0
        self._held = 0
        self._woken = 0
        self._expired = 0
        self._dropped = 0
        self._refused = 0

    def __repr__(self) -> str:
        return f"PullWaits({self._count} waiting on {len(self._by_key)} queues)"

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def hold(self, key: Key, wait: Wait[C, R], deadline_ms: int) -> bool:
        """Let a pull wait; False when too many do: in all, of its connection, or on its queue."""
        if (
            self._count >= self.waits_max
            or len(self._by_connection.get(wait.connection, ())) >= self.connection_waits_max
            or len(self._by_key.get(key, ())) >= self.queue_waits_max
        ):
            self._refused += 1
            return False
        assert not wait.ended, "a wait is held once"
        wait.key = key
        wait.deadline_ms = deadline_ms
        self._by_key.setdefault(key, {})[wait] = None
        self._by_connection.setdefault(wait.connection, {})[wait] = None
        self._count += 1
        self._held += 1
        # The running number keeps equal deadlines in order of arrival, and waits uncompared.
        heapq.heappush(self._deadlines, (deadline_ms, self._held, wait))
        return True

    def take_ready(
        self, key: Key, matches: Callable[[Wait[C, R]], bool] | None = None
    ) -> list[Wait[C, R]]:
        """Take the pulls that wait on a queue, oldest first; with `matches`, only such."""
        waiting = self._by_key.get(key)
        if not waiting:
            return []
        taken = [wait for wait in waiting if matches is None or matches(wait)]
        self._woken += len(taken)
        return self._take(taken)

    def expire(self, now_ms: int) -> list[Wait[C, R]]:
        """Take the pulls whose deadline is reached, earliest deadline first."""
        expired: list[Wait[C, R]] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            wait = heapq.heappop(self._deadlines)[2]
            if not wait.ended:
                expired.append(wait)
        self._expired += len(expired)
        return self._take(expired)

    def next_deadline_ms(self) -> int | None:
        """Return a time before which `expire` has nothing to do; None if nothing waits."""
        return self._deadlines[0][0] if self._count else None

    def drop_connection(self, connection: C) -> int:
        """Forget the pulls of a closed connection; return how many there were."""
        return self._drop(list(self._by_connection.get(connection, ())))

    def drop_topic(self, topic: str) -> list[Wait[C, R]]:
        """Take the pulls that wait on a deleted topic: each is answered with 17 at once."""
        keys = [key for key in self._by_key if key[0] == topic]
        taken = [wait for key in keys for wait in self._by_key[key]]
        self._drop(taken)
        return taken

    def take_all(self) -> list[Wait[C, R]]:
        """Take everything that waits: the broker stops."""
        taken = [wait for waiting in self._by_key.values() for wait in waiting]
        self._drop(taken)
        return taken

    def statistics(self) -> WaitStatistics:
        """Return the counts."""
        return WaitStatistics(
            self._count, self._held, self._woken, self._expired, self._dropped, self._refused
        )

    def _drop(self, waits: list[Wait[C, R]]) -> int:
        self._dropped += len(waits)
        return len(self._take(waits))

    def _take(self, waits: list[Wait[C, R]]) -> list[Wait[C, R]]:
        for wait in waits:
            assert not wait.ended, "a wait ends once"
            wait.ended = True
            _discard(self._by_key, wait.key, wait)
            _discard(self._by_connection, wait.connection, wait)
        self._count -= len(waits)
        if len(self._deadlines) > 2 * self._count + 64:
            self._deadlines[:] = [entry for entry in self._deadlines if not entry[2].ended]
            heapq.heapify(self._deadlines)
        return waits


def _discard(table: dict[K, dict[Wait[C, R], None]], key: K, wait: Wait[C, R]) -> None:
    waiting = table[key]
    del waiting[wait]
    if not waiting:
        del table[key]
