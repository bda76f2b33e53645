"""Who owns a queue: the lease or lock, the running handlers, and why the queue was given up.

    LIVE ──drop──> LEAVING ──last handler ended──> IDLE ──released──> GONE

One `LeaseState` lasts from one grant of a queue to its release. A consumer that loses the lock
drops the queue and begins again with a new lock, the offset of the broker and an empty cache.
`running` plays the role of RocketMQ's consume lock: a queue is not released before it is 0.

Trust is counted from the moment a request was *sent*. While a lease or lock is unconfirmed:

    RocketMQ's lock     the queue is dropped: another consumer may have had it meanwhile, and no
                        number would tell
    a lease (an epoch)  no handler starts until the broker has confirmed *this* epoch. Then the
                        queue continues with its cache, because another owner would have raised the
                        epoch. Commits carry the epoch, so the broker itself refuses stale ones

A lease is trusted for min(lease, grace) after the last answered request that carried its epoch: for
that long the broker gives the queue to nobody, whatever happens to the connection. Once the lease
itself has ended, a handler that still runs may overlap with the next owner's.

The second half of the file decides about requests. A request lists all queues that this consumer
owns at a broker, with their epochs, or new queues with epoch 0. An answer confirms an epoch or says
that it is stale: another consumer has the queue, an operator forced its release, or its offset was
reset. In each case the queue is dropped and begun again.

Leases or locks: decision 16. Silent, unconfirmed and forced-out owners: decision 17.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inorder.client.consume.rules.commits import NOT_STORED, Progress
from inorder.model import TopicQueue
from inorder.wire.requests.leases import QUEUES_MAX, LeaseAnswer, LeaseGrant, QueueWish, VersionSpan

LOCK_TRUSTED_MS: Final = 30_000
"""How long a lock is trusted after the request that got or renewed it was sent."""
LOCK_RENEW_MS: Final = 20_000
LOCK_RENEW_FIRST_MS: Final = 1000
PULL_EXPIRED_MS: Final = 120_000
GRACE_MIN_MS: Final = 100
ASK_AGAIN_MIN_MS: Final = 20
ASK_AGAIN_LATE_MS: Final = 2
"""How long after the end of another owner's lease the broker is asked again."""


class RevokeReason(Enum):
    """Why a queue is given up."""

    MOVED = "allocated to another consumer"
    UNSUBSCRIBED = "the topic is no longer subscribed"
    STOPPED = "the consumer stops"
    PULL_EXPIRED = "nothing was pulled for 120 s"
    LOCK_LOST = "the broker says that this consumer does not own it any more"
    LOCK_EXPIRED = "the lock could not be renewed in time"
    OFFSET_ILLEGAL = "the broker corrected the offset"
    RESET = "the offset was set by an operator or by seek"
    REVOKED = "the broker revokes it: the group is rewound to before a resize"

    @property
    def may_commit(self) -> bool:
        """Return whether results of handlers that end after the drop are committed."""
        return self in _MAY_COMMIT

    @property
    def leaves_handlers(self) -> bool:
        """Return whether a queue without order is released while its handlers run.

        Their results are thrown away: another consumer may own the queue by then, and this one may
        own it again a moment later.
        """
        return self in _LEAVES_HANDLERS


_MAY_COMMIT: Final = frozenset(
    (
        RevokeReason.MOVED,
        RevokeReason.UNSUBSCRIBED,
        RevokeReason.STOPPED,
        RevokeReason.PULL_EXPIRED,
        RevokeReason.REVOKED,
    )
)

_LEAVES_HANDLERS: Final = frozenset(
    (RevokeReason.MOVED, RevokeReason.UNSUBSCRIBED, RevokeReason.PULL_EXPIRED)
)


class Phase(Enum):
    """How far the release of a queue is."""

    LIVE = "live"
    LEAVING = "a handler still runs"
    IDLE = "to be committed and released"
    GONE = "released"


