"""Queue locks: when a queue changes hands."""

from __future__ import annotations

from inorder.broker.leases.rules import LeaseTable
from inorder.broker.locks.rules import QueueLocks
from inorder.model import GroupQueue

QUEUE = GroupQueue("g", "t", 0)
OTHER = GroupQueue("g", "t", 1)


def test_a_lock_expires_60_s_after_its_last_renewal() -> None:
    """Until then nobody else gets it; renewing counts from the renewal."""
    locks = QueueLocks()
    assert locks.try_lock(QUEUE, "a", 0)
    assert not locks.try_lock(QUEUE, "b", 59_999)
    assert locks.try_lock(QUEUE, "a", 50_000)
    assert not locks.try_lock(QUEUE, "b", 109_999)
    assert locks.leases.expire(110_000) == [QUEUE]
    assert locks.try_lock(QUEUE, "b", 110_000)
    assert not locks.try_lock(QUEUE, "a", 110_001)
    assert locks.try_lock(QUEUE._replace(group="h"), "a", 110_001)


def test_every_new_owner_has_a_higher_epoch() -> None:
    """Renewing keeps the epoch, a change of hands raises it, also after a release."""
    locks = QueueLocks()
    epochs = []
    for client, now_ms in (("a", 0), ("a", 1), ("b", 60_001), ("b", 60_002)):
        locks.leases.expire(now_ms)
        locks.try_lock(QUEUE, client, now_ms)
        lock = locks.get(QUEUE)
        assert lock is not None
        epochs.append(lock.epoch)
    locks.unlock_batch("g", [QUEUE], "b")
    locks.try_lock(QUEUE, "b", 60_003)
    lock = locks.get(QUEUE)
    assert lock is not None
    epochs.append(lock.epoch)
    assert epochs[0] == epochs[1] < epochs[2] == epochs[3] < epochs[4]


def test_only_the_owner_unlocks() -> None:
    """What others want to release stays."""
    locks = QueueLocks()
    locks.lock_batch([QUEUE, OTHER], "a", 0)
    assert locks.unlock_batch("g", [QUEUE], "b") == []
    assert locks.unlock_batch("h", [QUEUE], "a") == []
    assert locks.unlock_batch("g", [QUEUE, QUEUE], "a") == [QUEUE]
    assert locks.release_client("g", "a") == [OTHER]
    assert len(locks) == 0


def test_a_lost_client_keeps_its_locks_for_its_own_view() -> None:
    """After a lost connection a lock is free 30 s after its last renewal, not 60 s."""
    locks = QueueLocks()
    locks.try_lock(QUEUE, "a", 0)
    locks.try_lock(OTHER, "a", 20_000)
    assert locks.client_lost("g", "a", 35_000) == [QUEUE]
    assert locks.leases.expire(49_999) == []
    assert locks.leases.expire(50_000) == [OTHER]


def test_a_client_that_comes_back_has_its_time_again() -> None:
    """Back before its view ran out, a client keeps its locks as if nothing had happened."""
    locks = QueueLocks()
    locks.try_lock(QUEUE, "a", 0)
    locks.client_lost("g", "a", 10_000)
    locks.client_back("g", "a")
    assert locks.leases.expire(59_999) == []
    assert locks.leases.expire(60_000) == [QUEUE]


def test_expiry_is_found_without_looking_at_all_locks() -> None:
    """The next deadline is known, and renewed locks are not expired by their old one."""
    locks = QueueLocks()
    assert locks.leases.next_deadline_ms() is None
    locks.try_lock(QUEUE, "a", 0)
    assert locks.leases.next_deadline_ms() == 60_000
    locks.try_lock(QUEUE, "a", 20_000)
    assert locks.leases.expire(60_000) == []
    assert locks.leases.next_deadline_ms() == 80_000
    assert locks.holds_any("g")
    assert locks.leases.expire(80_000) == [QUEUE]
    assert not locks.holds_any("g")


def test_the_number_of_locks_is_limited() -> None:
    """At the limit new queues are not granted; what is held can be renewed."""
    locks = QueueLocks(LeaseTable(leases_max=1))
    assert locks.lock_batch([QUEUE, OTHER], "a", 0) == [QUEUE]
    assert locks.try_lock(QUEUE, "a", 1)
    locks.unlock_batch("g", [QUEUE], "a")
    assert locks.try_lock(OTHER, "a", 2)


def test_deadlines_of_released_locks_do_not_pile_up() -> None:
    """Locking and releasing for ever needs bounded memory."""
    locks = QueueLocks()
    for now_ms in range(10_000):
        locks.try_lock(QUEUE, "a", now_ms)
        locks.unlock_batch("g", [QUEUE], "a")
    assert len(locks.leases._deadlines) <= 64


def test_a_go_client_gives_up_what_its_renewal_leaves_out() -> None:
    """It forgets to unlock: the queue is free at its next renewal, 20 s later, not after 60 s."""
    locks = QueueLocks()
    locks.lock_batch([QUEUE, OTHER], "a", 0)
    assert locks.omitted("g", [QUEUE], "a", 20_000, at_once=True) == [OTHER]
    locks.lock_batch([QUEUE], "a", 20_000)
    assert set(locks.held("g")) == {QUEUE}
    assert locks.try_lock(OTHER, "b", 20_001)


def test_another_client_gives_it_up_when_its_own_view_has_run_out() -> None:
    """Its listener may still run (O8): 31 s after the last renewal, not before."""
    locks = QueueLocks()
    locks.lock_batch([QUEUE, OTHER], "a", 0)
    assert locks.omitted("g", [QUEUE], "a", 20_000, at_once=False) == []
    locks.lock_batch([QUEUE], "a", 20_000)
    assert locks.leases.next_deadline_ms() == 31_000
    assert not locks.try_lock(OTHER, "b", 30_999)
    assert locks.leases.expire(31_000) == [OTHER]
    late = QueueLocks()
    late.lock_batch([QUEUE, OTHER], "a", 0)
    assert late.omitted("g", [QUEUE], "a", 40_000, at_once=False) == [OTHER]


def test_what_is_renewed_after_all_has_its_full_time() -> None:
    """A queue that comes back to the client is locked as any other."""
    locks = QueueLocks()
    locks.lock_batch([QUEUE, OTHER], "a", 0)
    locks.omitted("g", [QUEUE], "a", 20_000, at_once=False)
    locks.lock_batch([QUEUE, OTHER], "a", 25_000)
    assert locks.leases.expire(84_999) == []


def test_a_request_for_a_new_queue_is_no_renewal() -> None:
    """It names that queue alone; so does one for a queue that was locked just now."""
    locks = QueueLocks()
    locks.lock_batch([QUEUE], "a", 0)
    assert locks.omitted("g", [OTHER], "a", 20_000, at_once=True) == []
    locks.lock_batch([OTHER], "a", 20_000)
    assert locks.omitted("g", [OTHER], "a", 25_000, at_once=True) == []
    assert set(locks.held("g")) == {QUEUE, OTHER}


def test_others_are_not_touched_by_a_renewal() -> None:
    """Neither another client of the group nor another group of the client."""
    locks = QueueLocks()
    locks.lock_batch([QUEUE], "a", 0)
    locks.lock_batch([OTHER], "b", 0)
    locks.lock_batch([OTHER._replace(group="h")], "a", 0)
    assert locks.omitted("g", [QUEUE], "a", 50_000, at_once=True) == []
    assert set(locks.held("g")) == {QUEUE, OTHER}
    assert set(locks.held("h")) == {OTHER._replace(group="h")}
