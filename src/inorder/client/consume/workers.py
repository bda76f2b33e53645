"""Calling handlers: a run of messages at a time, on the loop or (see `sync/workers.py`) in threads.

A run is a list of calls for one worker, made one after the other. It ends with the first call that
does not simply return, when its time is up, or when its queue says that no handler may start any
more. Then `ended` is called on the loop, and `settle` once for all runs that ended together.

An async handler that runs when the lease of its queue has ended is cancelled: somebody else may
have begun with the same message. It is no failed attempt. A plain one cannot be stopped.

What a consumer did: counts for its user, and per topic for whoever asks by the broker.

Which running handler a piece of code belongs to.

`close` waits for handlers, so a handler that waits for `close` waits for itself. Whether code runs
in a handler travels with its context: a call of a handler sets a token, and what the handler starts
(tasks, `asyncio.to_thread`, whatever copies the context) carries it too. The token is void as soon
as the call has ended: a task that outlives its handler may wait for `close` like everybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from inorder.client.consume.rules.outcomes import Handled, Outcome
from inorder.clock import Clock
from inorder.logs import get_logger
from inorder.model import ReceivedMessage
from inorder.tasks import Tasks

log = get_logger(__name__)


@dataclass(slots=True)
class TopicCounts:
    """What was done of one topic."""

    handled: int = 0
    failed: int = 0
    handling_ms: int = 0
    pulled: int = 0
    pulls: int = 0
    pulling_ms: int = 0


@dataclass(slots=True)
class Counts:
    """What was done of all topics; `since_ms` is the clock's at the start."""

    handled: int = 0
    failed: int = 0
    sent_back: int = 0
    dead_lettered: int = 0
    parked: int = 0
    dropped: int = 0
    pulled: int = 0
    outlived: int = 0
    since_ms: int = 0
    topics: dict[str, TopicCounts] = field(default_factory=dict)

    def of(self, topic: str) -> TopicCounts:
        """Return the counts of a topic."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicCounts()
        return found

    def ended(self, topic: str, handled: int, failed: int, spent_ms: int) -> None:
        """Count what handlers did."""
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
    """One call of a handler of a consumer, while it runs."""

    __slots__ = ("consumer", "outer", "running")

    def __init__(self, consumer: object, outer: HandlerCall | None) -> None:
        self.consumer = consumer
        self.outer = outer
        """The handler that started this consumer, if it was one and still runs."""
        self.running = True


_CALL: ContextVar[HandlerCall | None] = ContextVar("inorder_handler_call", default=None)


def begin_call(consumer: object) -> HandlerCall:
    """Note that a handler of a consumer is called, in this context and those copied from it."""
    outer = _CALL.get()
    while outer is not None and not outer.running:
        outer = outer.outer
    call = HandlerCall(consumer, outer)
    _CALL.set(call)
    return call


def end_call(call: HandlerCall) -> None:
    """Note that it ended, for all who carry it."""
    call.running = False
    _CALL.set(call.outer)


def in_handler(consumer: object) -> bool:
    """Tell whether this code is, or was started by, a handler of a consumer that still runs."""
    call = _CALL.get()
    while call is not None:
        if call.running and call.consumer is consumer:
            return True
        call = call.outer
    return False


SLICE_MS: Final = 100
"""A run that lasts longer ends, so that what it did can be committed."""

Batch = Sequence[ReceivedMessage]
Call = Callable[[Batch], Any]


class Run:
    """Calls for one worker, and what became of them.

    Whoever has it is alone with it, but for what it has not come to: that can be recalled.
    """

    __slots__ = (
        "_left", "_outlived", "batches", "done", "ended", "error", "may_start", "result",
        "settle", "slice_ms", "spent_ms", "started_ms", "task",
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
        """How many calls simply returned; the one behind them said `result` or raised `error`."""
        self.result: Outcome | Handled | None = None
        self.error: BaseException | None = None
        self.started_ms: int | None = None
        self.spent_ms = 0
        self.task: asyncio.Task[Any] | None = None
        """Who makes the calls, while it can be cancelled."""
        self._outlived = False

    @property
    def stopped_at(self) -> Batch | None:
        """Return the batch whose handler did not simply return, if there is one."""
        said_something = self.result is not None or self.error is not None
        return self.batches[self.done] if said_something else None

    @property
    def calls(self) -> int:
        """Return how many calls were made."""
        return self.done + (self.result is not None or self.error is not None)

    def next(self, now_ms: int) -> Batch | None:
        """Return what the next call is for; None: the run ends. Called by the worker."""
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
            return None  # recalled this moment

    def reclaim(self) -> Sequence[Batch]:
        """Take back what the worker has not come to; it is no part of the run any more."""
        taken: list[Batch] = []
        with contextlib.suppress(IndexError):  # the worker takes from the other end
            while self._left:
                taken.append(self._left.pop())
        self.batches = self.batches[: len(self.batches) - len(taken)]
        return taken[::-1]

    def returned(self, value: object) -> bool:
        """Note what a handler returned; tell whether the run goes on."""
        if value is not None and isinstance(value, Outcome | Handled):
            self.result = value
            return False
        self.done += 1
        return True

    def cancel(self) -> bool:
        """Cancel the handler that runs, which has outlived its lease; False if nobody can."""
        if self.task is not None and not self._outlived:
            self._outlived = True
            self.task.cancel()
        return self._outlived

    def was_cancelled(self) -> bool:
        """Tell whether it was `cancel` that ended the handler; the worker itself goes on then."""
        if self.task is None:
            return False
        task, self.task = self.task, None
        return self._outlived and task.uncancel() == 0

    def close(self, now_ms: int) -> None:
        """Note when the last call ended."""
        if self.started_ms is not None:
            self.spent_ms = now_ms - self.started_ms


class Workers(Protocol):
    """Who calls the handlers of one topic."""

    capacity: int
    """How many runs it takes at a time; more would only wait."""

    def submit(self, run: Run) -> None:
        """Make the calls of a run, as soon as a worker is free."""
        ...

    def halt(self) -> None:
        """No run that is submitted from now on may start a handler."""
        ...

    async def close(self) -> None:
        """Let the workers end; those whose handler still runs are left behind."""
        ...


WorkersFactory = Callable[[Call, int, Clock, object], Workers]
"""Makes workers for a handler: so many, of a consumer."""


class LoopWorkers:
    """Calls async handlers on the event loop, so many at a time."""

    _YIELD_EVERY: Final = 64

    def __init__(
        self,
        call: Callable[[Batch], Awaitable[Any]],
        count: int,
        clock: Clock,
        consumer: object = None,
    ) -> None:
        self.capacity = count
        self._call = call
        self._consumer = consumer
        self._clock = clock
        self._runs: deque[Run] = deque()
        self._active = 0
        self._tasks = Tasks("handlers")
        self._halted = self._closed = False
        self._cancelled: list[Run] = []
        """Runs whose handlers the program itself cancelled, as asyncio.run does at its end."""

    def submit(self, run: Run) -> None:
        """Make the calls of a run, as soon as a worker is free."""
        self._runs.append(run)
        if self._active < self.capacity:
            self._active += 1
            self._tasks.start(self._work(), name="worker")

    def halt(self) -> None:
        """End the runs that the program cancelled: nothing follows from that any more."""
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
        """Let a run end without its handler, now or when the consumer stops: until then it would
        only be begun anew."""
        if self._closed:
            return  # we did it: the stop has given up on them
        run.task = None
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
                if not run.returned(await self._call(batch)):
                    break
            except asyncio.CancelledError as error:
                if run.was_cancelled():
                    break
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # it is us who are to end, not something that the handler waited for
                run.error = error
                break
            except Exception as error:
                # The caller's own code: whatever it raises is a failed attempt.
                run.error = error
                break
            finally:
                end_call(call)
        run.was_cancelled()  # it may have come too late, or the handler would not hear of it
        run.close(clock.monotonic_ms())


def end(runs: Sequence[Run]) -> None:
    """Tell whoever started runs that they ended."""
    settles: dict[Callable[[], None], None] = {}
    for run in runs:
        if run.settle is not None:
            settles[run.settle] = None
        try:
            run.ended(run)
        except Exception:
            # A task root: a mistake of ours about one queue must not stop the others.
            log.exception("what follows a handler failed")
    for settle in settles:
        try:
            settle()
        except Exception:
            # As above.
            log.exception("what follows handlers failed")


def is_async(handler: Callable[..., Any]) -> bool:
    """Tell whether calling it gives something to await."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - the method, not whether it is one
    )
