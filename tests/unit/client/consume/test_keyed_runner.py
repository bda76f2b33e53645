"""Handlers by key: what one run holds, and what becomes of each message when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from inorder.client.consume.ordered import KeyedRun, KeyedRunner
from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.registrations import HandlerRegistration
from inorder.client.consume.rules.keyed import KeyOrder
from inorder.client.consume.rules.leases import LeaseState, RevokeReason, Terms
from inorder.client.consume.rules.outcomes import (
    CALLS_SEEN_MIN,
    LATE_CHECK_MS,
    RUN_ENDS_MS,
    Block,
    CallPace,
    DeadLetter,
    Failure,
    Handled,
    Outcome,
    Policy,
    Reject,
    Retry,
)
from inorder.client.consume.rules.queue import Limits, QueueProgress
from inorder.client.consume.workers import Counts, Run, end
from inorder.model import ReceivedMessage, Subscription
from inorder.tasks import Tasks
from inorder.testing.clock import FakeClock
from tests.unit.client.consume.consuming import QUEUE, offsets

SUSPEND_MS = 1000


class KnownKeys:
    """A parker of a queue without parked keys."""

    def is_known(self, _: AssignedQueue) -> bool:
        return True


class KeptWorkers:
    """Workers whose runs the test makes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.runs: list[Run] = []

    def submit(self, run: Run) -> None:
        self.runs.append(run)

    def halt(self) -> None: ...

    async def close(self) -> None: ...


class Stage:
    """A runner with one queue; the test plays workers, handlers and broker."""

    def __init__(
        self, keys: str, *, batch: int = 1, policy: Policy | None = None, workers: int = 2
    ) -> None:
        self.clock, self.workers, self.tasks = FakeClock(), KeptWorkers(workers), Tasks("test")
        self.counts = Counts()
        self.dead: list[int] = []
        registration = HandlerRegistration(
            Subscription(QUEUE.topic), ordered=True, concurrency=1, batch=batch,
            policy=policy or Block(), auto_commit=True, call=lambda batch: None, is_async=False,
            key_of=lambda message: message.key,
        )  # fmt: skip
        self.runner = KeyedRunner(
            registration, self.workers, clock=self.clock, counts=self.counts, tasks=self.tasks,
            dead_letter=self._dead_letter, parker=KnownKeys(), suspend_ms=SUSPEND_MS,  # type: ignore[arg-type]
        )  # fmt: skip
        self.runner._pace = CallPace(calls=CALLS_SEEN_MIN)  # short calls: many in a run
        progress = QueueProgress(0, keys=KeyOrder(lambda message: message.key))
        progress.put([message(at, key) for at, key in enumerate(keys)], len(keys))
        now_ms = self.clock.monotonic_ms()
        self.assigned = AssignedQueue(
            QUEUE, subscription=Subscription(QUEUE.topic), progress=progress, limits=Limits(),
            lease=LeaseState(QUEUE, now_ms=now_ms, lock_sent_ms=now_ms, epoch=1, terms=TERMS),
            ordered=True, needs_lock=True, on_drop=lambda dropped: None,
        )  # fmt: skip

    async def _dead_letter(
        self, _: HandlerRegistration, messages: Sequence[ReceivedMessage], __: Failure
    ) -> set[int]:
        found = {one.offset for one in messages}
        self.dead += sorted(found)
        return found

    def start(self) -> KeyedRun:
        """Start the runs of the queue, and return the one that there is."""
        self.runner.pump(self.assigned)
        (run,) = self.workers.runs
        self.workers.runs.clear()
        assert isinstance(run, KeyedRun)
        return run

    def call(self, run: Run, says: object = None) -> list[int]:
        """Make the next call of a run; return the offsets of its messages."""
        batch = run.next(self.clock.monotonic_ms())
        assert batch is not None
        if isinstance(says, Exception):
            run.error = says
        else:
            run.returned(says)
        return offsets(batch)

    def end(self, run: Run) -> None:
        """Let a run end; runs that follow are kept."""
        run.close(self.clock.monotonic_ms())
        end((run,))

    def next_runs(self) -> list[list[int]]:
        """Return the offsets of the runs that are at the workers now."""
        found = [
            [one.offset for batch in run.batches for one in batch] for run in self.workers.runs
        ]
        self.workers.runs.clear()
        return found

    @property
    def tried(self) -> dict[int, int]:
        """Return how often each unfinished message was tried."""
        return {at: one.redeliveries for at, one in self.assigned.progress._taken.items()}


