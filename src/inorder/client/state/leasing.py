"""Leases of queues, as their consumer sees them: what to ask, and what an answer means.

A request names all queues of a broker that are ours, with their epochs, or new ones with epoch 0.
An answer confirms an epoch, or says that it is not current any more: then another consumer has the
queue, it was taken away, or its offset was reset. In each case it is dropped and begun anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inorder.client.state.commits import NOT_STORED, Progress
from inorder.client.state.tenure import Phase, Tenure
from inorder.model import TopicQueue
from inorder.wire.requests.leases import QUEUES_MAX, Chapter, LeaseAnswer, LeaseGrant, QueueWish

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


def renewal_wishes(owned: Mapping[TopicQueue, Tenure], broker: str) -> Iterator[list[QueueWish]]:
    """Return the requests that renew what is ours at a broker: at least one, a sign of life.

    A queue that waits for its release is left out: the release itself carries the epoch. One that
    has to be begun anew is kept while its handlers run: if its offset was set it is still ours.
    """
    return _parts(
        [
            QueueWish(queue.topic, queue.index, tenure.kept_epoch or tenure.epoch)
            for queue, tenure in sorted(owned.items())
            if queue.broker == broker and (is_leased(tenure) or _is_begun_anew(tenure))
        ]
    )


def _is_begun_anew(tenure: Tenure) -> bool:
    return bool(tenure.epoch) and not tenure.locked and tenure.phase is Phase.LEAVING


def is_leased(tenure: Tenure) -> bool:
    """Tell whether a queue has a lease that is to be kept."""
    return bool(tenure.epoch) and tenure.locked and tenure.phase in (Phase.LIVE, Phase.LEAVING)


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
    owned: Mapping[TopicQueue, Tenure],
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
        tenure = owned.get(queue)
        if tenure is None or wish.epoch not in (tenure.epoch, tenure.kept_epoch):
            continue  # it is another tenure by now
        found = by_queue.get((wish.topic, wish.queue_id))
        if not tenure.locked:
            if found is not None and tenure.phase is Phase.LEAVING:
                tenure.kept(found.epoch, sent_ms)
            continue
        if found is not None and found.epoch == wish.epoch:
            if confirm(tenure, sent_ms, now_ms):
                revived.append(queue)
            granted.append((queue, found))
        elif tenure.phase in (Phase.LIVE, Phase.LEAVING):  # else its release will be told
            tenure.lock_lost()
            lost.append(queue)
            if found is not None and tenure.phase is Phase.LEAVING:
                tenure.kept(found.epoch, sent_ms)
    return Renewed(tuple(lost), tuple(revived), tuple(granted))


def confirm(tenure: Tenure, sent_ms: int, now_ms: int) -> bool:
    """Note that a request under the epoch was answered; tell whether that ended a doubt."""
    doubted = not tenure.lock_valid(now_ms)
    tenure.renewed(sent_ms, now_ms)
    return doubted and tenure.lock_valid(now_ms)


def next_look_ms(owned: Mapping[TopicQueue, Tenure], *, now_ms: int, renew_ms: int) -> int:
    """Return how long to wait before leases are looked at: for a renewal, or for one that ends."""
    ends = [
        tenure.lease_ends_ms() - now_ms
        for tenure in owned.values()
        if tenure.epoch and tenure.running
    ]
    return max(1, min([renew_ms, *(ms for ms in ends if ms > 0)]))


def outlived(owned: Mapping[TopicQueue, Tenure], now_ms: int) -> tuple[TopicQueue, ...]:
    """Return the queues whose handlers run although the lease under which they began has ended."""
    return tuple(
        queue
        for queue, tenure in owned.items()
        if tenure.epoch and tenure.running and now_ms >= tenure.lease_ends_ms()
    )


def _parts(wishes: list[QueueWish]) -> Iterator[list[QueueWish]]:
    for start in range(0, max(1, len(wishes)), QUEUES_MAX):
        yield wishes[start : start + QUEUES_MAX]
