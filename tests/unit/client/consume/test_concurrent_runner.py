"""Handlers without order: which queue is next, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inorder.client.consume.concurrent import ConcurrentRun, ConcurrentRunner, TopicHandler
from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.registrations import HandlerRegistration
from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.outcomes import (
    CALLS_SEEN_MIN,
    RUN_ENDS_MS,
    STOP_SEND_BACK_MS,
    CallPace,
    DeadLetter,
    Failure,
    Outcome,
)
from inorder.client.consume.rules.queue import Limits
from inorder.client.consume.workers import Counts, Run, end
from inorder.model import ReceivedMessage, Subscription
from inorder.tasks import Tasks
from inorder.testing.clock import FakeClock
from tests.unit.client.consume.consuming import QUEUE, filled, offsets


class KeptWorkers:
    """Workers whose runs the test makes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
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


class Stage:
    """A runner with one queue of four messages; the test plays handlers, broker and consumer."""

    def __init__(self, workers: int) -> None:
        self.clock, self.workers, self.tasks = FakeClock(), KeptWorkers(workers), Tasks("test")
        self.broker_accepts = True
        self.refusal_ms = 100
        self.sent_back: list[int] = []
        subscription = Subscription(QUEUE.topic)
        self.handler = TopicHandler(
            HandlerRegistration(
                subscription, ordered=False, concurrency=1, batch=1, policy=DeadLetter(attempts=3),
                auto_commit=True, call=lambda batch: None, is_async=False,
            ),
            self.workers,
        )  # fmt: skip
        self.runner = ConcurrentRunner(
            handlers={QUEUE.topic: self.handler}, fallback=lambda topic: self.handler,
            clock=self.clock, counts=Counts(), tasks=self.tasks,
            send_back=self._send_back, broadcasting=False, handler_timeout_ms=60_000,
        )  # fmt: skip
        self.assigned = AssignedQueue(
            QUEUE, subscription=subscription, lease=LeaseState(QUEUE, now_ms=0),
            progress=filled(0, 3),
            limits=Limits(), ordered=False, needs_lock=False, on_drop=lambda dropped: None,
        )  # fmt: skip

    async def _send_back(
        self, _: HandlerRegistration, message: ReceivedMessage, __: Failure
    ) -> bool:
        if self.broker_accepts:
            self.sent_back.append(message.offset)
        else:
            self.clock.advance(self.refusal_ms)
        return self.broker_accepts

    def start(self) -> list[Run]:
        """Start a run for each message."""
        self.runner.pump(self.assigned)
        for run in self.workers.runs:
            assert run.next(self.clock.monotonic_ms()) is not None
        return list(self.workers.runs)

    async def settled(self) -> None:
        """Wait until no send back is under way."""
        while len(self.tasks):  # noqa: ASYNC110 the tasks belong to the runner
            await asyncio.sleep(0)


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
        stage = Stage(workers=2)
        clock, workers = stage.clock, stage.workers
        stage.handler.pace = CallPace(calls=CALLS_SEEN_MIN)  # short ones: several in a run
        runner, assigned = stage.runner, stage.assigned
        runner.pump(assigned)
        (run,) = workers.runs
        assert begun(run) == [0, 1, 2, 3]
        assert run.next(clock.monotonic_ms()) is not None
        assert run.returned(None)
        stops(run, clock)
        end((run,))
        assert begun(*workers.runs[1:]) == left
        await stage.tasks.stop()

    asyncio.run(story())


def begun(*runs: Run) -> list[int]:
    return [offset for run in runs for batch in run.batches for offset in offsets(batch)]


def fail(run: Run) -> None:
    run.error = RuntimeError("the handler's")
    end((run,))


def succeed(run: Run) -> None:
    run.returned(None)
    end((run,))


def test_a_message_that_could_not_be_sent_back_is_sent_back_when_the_consumer_stops():
    """Its broker restarted. Else the messages above it, which are done, would come again."""

    async def story() -> None:
        stage = Stage(workers=4)
        runs = stage.start()
        stage.broker_accepts = False
        fail(runs[0])
        for run in runs[1:]:
            succeed(run)
        await stage.settled()
        assert stage.assigned.progress.done_below == 0
        stage.broker_accepts = True
        stage.assigned.drop(RevokeReason.STOPPED)
        assert stage.assigned.lease.running, "the release waits for it"
        await stage.settled()
        assert (stage.sent_back, stage.assigned.progress.done_below) == ([0], 4)
        assert not stage.assigned.lease.running

    asyncio.run(story())


def test_a_message_that_fails_while_the_consumer_stops_is_sent_back():
    """Its handler began before the stop, which waits for it."""

    async def story() -> None:
        stage = Stage(workers=4)
        runs = stage.start()
        stage.assigned.drop(RevokeReason.STOPPED)
        fail(runs[1])
        for run in (runs[0], *runs[2:]):
            succeed(run)
        await stage.settled()
        assert (stage.sent_back, stage.assigned.progress.done_below) == ([1], 4)

    asyncio.run(story())


def test_a_stop_tries_again_while_the_broker_restarts():
    """The broker refuses at first, and accepts a moment later."""

    async def story() -> None:
        stage = Stage(workers=4)
        runs = stage.start()
        stage.broker_accepts = False
        stage.assigned.drop(RevokeReason.STOPPED)
        fail(runs[0])
        for run in runs[1:]:
            succeed(run)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stage.broker_accepts = True
        await stage.settled()
        assert (stage.sent_back, stage.assigned.progress.done_below) == ([0], 4)

    asyncio.run(story())