TERMS = Terms(5000, 5000)


def message(offset: int, key: str) -> ReceivedMessage:
    properties = {"__SHARDINGKEY": key}
    return ReceivedMessage("orders", QUEUE, offset, b"x", properties, str(offset), 0, 0)


def play(story: Callable[[], Awaitable[Any]]) -> None:
    async def whole() -> None:
        await story()

    asyncio.run(whole())


def test_a_run_holds_many_keys_and_all_messages_of_each():
    """One way to a worker for all of them, key by key in the order of their first messages."""

    async def story() -> None:
        stage = Stage("abacab")
        run = stage.start()
        assert [offsets(batch) for batch in run.batches] == [[0], [2], [4], [1], [5], [3]]
        for _ in range(6):
            stage.call(run)
        stage.end(run)
        assert (stage.assigned.progress.offset, stage.assigned.progress.count) == (6, 0)
        assert (stage.counts.handled, stage.assigned.lease.running) == (6, 0)

    play(story)


def test_long_calls_have_a_run_each():
    """Then as many keys as there are workers are handled at a time."""

    async def story() -> None:
        stage = Stage("abc", workers=3)
        stage.runner._pace = CallPace(calls=CALLS_SEEN_MIN, spent_ms=50 * CALLS_SEEN_MIN)
        stage.runner.pump(stage.assigned)
        assert stage.next_runs() == [[0], [1], [2]]

    play(story)


@pytest.mark.parametrize("says", [ValueError("x"), Outcome.SUSPEND, Handled(0), Retry(after=1)])
def test_a_failure_marks_its_message_alone(says: object):
    """Those before it are done, those behind it were not tried: they run now, with no attempt."""

    async def story() -> None:
        stage = Stage("abcd")
        run = stage.start()
        assert stage.call(run) == [0]
        assert stage.call(run, says) == [1]
        stage.end(run)
        progress = stage.assigned.progress
        assert (progress.offset, stage.tried) == (1, {1: 1, 2: 0, 3: 0})
        assert stage.next_runs() == [[2, 3]]
        assert (stage.counts.handled, stage.counts.failed) == (1, 1)

    play(story)


def test_messages_behind_a_failed_one_of_its_key_wait_for_it():
    """Also those of the same run; other keys go on."""

    async def story() -> None:
        stage = Stage("aaab")
        run = stage.start()
        stage.call(run)
        assert stage.call(run, ValueError("x")) == [1]
        stage.end(run)
        assert stage.tried == {1: 1, 2: 0, 3: 0}
        assert stage.next_runs() == [[3]]
        stage.clock.advance(SUSPEND_MS)
        stage.runner.pump(stage.assigned)
        assert stage.next_runs() == [[1, 2]]

    play(story)


def test_a_list_says_which_messages_are_done():
    """Those before the failed one are done; only the failed one counts an attempt."""

    async def story() -> None:
        stage = Stage("aaaaab", batch=4)
        run = stage.start()
        assert [offsets(batch) for batch in run.batches] == [[0, 1, 2, 3], [4], [5]]
        assert stage.call(run, Handled(2, ValueError("x"))) == [0, 1, 2, 3]
        stage.end(run)
        assert stage.assigned.progress.offset == 2
        assert stage.tried == {2: 1, 3: 0, 4: 0, 5: 0}
        assert stage.next_runs() == [[5]]
        assert (stage.counts.handled, stage.counts.failed) == (2, 1)

    play(story)


