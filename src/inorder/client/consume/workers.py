"""Calling handlers, on the loop (`LoopWorkers`) or in threads (`sync/workers.py`).

A `Run` is a list of calls for one worker, made one after the other. It ends at the first call that
raises, or returns an Outcome but SUCCESS, or a Handled of fewer messages than it got; when its time
slice is over; or when its queue allows no further handler. Then `ended` is called on the loop, and
`settle` once for all runs that ended together.

An async handler that still runs when the lease of its queue has ended is cancelled, because another
consumer may have begun with the same message; that is no failed attempt. A plain function cannot be
stopped.

`Counts` holds the consumer's counters, for its user and for operators.

`in_handler` tells whether code belongs to a running handler. `close` waits for handlers, so a
handler that waited for `close` would wait for itself. A call of a handler sets a token in its
context, and everything that copies the context (tasks, `asyncio.to_thread`) carries the token too.
The token is void as soon as the call has ended: a task that outlives its handler may wait for
`close`.

How handlers run and stop: decision 29.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from inorder.client.consume.rules.outcomes import Handled, Outcome, Reply
from inorder.clock import Clock
from inorder.logs import get_logger
from inorder.model import ReceivedMessage
from inorder.tasks import Tasks

log = get_logger(__name__)

SLICE_MS: Final = 100
"""A run that lasts longer ends, so that its results can be committed."""


@dataclass(slots=True)
class TopicCounts:
    """Counters of one topic."""

    handled: int = 0
    failed: int = 0
    handling_ms: int = 0
    pulled: int = 0
    pulls: int = 0
    pulling_ms: int = 0


@dataclass(slots=True)
class Counts:
    """Counters of all topics; `since_ms` is the monotonic time of the start."""

    handled: int = 0
    failed: int = 0
    sent_back: int = 0
    dead_lettered: int = 0
    parked: int = 0
    dropped: int = 0
    pulled: int = 0
    outlived: int = 0
    replied: int = 0
    unreplied: int = 0
    since_ms: int = 0
    topics: dict[str, TopicCounts] = field(default_factory=dict)

    def of(self, topic: str) -> TopicCounts:
        """Return the counts of a topic."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicCounts()
        return found

    def ended(self, topic: str, handled: int, failed: int, spent_ms: int) -> None:
        """Count the results of handlers."""
        self.handled += handled
        self.failed += failed
        counts = self.of(topic)
        counts.handled += handled
        counts.failed += failed
        counts.handling_ms += spent_ms

    def dead(self, count: int) -> None:
        """Count messages that were dead-lettered."""
        self.dead_lettered += count

    def arrived(self, topic: str, count: int, spent_ms: int) -> None:
        """Count a pull that found messages."""
        self.pulled += count
        counts = self.of(topic)
        counts.pulled += count
        counts.pulls += 1
        counts.pulling_ms += spent_ms


class HandlerCall:
    """One call of a consumer's handler; the token of its context."""

    __slots__ = ("consumer", "outer", "running")

    def __init__(self, consumer: object, outer: HandlerCall | None) -> None:
        self.consumer = consumer
        self.outer = outer
        """The running handler of another consumer that started this one, if any."""
        self.running = True


_CALL: ContextVar[HandlerCall | None] = ContextVar("inorder_handler_call", default=None)


def begin_call(consumer: object) -> HandlerCall:
    """Mark this context, and its later copies, as belonging to a handler of a consumer."""
    outer = _CALL.get()
    while outer is not None and not outer.running:
        outer = outer.outer
    call = HandlerCall(consumer, outer)
    _CALL.set(call)
    return call


def end_call(call: HandlerCall) -> None:
    """End the mark, also in the copies of the context."""
    call.running = False
    _CALL.set(call.outer)


def in_handler(consumer: object) -> bool:
    """Return whether a running handler of the consumer is, or has started, this code."""
    call = _CALL.get()
    while call is not None:
        if call.running and call.consumer is consumer:
            return True
        call = call.outer
    return False


Batch = Sequence[ReceivedMessage]
Call = Callable[[Batch], Any]
Answer = Callable[[Batch, Reply], Coroutine[Any, Any, None]]
"""Sends the Reply that a handler has returned for a batch; raises nothing."""