@dataclass(frozen=True, slots=True)
class Terms:
    """The durations that a consumer asks for in its lease requests."""

    lease_ms: int
    """How long a lease lasts without a renewal."""
    grace_ms: int
    """How long a lease survives the loss of its connection."""

    @property
    def trusted_ms(self) -> int:
        """Return how long this consumer trusts a lease without a confirmation."""
        return min(self.lease_ms, self.grace_ms)

    @property
    def renew_ms(self) -> int:
        """Return the renewal interval: two renewals may fail before a lease is unconfirmed."""
        return max(1, self.trusted_ms // 3)


class LeaseState:
    """The ownership of one queue, from its grant to its release."""

    __slots__ = (
        "_gone",
        "_lease_ms",
        "_trusted_ms",
        "dropped",
        "epoch",
        "lock_sent_ms",
        "locked",
        "pulled_at_ms",
        "queue",
        "reserved_epoch",
        "running",
    )  # fmt: skip

    def __init__(
        self,
        queue: TopicQueue,
        *,
        now_ms: int,
        lock_sent_ms: int | None = None,
        epoch: int = 0,
        terms: Terms | None = None,
    ) -> None:
        """Begin with a lock that was requested at `lock_sent_ms`; None for a queue without one.

        With an `epoch` it is a lease of these terms, else RocketMQ's lock.
        """
        assert (epoch > 0) == (terms is not None), "a lease has an epoch and terms"
        self.queue = queue
        self.epoch = epoch
        self.reserved_epoch = 0
        """The epoch after an offset reset: this consumer still owns the queue, to give it back."""
        self._lease_ms = 0 if terms is None else terms.lease_ms
        # The difference of two truncated times may be 1 ms below the true one.
        self._trusted_ms = LOCK_TRUSTED_MS if terms is None else terms.trusted_ms - 1
        self.pulled_at_ms = now_ms
        self.locked = lock_sent_ms is not None
        self.lock_sent_ms = now_ms if lock_sent_ms is None else lock_sent_ms
        self.dropped: RevokeReason | None = None
        self.running = 0
        self._gone = False

    def __repr__(self) -> str:
        why = "" if self.dropped is None else f", {self.dropped.name}"
        return f"LeaseState({self.queue}, {self.phase.name}{why}, running={self.running})"

    @property
    def phase(self) -> Phase:
        """Return how far the release of the queue is."""
        if self._gone:
            return Phase.GONE
        if self.dropped is None:
            return Phase.LIVE
        return Phase.LEAVING if self.running else Phase.IDLE

    def is_trusted(self, now_ms: int) -> bool:
        """Return whether the lease or lock is trusted: handlers may start and commit."""
        return self.locked and now_ms - self.lock_sent_ms <= self._trusted_ms

    def renewed(self, sent_ms: int, now_ms: int) -> bool:
        """Note that the broker renewed the lease or lock; return whether the queue continues.

        If the answer comes after the trust in a RocketMQ lock has ended, another consumer may have
        had the queue meanwhile: the queue is dropped and begun again (O25). A lease continues,
        because the broker renews it only under its epoch.
        """
        if not self.locked:
            return False
        lapsed = not self.epoch and now_ms - self.lock_sent_ms > LOCK_TRUSTED_MS
        self.lock_sent_ms = max(self.lock_sent_ms, sent_ms)
        if lapsed:
            self.drop(RevokeReason.LOCK_EXPIRED)
        return not lapsed

    def lose(self) -> None:
        """Note that the broker gave the queue to another owner, or raised the epoch."""
        self.locked = False
        self.drop(RevokeReason.LOCK_LOST)

    def reserve(self, epoch: int, sent_ms: int) -> None:
        """Note the epoch under which a reset queue stays reserved while its handlers run."""
        self.reserved_epoch = epoch
        self.lock_sent_ms = max(self.lock_sent_ms, sent_ms)

    def check_trust(self, now_ms: int) -> bool:
        """Return whether the lease or lock is trusted; drop the queue if a RocketMQ lock is not.

        The broker may still hold the lock for this consumer. So it is renewed while a handler runs,
        to keep other owners away, and unlocked at the end. An unconfirmed lease is not dropped: it
        waits for the broker's answer.
        """
        if self.is_trusted(now_ms):
            return True
        if not self.epoch:
            self.drop(RevokeReason.LOCK_EXPIRED)
        return False

    def lease_ends_ms(self) -> int:
        """Return when another consumer may get the queue, unless a request confirms it before."""
        assert self.epoch, f"{self!r} has no lease"
        return self.lock_sent_ms + self._lease_ms

    def pulled(self, now_ms: int) -> None:
        """Note an attempt to pull."""
        self.pulled_at_ms = now_ms

    def pull_expired(self, now_ms: int) -> bool:
        """Return whether the last attempt to pull is so old that the pull loop seems dead."""
        return now_ms - self.pulled_at_ms > PULL_EXPIRED_MS

    def drop(self, reason: RevokeReason) -> None:
        """Give the queue up. Of several reasons one that forbids commits prevails."""
        if self.dropped is None or (self.dropped.may_commit and not reason.may_commit):
            self.dropped = reason

    def may_commit(self, now_ms: int, *, needs_lock: bool) -> bool:
        """Return whether a result may be committed now; under a lease the broker decides."""
        if self.dropped is not None and not self.dropped.may_commit:
            return False
        return not needs_lock or self.epoch > 0 or self.is_trusted(now_ms)

    def is_waited_for(self, *, ordered: bool) -> bool:
        """Return whether the release of the queue waits for its handlers."""
        if self.dropped is None:
            return True
        return self.running > 0 and (ordered or not self.dropped.leaves_handlers)

    def enter(self, count: int = 1) -> None:
        """Count handlers that start.

        Raises AssertionError if the queue was given up.
        """
        assert self.dropped is None, f"a handler starts on {self!r}"
        self.running += count

    def hold(self, count: int = 1) -> None:
        """Count requests or handlers that a release waits for which has begun already."""
        assert not self._gone, f"a request begins on {self!r}"
        self.running += count

    def leave(self, count: int = 1) -> None:
        """Count handlers that ended."""
        assert self.running >= count, f"a handler ends that never began on {self!r}"
        self.running -= count

    def released(self, *, ordered: bool = True) -> None:
        """End the ownership.

        Raises AssertionError if the queue was not given up, or if its release has to wait for a
        handler that still runs.
        """
        assert self.phase is Phase.IDLE or not self.is_waited_for(ordered=ordered), (
            f"released too early: {self!r}"
        )
        self._gone = True


@dataclass(frozen=True, slots=True)
class Grant:
    """A granted queue. Without an epoch it is a RocketMQ lock, and the other fields are empty.

    `sent_ms` is the time at which the request was sent.
    """

    sent_ms: int
    epoch: int = 0
    stored: Progress = NOT_STORED
    chapters: tuple[VersionSpan, ...] = ()
    parked: int = 0
    redrive: bool = False


@dataclass(frozen=True, slots=True)
class Acquired:
    """The granted queues; refused ones are asked for again in `again_ms`, None if none was."""

    grants: Mapping[TopicQueue, Grant]
    again_ms: int | None = None

    def and_also(self, other: Acquired) -> Acquired:
        """Merge the answers of two brokers."""
        both = [ms for ms in (self.again_ms, other.again_ms) if ms is not None]
        return Acquired({**self.grants, **other.grants}, min(both, default=None))


@dataclass(frozen=True, slots=True)
class Renewed:
    """The changes that a renewal brought."""

    lost: tuple[TopicQueue, ...]
    revived: tuple[TopicQueue, ...]
    """Leases that were unconfirmed before: their handlers may start again."""
    granted: tuple[tuple[TopicQueue, LeaseGrant], ...]


def take_wishes(queues: Iterable[TopicQueue], number: int) -> Iterator[list[QueueWish]]:
    """Return requests for new queues of one broker; `number` grows from call to call."""
    return _parts([QueueWish(queue.topic, queue.index, 0, number) for queue in sorted(queues)])


def renewal_wishes(
    owned: Mapping[TopicQueue, LeaseState], broker: str
) -> Iterator[list[QueueWish]]:
    """Return the requests that renew the leases at a broker.

    There is at least one request, because it is also the member's heartbeat. A queue that waits for
    its release is left out: the release carries the epoch itself. A queue whose offset was reset is
    renewed while its handlers run, so that the broker reserves it.
    """
    return _parts(
        [
            QueueWish(queue.topic, queue.index, lease.reserved_epoch or lease.epoch)
            for queue, lease in sorted(owned.items())
            if queue.broker == broker and (is_leased(lease) or _is_reserved(lease))
        ]
    )


def _is_reserved(lease: LeaseState) -> bool:
    return bool(lease.epoch) and not lease.locked and lease.phase is Phase.LEAVING


def is_leased(lease: LeaseState) -> bool:
    """Return whether a queue has a lease that should be renewed."""
    return bool(lease.epoch) and lease.locked and lease.phase in (Phase.LIVE, Phase.LEAVING)


def acquired(broker: str, answer: LeaseAnswer, sent_ms: int) -> Acquired:
    """Read the answer to a request for new queues."""
    grants = {
        TopicQueue(one.topic, broker, one.queue): Grant(
            sent_ms,
            one.epoch,
            Progress(one.offset, one.finished),
            tuple(one.chapters),
            one.parked,
            one.redrive,
        )
        for one in answer.granted
    }
    waits = [ask_again_ms(one.waits_ms) for one in answer.refused]
    return Acquired(grants, min(waits, default=None))


def ask_again_ms(waits_ms: int) -> int:
    """Return when to ask again for a refused queue; the broker notifies of an earlier release."""
    return max(ASK_AGAIN_MIN_MS, waits_ms + ASK_AGAIN_LATE_MS)


def apply_renewal(
    owned: Mapping[TopicQueue, LeaseState],
    broker: str,
    asked: Sequence[QueueWish],
    answer: LeaseAnswer,
    *,
    sent_ms: int,
    now_ms: int,
) -> Renewed:
    """Note the answer to a renewal that was sent at `sent_ms`."""
    lost, revived, granted = [], [], []
    by_queue = {(one.topic, one.queue): one for one in answer.granted}
    for wish in asked:
        queue = TopicQueue(wish.topic, broker, wish.queue_id)
        lease = owned.get(queue)
        if lease is None or wish.epoch not in (lease.epoch, lease.reserved_epoch):
            continue  # the queue was released and granted again meanwhile
        found = by_queue.get((wish.topic, wish.queue_id))
        if not lease.locked:
            if found is not None and lease.phase is Phase.LEAVING:
                lease.reserve(found.epoch, sent_ms)
            continue
        if found is not None and found.epoch == wish.epoch:
            if confirm(lease, sent_ms, now_ms):
                revived.append(queue)
            granted.append((queue, found))
        elif lease.phase in (Phase.LIVE, Phase.LEAVING):  # else the answer to its release says so
            lease.lose()
            lost.append(queue)
            if found is not None and lease.phase is Phase.LEAVING:
                lease.reserve(found.epoch, sent_ms)
    return Renewed(tuple(lost), tuple(revived), tuple(granted))


def confirm(lease: LeaseState, sent_ms: int, now_ms: int) -> bool:
    """Note an answered request under the epoch; return whether the lease was unconfirmed before."""
    unconfirmed = not lease.is_trusted(now_ms)
    lease.renewed(sent_ms, now_ms)
    return unconfirmed and lease.is_trusted(now_ms)


def next_check_ms(owned: Mapping[TopicQueue, LeaseState], *, now_ms: int, renew_ms: int) -> int:
    """Return the time until the next check of leases: a renewal is due, or a lease ends."""
    ends = [
        lease.lease_ends_ms() - now_ms for lease in owned.values() if lease.epoch and lease.running
    ]
    return max(1, min([renew_ms, *(ms for ms in ends if ms > 0)]))


def outlived(owned: Mapping[TopicQueue, LeaseState], now_ms: int) -> tuple[TopicQueue, ...]:
    """Return the queues whose handlers run longer than the lease."""
    return tuple(
        queue
        for queue, lease in owned.items()
        if lease.epoch and lease.running and now_ms >= lease.lease_ends_ms()
    )


def _parts(wishes: list[QueueWish]) -> Iterator[list[QueueWish]]:
    for start in range(0, max(1, len(wishes)), QUEUES_MAX):
        yield wishes[start : start + QUEUES_MAX]
