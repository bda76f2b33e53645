"""Pops that found nothing and wait: who waits for what, and until when.

A wait belongs to one topic, group and queue (-1: any queue). It ends once: it is answered, its time
is over, or it is dropped with its connection or topic. A topic is also found by the name of the
retry topic of each group that waits. Time is monotonic. Why: decision 54.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from inorder.broker.leases.rules import Deadlines
from inorder.wire.requests.pops import pop_retry_topic

C = TypeVar("C", bound=Hashable)
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)


class PollKey(NamedTuple):
    """What a pop waits for."""

    topic: str
    group: str
    queue_id: int


@dataclass(slots=True, eq=False)
class Poll(Generic[C, R]):
    """One request that waits."""

    connection: C
    request: R
    key: PollKey
    deadline_ms: int
    ended: bool = False


class Polls(Generic[C, R]):
    """The requests that wait, oldest first."""

    def __init__(self, *, total_max: int, key_max: int, keys_max: int, connection_max: int) -> None:
        self.total_max = total_max
        self.key_max = key_max
        self.keys_max = keys_max
        self.connection_max = connection_max
        self._by_key: dict[PollKey, dict[Poll[C, R], None]] = {}
        self._by_name: dict[str, dict[PollKey, None]] = {}
        self._by_group: dict[str, dict[PollKey, None]] = {}
        self._by_connection: dict[C, dict[Poll[C, R], None]] = {}
        self._deadlines: Deadlines[Poll[C, R]] = Deadlines()
        self._count = 0

    def __repr__(self) -> str:
        return f"Polls({self._count} waiting for {len(self._by_key)} keys)"

    def __len__(self) -> int:
        return self._count

    def hold(self, poll: Poll[C, R]) -> bool:
        """Hold a request; False if too many wait."""
        key = poll.key
        waiting = self._by_key.get(key)
        if (
            self._count >= self.total_max
            or len(self._by_connection.get(poll.connection, ())) >= self.connection_max
            or (waiting is None and len(self._by_key) >= self.keys_max)
            or (waiting is not None and len(waiting) >= self.key_max)
        ):
            return False
        assert not poll.ended, "a request waits once"
        if waiting is None:
            waiting = self._by_key[key] = {}
            for name in _names(key):
                self._by_name.setdefault(name, {})[key] = None
            self._by_group.setdefault(key.group, {})[key] = None
        waiting[poll] = None
        self._by_connection.setdefault(poll.connection, {})[poll] = None
        self._count += 1
        self._deadlines.push(poll.deadline_ms, poll)
        return True

    def end(self, poll: Poll[C, R]) -> None:
        """Let a request wait no longer."""
        if poll.ended:
            return
        poll.ended = True
        self._count -= 1
        _discard(self._by_connection, poll.connection, poll)
        _discard(self._by_key, poll.key, poll)
        if poll.key not in self._by_key:
            for name in _names(poll.key):
                _discard(self._by_name, name, poll.key)
            _discard(self._by_group, poll.key.group, poll.key)
        if len(self._deadlines) > 2 * self._count + 64:
            self._deadlines.clear()
            for waiting in self._by_key.values():
                for one in waiting:
                    self._deadlines.push(one.deadline_ms, one)

    def of(self, key: PollKey) -> list[Poll[C, R]]:
        """Return the requests that wait for a key, oldest first."""
        return list(self._by_key.get(key, ()))

    def count(self, key: PollKey) -> int:
        """Return how many requests wait for a key."""
        return len(self._by_key.get(key, ()))

    def keys_of_topic(self, name: str) -> list[PollKey]:
        """Return what is waited for of a topic; of a retry topic what its messages may end."""
        return list(self._by_name.get(name, ()))

    def keys_of_group(self, group: str) -> list[PollKey]:
        """Return what a group waits for."""
        return list(self._by_group.get(group, ()))

    def expire(self, now_ms: int) -> list[Poll[C, R]]:
        """Take the requests whose time is over, the earliest first."""
        expired = []
        while (poll := self._deadlines.pop(now_ms)) is not None:
            if not poll.ended:
                self.end(poll)
                expired.append(poll)
        return expired

    def next_deadline_ms(self) -> int | None:
        """Return a time before which `expire` has nothing to do; None: nothing waits."""
        return self._deadlines.next_ms() if self._count else None

    def drop_connection(self, connection: C) -> None:
        """Drop the requests of a closed connection."""
        for poll in list(self._by_connection.get(connection, ())):
            self.end(poll)

    def take_all(self) -> list[Poll[C, R]]:
        """Take all requests, because the broker stops."""
        return self.take(self._by_key)

    def take(self, keys: Iterable[PollKey]) -> list[Poll[C, R]]:
        """Take all requests that wait for some keys."""
        taken = [poll for key in list(keys) for poll in self.of(key)]
        for poll in taken:
            self.end(poll)
        return taken


def _names(key: PollKey) -> tuple[str, str]:
    return key.topic, pop_retry_topic(key.group, key.topic)


def _discard(table: dict[K, dict[R, None]], key: K, item: R) -> None:
    inner = table.get(key)
    if inner is not None:
        inner.pop(item, None)
        if not inner:
            del table[key]
