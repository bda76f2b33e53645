"""An assigned queue: when a handler may start, and when its result may be committed."""

from __future__ import annotations

import asyncio

from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.rules.leases import LOCK_TRUSTED_MS, LeaseState, RevokeReason
from inorder.client.consume.rules.queue import Limits, QueueProgress
from inorder.model import Subscription, TopicQueue

QUEUE = TopicQueue("t", "b", 0)


def queue_of(
    *, needs_lock: bool = True, dropped: list[AssignedQueue] | None = None
) -> AssignedQueue:
    lease = LeaseState(QUEUE, now_ms=0, lock_sent_ms=0 if needs_lock else None)
    return AssignedQueue(
        QUEUE,
        subscription=Subscription("t"),
        lease=lease,
        progress=QueueProgress(0),
        limits=Limits(),
        ordered=needs_lock,
        needs_lock=needs_lock,
        on_drop=(dropped if dropped is not None else []).append,
    )


def test_a_handler_starts_only_under_a_trusted_lock():
    """30 s after the last renewal was sent it does not; without order no lock is needed."""
    assigned = queue_of()
    assert assigned.may_start(LOCK_TRUSTED_MS)
    assert not assigned.may_start(LOCK_TRUSTED_MS + 1)
    assert queue_of(needs_lock=False).may_start(LOCK_TRUSTED_MS + 1)


def test_paused_and_dropped_queues_start_nothing():
    """And a dropped one tells whoever releases it."""

    async def story() -> None:
        told: list[AssignedQueue] = []
        assigned = queue_of(dropped=told)
        assigned.paused = True
        assert not assigned.may_start(0)
        assigned.paused = False
        assigned.drop(RevokeReason.MOVED)
        assert not assigned.may_start(0)
        assert told == [assigned]
        assert assigned.may_commit(0)  # a handler that ends now still counts (O12)

    asyncio.run(story())


def test_an_unconfirmed_lock_is_confirmed_by_a_later_request_only():
    """An answer to a request from before the loss of the connection proves nothing."""
    assigned = queue_of()
    assigned.lease.renewed(50, 60)
    assigned.mark_unconfirmed(100)
    assert not assigned.may_start(110)
    assert not assigned.may_commit(110)
    assert not assigned.confirm()
    assigned.lease.renewed(120, 130)
    assert assigned.confirm()
    assert assigned.may_start(130)
    assert assigned.may_commit(130)
    assert not assigned.confirm()  # it is confirmed already


def test_a_queue_without_a_lock_is_never_unconfirmed():
    """Concurrent queues go on when a connection is lost."""
    assigned = queue_of(needs_lock=False)
    assigned.mark_unconfirmed(100)
    assert assigned.may_start(110)


def test_what_was_to_happen_later_does_not_happen_on_a_queue_that_is_gone():
    """Timers end with the queue."""

    async def story() -> None:
        happened: list[AssignedQueue] = []
        assigned = queue_of()
        assigned.later(0, happened.append)
        await asyncio.sleep(0.001)
        assert happened == [assigned]
        assigned.later(0, happened.append)
        assigned.drop(RevokeReason.STOPPED)
        await asyncio.sleep(0.001)
        assert happened == [assigned]
        assert not assigned.timers

    asyncio.run(story())
