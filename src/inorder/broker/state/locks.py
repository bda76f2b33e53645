"""Which client owns which queue of a group, for ordered consumption.

RocketMQ's rules for stock clients: a lock is granted when it is free, expired (60 s after the last
grant or renewal) or already the client's own, which renews it. Beyond them, so that a take-over
does not wait longer than the old owner itself does:

    unlocked, or the owner unregistered     free at once; the group is told
    the owner's connection closed           free 30 s after the last renewal, when the client's own
                                            view of its lock has run out; a client that is back
                                            before then has the full time again
    a renewal leaves the queue out          the client has given it up: a Go client's (which forgets
                                            to unlock) is free at once, any other 31 s after the
                                            last renewal, for its listener may still run
    expired                                 removed by `expire`, and the group is told

Every new owner gets a higher `epoch`. `lease_ms` is the time that the owner asked for.
Time is monotonic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from inorder.model import TopicQueue

STOCK_LEASE_MS: Final = 60_000
CLIENT_VIEW_MS: Final = 30_000
"""How long a stock client trusts a lock that it could not renew."""
OMITTED_MS: Final = 31_000
"""How long a lock lasts that the renewals of its owner leave out."""
RENEWAL_MS_MIN: Final = 10_000
"""Stock clients renew every 20 s. A request for queues held for less may be for a new one alone."""


class LockKey(NamedTuple):
    """What is locked."""

    group: str
    queue: TopicQueue


@dataclass(slots=True)
class Lock:
    """A grant."""

    client_id: str
    epoch: int
    lease_ms: int
    renewed_ms: int
    expires_ms: int
    connection: int | None = None
    """The connection that renewed it last."""


class QueueLocks:
    """(group, queue) to owner."""

    def __init__(
        self,
        *,
        lease_ms: int = STOCK_LEASE_MS,
        client_view_ms: int = CLIENT_VIEW_MS,
        locks_max: int = 500_000,
        first_epoch: int = 1,
    ) -> None:
        self.lease_ms = lease_ms
        self.client_view_ms = client_view_ms
        self.locks_max = locks_max
        self._next_epoch = first_epoch
        self._groups: dict[str, dict[TopicQueue, Lock]] = {}
        self._count = 0
        # One entry per lock, made again when it is popped too early; more only after a shortening.
        self._deadlines: list[tuple[int, LockKey]] = []

    def __repr__(self) -> str:
        return f"QueueLocks({self._count} locks in {len(self._groups)} groups)"

    def __len__(self) -> int:
        return self._count

    def get(self, group: str, queue: TopicQueue) -> Lock | None:
        """Return the lock on a queue, expired or not."""
        return self._groups.get(group, {}).get(queue)

    def held(self, group: str) -> dict[TopicQueue, Lock]:
        """Return a copy of a group's locks."""
        return dict(self._groups.get(group, ()))

    def lock_batch(
        self,
        group: str,
        queues: Iterable[TopicQueue],
        client_id: str,
        now_ms: int,
        *,
        lease_ms: int | None = None,
        connection: int | None = None,
    ) -> list[TopicQueue]:
        """Lock or renew queues; return those that the client owns now."""
        return [
            queue
            for queue in dict.fromkeys(queues)
            if self.try_lock(
                group, queue, client_id, now_ms, lease_ms=lease_ms, connection=connection
            )
        ]

    def omitted(
        self,
        group: str,
        queues: Iterable[TopicQueue],
        client_id: str,
        now_ms: int,
        *,
        at_once: bool,
    ) -> list[TopicQueue]:
        """Return what a client holds and leaves out of a renewal, which frees it; ask before it.

        A request is a renewal if it names a queue that the client has held for a while: one for a
        new queue names that alone. With `at_once` what is left out is free now, else a little
        later.
        """
        named = set(queues)
        mine = {
            queue: lock
            for queue, lock in self._groups.get(group, {}).items()
            if lock.client_id == client_id and now_ms - lock.renewed_ms >= RENEWAL_MS_MIN
        }
        if named.isdisjoint(mine):
            return []
        free: list[TopicQueue] = []
        for queue, lock in mine.items():
            if queue in named:
                continue
            until_ms = lock.renewed_ms + OMITTED_MS
            if at_once or until_ms <= now_ms:
                self._remove(group, queue)
                free.append(queue)
            elif until_ms < lock.expires_ms:
                self._set_expiry(LockKey(group, queue), lock, until_ms)
        return free

    def may_commit(
        self,
        group: str,
        queue: TopicQueue,
        now_ms: int,
        *,
        client_id: str | None,
        connection: int,
    ) -> bool:
        """Tell whether a commit counts: while a queue is locked only its owner's does.

        A connection of which nobody knows whose it is (`client_id` None) may be the owner's.
        """
        lock = self.get(group, queue)
        return (
            lock is None
            or lock.expires_ms <= now_ms
            or client_id in (None, lock.client_id)
            or connection == lock.connection
        )

    def is_locked(self, group: str, queue: TopicQueue, now_ms: int) -> bool:
        """Tell whether somebody owns a queue."""
        lock = self.get(group, queue)
        return lock is not None and now_ms < lock.expires_ms

    def try_lock(
        self,
        group: str,
        queue: TopicQueue,
        client_id: str,
        now_ms: int,
        *,
        lease_ms: int | None = None,
        connection: int | None = None,
    ) -> bool:
        """Lock or renew one queue; tell whether the client owns it now."""
        lease = self.lease_ms if lease_ms is None else lease_ms
        lock = self.get(group, queue)
        if lock is not None and lock.client_id == client_id and now_ms < lock.expires_ms:
            lock.renewed_ms = now_ms
            lock.lease_ms = lease
            lock.connection = connection
            self._set_expiry(LockKey(group, queue), lock, now_ms + lease)
            return True
        if lock is not None and now_ms < lock.expires_ms:
            return False
        if lock is None:
            if self._count >= self.locks_max:
                return False
            self._count += 1
            heapq.heappush(self._deadlines, (now_ms + lease, LockKey(group, queue)))
        self._groups.setdefault(group, {})[queue] = Lock(
            client_id, self._next_epoch, lease, now_ms, now_ms + lease, connection
        )
        self._next_epoch += 1
        return True

    def unlock_batch(
        self, group: str, queues: Iterable[TopicQueue], client_id: str
    ) -> list[TopicQueue]:
        """Release queues that the client owns; return those that it did own."""
        table = self._groups.get(group, {})
        released = [
            queue
            for queue in dict.fromkeys(queues)
            if queue in table and table[queue].client_id == client_id
        ]
        for queue in released:
            self._remove(group, queue)
        return released

    def release_client(self, group: str, client_id: str) -> list[TopicQueue]:
        """Release all that a client holds in a group: it unregistered, and may have forgotten."""
        return self.unlock_batch(group, list(self._groups.get(group, ())), client_id)

    def client_lost(self, group: str, client_id: str, now_ms: int) -> list[TopicQueue]:
        """Shorten the locks of a client whose connection closed; return those free already."""
        free: list[TopicQueue] = []
        for queue, lock in list(self._groups.get(group, {}).items()):
            if lock.client_id != client_id:
                continue
            until_ms = lock.renewed_ms + min(self.client_view_ms, lock.lease_ms)
            if until_ms <= now_ms:
                self._remove(group, queue)
                free.append(queue)
            elif until_ms < lock.expires_ms:
                self._set_expiry(LockKey(group, queue), lock, until_ms)
        return free

    def client_back(self, group: str, client_id: str) -> None:
        """Give a client that came back in time its full time again."""
        for queue, lock in self._groups.get(group, {}).items():
            if lock.client_id == client_id:
                self._set_expiry(LockKey(group, queue), lock, lock.renewed_ms + lock.lease_ms)

    def expire(self, now_ms: int) -> list[LockKey]:
        """Remove the locks that ran out; return them."""
        expired: list[LockKey] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, key = heapq.heappop(deadlines)
            lock = self.get(key.group, key.queue)
            if lock is None:
                continue
            if lock.expires_ms > now_ms:
                heapq.heappush(deadlines, (lock.expires_ms, key))
            else:
                self._remove(key.group, key.queue)
                expired.append(key)
        return expired

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` may have something to do, or None."""
        return self._deadlines[0][0] if self._deadlines else None

    def all_expired(self, group: str, now_ms: int) -> bool:
        """Tell whether a group holds no valid lock: it does not consume in order."""
        return all(lock.expires_ms <= now_ms for lock in self._groups.get(group, {}).values())

    def _set_expiry(self, key: LockKey, lock: Lock, expires_ms: int) -> None:
        if expires_ms < lock.expires_ms:
            heapq.heappush(self._deadlines, (expires_ms, key))
        lock.expires_ms = expires_ms
        self._compact()

    def _remove(self, group: str, queue: TopicQueue) -> None:
        table = self._groups[group]
        del table[queue]
        self._count -= 1
        if not table:
            del self._groups[group]
        self._compact()

    def _compact(self) -> None:
        """Rebuild the heap when most of it is about locks that are gone."""
        if len(self._deadlines) > 2 * self._count + 64:
            self._deadlines[:] = [
                (lock.expires_ms, LockKey(group, queue))
                for group, table in self._groups.items()
                for queue, lock in table.items()
            ]
            heapq.heapify(self._deadlines)
