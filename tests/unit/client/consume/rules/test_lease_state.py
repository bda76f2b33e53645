"""LeaseState: the lock and how long it is trusted, drops, and the way out."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.leases import (
    LOCK_RENEW_MS,
    LOCK_TRUSTED_MS,
    PULL_EXPIRED_MS,
    LeaseState,
    Phase,
    RevokeReason,
)
from tests.unit.client.consume.consuming import QUEUE, locked


@pytest.mark.parametrize(("age_ms", "valid"), [(0, True), (30_000, True), (30_001, False)])
def test_a_lock_is_trusted_for_30_s_from_the_request(age_ms: int, valid: bool) -> None:
    """The broker keeps it for 60 s; we trust half of that, from the moment we asked."""
    lease = LeaseState(QUEUE, now_ms=5000, lock_sent_ms=1000)
    assert lease.is_trusted(1000 + age_ms) is valid
    assert (LOCK_TRUSTED_MS, LOCK_RENEW_MS) == (30_000, 20_000)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    """An answer that comes late, or out of turn, does not make the lock younger than it is."""
    lease = locked(0)
    assert lease.renewed(20_000, 21_000)
    assert lease.renewed(10_000, 21_001)
    assert lease.lock_sent_ms == 20_000
    assert lease.is_trusted(50_000)
    assert not lease.is_trusted(50_001)


def test_a_queue_without_a_lock_is_never_valid_under_one() -> None:
    """A concurrent queue has none, and a renewal does not make one."""
    lease = LeaseState(QUEUE, now_ms=0)
    assert not lease.renewed(0, 0)
    assert not lease.is_trusted(0)


def test_a_lost_lock_ends_the_ownership() -> None:
    """O25: who gets it back begins anew; a renewal that comes later does not revive it."""
    lease = locked(0)
    lease.lose()
    assert not lease.renewed(1000, 1000)
    assert (lease.dropped, lease.locked) == (RevokeReason.LOCK_LOST, False)
    assert not lease.may_commit(1000, needs_lock=True)


def test_an_expired_lock_ends_the_ownership() -> None:
    """It is noticed when the next handler or pull would start; a renewal does not revive it."""
    lease = locked(0)
    assert lease.check_trust(30_000)
    assert not lease.check_trust(30_001)
    lease.renewed(30_002, 30_003)
    assert lease.dropped is RevokeReason.LOCK_EXPIRED
    assert not lease.may_commit(30_003, needs_lock=True)


@pytest.mark.parametrize(("idle_ms", "expired"), [(120_000, False), (120_001, True)])
def test_a_pull_expires_after_120_s(idle_ms: int, expired: bool) -> None:
    """Nobody tried to pull: something is wrong with this queue, it is taken anew."""
    lease = LeaseState(QUEUE, now_ms=0)
    lease.pulled(7)
    assert lease.pull_expired(7 + idle_ms) is expired
    assert PULL_EXPIRED_MS == 120_000


@pytest.mark.parametrize(
    ("reason", "may_commit"),
    [
        (RevokeReason.MOVED, True),
        (RevokeReason.UNSUBSCRIBED, True),
        (RevokeReason.STOPPED, True),
        (RevokeReason.PULL_EXPIRED, True),
        (RevokeReason.LOCK_LOST, False),
        (RevokeReason.LOCK_EXPIRED, False),
        (RevokeReason.OFFSET_ILLEGAL, False),
        (RevokeReason.RESET, False),
    ],
)
def test_what_counts_after_a_drop(reason: RevokeReason, may_commit: bool) -> None:
    """O12: a result after a clean drop is committed; one that would undo a correction is not."""
    lease = locked(0)
    lease.drop(reason)
    assert lease.may_commit(0, needs_lock=True) is may_commit
    assert lease.may_commit(0, needs_lock=False) is may_commit


@pytest.mark.parametrize(
    ("reasons", "counts"),
    [
        ((RevokeReason.MOVED, RevokeReason.LOCK_LOST), RevokeReason.LOCK_LOST),
        ((RevokeReason.MOVED, RevokeReason.STOPPED), RevokeReason.MOVED),
        ((RevokeReason.RESET, RevokeReason.MOVED), RevokeReason.RESET),
        ((RevokeReason.OFFSET_ILLEGAL, RevokeReason.LOCK_LOST), RevokeReason.OFFSET_ILLEGAL),
    ],
)
def test_of_two_drops_the_one_that_forbids_a_commit_counts(
    reasons: tuple[RevokeReason, ...], counts: RevokeReason
) -> None:
    """A queue on its way out may still lose its lock or be reset."""
    lease = locked(0)
    for reason in reasons:
        lease.drop(reason)
    assert lease.dropped is counts


def test_a_clean_drop_still_needs_the_lock_to_commit() -> None:
    """A handler that outlives the lock of a queue on its way out commits nothing."""
    lease = locked(0)
    lease.drop(RevokeReason.MOVED)
    assert lease.may_commit(30_000, needs_lock=True)
    assert not lease.may_commit(30_001, needs_lock=True)


def test_the_way_out() -> None:
    """Live, leaving while a handler runs, idle, gone; each phase once."""
    lease = locked(0)
    assert lease.phase is Phase.LIVE
    lease.enter()
    lease.drop(RevokeReason.MOVED)
    assert lease.phase is Phase.LEAVING
    lease.leave()
    assert lease.phase is Phase.IDLE
    lease.released()
    assert lease.phase is Phase.GONE
    assert "GONE, MOVED" in repr(lease)


def test_our_own_mistakes_are_caught() -> None:
    """No handler on a dropped queue, no release under a handler, no release of a live queue."""
    lease = locked(0)
    with pytest.raises(AssertionError):
        lease.released()
    with pytest.raises(AssertionError):
        lease.leave()
    lease.enter()
    lease.drop(RevokeReason.MOVED)
    with pytest.raises(AssertionError):
        lease.enter()
    with pytest.raises(AssertionError):
        lease.released()
