"""One queue while it is ours: when a handler may start, when what is done counts."""

from __future__ import annotations

import asyncio

from inorder.client.consume.queue import Holding
from inorder.client.consume.rules.leases import LOCK_TRUSTED_MS, DropReason, Tenure
from inorder.client.consume.rules.queue import Limits, ProcessQueue
from inorder.model import Subscription, TopicQueue

QUEUE = TopicQueue("t", "b", 0)


def holding_of(*, needs_lock: bool = True, dropped: list[Holding] | None = None) -> Holding:
    tenure = Tenure(QUEUE, now_ms=0, lock_sent_ms=0 if needs_lock else None)
    return Holding(
        QUEUE,
        subscription=Subscription("t"),
        tenure=tenure,
        cache=ProcessQueue(0),
        limits=Limits(),
        ordered=needs_lock,
        needs_lock=needs_lock,
        on_drop=(dropped if dropped is not None else []).append,
    )


def test_a_handler_starts_only_under_a_trusted_lock():
    """30 s after the last renewal was sent it does not; without order no lock is needed."""
    holding = holding_of()
    assert holding.may_start(LOCK_TRUSTED_MS)
    assert not holding.may_start(LOCK_TRUSTED_MS + 1)
    assert holding_of(needs_lock=False).may_start(LOCK_TRUSTED_MS + 1)


def test_paused_and_dropped_queues_start_nothing():
    """And a dropped one tells whoever releases it."""

    async def story() -> None:
        told: list[Holding] = []
        holding = holding_of(dropped=told)
        holding.paused = True
        assert not holding.may_start(0)
        holding.paused = False
        holding.drop(DropReason.MOVED)
        assert not holding.may_start(0)
        assert told == [holding]
        assert holding.may_commit(0)  # a handler that ends now still counts (O12)

    asyncio.run(story())


def test_a_lock_in_doubt_is_confirmed_by_a_later_request_only():
    """An answer to what was asked before the connection was lost says nothing."""
    holding = holding_of()
    holding.tenure.renewed(50, 60)
    holding.doubt(100)
    assert not holding.may_start(110)
    assert not holding.may_commit(110)
    assert not holding.confirm()
    holding.tenure.renewed(120, 130)
    assert holding.confirm()
    assert holding.may_start(130)
    assert holding.may_commit(130)
    assert not holding.confirm()  # there is no doubt any more


def test_without_a_lock_there_is_no_doubt():
    """Concurrent queues go on when a connection is lost."""
    holding = holding_of(needs_lock=False)
    holding.doubt(100)
    assert holding.may_start(110)


def test_what_was_to_happen_later_does_not_happen_on_a_queue_that_is_gone():
    """Timers end with the queue."""

    async def story() -> None:
        happened: list[Holding] = []
        holding = holding_of()
        holding.later(0, happened.append)
        await asyncio.sleep(0.001)
        assert happened == [holding]
        holding.later(0, happened.append)
        holding.drop(DropReason.STOPPED)
        await asyncio.sleep(0.001)
        assert happened == [holding]
        assert not holding.timers

    asyncio.run(story())
