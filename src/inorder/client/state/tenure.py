"""Whose queue it is: the lock, the last pull, the running handlers, and why it was given up.

    LIVE ──drop──> LEAVING ──last handler ended──> IDLE ──released──> GONE

RocketMQ's three locks are roles here. The lock in the broker is `locked_until_ms`, counted
from the moment the request was *sent*. The lock of the queue in the process is: one Tenure per
queue. The lock while handling is `running`: a queue is not released before it is 0.

One lock, one Tenure: who loses the lock, or is not sure of it any more, drops the queue and begins
anew, with a new lock, the offset of the broker and an empty cache.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from inorder.model import TopicQueue

LOCK_TRUSTED_MS: Final = 30_000
"""How long a lock is trusted after the request that got or renewed it was sent."""
LOCK_RENEW_MS: Final = 20_000
LOCK_RENEW_FIRST_MS: Final = 1000
PULL_EXPIRED_MS: Final = 120_000


class DropReason(Enum):
    """Why a queue is given up."""

    MOVED = "allocated to another consumer"
    UNSUBSCRIBED = "the topic is subscribed no more"
    STOPPED = "the consumer stops"
    PULL_EXPIRED = "nothing was pulled for 120 s"
    LOCK_LOST = "the broker says that another consumer has the lock"
    LOCK_EXPIRED = "the lock could not be renewed in time"
    OFFSET_ILLEGAL = "the broker corrected the offset"
    RESET = "the offset was set by an operator or by seek"

    @property
    def may_commit(self) -> bool:
        """Tell whether what a handler finishes after the drop still counts."""
        return self in _MAY_COMMIT


_MAY_COMMIT: Final = frozenset(
    (DropReason.MOVED, DropReason.UNSUBSCRIBED, DropReason.STOPPED, DropReason.PULL_EXPIRED)
)


class Phase(Enum):
    """How far a queue is on its way out."""

    LIVE = "live"
    LEAVING = "a handler still runs"
    IDLE = "to be committed and released"
    GONE = "released"


class Tenure:
    """One queue while it is ours."""

    __slots__ = ("_gone", "dropped", "lock_sent_ms", "locked", "pulled_at_ms", "queue", "running")

    def __init__(self, queue: TopicQueue, *, now_ms: int, lock_sent_ms: int | None = None) -> None:
        """Begin; an ordered queue of a cluster begins with the lock that was asked for then."""
        self.queue = queue
        self.pulled_at_ms = now_ms
        self.locked = lock_sent_ms is not None
        self.lock_sent_ms = now_ms if lock_sent_ms is None else lock_sent_ms
        self.dropped: DropReason | None = None
        self.running = 0
        self._gone = False

    def __repr__(self) -> str:
        why = "" if self.dropped is None else f", {self.dropped.name}"
        return f"Tenure({self.queue}, {self.phase.name}{why}, running={self.running})"

    @property
    def phase(self) -> Phase:
        """Return how far the queue is on its way out."""
        if self._gone:
            return Phase.GONE
        if self.dropped is None:
            return Phase.LIVE
        return Phase.LEAVING if self.running else Phase.IDLE

    def lock_valid(self, now_ms: int) -> bool:
        """Tell whether a handler may start and a result may be committed under the lock."""
        return self.locked and now_ms - self.lock_sent_ms <= LOCK_TRUSTED_MS

    def renewed(self, sent_ms: int, now_ms: int) -> bool:
        """Note that the broker granted the lock again; tell whether the tenure goes on.

        If the answer comes when the lock is not trusted any more, somebody may have had it
        meanwhile: it is ours again, but to begin anew with (O25).
        """
        if not self.locked:
            return False
        lapsed = now_ms - self.lock_sent_ms > LOCK_TRUSTED_MS
        self.lock_sent_ms = max(self.lock_sent_ms, sent_ms)
        if lapsed:
            self.drop(DropReason.LOCK_EXPIRED)
        return not lapsed

    def lock_lost(self) -> None:
        """Note that the broker gave the lock to somebody else."""
        self.locked = False
        self.drop(DropReason.LOCK_LOST)

    def check_lock(self, now_ms: int) -> bool:
        """Drop the queue if the lock is not to be trusted any more; tell whether it is.

        It may still be ours at the broker: it is renewed while a handler runs, so that nobody
        begins beside it if that can be helped, and given back in the end.
        """
        if self.lock_valid(now_ms):
            return True
        self.drop(DropReason.LOCK_EXPIRED)
        return False

    def pulled(self, now_ms: int) -> None:
        """Note that a pull was tried."""
        self.pulled_at_ms = now_ms

    def pull_expired(self, now_ms: int) -> bool:
        """Tell whether nobody tried to pull for so long that something is wrong."""
        return now_ms - self.pulled_at_ms > PULL_EXPIRED_MS

    def drop(self, reason: DropReason) -> None:
        """Give the queue up: no pull, no handler starts. What forbids a commit wins."""
        if self.dropped is None or (self.dropped.may_commit and not reason.may_commit):
            self.dropped = reason

    def may_commit(self, now_ms: int, *, needs_lock: bool) -> bool:
        """Tell whether what a handler finished now counts."""
        if self.dropped is not None and not self.dropped.may_commit:
            return False
        return not needs_lock or self.lock_valid(now_ms)

    def enter(self) -> None:
        """Count a handler that starts.

        Raises AssertionError: the queue was given up.
        """
        assert self.dropped is None, f"a handler starts on {self!r}"
        self.running += 1

    def leave(self) -> None:
        """Count a handler that ended."""
        assert self.running > 0, f"a handler ends that never began on {self!r}"
        self.running -= 1

    def released(self) -> None:
        """Note that the queue was committed and unlocked, or has nothing to commit.

        Raises AssertionError: a handler still runs, or the queue was not given up.
        """
        assert self.phase is Phase.IDLE, f"released too early: {self!r}"
        self._gone = True
