"""Handlers in the order of keys: many per queue, the messages of one key one after the other.

Who may run when is in `state/keyed.py`; this file starts what it hands out, up to the concurrency
of the topic, queues taking turns. The offset that is committed is the lowest that is not done: what
is done above it is handed out again after a crash, not after a clean hand-over of an idle queue.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from inorder.client.counting import Counts
from inorder.client.handlers import Registration
from inorder.client.holding import Holding
from inorder.client.ordered import DeadLetters, NoteOffset
from inorder.client.policies import Outcome, Retry
from inorder.client.running import Run, Workers
from inorder.client.state import ordered as rules
from inorder.client.state.keyed import KeyedQueue, Work
from inorder.clock import Clock
from inorder.tasks.groups import Tasks

log = logging.getLogger(__name__)


class KeyedRunner:
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
    ) -> None:
        self.registration = registration
        self.workers = workers
        self._clock = clock
        self._counts = counts
        self._tasks = tasks
        self._note = note
        self._dead_letter = dead_letter
        self._suspend_ms = suspend_ms
        self._queues: WeakKeyDictionary[Holding, KeyedQueue] = WeakKeyDictionary()
        self._turns: deque[Holding] = deque()
        self._running = 0

    def pump(self, holding: Holding) -> None:
        """Start what can be started of a queue, now or when a worker is free."""
        if holding not in self._turns:
            self._turns.append(holding)
        self._go_on()

    def _go_on(self) -> None:
        """Give queues their turn until each of them has nothing to do or no worker is free."""
        while self._turns and self._running < self.workers.capacity:
            holding = self._turns.popleft()
            if self._start(holding):
                self._turns.append(holding)

    def _start(self, holding: Holding) -> bool:
        """Start one run of a queue; tell whether there may be another."""
        if not holding.live or holding.paused:
            return False
        now_ms = self._clock.monotonic_ms()
        before = rules.before_batch(
            holding.tenure, now_ms=now_ms, began_ms=now_ms, needs_lock=holding.needs_lock
        )
        if isinstance(before, rules.Stop):
            log.info("queue=%s starts no handler: %s", holding.queue, before.reason)
            holding.dropped()
            return False
        queue = self._queue(holding)
        if holding.cache.waiting:
            taken = holding.cache.take(holding.cache.waiting, now_ms)
            queue.put(taken, taken[-1].offset + 1)
        work = queue.take(now_ms, batch=self.registration.batch)
        if work is None:
            self._wait(holding, queue, now_ms)
            return False
        holding.enter()
        self._running += 1
        ended = partial(self._ended, holding, queue, work)
        self.workers.submit(Run((work.messages,), may_start=holding.may_start, ended=ended))
        return True

    def _queue(self, holding: Holding) -> KeyedQueue:
        queue = self._queues.get(holding)
        if queue is None:
            assert self.registration.key_of is not None, "it is registered with order='key'"
            queue = self._queues[holding] = KeyedQueue(
                holding.cache.lowest,
                key_of=self.registration.key_of,
                keyless=self.registration.keyless,
            )
        return queue

    def _wait(self, holding: Holding, queue: KeyedQueue, now_ms: int) -> None:
        """Come back when a key that was put off is due."""
        due_ms = queue.next_due_ms()
        if due_ms is not None and not holding.timers:
            holding.later(max(1, due_ms - now_ms), self.pump)

    # Afterwards.

    def _ended(self, holding: Holding, queue: KeyedQueue, work: Work, run: Run) -> None:
        self._running -= 1
        now_ms = self._clock.monotonic_ms()
        topic, count = self.registration.topic, len(work.messages)
        if run.done:
            self._counts.ended(topic, count, 0, run.spent_ms)
            self._finish(holding, queue, work, now_ms)
        elif run.stopped_at is None:  # it never began
            queue.again(work, now_ms)
        elif run.result is not None and run.result is not Outcome.SUSPEND:
            log.warning("topic=%s %s means nothing with order='key'; taken as success",
                        topic, run.result)  # fmt: skip
            self._counts.ended(topic, count, 0, run.spent_ms)
            self._finish(holding, queue, work, now_ms)
        else:
            self._counts.ended(topic, 0, count, run.spent_ms)
            self._failed(holding, queue, work, run.error, now_ms)
        holding.leave()
        self.pump(holding)

    def _finish(self, holding: Holding, queue: KeyedQueue, work: Work, now_ms: int) -> None:
        queue.done(work)
        if holding.tenure.may_commit(now_ms, needs_lock=holding.needs_lock):
            offset = holding.cache.remove(work.messages, now_ms)
            if offset is not None:
                self._note(holding.queue, offset, False)

    def _failed(
        self,
        holding: Holding,
        queue: KeyedQueue,
        work: Work,
        error: BaseException | None,
        now_ms: int,
    ) -> None:
        first = work.messages[0]
        after_ms = error.after_ms if isinstance(error, Retry) else None
        if error is not None and not isinstance(error, Retry):
            log.warning(
                "handler failed topic=%s queue=%s/%d offset=%d key=%s tried=%d",
                first.topic, first.queue.broker, first.queue.index, first.offset, first.key,
                first.redeliveries + 1, exc_info=error,
            )  # fmt: skip
        limit = self.registration.redeliveries_max
        if first.redeliveries >= limit and holding.live:
            holding.enter()
            work_again = self._send_back(holding, queue, work)
            self._tasks.start(work_again, name=f"dead letters of {holding.queue}")
            return
        self._put_off(holding, queue, work, self._pause_ms(after_ms), now_ms)

    def _pause_ms(self, asked_ms: int | None) -> int:
        """Return how long a key waits: as long as its handler wants, it holds nobody else."""
        return self._suspend_ms if asked_ms is None else max(rules.SUSPEND_MIN_MS, asked_ms)

    def _put_off(
        self, holding: Holding, queue: KeyedQueue, work: Work, pause_ms: int, now_ms: int
    ) -> None:
        tried = [replace(each, redeliveries=each.redeliveries + 1) for each in work.messages]
        holding.cache.replace_taken(tried)
        queue.again(work, now_ms + pause_ms, tried)

    async def _send_back(self, holding: Holding, queue: KeyedQueue, work: Work) -> None:
        """Dead-letter the first message of a work; the rest of its key goes on behind it."""
        first = work.messages[:1]
        sent: set[int] = set()
        try:
            sent = await self._dead_letter(self.registration, first)
        finally:
            now_ms = self._clock.monotonic_ms()
            self._counts.dead(len(sent))
            if sent:
                queue.done(work, 1)
                if holding.tenure.may_commit(now_ms, needs_lock=holding.needs_lock):
                    offset = holding.cache.remove(first, now_ms)
                    if offset is not None:
                        self._note(holding.queue, offset, False)
            else:
                self._put_off(holding, queue, work, self._suspend_ms, now_ms)
            holding.leave()
            self.pump(holding)
