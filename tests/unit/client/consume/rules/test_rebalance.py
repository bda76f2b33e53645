"""Rebalance: what a new allocation adds and drops, and the steps of a release."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.assignment import (
    LOCK_REFUSED_RETRY_MS,
    Release,
    RoundPlan,
    apply_renewal,
    by_broker,
    next_round_ms,
    plan,
    plan_unsubscribed,
    release_steps,
    to_renew,
)
from inorder.client.consume.rules.leases import LeaseState, Phase, RevokeReason
from inorder.model import TopicQueue

Q0, Q1, Q2, Q3 = (TopicQueue("orders", "broker-a", index) for index in range(4))
B0 = TopicQueue("orders", "broker-b", 0)


def owned(*queues: TopicQueue, lock_sent_ms: int | None = 0) -> dict[TopicQueue, LeaseState]:
    return {queue: LeaseState(queue, now_ms=0, lock_sent_ms=lock_sent_ms) for queue in queues}


def test_a_concurrent_queue_is_added_at_once() -> None:
    """No lock is asked for."""
    assert plan(owned(Q0), [Q1, Q0], needs_lock=False, now_ms=0) == RoundPlan((), (), (Q1,), ())


def test_an_ordered_queue_is_added_with_a_lock_only() -> None:
    """It is in `lock`, not in `add`: no lock, no pull."""
    assert plan(owned(Q0), [Q1, Q0], needs_lock=True, now_ms=0) == RoundPlan((), (Q1,), (), ())


@pytest.mark.parametrize("needs_lock", [False, True])
def test_a_queue_of_somebody_else_is_dropped(needs_lock: bool) -> None:
    """What is allocated no more is given up, the rest is kept as it is."""
    found = plan(owned(Q0, Q1), [Q1], needs_lock=needs_lock, now_ms=0)
    assert found == RoundPlan(((Q0, RevokeReason.MOVED),), (), (), ())


def test_nothing_new_changes_nothing() -> None:
    """A timer round with the same allocation is no change."""
    assert plan(owned(Q0, Q1), [Q1, Q0], needs_lock=True, now_ms=0) == RoundPlan((), (), (), ())


@pytest.mark.parametrize(("now_ms", "dropped"), [(120_000, False), (120_001, True)])
def test_a_queue_that_nobody_pulls_is_taken_anew(now_ms: int, dropped: bool) -> None:
    """Pull expired: the queue is dropped although it is allocated; a later round adds it again."""
    found = plan(owned(Q0), [Q0], needs_lock=False, now_ms=now_ms)
    assert found.drop == (((Q0, RevokeReason.PULL_EXPIRED),) if dropped else ())
    assert found.waiting == ((Q0,) if dropped else ())


def test_a_queue_on_its_way_out_is_not_taken_again_before_it_is_gone() -> None:
    """One lease state per queue: else a new handler would run beside the one that still runs."""
    queues = owned(Q0)
    queues[Q0].enter()
    queues[Q0].drop(RevokeReason.MOVED)
    found = plan(queues, [Q0], needs_lock=True, now_ms=0)
    assert found == RoundPlan((), (), (), (Q0,))
    del queues[Q0]
    assert plan(queues, [Q0], needs_lock=True, now_ms=0).lock == (Q0,)


@pytest.mark.parametrize(
    ("reason", "ordered", "running", "waits"),
    [
        (RevokeReason.MOVED, False, 1, False),
        (RevokeReason.UNSUBSCRIBED, False, 1, False),
        (RevokeReason.PULL_EXPIRED, False, 1, False),
        (RevokeReason.STOPPED, False, 1, True),  # what its handlers finish is committed
        (RevokeReason.RESET, False, 1, True),  # seek says that they end before
        (RevokeReason.OFFSET_ILLEGAL, False, 1, True),
        (RevokeReason.REVOKED, False, 1, True),
        (RevokeReason.MOVED, True, 1, True),
        (RevokeReason.STOPPED, True, 1, True),
        (RevokeReason.STOPPED, True, 0, False),
        (RevokeReason.MOVED, False, 0, False),
    ],
)
def test_a_queue_without_order_that_moves_does_not_wait_for_its_handlers(
    reason: RevokeReason, ordered: bool, running: int, waits: bool
) -> None:
    """It is committed as it stands and let go; their results are thrown away, as in RocketMQ."""
    lease = LeaseState(Q0, now_ms=0)
    lease.enter(running)
    lease.drop(reason)
    steps = release_steps(lease, commit=True, ordered=ordered)
    assert (steps == (Release.WAIT,)) is waits
    if not waits:
        assert steps == (Release.COMMIT, Release.FORGET)
        lease.released(ordered=ordered)
        assert lease.phase is Phase.GONE


@pytest.mark.parametrize(
    ("lock_sent_ms", "needs_lock", "absent", "dropped"),
    [
        (0, True, {"broker-b"}, False),
        (0, True, {"broker-c"}, True),  # the route lists its broker: another member has the queue
        (0, True, (), True),
        (None, False, {"broker-b"}, True),  # no lock: whoever sees the broker first may begin
    ],
)
def test_a_locked_queue_of_an_absent_broker_is_kept(
    lock_sent_ms: int | None, needs_lock: bool, absent: set[str], dropped: bool
) -> None:
    """It is beside the share, which is computed as by everyone; what is shared out stays so."""
    queues = owned(Q0, B0, lock_sent_ms=lock_sent_ms)
    found = plan(queues, [Q1], needs_lock=needs_lock, now_ms=0, absent=absent)
    gone = [(Q0, RevokeReason.MOVED)] + ([(B0, RevokeReason.MOVED)] if dropped else [])
    assert found.drop == tuple(gone)
    assert found.lock + found.add == (Q1,)


def test_a_kept_queue_goes_when_its_broker_is_back_and_it_is_not_ours() -> None:
    """Then it is in a share again, and in whose it is told by the allocation."""
    queues = owned(Q0, B0)
    assert plan(queues, [Q0], needs_lock=True, now_ms=0, absent={"broker-b"}).drop == ()
    assert plan(queues, [Q0, B0], needs_lock=True, now_ms=0).drop == ()
    assert plan(queues, [Q0], needs_lock=True, now_ms=0).drop == ((B0, RevokeReason.MOVED),)


def test_an_unsubscribed_topic_leaves_with_its_queues() -> None:
    """They are released like any other, not forgotten with their locks."""
    queues = owned(Q0, TopicQueue("other", "broker-a", 0))
    assert plan_unsubscribed(queues, {"other"}) == (Q0,)
    queues[Q0].drop(RevokeReason.UNSUBSCRIBED)
    assert plan_unsubscribed(queues, {"other"}) == ()


def test_a_release_commits_before_it_unlocks() -> None:
    """O9, O10: the next owner cannot read an offset that is not stored yet."""
    lease = owned(Q0)[Q0]
    lease.drop(RevokeReason.MOVED)
    assert release_steps(lease, commit=True) == (
        Release.COMMIT,
        Release.UNLOCK,
        Release.FORGET,
    )
    assert release_steps(lease, commit=False) == (Release.UNLOCK, Release.FORGET)


def test_a_release_waits_for_the_handler_however_long_it_runs() -> None:
    """O8: never forced after 20 s, nor ever; the lock is renewed meanwhile."""
    queues = owned(Q0)
    lease = queues[Q0]
    lease.enter()
    lease.drop(RevokeReason.MOVED)
    for now_ms in range(0, 3_600_000, 20_000):
        assert to_renew(queues) == {"broker-a": (Q0,)}
        assert apply_renewal(queues, [Q0], {Q0}, sent_ms=now_ms, now_ms=now_ms + 500) == ()
        assert release_steps(lease, commit=True) == (Release.WAIT,)
        assert lease.may_commit(now_ms + 20_000, needs_lock=True)
    lease.leave()
    assert release_steps(lease, commit=True) == (
        Release.COMMIT,
        Release.UNLOCK,
        Release.FORGET,
    )


@pytest.mark.parametrize(
    ("reason", "steps"),
    [
        (RevokeReason.MOVED, (Release.COMMIT, Release.UNLOCK, Release.FORGET)),
        (RevokeReason.UNSUBSCRIBED, (Release.COMMIT, Release.UNLOCK, Release.FORGET)),
        (RevokeReason.STOPPED, (Release.COMMIT, Release.UNLOCK, Release.FORGET)),
        (RevokeReason.PULL_EXPIRED, (Release.COMMIT, Release.UNLOCK, Release.FORGET)),
        (RevokeReason.OFFSET_ILLEGAL, (Release.UNLOCK, Release.FORGET)),
        (RevokeReason.RESET, (Release.UNLOCK, Release.FORGET)),
        (RevokeReason.LOCK_LOST, (Release.FORGET,)),
        (RevokeReason.LOCK_EXPIRED, (Release.UNLOCK, Release.FORGET)),
    ],
)
def test_what_is_left_to_do_depends_on_why_it_was_dropped(
    reason: RevokeReason, steps: tuple[Release, ...]
) -> None:
    """No commit against a correction or without a trusted lock, no unlock of a lost queue."""
    lease = owned(Q0)[Q0]
    if reason is RevokeReason.LOCK_LOST:
        lease.lose()
    elif reason is RevokeReason.LOCK_EXPIRED:
        assert not lease.check_trust(30_001)
    else:
        lease.drop(reason)
    assert release_steps(lease, commit=True) == steps


def test_a_concurrent_queue_is_released_without_unlock() -> None:
    """Its offset is committed, and it is forgotten."""
    lease = owned(Q0, lock_sent_ms=None)[Q0]
    lease.drop(RevokeReason.MOVED)
    assert release_steps(lease, commit=True) == (Release.COMMIT, Release.FORGET)


def test_a_live_queue_has_no_release() -> None:
    """Our own mistake is caught."""
    with pytest.raises(AssertionError):
        release_steps(owned(Q0)[Q0], commit=True)


def test_renewals_are_batched_by_broker() -> None:
    """One request per broker; queues whose lock is lost, or that are gone, are left out."""
    queues = owned(Q2, Q0, B0, Q1, Q3)
    queues[Q1].lose()
    queues[Q3].drop(RevokeReason.MOVED)
    queues[Q3].released()
    assert to_renew(queues) == {"broker-a": (Q0, Q2), "broker-b": (B0,)}
    assert by_broker([]) == {}


def test_a_queue_that_waits_for_its_unlock_is_not_renewed() -> None:
    """A renewal that the broker reads after the unlock would lock the queue for nobody."""
    queues = owned(Q0)
    queues[Q0].enter()
    queues[Q0].drop(RevokeReason.MOVED)
    assert to_renew(queues) == {"broker-a": (Q0,)}
    queues[Q0].leave()
    assert to_renew(queues) == {}


def test_an_answer_to_a_renewal_sets_each_queue() -> None:
    """Granted ones are good again, the others are lost; what was not asked for stays."""
    queues = owned(Q0, Q1, B0)
    assert apply_renewal(queues, [Q0, Q1, Q3], {Q0}, sent_ms=20_000, now_ms=20_001) == (Q1,)
    assert queues[Q0].lock_sent_ms == 20_000
    assert queues[Q1].dropped is RevokeReason.LOCK_LOST
    assert (queues[B0].lock_sent_ms, queues[B0].dropped) == (0, None)


@pytest.mark.parametrize(("answered_ms", "lost"), [(30_000, ()), (30_001, (Q0,))])
def test_a_lock_that_is_granted_again_too_late_ends_the_ownership(
    answered_ms: int, lost: tuple[TopicQueue, ...]
) -> None:
    """O25: the lock was free, but another consumer may have had it meanwhile. It is unlocked."""
    queues = owned(Q0)
    found = apply_renewal(queues, [Q0], {Q0}, sent_ms=29_000, now_ms=answered_ms)
    assert found == lost
    if lost:
        assert queues[Q0].dropped is RevokeReason.LOCK_EXPIRED
        assert release_steps(queues[Q0], commit=True) == (Release.UNLOCK, Release.FORGET)


def test_an_old_answer_does_not_take_a_newer_lock() -> None:
    """A refusal of a request from before the present lock is no news of it."""
    queues = owned(Q0, lock_sent_ms=5000)
    assert apply_renewal(queues, [Q0], set(), sent_ms=4000, now_ms=5000) == ()
    assert queues[Q0].dropped is None


def test_an_expired_lock_is_kept_if_possible_while_the_handler_runs() -> None:
    """O7: its result does not count, but nobody should begin beside it before it ends."""
    queues = owned(Q0)
    queues[Q0].enter()
    assert not queues[Q0].check_trust(30_001)
    assert to_renew(queues) == {"broker-a": (Q0,)}
    apply_renewal(queues, [Q0], {Q0}, sent_ms=30_002, now_ms=30_003)
    assert not queues[Q0].may_commit(30_003, needs_lock=True)
    queues[Q0].leave()
    assert release_steps(queues[Q0], commit=True) == (Release.UNLOCK, Release.FORGET)


def test_a_lock_lost_while_the_handler_runs_stops_what_follows() -> None:
    """The handler ends, its result does not count, and the queue is taken anew after it."""
    queues = owned(Q0)
    queues[Q0].enter()
    apply_renewal(queues, [Q0], set(), sent_ms=20_000, now_ms=20_001)
    assert queues[Q0].phase is Phase.LEAVING
    assert not queues[Q0].may_commit(20_000, needs_lock=True)
    assert plan(queues, [Q0], needs_lock=True, now_ms=20_000).waiting == (Q0,)
    queues[Q0].leave()
    assert release_steps(queues[Q0], commit=True) == (Release.FORGET,)


def test_the_times_of_rounds() -> None:
    """20 s by itself, 1 s if something was not to be had, 500 ms if a lock was refused."""
    assert next_round_ms(balanced=True) == 20_000
    assert next_round_ms(balanced=False) == 1000
    assert LOCK_REFUSED_RETRY_MS == 500
