"""Whose queue it is: the lock, the last pull, the running handlers, and why it was given up.

    LIVE ──drop──> LEAVING ──last handler ended──> IDLE ──released──> GONE

RocketMQ's three locks are roles here. The lock in the broker is `locked_until_ms`, counted
from the moment the request was *sent*. The lock of the queue in the process is: one LeaseState per
queue. The lock while handling is `running`: a queue is not released before it is 0.

One lock, one LeaseState: who loses the lock drops the queue and begins anew, with a new lock, the
offset of the broker and an empty cache. What one may still do who is not sure of it differs:

    RocketMQ's lock     nothing: it may have been somebody else's meanwhile, and nobody would know.
                        The queue is dropped
    a lease (an epoch)  no handler starts, until the broker has confirmed *this* epoch; then it goes
                        on with what is here, for every other owner would have made another epoch.
                        Commits carry the epoch, so the broker itself refuses what is stale

A lease is trusted for min(lease, grace) from the moment the last request that carried its epoch and
was answered was *sent*: for so long the broker gives the queue to nobody, whatever happened to the
connection since. Once the lease itself has passed, what still runs runs beside the next owner.

Leases of queues, as their consumer sees them: what to ask, and what an answer means.

A request names all queues of a broker that are ours, with their epochs, or new ones with epoch 0.
An answer confirms an epoch, or says that it is not current any more: then another consumer has the
queue, it was taken away, or its offset was reset. In each case it is dropped and begun anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inorder.client.consume.rules.commits import NOT_STORED, Progress
from inorder.model import TopicQueue
from inorder.wire.requests.leases import QUEUES_MAX, Chapter, LeaseAnswer, LeaseGrant, QueueWish

LOCK_TRUSTED_MS: Final = 30_000
"""How long a lock is trusted after the request that got or renewed it was sent."""
LOCK_RENEW_MS: Final = 20_000
LOCK_RENEW_FIRST_MS: Final = 1000
PULL_EXPIRED_MS: Final = 120_000
GRACE_MIN_MS: Final = 100


class RevokeReason(Enum):
    """Why a queue is given up."""

    MOVED = "allocated to another consumer"
    UNSUBSCRIBED = "the topic is subscribed no more"
    STOPPED = "the consumer stops"
    PULL_EXPIRED = "nothing was pulled for 120 s"
    LOCK_LOST = "the broker says that it is not ours any more"
    LOCK_EXPIRED = "the lock could not be renewed in time"
    OFFSET_ILLEGAL = "the broker corrected the offset"
    RESET = "the offset was set by an operator or by seek"
    RECALLED = "the broker asks for it: the group is set back to before a resize"

    @property
    def may_commit(self) -> bool:
        """Tell whether what a handler finishes after the drop still counts."""
        return self in _MAY_COMMIT

    @property
    def leaves_handlers(self) -> bool:
        """Tell whether a queue without order is let go while its handlers run.

        Their results are thrown away, so nothing waits for them: the queue may be anybody's now,
        and ours again the next moment.
        """
        return self in _LEAVES_HANDLERS


_MAY_COMMIT: Final = frozenset(
    (
        RevokeReason.MOVED,
        RevokeReason.UNSUBSCRIBED,
        RevokeReason.STOPPED,
        RevokeReason.PULL_EXPIRED,
        RevokeReason.RECALLED,
    )
)

_LEAVES_HANDLERS: Final = frozenset(
    (RevokeReason.MOVED, RevokeReason.UNSUBSCRIBED, RevokeReason.PULL_EXPIRED)
)


class Phase(Enum):
    """How far a queue is on its way out."""

    LIVE = "live"
    LEAVING = "a handler still runs"
    IDLE = "to be committed and released"
    GONE = "released"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a consumer asks of the brokers that know leases."""

    lease_ms: int
    """How long a queue stays ours without a word from us."""
    grace_ms: int
    """The same once our connection is closed."""

    @property
    def trusted_ms(self) -> int:
        """Return how long a lease is trusted without a confirmation."""
        return min(self.lease_ms, self.grace_ms)

    @property
    def renew_ms(self) -> int:
        """Return how often it is renewed: two renewals may fail before it is in doubt."""
        return max(1, self.trusted_ms // 3)


class LeaseState:
    """One queue while it is ours."""

    __slots__ = (
        "_gone", "_lease_ms", "_trusted_ms", "dropped", "epoch", "kept_epoch", "lock_sent_ms",
        "locked", "pulled_at_ms", "queue", "running",
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
        """Begin; an ordered queue of a cluster begins with the lock that was asked for then.

        With an `epoch`, under a lease of these terms; else under RocketMQ's lock.
        """
        assert (epoch > 0) == (terms is not None), "a lease has an epoch and terms"
        self.queue = queue
        self.epoch = epoch
        self.kept_epoch = 0
        """The offset was set: under this epoch the queue is ours still, to be given back."""
        self._lease_ms = 0 if terms is None else terms.lease_ms
        # Of two times cut to milliseconds the difference may be 1 below the true one.
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
        """Return how far the queue is on its way out."""
        if self._gone:
            return Phase.GONE
        if self.dropped is None:
            return Phase.LIVE
        return Phase.LEAVING if self.running else Phase.IDLE

    def lock_valid(self, now_ms: int) -> bool:
        """Tell whether a handler may start and a result may be committed under the lock."""
        return self.locked and now_ms - self.lock_sent_ms <= self._trusted_ms

    def renewed(self, sent_ms: int, now_ms: int) -> bool:
        """Note that the broker granted the lock again; tell whether the tenure goes on.

        If the answer comes when the lock is not trusted any more, somebody may have had it
        meanwhile: it is ours again, but to begin anew with (O25). A lease goes on: it is renewed
        under its epoch only.
        """
        if not self.locked:
            return False
        lapsed = not self.epoch and now_ms - self.lock_sent_ms > LOCK_TRUSTED_MS
        self.lock_sent_ms = max(self.lock_sent_ms, sent_ms)
        if lapsed:
            self.drop(RevokeReason.LOCK_EXPIRED)
        return not lapsed

    def lock_lost(self) -> None:
        """Note that the broker gave the lock to somebody else, or raised the epoch."""
        self.locked = False
        self.drop(RevokeReason.LOCK_LOST)

    def kept(self, epoch: int, sent_ms: int) -> None:
        """Note that a queue which has to be begun anew is not another's while its handlers run."""
        self.kept_epoch = epoch
        self.lock_sent_ms = max(self.lock_sent_ms, sent_ms)

    def check_lock(self, now_ms: int) -> bool:
        """Drop the queue if the lock is not to be trusted any more; tell whether it is.

        It may still be ours at the broker: it is renewed while a handler runs, so that nobody
        begins beside it if that can be helped, and given back in the end. A lease in doubt is not
        dropped: it waits for the broker's word.
        """
        if self.lock_valid(now_ms):
            return True
        if not self.epoch:
            self.drop(RevokeReason.LOCK_EXPIRED)
        return False

    def lease_ends_ms(self) -> int:
        """Return when somebody else may have the queue, if nothing is confirmed before."""
        assert self.epoch, f"{self!r} has no lease"
        return self.lock_sent_ms + self._lease_ms

    def pulled(self, now_ms: int) -> None:
        """Note that a pull was tried."""
        self.pulled_at_ms = now_ms

    def pull_expired(self, now_ms: int) -> bool:
        """Tell whether nobody tried to pull for so long that something is wrong."""
        return now_ms - self.pulled_at_ms > PULL_EXPIRED_MS

    def drop(self, reason: RevokeReason) -> None:
        """Give the queue up: no pull, no handler starts. What forbids a commit wins."""
        if self.dropped is None or (self.dropped.may_commit and not reason.may_commit):
            self.dropped = reason

    def may_commit(self, now_ms: int, *, needs_lock: bool) -> bool:
        """Tell whether what a handler finished now counts; under a lease the broker decides."""
        if self.dropped is not None and not self.dropped.may_commit:
            return False
        return not needs_lock or self.epoch > 0 or self.lock_valid(now_ms)

    def is_waited_for(self, *, ordered: bool) -> bool:
        """Tell whether a queue that was given up stays here until its handlers have ended."""
        if self.dropped is None:
            return True
        return self.running > 0 and (ordered or not self.dropped.leaves_handlers)

    def enter(self, count: int = 1) -> None:
        """Count handlers that start.

        Raises AssertionError: the queue was given up.
        """
        assert self.dropped is None, f"a handler starts on {self!r}"
        self.running += count

    def leave(self, count: int = 1) -> None:
        """Count handlers that ended."""
        assert self.running >= count, f"a handler ends that never began on {self!r}"
        self.running -= count

    def released(self, *, ordered: bool = True) -> None:
        """Note that the queue was committed and unlocked, or has nothing to commit.

        Raises AssertionError: the queue was not given up, or a handler still runs that is to be
        waited for.
        """
        assert self.phase is Phase.IDLE or not self.is_waited_for(ordered=ordered), (
            f"released too early: {self!r}"
        )
        self._gone = True


ASK_AGAIN_MIN_MS: Final = 20
ASK_AGAIN_LATE_MS: Final = 2
"""A refusal says when the lease ends; the broker may be asked when it is over."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A queue that may be begun. Without an epoch it is RocketMQ's lock, and nothing more is known.

    `sent_ms` is when the request was sent.
    """

    sent_ms: int
    epoch: int = 0
    stored: Progress = NOT_STORED
    chapters: tuple[Chapter, ...] = ()
    parked: int = 0
    redrive: bool = False


@dataclass(frozen=True, slots=True)
class Acquired:
    """What a round got; `again_ms` is when to ask for the rest, None: there is none."""

    grants: Mapping[TopicQueue, Grant]
    again_ms: int | None = None

    def and_also(self, other: Acquired) -> Acquired:
        """Put the answers of two brokers together."""
        both = [ms for ms in (self.again_ms, other.again_ms) if ms is not None]
        return Acquired({**self.grants, **other.grants}, min(both, default=None))


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a renewal changed."""

    lost: tuple[TopicQueue, ...]
    revived: tuple[TopicQueue, ...]
    """They were in doubt and are not any more: handlers may start again."""
    granted: tuple[tuple[TopicQueue, LeaseGrant], ...]


def take_wishes(queues: Iterable[TopicQueue], number: int) -> Iterator[list[QueueWish]]:
    """Return requests for new queues of one broker; the number grows from call to call."""
    return _parts([QueueWish(queue.topic, queue.index, 0, number) for queue in sorted(queues)])


def renewal_wishes(
    owned: Mapping[TopicQueue, LeaseState], broker: str
) -> Iterator[list[QueueWish]]:
    """Return the requests that renew what is ours at a broker: at least one, a sign of life.

    A queue that waits for its release is left out: the release itself carries the epoch. One that
    has to be begun anew is kept while its handlers run: if its offset was set it is still ours.
    """
    return _parts(
        [
            QueueWish(queue.topic, queue.index, lease_state.kept_epoch or lease_state.epoch)
            for queue, lease_state in sorted(owned.items())
            if queue.broker == broker and (is_leased(lease_state) or _is_begun_anew(lease_state))
        ]
    )


def _is_begun_anew(lease_state: LeaseState) -> bool:
    return bool(lease_state.epoch) and not lease_state.locked and lease_state.phase is Phase.LEAVING


def is_leased(lease_state: LeaseState) -> bool:
    """Tell whether a queue has a lease that is to be kept."""
    return (
        bool(lease_state.epoch)
        and lease_state.locked
        and lease_state.phase in (Phase.LIVE, Phase.LEAVING)
    )


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
    """Return when to ask again for a queue that was refused; a release is told before that."""
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
    """Note the answer to a renewal that was sent then."""
    lost, revived, granted = [], [], []
    by_queue = {(one.topic, one.queue): one for one in answer.granted}
    for wish in asked:
        queue = TopicQueue(wish.topic, broker, wish.queue_id)
        lease_state = owned.get(queue)
        if lease_state is None or wish.epoch not in (lease_state.epoch, lease_state.kept_epoch):
            continue  # it is another tenure by now
        found = by_queue.get((wish.topic, wish.queue_id))
        if not lease_state.locked:
            if found is not None and lease_state.phase is Phase.LEAVING:
                lease_state.kept(found.epoch, sent_ms)
            continue
        if found is not None and found.epoch == wish.epoch:
            if confirm(lease_state, sent_ms, now_ms):
                revived.append(queue)
            granted.append((queue, found))
        elif lease_state.phase in (Phase.LIVE, Phase.LEAVING):  # else its release will be told
            lease_state.lock_lost()
            lost.append(queue)
            if found is not None and lease_state.phase is Phase.LEAVING:
                lease_state.kept(found.epoch, sent_ms)
    return Renewed(tuple(lost), tuple(revived), tuple(granted))


def confirm(lease_state: LeaseState, sent_ms: int, now_ms: int) -> bool:
    """Note that a request under the epoch was answered; tell whether that ended a doubt."""
    doubted = not lease_state.lock_valid(now_ms)
    lease_state.renewed(sent_ms, now_ms)
    return doubted and lease_state.lock_valid(now_ms)


def next_look_ms(owned: Mapping[TopicQueue, LeaseState], *, now_ms: int, renew_ms: int) -> int:
    """Return how long to wait before leases are looked at: for a renewal, or for one that ends."""
    ends = [
        lease_state.lease_ends_ms() - now_ms
        for lease_state in owned.values()
        if lease_state.epoch and lease_state.running
    ]
    return max(1, min([renew_ms, *(ms for ms in ends if ms > 0)]))


def outlived(owned: Mapping[TopicQueue, LeaseState], now_ms: int) -> tuple[TopicQueue, ...]:
    """Return the queues whose handlers run although the lease under which they began has ended."""
    return tuple(
        queue
        for queue, lease_state in owned.items()
        if lease_state.epoch and lease_state.running and now_ms >= lease_state.lease_ends_ms()
    )


def _parts(wishes: list[QueueWish]) -> Iterator[list[QueueWish]]:
    for start in range(0, max(1, len(wishes)), QUEUES_MAX):
        yield wishes[start : start + QUEUES_MAX]
