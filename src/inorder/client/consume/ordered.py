"""Handlers of ordered topics: one run at a time, of a queue or of a key.

`OrderedRunner` (`order="queue"`) makes one run per queue at a time, in queue order.
`rules/outcomes.py` decides what the end of a run means.

`KeyedRunner` (`order="key"`) makes many runs per queue; the messages of one key follow each other.
`rules/keyed.py` decides which messages may run. The runner starts them, up to the concurrency of
the topic, and the queues take turns. The lowest unfinished offset is committed. Under a lease the
commit also carries the finished map, so that the next owner repeats nothing; with RocketMQ's locks
finished messages above the offset are repeated after a crash.

How handlers run and stop: decision 29.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from inorder.client.consume.parking import Parker
from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.registrations import HandlerRegistration
from inorder.client.consume.rules import outcomes as rules
from inorder.client.consume.rules.keyed import Work
from inorder.client.consume.rules.outcomes import (
    Failure,
    Outcome,
    Park,
    Reject,
    Retry,
    attempts_left,
    batches,
    failure_of,
)
from inorder.client.consume.workers import Counts, Run, Workers
from inorder.clock import Clock
from inorder.logs import get_logger
from inorder.model import ReceivedMessage
from inorder.tasks import Tasks

log = get_logger(__name__)

ORDERED_RUN_CALLS_MAX: Final = 256
"""The most calls of one run; its results are committed when it ends."""

DeadLetters = Callable[
    [HandlerRegistration, Sequence[ReceivedMessage], Failure], Awaitable[set[int]]
]


class OrderedRunner:
    """Hands the queues of one topic to its handler, queue by queue in order."""

    def __init__(
        self,
        registration: HandlerRegistration,
        workers: Workers,
        *,
        clock: Clock,
        counts: Counts,
        tasks: Tasks,
        dead_letter: DeadLetters,
        suspend_ms: int,
        run_max_ms: int,
    ) -> None:
        self.registration = registration
        self.workers = workers
        self._clock = clock
        self._counts = counts
        self._tasks = tasks
        self._dead_letter = dead_letter
        self._suspend_ms = suspend_ms
        self._run_max_ms = run_max_ms

    def pump(self, assigned: AssignedQueue) -> None:
        """Start the next run of a queue, if messages wait and a handler may start."""
        if assigned.busy or assigned.paused or not assigned.progress.waiting:
            return
        if assigned.unconfirmed_since_ms is not None and assigned.live:
            return  # until the broker has confirmed the lock
        now_ms = self._clock.monotonic_ms()
        if assigned.began_ms is None:
            assigned.began_ms = now_ms
        before = rules.before_batch(
            assigned.lease,
            now_ms=now_ms,
            began_ms=assigned.began_ms,
            needs_lock=assigned.needs_lock,
            run_max_ms=self._run_max_ms,
        )
        if isinstance(before, rules.Run):
            self._start(assigned, now_ms)
        else:
            self._apply(assigned, (before,), ())

    def _start(self, assigned: AssignedQueue, now_ms: int) -> None:
        size = self.registration.batch
        limit = size * ORDERED_RUN_CALLS_MAX if self.registration.auto_commit else size
        taken = assigned.progress.take(limit, now_ms)
        assigned.enter()
        assigned.busy = True
        run = Run(
            batches(taken, size),
            may_start=assigned.may_start,
            ended=partial(self._ended, assigned),
        )
        assigned.runs.add(run)
        self.workers.submit(run)

    def _ended(self, assigned: AssignedQueue, run: Run) -> None:
        assigned.busy = False
        assigned.runs.discard(run)
        stopped = run.stopped_at or ()
        done = [message for batch in run.batches[: run.done] for message in batch]
        handled, failed = self._counted(run, len(done), len(stopped))
        self._counts.ended(self.registration.topic, handled, failed, run.spent_ms)
        # Messages that the run did not reach go back, and for a moment those that it stopped at.
        assigned.progress.make_again(m for batch in run.batches[run.done :] for m in batch)
        if done:
            self._apply(assigned, self._after(assigned, done, Outcome.SUCCESS, None), done)
        if stopped:
            batch = assigned.progress.take(len(stopped), self._clock.monotonic_ms())
            outcome, after_ms = self._outcome_of(run, batch)
            steps = self._after(assigned, batch, outcome, after_ms, run.error)
            self._apply(assigned, steps, batch, run.error)
        if not assigned.progress.waiting:
            assigned.began_ms = None
        assigned.leave()
        if assigned.live:
            self.pump(assigned)

    def _counted(self, run: Run, done: int, stopped: int) -> tuple[int, int]:
        """Return how many messages were handled and how many failed."""
        outcome = run.result if isinstance(run.result, Outcome) else Outcome.SUCCESS
        good = run.error is None and not rules.is_failure(
            outcome, auto_commit=self.registration.auto_commit
        )
        return (done + stopped, 0) if good else (done, stopped)

    def _outcome_of(self, run: Run, batch: Sequence[ReceivedMessage]) -> tuple[Outcome, int | None]:
        if isinstance(run.error, Retry):
            return Outcome.SUSPEND, run.error.after_ms
        if isinstance(run.error, Reject):
            first = batch[0]
            log.warning(
                "message is rejected topic=%s queue=%s/%d offset=%d key=%s error=%s", first.topic,
                first.queue.broker, first.queue.index, first.offset, first.key, run.error,
            )  # fmt: skip
            return Outcome.SUSPEND, None
        if run.error is not None:
            first = batch[0]
            log.warning(
                "handler failed topic=%s queue=%s/%d offset=%d key=%s tried=%d",
                first.topic, first.queue.broker, first.queue.index, first.offset, first.key,
                first.redeliveries + 1, exc_info=run.error,
            )  # fmt: skip
            return Outcome.SUSPEND, None
        return (run.result if isinstance(run.result, Outcome) else Outcome.SUCCESS), None

    def _after(
        self,
        assigned: AssignedQueue,
        batch: Sequence[ReceivedMessage],
        outcome: Outcome,
        suspend_ms: int | None,
        error: BaseException | None = None,
    ) -> tuple[rules.Step, ...]:
        return rules.after_batch(
            assigned.progress,
            assigned.lease,
            batch,
            outcome,
            now_ms=self._clock.monotonic_ms(),
            needs_lock=assigned.needs_lock,
            auto_commit=self.registration.auto_commit,
            suspend_ms=suspend_ms,
            redeliveries_max=attempts_left(self.registration.policy, error),
            default_suspend_ms=self._suspend_ms,
        )

    def _apply(
        self,
        assigned: AssignedQueue,
        steps: Sequence[rules.Step],
        batch: Sequence[ReceivedMessage],
        error: BaseException | None = None,
    ) -> None:
        for step in steps:
            match step:
                case rules.SuspendFor(ms):
                    assigned.busy, assigned.began_ms = True, None
                    assigned.later(ms, self._resume)
                case rules.SendBack(messages):
                    assigned.busy = True
                    assigned.enter()
                    work = self._send_back(assigned, messages, batch, failure_of(error))
                    self._tasks.start(work, name=f"dead letters of {assigned.queue}")
                case rules.Stop(reason):
                    log.info("queue=%s starts no handler: %s", assigned.queue, reason)
                    assigned.dropped()
                case rules.Hold():
                    assigned.began_ms = None  # until the broker has confirmed the lease
                case rules.Warn(text):
                    log.warning("topic=%s %s", assigned.queue.topic, text)
                case _:
                    raise AssertionError(f"{step!r} is no step after a handler")

    def _resume(self, assigned: AssignedQueue) -> None:
        assigned.busy = False
        self.pump(assigned)

    async def _send_back(
        self,
        assigned: AssignedQueue,
        messages: Sequence[ReceivedMessage],
        batch: Sequence[ReceivedMessage],
        failure: Failure,
    ) -> None:
        """Dead-letter the messages without attempts left; put the rest of the batch back."""
        sent: set[int] = set()
        try:
            sent = await self._dead_letter(self.registration, messages, failure)
        finally:
            self._counts.dead(len(sent))
            steps = rules.after_ordered_send_back(
                assigned.progress,
                assigned.lease,
                batch,
                sent,
                now_ms=self._clock.monotonic_ms(),
                needs_lock=assigned.needs_lock,
                auto_commit=self.registration.auto_commit,
                default_suspend_ms=self._suspend_ms,
            )
            assigned.busy = False
            self._apply(assigned, steps, batch)
            assigned.leave()
        if assigned.live:
            self.pump(assigned)


class KeyedRunner:
    """Hands the queues of one topic to its handler, key by key in order."""

    def __init__(
        self,
        registration: HandlerRegistration,
        workers: Workers,
        *,
        clock: Clock,
        counts: Counts,
        tasks: Tasks,
        dead_letter: DeadLetters,
        parker: Parker,
        suspend_ms: int,
    ) -> None:
        self.registration = registration
        self.workers = workers
        self._clock = clock
        self._counts = counts
        self._tasks = tasks
        self._dead_letter = dead_letter
        self._suspend_ms = suspend_ms
        self._parker = parker
        self._said_barrier = False
        self._turns: deque[AssignedQueue] = deque()
        self._running = 0

    def pump(self, assigned: AssignedQueue) -> None:
        """Start the runs of a queue that may start, now or when a worker is free."""
        if assigned not in self._turns:
            self._turns.append(assigned)
        self._go_on()

    def _go_on(self) -> None:
        """Give queues their turn until no queue has work or no worker is free."""
        while self._turns and self._running < self.workers.capacity:
            assigned = self._turns.popleft()
            if self._start(assigned):
                self._turns.append(assigned)

    def _start(self, assigned: AssignedQueue) -> bool:
        """Start one run of a queue; return whether there may be another."""
        if not assigned.live or assigned.paused or assigned.unconfirmed_since_ms is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        before = rules.before_batch(
            assigned.lease, now_ms=now_ms, began_ms=now_ms, needs_lock=assigned.needs_lock
        )
        if isinstance(before, rules.Stop):
            log.info("queue=%s starts no handler: %s", assigned.queue, before.reason)
            assigned.dropped()
            return False
        if isinstance(before, rules.Hold):
            return False  # until the broker has confirmed the lease
        if not self._parker.is_known(assigned):
            return False  # until the broker has said which keys are parked
        work = assigned.progress.take_work(now_ms, batch=self.registration.batch)
        if work is None:
            self._wait(assigned, now_ms)
            return False
        assigned.enter()
        self._running += 1
        if work.parked:
            self._tasks.start(
                self._join_parked(assigned, work), name=f"parking in {assigned.queue}"
            )
            return True
        run = Run(
            (work.messages,),
            may_start=assigned.may_start,
            ended=partial(self._ended, assigned, work),
        )
        assigned.runs.add(run)
        self.workers.submit(run)
        return True

    async def _join_parked(self, assigned: AssignedQueue, work: Work) -> None:
        """Let messages join their parked key; those that do not join are taken again."""
        assert work.key is not None, "a parked key is a text"
        done: int | None = None
        try:
            done = await self._parker.join(assigned, work.key, work.messages)
        finally:
            self._running -= 1
            now_ms = self._clock.monotonic_ms()
            if done:
                self._finish(assigned, work, now_ms, count=done)
            else:
                is_parked = work.key in self._parker.view(assigned).keys
                pause_ms = self._suspend_ms if done is None or is_parked else 0
                assigned.progress.again(work, now_ms + pause_ms, maybe_parked=done is None)
            assigned.leave()
            self.pump(assigned)

    async def run_apart(self, assigned: AssignedQueue, message: ReceivedMessage) -> Run:
        """Hand a redriven message to the handler, beside the messages of the queue."""
        ended: asyncio.Future[Run] = asyncio.get_running_loop().create_future()

        def end(run: Run) -> None:
            if not ended.done():
                ended.set_result(run)

        run = Run(((message,),), may_start=assigned.may_start, ended=end)
        assigned.runs.add(run)
        self.workers.submit(run)
        try:
            return await ended
        finally:
            assigned.runs.discard(run)
            failed = run.error is not None or run.result is Outcome.SUSPEND
            self._counts.ended(
                self.registration.topic, run.calls - failed, int(failed), run.spent_ms
            )

    def _wait(self, assigned: AssignedQueue, now_ms: int) -> None:
        """Start a timer for the next delayed key."""
        assert assigned.progress.keys is not None, "its topic is registered with order='key'"
        due_ms = assigned.progress.keys.next_due_ms()
        if due_ms is not None and (assigned.due_ms is None or due_ms < assigned.due_ms):
            assigned.due_ms = due_ms
            assigned.later(max(1, due_ms - now_ms), self._due)

    def _due(self, assigned: AssignedQueue) -> None:
        assigned.due_ms = None
        self.pump(assigned)

    # After a run.

    def _ended(self, assigned: AssignedQueue, work: Work, run: Run) -> None:
        self._running -= 1
        assigned.runs.discard(run)
        now_ms = self._clock.monotonic_ms()
        topic, count = self.registration.topic, len(work.messages)
        if run.done:
            self._counts.ended(topic, count, 0, run.spent_ms)
            self._finish(assigned, work, now_ms)
        elif run.stopped_at is None:  # the run never began
            assigned.progress.again(work, now_ms)
        elif run.result is not None and run.result is not Outcome.SUSPEND:
            if run.result is not Outcome.SUCCESS:
                log.warning("topic=%s %s means nothing with order='key'; taken as success",
                            topic, run.result)  # fmt: skip
            self._counts.ended(topic, count, 0, run.spent_ms)
            self._finish(assigned, work, now_ms)
        else:
            self._counts.ended(topic, 0, count, run.spent_ms)
            self._failed(assigned, work, run.error, now_ms)
        assigned.leave()
        self.pump(assigned)

    def _finish(
        self, assigned: AssignedQueue, work: Work, now_ms: int, count: int | None = None
    ) -> None:
        # Without the right to commit the queue is given up: what it holds does not matter any more.
        if assigned.lease.may_commit(now_ms, needs_lock=assigned.needs_lock):
            assigned.progress.done(work, now_ms, count)

    def _failed(
        self,
        assigned: AssignedQueue,
        work: Work,
        error: BaseException | None,
        now_ms: int,
    ) -> None:
        first = work.messages[0]
        after_ms = error.after_ms if isinstance(error, Retry) else None
        pause_ms = rules.retry_pause_ms(after_ms, self._suspend_ms, of_key=True)
        if error is not None and not isinstance(error, Retry):
            log.warning(
                "handler failed topic=%s queue=%s/%d offset=%d key=%s tried=%d%s",
                first.topic, first.queue.broker, first.queue.index, first.offset, first.key,
                first.redeliveries + 1, f" error={error}" if isinstance(error, Reject) else "",
                exc_info=None if isinstance(error, Reject) else error,
            )  # fmt: skip
        if isinstance(error, Retry) and isinstance(self.registration.policy, Park):
            # Waiting is no failure: a key is not parked because a gateway is busy.
            assigned.progress.again(work, now_ms + pause_ms)
            return
        limit = attempts_left(self.registration.policy, error)
        if first.redeliveries >= limit and assigned.live and self._may_leave(work):
            assigned.enter()
            if isinstance(self.registration.policy, Park):
                ending = self._park(assigned, work, error)
            else:
                ending = self._send_back(assigned, work, failure_of(error))
            self._tasks.start(ending, name=f"failed message of {assigned.queue}")
            return
        self._delay(assigned, work, pause_ms, now_ms)

    def _may_leave(self, work: Work) -> bool:
        """Return whether a failed message may leave the queue; a barrier cannot be parked."""
        if not isinstance(self.registration.policy, Park) or work.order_key is not None:
            return True
        if not self._said_barrier:
            self._said_barrier = True
            log.error(
                "a message without a key cannot be parked and blocks its queue topic=%s offset=%d; "
                "send with a key, or say keyless='concurrent'", self.registration.topic,
                work.messages[0].offset,
            )  # fmt: skip
        return False

    async def _park(self, assigned: AssignedQueue, work: Work, error: BaseException | None) -> None:
        """Park the first message of a `Work`, or delay its key if that is impossible.

        The later messages of the key join it.
        """
        outcome = ""
        try:
            outcome = await self._parker.park_first(assigned, work, error)
        finally:
            now_ms = self._clock.monotonic_ms()
            if outcome == "parked":
                self._finish(assigned, work, now_ms, count=1)
            else:
                self._delay(assigned, work, self._suspend_ms, now_ms)
            assigned.leave()
            self.pump(assigned)

    def _delay(self, assigned: AssignedQueue, work: Work, pause_ms: int, now_ms: int) -> None:
        tried = [replace(each, redeliveries=each.redeliveries + 1) for each in work.messages]
        assigned.progress.again(work, now_ms + pause_ms, tried)

    async def _send_back(self, assigned: AssignedQueue, work: Work, failure: Failure) -> None:
        """Dead-letter the first message of a `Work`; its key continues after it."""
        first = work.messages[:1]
        sent: set[int] = set()
        try:
            sent = await self._dead_letter(self.registration, first, failure)
        finally:
            now_ms = self._clock.monotonic_ms()
            self._counts.dead(len(sent))
            if sent:
                self._finish(assigned, work, now_ms, count=1)
            else:
                self._delay(assigned, work, self._suspend_ms, now_ms)
            assigned.leave()
            self.pump(assigned)
