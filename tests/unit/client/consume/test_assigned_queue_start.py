"""Whether the next call of a run may be made: asked before each, in whatever thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.queue import Limits
from inorder.model import Subscription
from tests.unit.client.consume.consuming import QUEUE, filled


def pause(assigned: AssignedQueue) -> None:
    assigned.paused = True


@pytest.mark.parametrize("needs_lock", [True, False])
@pytest.mark.parametrize(
    ("change", "now_ms", "ordered", "concurrent"),
    [
        (lambda assigned: None, 30_000, True, True),
        (lambda assigned: None, 30_001, False, True),
        (lambda assigned: assigned.lease.drop(RevokeReason.MOVED), 0, False, False),
        (lambda assigned: assigned.lease.lose(), 0, False, False),
        (pause, 0, False, False),
    ],
)
def test_no_handler_starts_on_a_queue_that_is_not_ours_for_sure(
    change: Callable[[AssignedQueue], None],
    now_ms: int,
    ordered: bool,
    concurrent: bool,
    needs_lock: bool,
) -> None:
    """Dropped, paused or, with order, without a fresh lock: what was submitted is not handled."""

    async def scenario() -> bool:
        assigned = AssignedQueue(
            QUEUE,
            subscription=Subscription("orders"),
            lease=LeaseState(QUEUE, now_ms=0, lock_sent_ms=0 if needs_lock else None),
            progress=filled(0, 3),
            limits=Limits(),
            ordered=needs_lock,
            needs_lock=needs_lock,
            on_drop=lambda assigned: None,
        )
        change(assigned)
        return assigned.may_start(now_ms)

    assert asyncio.run(scenario()) is (ordered if needs_lock else concurrent)
