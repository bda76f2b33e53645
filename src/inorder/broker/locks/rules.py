"""RocketMQ's queue locks: what stock clients get, on the table of leases.

A lock is granted when it is free or already the client's own, which renews it; it expires 60 s
after the last grant or renewal. Beyond RocketMQ's rules, so that a take-over does not wait longer
than the old owner itself does:

    unlocked, or the owner unregistered     free at once; the group is told
    the owner's connection closed           free 30 s after the last renewal, when the client's own
                                            view of its lock has run out; a client that is back
                                            before then has the full time again
    a renewal leaves the queue out          the client has given it up: a Go client's (which forgets
                                            to unlock) is free at once, any other 31 s after the
                                            last renewal, for its listener may still run
    expired                                 removed by `expire`, and the group is told

Leases of our own clients are in the same table: nobody gets a queue that another one has, whichever
kind they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from inorder.broker.leases.rules import (
    STOCK_LEASE_MS,
    STOCK_VIEW_MS,
    Decision,
    Lease,
    LeaseTable,
    Owner,
    Terms,
)
from inorder.model import GroupQueue

OMITTED_MS: Final = 31_000
"""How long a lock lasts that the renewals of its owner leave out."""
RENEWAL_MS_MIN: Final = 10_000
"""Stock clients renew every 20 s. A request for queues held for less may be for a new one alone."""


class QueueLocks:
    """(group, queue) to the client id of a stock client."""

    def __init__(
        self,
        leases: LeaseTable | None = None,
        *,
        lease_ms: int = STOCK_LEASE_MS,
        client_view_ms: int = STOCK_VIEW_MS,
    ) -> None:
        self.leases = LeaseTable() if leases is None else leases
        self.terms = Terms(lease_ms, client_view_ms)

    def __repr__(self) -> str:
        return f"QueueLocks({self.leases!r})"

    def __len__(self) -> int:
        return len(self.leases)

    def get(self, key: GroupQueue) -> Lease | None:
        """Return the lock or lease on a queue, expired or not."""
        return self.leases.get(key)

    def held(self, group: str) -> dict[GroupQueue, Lease]:
        """Return a copy of a group's locks and leases."""
        return self.leases.held(group)

    def decide(self, keys: Iterable[GroupQueue], client_id: str, now_ms: int) -> list[Decision]:
        """Say what becomes of a request to lock or renew."""
        owner, decisions, planned = Owner(client_id), [], 0
        for key in dict.fromkeys(keys):
            decision = self.leases.decide(key, owner, now_ms, terms=self.terms, planned=planned)
            planned += decision.is_granted
            decisions.append(decision)
        return decisions

    def lock_batch(
        self,
        keys: Iterable[GroupQueue],
        client_id: str,
        now_ms: int,
        *,
        connection: int | None = None,
    ) -> list[GroupQueue]:
        """Lock or renew queues; return those that the client owns now."""
        decisions = self.decide(keys, client_id, now_ms)
        for decision in decisions:
            self.leases.apply(decision, now_ms, connection=connection)
        return [decision.key for decision in decisions if decision.is_granted]

    def try_lock(
        self,
        key: GroupQueue,
        client_id: str,
        now_ms: int,
        *,
        connection: int | None = None,
    ) -> bool:
        """Lock or renew one queue; tell whether the client owns it now."""
        return bool(self.lock_batch([key], client_id, now_ms, connection=connection))

    def omitted(
        self,
        group: str,
        keys: Iterable[GroupQueue],
        client_id: str,
        now_ms: int,
        *,
        at_once: bool,
    ) -> list[GroupQueue]:
        """Return what a client holds and leaves out of a renewal, which frees it; ask before it.

        A request is a renewal if it names a queue that the client has held for a while: one for a
        new queue names that alone. With `at_once` what is left out is free now, else a little
        later.
        """
        named = set(keys)
        mine = {
            key: lock
            for key, lock in self._of_client(group, client_id).items()
            if now_ms - lock.renewed_ms >= RENEWAL_MS_MIN
        }
        if named.isdisjoint(mine):
            return []
        free: list[GroupQueue] = []
        for key, lock in mine.items():
            if key in named:
                continue
            until_ms = lock.renewed_ms + OMITTED_MS
            if at_once or until_ms <= now_ms:
                self.leases.remove(key)
                free.append(key)
            elif until_ms < lock.expires_ms:
                self.leases.shorten(key, until_ms)
        return free

    def may_commit(self, key: GroupQueue, *, client_id: str | None, connection: int) -> bool:
        """Tell whether a commit without an epoch counts: while a queue is held, its owner's alone.

        A connection of which nobody knows whose it is (`client_id` None) may be a stock owner's.
        Our own clients commit under their epoch.
        """
        lock = self.get(key)
        if lock is None:
            return True
        return lock.owner.is_rocketmq and (
            client_id in (None, lock.client_id) or connection == lock.connection
        )

    def is_locked(self, key: GroupQueue) -> bool:
        """Tell whether somebody owns a queue."""
        return self.get(key) is not None

    def unlock_batch(
        self, group: str, keys: Iterable[GroupQueue], client_id: str
    ) -> list[GroupQueue]:
        """Release queues that the client owns; return those that it did own."""
        mine = self._of_client(group, client_id)
        released = [key for key in dict.fromkeys(keys) if key in mine]
        for key in released:
            self.leases.remove(key)
        return released

    def release_client(self, group: str, client_id: str) -> list[GroupQueue]:
        """Release all that a client holds in a group: it unregistered, and may have forgotten."""
        return self.unlock_batch(group, self.held(group), client_id)

    def client_lost(self, group: str, client_id: str, now_ms: int) -> list[GroupQueue]:
        """Shorten the locks of a client whose connection closed; return those free already."""
        free: list[GroupQueue] = []
        for key, lock in self._of_client(group, client_id).items():
            until_ms = lock.renewed_ms + min(self.terms.grace_ms, lock.lease_ms)
            if until_ms <= now_ms:
                self.leases.remove(key)
                free.append(key)
            elif until_ms < lock.expires_ms:
                self.leases.shorten(key, until_ms)
        return free

    def client_back(self, group: str, client_id: str) -> None:
        """Give a client that came back in time its full time again."""
        for key, lock in self._of_client(group, client_id).items():
            self.leases.shorten(key, lock.renewed_ms + lock.lease_ms)

    def holds_any(self, group: str) -> bool:
        """Tell whether a group holds a lock: it consumes in order."""
        return self.leases.holds_any(group)

    def _of_client(self, group: str, client_id: str) -> dict[GroupQueue, Lease]:
        owner = Owner(client_id)
        return {key: lock for key, lock in self.held(group).items() if lock.owner == owner}
