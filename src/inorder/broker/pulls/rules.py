"""Long polls: pulls that found no message and wait for one.

A wait belongs to one (topic, queue) and ends exactly once: it is taken because a message was
stored, it expires at its deadline, or it is dropped with its connection or topic. Deadlines are in
a heap. A wait that ends early leaves its heap entry behind; the heap is rebuilt when such entries
prevail. Time is monotonic. Why: decision 6.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)

Key = tuple[str, int]
"""Topic and queue id."""

QUEUE_WAITS_MAX = 10_000
"""A message looks at every pull that waits on its queue, so their number is bounded."""


@dataclass(slots=True, eq=False)
class Wait(Generic[C, R]):
    """One held pull: its connection, and the request to run again. It can be held once."""

    connection: C
    request: R
    key: Key = ("", -1)
    deadline_ms: int = 0
    ended: bool = False


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
    """The held pulls by (topic, queue), oldest first."""

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
        """Hold a pull; False if too many wait in total, on its connection, or on its queue."""
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
        # The counter keeps equal deadlines in order of arrival and avoids comparing waits.
        heapq.heappush(self._deadlines, (deadline_ms, self._held, wait))
        return True

    def take_ready(self, key: Key) -> list[Wait[C, R]]:
        """Take the pulls that wait on a queue, oldest first."""
        taken = list(self._by_key.get(key, ()))
        self._woken += len(taken)
        return self._take(taken)

    def expire(self, now_ms: int) -> list[Wait[C, R]]:
        """Take the pulls whose deadline has passed, earliest deadline first."""
        expired: list[Wait[C, R]] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            wait = heapq.heappop(self._deadlines)[2]
            if not wait.ended:
                expired.append(wait)
        self._expired += len(expired)
        return self._take(expired)

    def next_deadline_ms(self) -> int | None:
        """Return a time before which `expire` has nothing to do; None: nothing waits."""
        return self._deadlines[0][0] if self._count else None

    def drop_connection(self, connection: C) -> int:
        """Drop the pulls of a closed connection; return how many."""
        return self._drop(list(self._by_connection.get(connection, ())))

    def drop_topic(self, topic: str) -> list[Wait[C, R]]:
        """Take the pulls that wait on a deleted topic; each is answered with code 17 at once."""
        keys = [key for key in self._by_key if key[0] == topic]
        taken = [wait for key in keys for wait in self._by_key[key]]
        self._drop(taken)
        return taken

    def take_all(self) -> list[Wait[C, R]]:
        """Take all pulls, because the broker stops."""
        taken = [wait for waiting in self._by_key.values() for wait in waiting]
        self._drop(taken)
        return taken

    def statistics(self) -> WaitStatistics:
        """Return the counters."""
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