def test_a_stop_does_not_wait_for_ever_to_send_messages_back(caplog: pytest.LogCaptureFixture):
    """All messages share one limit; the offset stays below the first that was not sent back."""

    async def story() -> None:
        stage = Stage(workers=4)
        runs = stage.start()
        stage.refusal_ms = STOP_SEND_BACK_MS + 1
        stage.broker_accepts = False
        stage.assigned.drop(RevokeReason.STOPPED)
        succeed(runs[0])
        for run in runs[1:]:
            fail(run)
        await stage.settled()
        assert (stage.sent_back, stage.assigned.progress.done_below) == ([], 1)
        assert not stage.assigned.lease.running
        assert "offset=1" in caplog.text
        assert "come again" in caplog.text

    asyncio.run(story())


@pytest.mark.parametrize("reason", [RevokeReason.MOVED, RevokeReason.RESET])
def test_nothing_is_sent_back_from_a_queue_that_has_another_owner(reason: RevokeReason):
    """The next owner handles it again, from the committed offset on."""

    async def story() -> None:
        stage = Stage(workers=4)
        runs = stage.start()
        stage.broker_accepts = False
        fail(runs[0])
        await stage.settled()
        stage.broker_accepts = True
        stage.assigned.drop(reason)
        fail(runs[1])
        await stage.settled()
        assert stage.sent_back == []

    asyncio.run(story())


def test_a_result_that_close_did_not_wait_for_is_ignored():
    """close() ended at its time limit while the handler ran."""

    async def story() -> None:
        stage = Stage(workers=4)
        runs = stage.start()
        stage.assigned.drop(RevokeReason.STOPPED)
        await stage.tasks.stop()
        fail(runs[0])
        assert (stage.sent_back, stage.assigned.progress.done_below) == ([], 0)

    asyncio.run(story())


def split(stage: Stage) -> tuple[Run, Run]:
    """Give two workers a run of two messages each; both have begun one of them."""
    stage.handler.pace = CallPace(calls=CALLS_SEEN_MIN, spent_ms=CALLS_SEEN_MIN // 2)
    stage.runner.pump(stage.assigned)
    first, second = stage.workers.runs
    assert (begun(first), begun(second)) == ([0, 1], [2, 3])
    for run in (first, second):
        assert run.next(stage.clock.monotonic_ms()) is not None
    return first, second


def stop(stage: Stage) -> None:
    stage.assigned.drop(RevokeReason.STOPPED)
    stage.runner.halt([stage.assigned])


def finish(stage: Stage, *runs: Run) -> list[int]:
    """Let runs end with what they may still begin; return what was submitted for it."""
    before = len(stage.workers.runs)
    for run in runs:
        while run.returned(None) and run.next(stage.clock.monotonic_ms()) is not None:
            pass
    end(runs)
    return begun(*stage.workers.runs[before:])


def test_a_stop_hands_out_what_lies_before_a_begun_message_and_nothing_else():
    """Else the messages above it, which are done, would come again."""

    async def story() -> None:
        stage = Stage(workers=2)
        first, second = split(stage)
        stop(stage)
        assert finish(stage, first) == []
        assert finish(stage, second) == [1], "2 is done; 3 was not begun"
        assert stage.assigned.lease.running, "the release waits for it"
        (filling,) = stage.workers.runs[2:]
        assert filling.next(stage.clock.monotonic_ms()) is not None
        succeed(filling)
        assert stage.assigned.progress.done_below == 3
        assert not stage.assigned.lease.running

    asyncio.run(story())


def test_a_stop_fills_the_gap_of_a_queue_that_no_worker_had():
    """Its runs ended before the stop, and workers that are free had not come to it again."""

    async def story() -> None:
        stage = Stage(workers=2)
        first, second = split(stage)
        stage.handler.runs.update(ConcurrentRun((), may_start=bool, ended=end) for _ in range(99))
        assert finish(stage, second) == []
        stage.clock.advance(RUN_ENDS_MS + 1)
        assert finish(stage, first) == []
        assert not stage.assigned.lease.running
        stop(stage)
        assert begun(*stage.workers.runs[2:]) == [1]
        assert stage.assigned.lease.running, "the release waits for it"

    asyncio.run(story())


@pytest.mark.parametrize("why", ["paused", "cancelled", "given away", "over"])
def test_a_gap_stays_where_no_handler_may_begin(why: str):
    """The user has paused the queue or cancelled its handler, it is another's, or close is over."""

    async def story() -> None:
        stage = Stage(workers=2)
        first, second = split(stage)
        first.cancelled = why == "cancelled"
        stage.assigned.paused = why == "paused"
        if why == "given away":
            stage.assigned.drop(RevokeReason.REVOKED)
        stop(stage)
        if why == "over":
            stage.runner.end()
        assert finish(stage, first, second) == []
        assert stage.assigned.progress.done_below == (0 if why == "given away" else 1)
        assert not stage.assigned.lease.running

    asyncio.run(story())


def test_a_close_that_is_over_begins_nothing_more():
    """The gap was with a worker that did not come to it in time."""

    async def story() -> None:
        stage = Stage(workers=2)
        stop_with = split(stage)
        stop(stage)
        assert finish(stage, *stop_with) == [1]
        stage.runner.end()
        (filling,) = stage.workers.runs[2:]
        assert filling.next(stage.clock.monotonic_ms()) is None
        end((filling,))
        assert len(stage.workers.runs) == 3, "it is not handed out again"

    asyncio.run(story())
