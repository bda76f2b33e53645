"""Handlers without order: which queue is next, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inorder.client.consume.concurrent import ConcurrentRunner, TopicHandler
from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.registrations import HandlerRegistration
from inorder.client.consume.rules.leases import LeaseState
from inorder.client.consume.rules.outcomes import (
    CALLS_SEEN_MIN,
    RUN_ENDS_MS,
    DeadLetter,
    Failure,
    Outcome,
    Pace,
)
from inorder.client.consume.rules.queue import Limits
from inorder.client.consume.workers import Counts, Run, end
from inorder.model import ReceivedMessage, Subscription
from inorder.tasks import Tasks
from inorder.testing.clock import FakeClock
from tests.unit.client.consume.consuming import QUEUE, filled, offsets


class KeptWorkers:
    """Workers whose runs the test makes."""

    capacity = 2

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def submit(self, run: Run) -> None:
        self.runs.append(run)

    def halt(self) -> None: ...

    async def close(self) -> None: ...


def time_is_up(run: Run, clock: FakeClock) -> None:
    clock.advance(RUN_ENDS_MS + 1)
    assert run.next(clock.monotonic_ms()) is None


def handler_fails(run: Run, clock: FakeClock) -> None:
    assert run.next(clock.monotonic_ms()) is not None
    run.error = RuntimeError("the handler's")


def handler_suspends(run: Run, clock: FakeClock) -> None:
    assert run.next(clock.monotonic_ms()) is not None
    assert not run.returned(Outcome.SUSPEND)


@pytest.mark.parametrize(
    ("stops", "left"),
    [(time_is_up, [1, 2, 3]), (handler_fails, [2, 3]), (handler_suspends, [2, 3])],
    ids=["time is up", "a handler fails", "a handler suspends"],
)
def test_what_a_run_did_not_come_to_is_handled_without_a_further_message(
    stops: Callable[[Run, FakeClock], None], left: list[int]
):
    """The queue had nothing more to start and lost its turn; it stands in line again."""

    async def story() -> None:
        clock, workers, tasks = FakeClock(), KeptWorkers(), Tasks("test")
        subscription = Subscription(QUEUE.topic)
        handler = TopicHandler(
            HandlerRegistration(
                subscription, ordered=False, concurrency=1, batch=1, policy=DeadLetter(attempts=3),
                auto_commit=True, call=lambda batch: None, is_async=False,
            ),
            workers,
        )  # fmt: skip
        handler.pace = Pace(calls=CALLS_SEEN_MIN)  # short ones: several in a run
        runner = ConcurrentRunner(
            handlers={QUEUE.topic: handler}, fallback=lambda topic: handler,
            clock=clock, counts=Counts(),
            tasks=tasks, note=lambda queue, offset, moved: None, send_back=taken_back,
            broadcasting=False, handler_timeout_ms=60_000,
        )  # fmt: skip
        assigned = AssignedQueue(
            QUEUE, subscription=subscription, lease=LeaseState(QUEUE, now_ms=0),
            cache=filled(0, 3),
            limits=Limits(), ordered=False, needs_lock=False, on_drop=lambda dropped: None,
        )  # fmt: skip
        runner.pump(assigned)
        (run,) = workers.runs
        assert begun(run) == [0, 1, 2, 3]
        assert run.next(clock.monotonic_ms()) is not None
        assert run.returned(None)
        stops(run, clock)
        end((run,))
        assert begun(*workers.runs[1:]) == left
        await tasks.stop()

    asyncio.run(story())


def begun(*runs: Run) -> list[int]:
    return [offset for run in runs for batch in run.batches for offset in offsets(batch)]


async def taken_back(_: HandlerRegistration, __: ReceivedMessage, ___: Failure) -> bool:
    return True
