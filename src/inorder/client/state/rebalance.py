"""What a new allocation means for the queues that a consumer has.

A round: `plan` compares what is owned with what is allocated; the shell drops, locks and adds; then
it asks `release_steps` for each queue on its way out until it is gone. Order of the steps:

    drop      no pull, no further handler
    wait      for the handlers that run: for as long as they run, never forced (O8); a queue
              without order that moves does not wait, and what its handlers do is thrown away
    commit    and wait for the answer
    unlock    and wait for the answer: never before the commit (O9, O10)
    forget    from now on the queue may be taken again

An ordered queue of a cluster is added only with a lock, and pulled at once when it has it. Locks of
queues whose handlers still run are renewed, dropped or not (O8); a queue that waits for its unlock
is not: a renewal that overtakes the unlock would lock it for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inorder.client.state.tenure import DropReason, Phase, Tenure
from inorder.model import TopicQueue

REBALANCE_INTERVAL_MS: Final = 20_000
REBALANCE_UNBALANCED_MS: Final = 1000
"""The next round comes sooner if something could not be asked or begun."""
LOCK_REFUSED_RETRY_MS: Final = 500
"""The same if a lock was refused; who refuses a lease says how long."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round does: first `drop`, then lock and add."""

    drop: tuple[tuple[TopicQueue, DropReason], ...]
    lock: tuple[TopicQueue, ...]
    """To be added once their lock is granted."""
    add: tuple[TopicQueue, ...]
    """To be added at once: no lock needed."""
    waiting: tuple[TopicQueue, ...]
    """Allocated, but still on their way out: a later round adds them."""


def plan(
    owned: Mapping[TopicQueue, Tenure],
    allocated: Iterable[TopicQueue],
    *,
    needs_lock: bool,
    now_ms: int,
    absent: Collection[str] = (),
) -> Plan:
    """Compare; `owned` holds the queues of one topic, those on their way out included.

    `needs_lock`: the handler is ordered and the group is no broadcast. `absent`: brokers that may
    come back. What is locked there stays: it is in nobody's share, and nobody could take it over.
    """
    wanted = sorted(set(allocated))
    drop = []
    for queue, tenure in sorted(owned.items()):
        if tenure.dropped is None:
            if queue not in wanted:
                if needs_lock and tenure.locked and queue.broker in absent:
                    continue
                drop.append((queue, DropReason.MOVED))
            elif tenure.pull_expired(now_ms):
                drop.append((queue, DropReason.PULL_EXPIRED))
    leaving = {queue for queue, _ in drop}
    leaving |= {queue for queue, tenure in owned.items() if tenure.dropped is not None}
    missing = tuple(queue for queue in wanted if queue not in owned)
    return Plan(
        drop=tuple(drop),
        lock=missing if needs_lock else (),
        add=() if needs_lock else missing,
        waiting=tuple(queue for queue in wanted if queue in leaving),
    )


def plan_unsubscribed(
    owned: Mapping[TopicQueue, Tenure], subscribed: Collection[str]
) -> tuple[TopicQueue, ...]:
    """Return the queues of topics that are subscribed no more; drop them as UNSUBSCRIBED."""
    return tuple(
        sorted(
            queue
            for queue, tenure in owned.items()
            if queue.topic not in subscribed and tenure.dropped is None
        )
    )


class Release(Enum):
    """The next step of a queue on its way out."""

    WAIT = "a handler still runs"
    COMMIT = "commit, wait for the answer"
    UNLOCK = "unlock, wait for the answer"
    FORGET = "take it out of the table"


def release_steps(tenure: Tenure, *, commit: bool, ordered: bool = True) -> tuple[Release, ...]:
    """Return what is left to do for a dropped queue, in this order.

    `commit`: there is an offset that the broker has not confirmed yet. WAIT stands alone: ask again
    when a handler ended.
    """
    assert tenure.dropped is not None, f"{tenure!r} was not dropped"
    if tenure.is_waited_for(ordered=ordered):
        return (Release.WAIT,)
    steps = []
    if commit and tenure.dropped.may_commit:
        steps.append(Release.COMMIT)
    if tenure.locked:
        steps.append(Release.UNLOCK)
    steps.append(Release.FORGET)
    return tuple(steps)


def to_renew(owned: Mapping[TopicQueue, Tenure]) -> dict[str, tuple[TopicQueue, ...]]:
    """Return, by broker, the queues whose lock is to be renewed; ask anew before each request.

    Leases are renewed in another way: see `leasing.py`.
    """
    return by_broker(
        queue
        for queue, tenure in owned.items()
        if tenure.locked and not tenure.epoch and tenure.phase in (Phase.LIVE, Phase.LEAVING)
    )


def apply_renewal(
    owned: Mapping[TopicQueue, Tenure],
    asked: Iterable[TopicQueue],
    granted: Collection[TopicQueue],
    *,
    sent_ms: int,
    now_ms: int,
) -> tuple[TopicQueue, ...]:
    """Note the answer of a renewal that was sent then; return the queues that were dropped."""
    lost = []
    for queue in asked:
        tenure = owned.get(queue)
        if tenure is None or not tenure.locked:
            continue
        if queue in granted:
            if not tenure.renewed(sent_ms, now_ms):
                lost.append(queue)
        elif tenure.lock_sent_ms <= sent_ms:  # else: locked anew since the question
            tenure.lock_lost()
            lost.append(queue)
    return tuple(lost)


def by_broker(queues: Iterable[TopicQueue]) -> dict[str, tuple[TopicQueue, ...]]:
    """Return the queues by the broker that keeps them."""
    found: dict[str, list[TopicQueue]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.broker, []).append(queue)
    return {broker: tuple(of_broker) for broker, of_broker in found.items()}


def next_round_ms(*, balanced: bool) -> int:
    """Return how long to wait for a reason before the next round comes by itself."""
    return REBALANCE_INTERVAL_MS if balanced else REBALANCE_UNBALANCED_MS