async def no_answer(_: Batch, __: Reply) -> None:
    """Send no reply: the workers of no consumer."""


class Run:
    """Calls for one worker, and their results.

    Only the worker touches a run while it has it, except that the loop may reclaim calls that the
    worker has not reached.
    """

    __slots__ = (
        "_left", "_outlived", "batches", "cancelled", "done", "ended", "error", "may_start",
        "result", "settle", "slice_ms", "spent_ms", "started_ms", "task",
    )  # fmt: skip

    def __init__(
        self,
        batches: Sequence[Batch],
        *,
        may_start: Callable[[int], bool],
        ended: Callable[[Run], None],
        settle: Callable[[], None] | None = None,
        slice_ms: int = SLICE_MS,
    ) -> None:
        self.batches = batches
        self._left = deque(batches)
        self.may_start = may_start
        self.ended = ended
        self.settle = settle
        self.slice_ms = slice_ms
        self.done = 0
        """How many calls succeeded; the next one gave `result` or `error`."""
        self.result: Outcome | Handled | None = None
        self.error: BaseException | None = None
        self.started_ms: int | None = None
        self.spent_ms = 0
        self.task: asyncio.Task[Any] | None = None
        """The task that makes the calls, while it can be cancelled."""
        self.cancelled = False
        """The program has cancelled the handler, as asyncio.run does at its end."""
        self._outlived = False

    @property
    def stopped_at(self) -> Batch | None:
        """Return the batch whose call returned `result` or raised `error`; None without one."""
        said_something = self.result is not None or self.error is not None
        return self.batches[self.done] if said_something else None

    @property
    def calls(self) -> int:
        """Return how many calls were made."""
        return self.done + (self.result is not None or self.error is not None)

    def next(self, now_ms: int) -> Batch | None:
        """Return the batch of the next call; None ends the run. Called by the worker."""
        left = self._left
        if not left:
            return None
        if self.started_ms is None:
            self.started_ms = now_ms
        elif now_ms - self.started_ms > self.slice_ms:
            return None
        if not self.may_start(now_ms):
            return None
        try:
            return left.popleft()
        except IndexError:
            return None  # reclaimed at this moment

    def reclaim(self) -> Sequence[Batch]:
        """Remove and return the batches that the worker has not reached."""
        taken: list[Batch] = []
        with contextlib.suppress(IndexError):  # the worker takes from the other end
            while self._left:
                taken.append(self._left.pop())
        self.batches = self.batches[: len(self.batches) - len(taken)]
        return taken[::-1]

    def returned(self, value: object) -> bool:
        """Note what a handler returned; return whether the run continues."""
        if value is None or value is Outcome.SUCCESS or not isinstance(value, Outcome | Handled):
            self.done += 1
            return True
        if isinstance(value, Handled):
            if value.count >= len(self.batches[self.done]):
                self.done += 1
                return True
            self.error = value.error
        self.result = value
        return False

    @property
    def begun_to(self) -> int:
        """Return the end of the messages that were handed to the handler; 0 if none was."""
        return self.batches[self.calls - 1][-1].offset + 1 if self.calls else 0

    @property
    def failed(self) -> bool:
        """Return whether the call at which the run stopped has failed."""
        return self.error is not None or self.result is Outcome.SUSPEND or self.is_part

    @property
    def is_part(self) -> bool:
        """Return whether the call at which the run stopped has handled a part of its messages."""
        return isinstance(self.result, Handled)

    def cancel(self) -> bool:
        """Cancel a handler that runs longer than its lease; False if it cannot be cancelled."""
        if self.task is not None and not self._outlived:
            self._outlived = True
            self.task.cancel()
        return self._outlived

    def was_cancelled(self) -> bool:
        """Return whether `cancel` ended the handler; the worker itself continues then."""
        if self.task is None:
            return False
        task, self.task = self.task, None
        return self._outlived and task.uncancel() == 0

    def close(self, now_ms: int) -> None:
        """Note when the last call ended."""
        if self.started_ms is not None:
            self.spent_ms = now_ms - self.started_ms