def test_a_list_that_raises_failed_as_a_whole():
    """As in RocketMQ: nobody knows what is done, and each message of it counts an attempt."""

    async def story() -> None:
        stage = Stage("aaaab", batch=3)
        run = stage.start()
        assert stage.call(run, ValueError("x")) == [0, 1, 2]
        stage.end(run)
        assert stage.assigned.progress.offset == 0
        assert stage.tried == {0: 1, 1: 1, 2: 1, 3: 0, 4: 0}

    play(story)


def test_of_a_list_only_the_rejected_message_is_dead_lettered():
    """Its key continues with the next one."""

    async def story() -> None:
        stage = Stage("aaaa", batch=4, policy=DeadLetter(attempts=3))
        run = stage.start()
        stage.call(run, Handled(1, Reject("never")))
        stage.end(run)
        while len(stage.tasks):  # noqa: ASYNC110 the tasks belong to the runner
            await asyncio.sleep(0)
        assert (stage.dead, stage.tried) == ([1], {2: 0, 3: 0})
        assert stage.next_runs() == [[2, 3]]

    play(story)


@pytest.mark.parametrize("why", ["dropped", "unconfirmed", "expired", "paused"])
def test_lease_and_stop_are_looked_at_before_each_call(why: str):
    """Of a run that is at a worker no further call begins; what it did not reach is free."""

    async def story() -> None:
        stage = Stage("abc")
        run, assigned = stage.start(), stage.assigned
        stage.call(run)
        if why == "dropped":
            assigned.drop(RevokeReason.STOPPED)
        elif why == "unconfirmed":
            assigned.mark_unconfirmed(stage.clock.monotonic_ms())
        elif why == "expired":
            stage.clock.advance(TERMS.lease_ms + 1)
        else:
            assigned.paused = True
        assert run.next(stage.clock.monotonic_ms()) is None
        stage.end(run)
        assert (assigned.progress.offset, stage.tried) == (1, {1: 0, 2: 0})
        assert stage.next_runs() == []
        assert assigned.lease.running == 0

    play(story)


def test_nothing_of_a_lost_queue_is_finished():
    """Its next owner may have begun: the result does not count, and no other run starts."""

    async def story() -> None:
        stage = Stage("ab")
        run = stage.start()
        stage.call(run)
        stage.assigned.drop(RevokeReason.LOCK_LOST)
        stage.end(run)
        assert (stage.assigned.progress.offset, stage.assigned.progress.count) == (0, 2)
        assert stage.next_runs() == []

    play(story)


def test_keys_behind_a_long_call_go_to_other_workers():
    """Later messages of the key that runs stay behind it."""

    async def story() -> None:
        stage = Stage("aabcc")
        run = stage.start()
        assert run.next(stage.clock.monotonic_ms()) is not None
        stage.clock.advance(RUN_ENDS_MS + 1)
        stage.runner._reclaim()
        assert stage.next_runs() == [[2, 3, 4]]
        assert [offsets(batch) for batch in run.batches] == [[0]]
        run.returned(None)
        stage.end(run)
        assert stage.assigned.progress.offset == 1
        assert stage.next_runs() == [[1]]

    play(story)


def test_calls_behind_a_long_one_are_looked_for():
    """By a timer, as long as runs of several calls are at the workers."""

    async def story() -> None:
        stage = Stage("ab")
        run = stage.start()
        assert run.next(stage.clock.monotonic_ms()) is not None
        stage.clock.advance(RUN_ENDS_MS + 1)
        async with asyncio.timeout(5):
            while not stage.workers.runs:  # noqa: ASYNC110 the timer belongs to the runner
                await asyncio.sleep(LATE_CHECK_MS / 1000)
        assert stage.next_runs() == [[1]]

    play(story)


def test_a_run_that_is_too_long_ends_and_its_keys_go_on():
    """Nothing that it did not reach counts as tried."""

    async def story() -> None:
        stage = Stage("abc")
        run = stage.start()
        stage.call(run)
        stage.clock.advance(RUN_ENDS_MS + 1)
        assert run.next(stage.clock.monotonic_ms()) is None
        stage.end(run)
        assert stage.tried == {1: 0, 2: 0}
        assert sorted(offset for run in stage.next_runs() for offset in run) == [1, 2]

    play(story)
