"""RocketMQ's queue locks, on the table of leases.

A lock is granted when the queue is free, or the client's own, which renews the lock. It expires
60 s after the last grant or renewal. These rules go beyond RocketMQ's, so that a takeover waits no
longer than the old owner itself:

    unlocked, or the owner unregistered     free at once; the group is notified
    the owner's connection closed           free 30 s after the last renewal, when the client's own
                                            view of its lock has expired; a client that is back
                                            before then has the full time again
    a renewal leaves the queue out          the client has given the queue up. A Go client never
                                            unlocks: its queue is free at once. Another client's
                                            listener may still run: free 31 s after the last renewal
    expired                                 removed by `expire`, and the group is notified

Leases of inorder clients are in the same table, so locks and leases exclude each other. Decision 16
gives the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from inorder.broker.leases.rules import (
    ROCKETMQ_LEASE_MS,
    ROCKETMQ_VIEW_MS,
    Decision,
    Lease,
    LeaseTable,
    Owner,
    Terms,
)
from inorder.model import GroupQueue

OMITTED_MS: Final = 31_000
"""How long a lock lasts that its owner's renewals leave out."""
RENEWAL_MS_MIN: Final = 10_000
"""RocketMQ clients renew every 20 s. A request that names only younger locks is no renewal."""


class QueueLocks:
    """The locks of RocketMQ clients: leases without an instance id."""

    def __init__(
        self,
        leases: LeaseTable | None = None,
        *,
        lease_ms: int = ROCKETMQ_LEASE_MS,
        client_view_ms: int = ROCKETMQ_VIEW_MS,
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
        """Return a copy of the locks and leases of a group."""
        return self.leases.held(group)

    def decide(self, keys: Iterable[GroupQueue], client_id: str, now_ms: int) -> list[Decision]:
        """Decide a request to lock or renew."""
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
        """Lock or renew one queue; return whether the client owns it now."""
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
        """Free the locks that a renewal leaves out; return those that are free now.

        Call this before `decide`. A request is a renewal if it names a lock that the client has
        held for a while: a request for a new queue names only that queue. With `at_once` the
        omitted locks are free now, otherwise 31 s after their last renewal.
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
            until_ms = now_ms if at_once else lock.renewed_ms + OMITTED_MS
            if key not in named and self._limit(key, lock, until_ms, now_ms):
                free.append(key)
        return free

    def may_commit(self, key: GroupQueue, *, client_id: str | None, connection: int) -> bool:
        """Return whether a commit without an epoch counts: only the owner of a held queue commits.

        A connection without a known client (`client_id` None) may be the lock owner's. inorder
        clients commit under their epoch.
        """
        lock = self.get(key)
        if lock is None:
            return True
        return lock.owner.is_rocketmq and (
            client_id in (None, lock.client_id) or connection == lock.connection
        )

    def is_locked(self, key: GroupQueue) -> bool:
        """Return whether a queue has an owner."""
        return self.get(key) is not None

    def unlock_batch(
        self, group: str, keys: Iterable[GroupQueue], client_id: str
    ) -> list[GroupQueue]:
        """Release queues; return those that the client owned."""
        mine = self._of_client(group, client_id)
        released = [key for key in dict.fromkeys(keys) if key in mine]
        for key in released:
            self.leases.remove(key)
        return released

    def release_client(self, group: str, client_id: str) -> list[GroupQueue]:
        """Release all locks of a client that unregistered from a group."""
        return self.unlock_batch(group, self.held(group), client_id)

    def client_lost(self, group: str, client_id: str, now_ms: int) -> list[GroupQueue]:
        """Shorten the locks of a client whose connection closed; return those that are free now."""
        free: list[GroupQueue] = []
        for key, lock in self._of_client(group, client_id).items():
            until_ms = lock.renewed_ms + min(self.terms.grace_ms, lock.lease_ms)
            if self._limit(key, lock, until_ms, now_ms):
                free.append(key)
        return free

    def client_back(self, group: str, client_id: str) -> None:
        """Restore the full time of the locks of a client that came back."""
        for key, lock in self._of_client(group, client_id).items():
            self.leases.expire_at(key, lock.renewed_ms + lock.lease_ms)

    def holds_any(self, group: str) -> bool:
        """Return whether a group holds a lock or lease, and so consumes in order."""
        return self.leases.holds_any(group)

    def _limit(self, key: GroupQueue, lock: Lease, until_ms: int, now_ms: int) -> bool:
        """Let a lock last until a time at most; remove it and return True if that time is over."""
        if until_ms <= now_ms:
            self.leases.remove(key)
            return True
        if until_ms < lock.expires_ms:
            self.leases.expire_at(key, until_ms)
        return False

    def _of_client(self, group: str, client_id: str) -> dict[GroupQueue, Lease]:
        owner = Owner(client_id)
        return {key: lock for key, lock in self.held(group).items() if lock.owner == owner}