class Workers(Protocol):
    """The workers that call the handler of one topic."""

    capacity: int
    """How many runs are made at a time; further ones wait."""

    def submit(self, run: Run) -> None:
        """Make the calls of a run, as soon as a worker is free."""
        ...

    def halt(self) -> None:
        """Note that the consumer stops: runs that are submitted later start no handler."""
        ...

    async def close(self) -> None:
        """End the workers; a worker whose handler still runs is left behind."""
        ...


WorkersFactory = Callable[[Call, int, Clock, object, Answer], Workers]
"""Creates workers from a call, their number, a clock, the consumer, and what sends replies."""


class LoopWorkers:
    """Calls async handlers on the event loop, up to `count` at a time."""

    _YIELD_EVERY: Final = 64

    def __init__(
        self,
        call: Callable[[Batch], Awaitable[Any]],
        count: int,
        clock: Clock,
        consumer: object = None,
        answer: Answer = no_answer,
    ) -> None:
        self.capacity = count
        self._call = call
        self._answer = answer
        self._consumer = consumer
        self._clock = clock
        self._runs: deque[Run] = deque()
        self._active = 0
        self._tasks = Tasks("handlers")
        self._halted = self._closed = False
        self._cancelled: list[Run] = []
        """Runs whose handlers the program has cancelled, as asyncio.run does at its end."""

    def submit(self, run: Run) -> None:
        """Make the calls of a run, as soon as a worker is free."""
        self._runs.append(run)
        if self._active < self.capacity:
            self._active += 1
            self._tasks.start(self._work(), name="worker")

    def halt(self) -> None:
        """End the runs whose handlers the program has cancelled: the consumer stops."""
        self._halted = True
        cancelled, self._cancelled = self._cancelled, []
        end(cancelled)

    async def close(self) -> None:
        """Cancel the handlers that still run."""
        self._closed = True
        await self._tasks.stop()

    async def _work(self) -> None:
        count = 0
        try:
            while self._runs:
                run = self._runs.popleft()
                try:
                    await self._make(run)
                except asyncio.CancelledError:
                    self._was_cancelled(run)
                    raise
                end((run,))
                count += 1
                if count % self._YIELD_EVERY == 0:
                    await asyncio.sleep(0)  # a handler that never waits must not hold the loop
        finally:
            self._active -= 1

    def _was_cancelled(self, run: Run) -> None:
        """End a run whose handler the program has cancelled.

        Until the consumer stops the run is kept, because its messages would only be handled again.
        """
        if self._closed:
            return  # close() cancelled the handler
        run.task = None
        run.cancelled = True
        run.close(self._clock.monotonic_ms())
        if self._halted:
            end((run,))
        else:
            self._cancelled.append(run)

    async def _make(self, run: Run) -> None:
        clock = self._clock
        run.task = asyncio.current_task()
        while (batch := run.next(clock.monotonic_ms())) is not None:
            call = begin_call(self._consumer)
            try:
                value = await self._call(batch)
                if isinstance(value, Reply):
                    await self._answer(batch, value)
                if not run.returned(value):
                    break
            except asyncio.CancelledError as error:
                if run.was_cancelled():
                    break
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # this task is cancelled, not something that the handler waits for
                run.error = error
                break
            except Exception as error:
                # The user's code: any exception is a failed attempt.
                run.error = error
                break
            finally:
                end_call(call)
        run.was_cancelled()  # the cancellation came too late, or the handler suppressed it
        run.close(clock.monotonic_ms())


def end(runs: Sequence[Run]) -> None:
    """Call `ended` of each run, and each `settle` once."""
    settles: dict[Callable[[], None], None] = {}
    for run in runs:
        if run.settle is not None:
            settles[run.settle] = None
        try:
            run.ended(run)
        except Exception:
            # A task root: a bug that concerns one queue must not stop the others.
            log.exception("what follows a handler failed")
    for settle in settles:
        try:
            settle()
        except Exception:
            # As above.
            log.exception("what follows handlers failed")


def is_async(handler: Callable[..., Any]) -> bool:
    """Return whether calling the handler gives an awaitable."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - the method, not whether it is one
    )
