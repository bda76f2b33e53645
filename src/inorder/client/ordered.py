"""Handlers of ordered queues: one run per queue at a time, in the order of the queue.

What a handler's outcome means is in `state/ordered.py`; this file does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from inorder.client.counting import Counts
from inorder.client.handlers import Registration
from inorder.client.holding import Holding
from inorder.client.policies import Outcome, Reject, Retry, attempts_left
from inorder.client.running import Run, Workers
from inorder.client.state import ordered as rules
from inorder.client.state.concurrent import batches
from inorder.client.state.sendback import Failure, failure_of
from inorder.clock import Clock
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, TopicQueue
from inorder.tasks import Tasks

log = get_logger(__name__)

RUN_CALLS_MAX: Final = 256
"""Calls that one run may make: what it has done is committed when it ends."""

NoteOffset = Callable[[TopicQueue, int, bool], None]
DeadLetters = Callable[[Registration, Sequence[ReceivedMessage], Failure], Awaitable[set[int]]]


class OrderedRunner:
    """Hands the messages of one topic's queues to its handler."""

    def __init__(
        self,
        registration: Registration,
        workers: Workers,
        *,
        clock: Clock,
        counts: Counts,
        tasks: Tasks,
        note: NoteOffset,
        dead_letter: DeadLetters,
        suspend_ms: int,
        run_max_ms: int,
    ) -> None:
        self.registration = registration
        self.workers = workers
        self._clock = clock
        self._counts = counts
        self._tasks = tasks
        self._note = note
        self._dead_letter = dead_letter
        self._suspend_ms = suspend_ms
        self._run_max_ms = run_max_ms

    def pump(self, holding: Holding) -> None:
        """Start the next run of a queue, if there is something to do and nothing against it."""
        if holding.busy or holding.paused or not holding.cache.waiting:
            return
        if holding.doubt_ms is not None and holding.live:
            return  # until the broker has confirmed the lock
        now_ms = self._clock.monotonic_ms()
        if holding.began_ms is None:
            holding.began_ms = now_ms
        before = rules.before_batch(
            holding.tenure,
            now_ms=now_ms,
            began_ms=holding.began_ms,
            needs_lock=holding.needs_lock,
            run_max_ms=self._run_max_ms,
        )
        if isinstance(before, rules.Run):
            self._start(holding, now_ms)
        else:
            self._do(holding, (before,), ())

    def _start(self, holding: Holding, now_ms: int) -> None:
        size = self.registration.batch
        limit = size * RUN_CALLS_MAX if self.registration.auto_commit else size
        taken = holding.cache.take(limit, now_ms)
        holding.enter()
        holding.busy = True
        run = Run(
            batches(taken, size),
            may_start=holding.may_start,
            ended=partial(self._ended, holding),
        )
        holding.runs.add(run)
        self.workers.submit(run)

    def _ended(self, holding: Holding, run: Run) -> None:
        holding.busy = False
        holding.runs.discard(run)
        stopped = run.stopped_at or ()
        done = [message for batch in run.batches[: run.done] for message in batch]
        handled, failed = self._counted(run, len(done), len(stopped))
        self._counts.ended(self.registration.topic, handled, failed, run.spent_ms)
        # What the run did not come to goes back as it was, and what it stopped at for a moment.
        holding.cache.make_again(m for batch in run.batches[run.done :] for m in batch)
        if done:
            self._do(holding, self._after(holding, done, Outcome.SUCCESS, None), done)
        if stopped:
            batch = holding.cache.take(len(stopped), self._clock.monotonic_ms())
            outcome, after_ms = self._said(run, batch)
            steps = self._after(holding, batch, outcome, after_ms, run.error)
            self._do(holding, steps, batch, run.error)
        if not holding.cache.waiting:
            holding.began_ms = None
        holding.leave()
        if holding.live:
            self.pump(holding)

    def _counted(self, run: Run, done: int, stopped: int) -> tuple[int, int]:
        """Return how many messages were handled and how many failed."""
        outcome = run.result if isinstance(run.result, Outcome) else Outcome.SUCCESS
        good = run.error is None and not rules.is_failure(
            outcome, auto_commit=self.registration.auto_commit
        )
        return (done + stopped, 0) if good else (done, stopped)

    def _said(self, run: Run, batch: Sequence[ReceivedMessage]) -> tuple[Outcome, int | None]:
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
        holding: Holding,
        batch: Sequence[ReceivedMessage],
        outcome: Outcome,
        suspend_ms: int | None,
        error: BaseException | None = None,
    ) -> tuple[rules.Step, ...]:
        return rules.after_batch(
            holding.cache,
            holding.tenure,
            batch,
            outcome,
            now_ms=self._clock.monotonic_ms(),
            needs_lock=holding.needs_lock,
            auto_commit=self.registration.auto_commit,
            suspend_ms=suspend_ms,
            redeliveries_max=attempts_left(self.registration.policy, error),
            default_suspend_ms=self._suspend_ms,
        )

    def _do(
        self,
        holding: Holding,
        steps: Sequence[rules.Step],
        batch: Sequence[ReceivedMessage],
        error: BaseException | None = None,
    ) -> None:
        for step in steps:
            match step:
                case rules.Commit(offset):
                    self._note(holding.queue, offset, False)
                case rules.SuspendFor(ms):
                    holding.busy, holding.began_ms = True, None
                    holding.later(ms, self._resume)
                case rules.SendBack(messages):
                    holding.busy = True
                    holding.enter()
                    work = self._send_back(holding, messages, batch, failure_of(error))
                    self._tasks.start(work, name=f"dead letters of {holding.queue}")
                case rules.Stop(reason):
                    log.info("queue=%s starts no handler: %s", holding.queue, reason)
                    holding.dropped()
                case rules.Hold():
                    holding.began_ms = None  # until the broker has confirmed the lease
                case rules.Warn(text):
                    log.warning("topic=%s %s", holding.queue.topic, text)
                case _:
                    raise AssertionError(f"{step!r} is no step after a handler")

    def _resume(self, holding: Holding) -> None:
        holding.busy = False
        self.pump(holding)

    async def _send_back(
        self,
        holding: Holding,
        messages: Sequence[ReceivedMessage],
        batch: Sequence[ReceivedMessage],
        failure: Failure,
    ) -> None:
        """Dead-letter what was tried often enough; the rest of its batch is put back."""
        sent: set[int] = set()
        try:
            sent = await self._dead_letter(self.registration, messages, failure)
        finally:
            self._counts.dead(len(sent))
            steps = rules.after_send_back(
                holding.cache,
                holding.tenure,
                batch,
                sent,
                now_ms=self._clock.monotonic_ms(),
                needs_lock=holding.needs_lock,
                auto_commit=self.registration.auto_commit,
                default_suspend_ms=self._suspend_ms,
            )
            holding.busy = False
            self._do(holding, steps, batch)
            holding.leave()
        if holding.live:
            self.pump(holding)
