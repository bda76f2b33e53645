"""Handlers of ordered topics: one run at a time, of a queue or of a key.

`OrderedRunner` (`order="queue"`) makes one run per queue at a time, in queue order.
`rules/outcomes.py` decides what the end of a run means.

`KeyedRunner` (`order="key"`) makes many runs per queue; the messages of one key follow each other.
`rules/keyed.py` decides which messages may run. The runner puts short calls of many keys into one
run, starts runs up to the concurrency of the topic, and lets the queues take turns. The lowest
unfinished offset is committed. Under a lease the commit also carries the finished map, so that the
next owner repeats nothing; with RocketMQ's locks finished messages above the offset are repeated
after a crash.

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
from inorder.client.consume.workers import Batch, Counts, Run, Workers
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
        taken = [message for batch in run.batches for message in batch]
        count, stopped = sum(map(len, run.batches[: run.done])), len(run.stopped_at or ())
        if stopped and run.failed:
            auto_commit = self.registration.auto_commit
            parts = rules.parts_of_failed(run.result, stopped, auto_commit=auto_commit)
            count, stopped = count + parts.done, parts.failed
        handled, failed = self._counted(run, count, stopped)
        self._counts.ended(self.registration.topic, handled, failed, run.spent_ms)
        # Messages that the run did not reach go back, and for a moment those that it stopped at.
        done, rest = taken[:count], taken[count:]
        if rest:
            assigned.progress.make_again(rest)
        if done:
            self._apply(assigned, self._after(assigned, done, Outcome.SUCCESS, None), done)
        if stopped:
            batch = assigned.progress.take(stopped, self._clock.monotonic_ms())
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
        failed = run.failed or rules.is_failure(outcome, auto_commit=self.registration.auto_commit)
        return (done, stopped) if failed else (done + stopped, 0)

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
        return (run.result if isinstance(run.result, Outcome) else Outcome.SUSPEND), None

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


class KeyedRun(Run):
    """A run of messages of one queue, key by key."""

    __slots__ = ("assigned", "works")

    assigned: AssignedQueue
    works: list[Work]


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
        self._pace = rules.CallPace()
        self._runs: set[KeyedRun] = set()
        self._over: list[Run] = []  # runs that have ended
        self._late_check: asyncio.TimerHandle | None = None

    def pump(self, assigned: AssignedQueue) -> None:
        """Start the runs of a queue that may start, now or when a worker is free."""
        self._line_up(assigned)
        self._go_on()

    def _line_up(self, assigned: AssignedQueue) -> None:
        """Give a queue a turn, unless it has one."""
        if not assigned.has_turn:
            assigned.has_turn = True
            self._turns.append(assigned)

    def _go_on(self) -> None:
        """Give queues their turn until no queue has work or no worker is free."""
        while self._turns and self._running < self.workers.capacity:
            assigned = self._turns.popleft()
            if self._start(assigned):
                self._turns.append(assigned)
            else:
                assigned.has_turn = False

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
        works, calls = self._take(assigned, now_ms)
        if works:
            self._submit(assigned, works, calls)
        return bool(works) or not self._wait(assigned, now_ms)

    def _take(self, assigned: AssignedQueue, now_ms: int) -> tuple[list[Work], list[Batch]]:
        """Take the messages of one run, and cut them into calls; parked keys are joined."""
        progress, size = assigned.progress, self.registration.batch
        assert progress.keys is not None, "its topic is registered with order='key'"
        waiting = max(progress.waiting // size, progress.keys.ready)
        left = rules.calls_of_run(self._pace, waiting=waiting, workers=self.workers.capacity)
        works: list[Work] = []
        calls: list[Batch] = []
        while left > len(calls):
            work = progress.take_work(now_ms, batch=size * (left - len(calls)))
            if work is None:
                break
            if work.parked:
                assigned.enter()
                self._running += 1
                joining = self._join_parked(assigned, work)
                self._tasks.start(joining, name=f"parking in {assigned.queue}")
                if self._running >= self.workers.capacity:
                    break
            elif len(work.messages) <= size:
                works.append(work)
                calls.append(work.messages)
            else:
                works.append(work)
                calls += batches(work.messages, size)
        return works, calls

    def _submit(self, assigned: AssignedQueue, works: list[Work], calls: list[Batch]) -> None:
        assigned.enter()
        self._running += 1
        run = KeyedRun(
            calls,
            may_start=assigned.may_start,
            ended=self._over.append,
            settle=self._settle,
            slice_ms=rules.RUN_ENDS_MS,
        )
        run.assigned, run.works = assigned, works
        assigned.runs.add(run)
        self._runs.add(run)
        self.workers.submit(run)
        if self._late_check is None and len(calls) > 1:
            self._check_later()

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._late_check = loop.call_later(rules.LATE_CHECK_MS / 1000, self._reclaim)

    def _reclaim(self) -> None:
        """Take back the keys that wait behind a long call, for workers that are free."""
        self._late_check = None
        now_ms = self._clock.monotonic_ms()
        several = [run for run in self._runs if len(run.batches) > 1 and run.assigned.live]
        for run in several:
            if rules.is_late(run.started_ms, now_ms):
                self._give_back(run, sum(map(len, run.reclaim())), now_ms)
                self.pump(run.assigned)
        if several and self._late_check is None:
            self._check_later()

    @staticmethod
    def _give_back(run: KeyedRun, count: int, now_ms: int) -> None:
        """Free the last `count` messages of a run that has not ended."""
        progress = run.assigned.progress
        while count:
            work = run.works[-1]
            kept = len(work.messages) - count
            if kept > 0:  # an earlier message of the key is at the worker
                progress.narrow(work, now_ms, keep=kept)
                return
            count = -kept
            progress.done(run.works.pop(), now_ms, count=0)

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
            failed = int(run.failed)
            self._counts.ended(self.registration.topic, run.calls - failed, failed, run.spent_ms)

    def _wait(self, assigned: AssignedQueue, now_ms: int) -> bool:
        """Start a timer for the next delayed key; return whether no key is ready."""
        keys = assigned.progress.keys
        assert keys is not None, "its topic is registered with order='key'"
        due_ms = keys.next_due_ms()
        if due_ms is not None and (assigned.due_ms is None or due_ms < assigned.due_ms):
            assigned.due_ms = due_ms
            assigned.later(max(1, due_ms - now_ms), self._due)
        return not keys.ready

    def _due(self, assigned: AssignedQueue) -> None:
        assigned.due_ms = None
        self.pump(assigned)

    # After a run.

    def _settle(self) -> None:
        """Settle the runs that have ended, and start others in their place."""
        over = self._over.copy()
        self._over.clear()
        self._pace.note(sum([run.calls for run in over]), sum([run.spent_ms for run in over]))
        for run in over:
            assert isinstance(run, KeyedRun)
            self._running -= 1
            self._runs.discard(run)
            assigned = run.assigned
            assigned.runs.discard(run)
            try:
                self._ended(assigned, run)
            except Exception:
                # A bug that concerns one queue must not stop the others.
                log.exception("what follows handlers failed queue=%s", assigned.queue)
            assigned.leave()
            self._line_up(assigned)
        self._go_on()

    def _ended(self, assigned: AssignedQueue, run: KeyedRun) -> None:
        """Finish what a run has done; what it did not reach is free again."""
        now_ms = self._clock.monotonic_ms()
        said = run.stopped_at
        done, failed = self._counted(run, said)
        handled = sum(map(len, run.batches[: run.done])) + done
        self._counts.ended(self.registration.topic, handled, failed, run.spent_ms)
        if not assigned.lease.may_commit(now_ms, needs_lock=assigned.needs_lock):
            return  # the queue is given up: what it holds does not matter any more
        whole, works = self._split(run.works, handled)
        if whole:
            assigned.progress.done_all(whole, now_ms)
            handled -= sum(len(work.messages) for work in whole)
        for work in works:
            if failed:  # the first of them is that of the failed call
                assigned.progress.narrow(work, now_ms, done=handled, keep=failed)
                self._failed(assigned, work, run.error, now_ms)
            else:
                assigned.progress.done(work, now_ms, count=handled)
            handled = failed = 0

    def _counted(self, run: KeyedRun, said: Batch | None) -> tuple[int, int]:
        """Return how many messages of the last call are done, and how many failed."""
        if said is None:
            return 0, 0
        if run.failed:
            return rules.parts_of_failed(run.result, len(said))
        log.warning(
            "topic=%s %s means nothing with order='key'; taken as success",
            self.registration.topic, run.result,
        )  # fmt: skip
        return len(said), 0

    @staticmethod
    def _split(works: list[Work], handled: int) -> tuple[list[Work], list[Work]]:
        """Return the `Work`s whose messages are all among the first `handled`, and the others."""
        for index, work in enumerate(works):
            handled -= len(work.messages)
            if handled < 0:
                return works[:index], works[index:]
        return works, []

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
