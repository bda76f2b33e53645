"""Small tools for asyncio: backoff, task groups, periodic work, patience.

    Backoff     how long to wait before the next attempt: twice as long each time, up to a limit
    Tasks       tasks with names and an owner
    periodic    repeated work
    Patience    how long a stop waits; of several callers the earliest deadline counts

asyncio's TaskGroup must be entered and left by one task, which does not suit objects with `start`
and `stop`. `Tasks` belongs to such an object: `stop` ends every task that it started, no failure
goes unseen, and the number of tasks has a limit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from inorder.clock import Clock
from inorder.errors import AlreadyClosed, SystemBusy
from inorder.logs import get_logger

logger = get_logger(__name__)


class Backoff:
    """A series of delays. Pure: it tells how long, the caller waits.

    `draw` returns numbers from 0 to 1; with it each delay is spread over its upper half, so that
    many clients that lost the same server do not come back at the same time.
    """

    __slots__ = ("_draw", "_factor", "_first_ms", "_max_ms", "attempts")

    def __init__(
        self,
        first_ms: int,
        max_ms: int,
        *,
        factor: float = 2.0,
        draw: Callable[[], float] | None = None,
    ) -> None:
        if not 0 < first_ms <= max_ms or factor < 1:
            raise ValueError(f"Backoff({first_ms}, {max_ms}, factor={factor}): 0 < first <= max")
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._factor = factor
        self._draw = draw
        self.attempts = 0

    def next_ms(self) -> int:
        """Return the next delay."""
        delay = float(self._first_ms)
        for _ in range(self.attempts):
            delay *= self._factor
            if delay >= self._max_ms:
                delay = float(self._max_ms)
                break
        self.attempts += 1
        if self._draw is not None:
            delay = delay / 2 + delay / 2 * self._draw()
        return max(1, int(delay))

    def reset(self) -> None:
        """Start again with the shortest delay: it worked."""
        self.attempts = 0

    def __repr__(self) -> str:
        return f"Backoff({self._first_ms}..{self._max_ms} ms, attempts={self.attempts})"


OnFailure = Callable[[str, BaseException], None]


@dataclass(frozen=True, slots=True)
class TasksStatistics:
    """The counts of a task group."""

    owner: str
    running: tuple[str, ...]
    started_total: int
    failed_total: int


class Tasks:
    """The tasks of one owner."""

    def __init__(
        self, owner: str, *, tasks_max: int = 100_000, on_failure: OnFailure | None = None
    ) -> None:
        self.owner = owner
        self._tasks_max = tasks_max
        self._on_failure = on_failure
        self._running: set[asyncio.Task[Any]] = set()
        self._started_total = 0
        self._failed_total = 0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopped

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run a coroutine as a task. Raises SystemBusy at the limit, AlreadyClosed after `stop`."""
        if self._stopped or len(self._running) >= self._tasks_max:
            work.close()
            if self._stopped:
                raise AlreadyClosed(f"{self.owner} has stopped; it does not start {name}")
            raise SystemBusy(f"{self.owner} runs {len(self._running)} tasks; try again later")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.owner}: {name}")
        self._started_total += 1
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self, drain_ms: int = 0) -> None:
        """Start no more tasks; give the running ones `drain_ms` to end, then cancel them."""
        self._stopped = True
        current = asyncio.current_task()
        if drain_ms > 0 and (running := self._running - {current}):
            await asyncio.wait(running, timeout=drain_ms / 1000)
        for task in self._running - {current}:
            task.cancel()
        while running := self._running - {current}:
            await asyncio.wait(running)

    def statistics(self) -> TasksStatistics:
        """Return a snapshot of the counters."""
        return TasksStatistics(
            owner=self.owner,
            running=tuple(sorted(task.get_name() for task in self._running)),
            started_total=self._started_total,
            failed_total=self._failed_total,
        )

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        state = ", stopped" if self._stopped else ""
        return f"Tasks({self.owner!r}, running={len(self._running)}{state})"

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self._failed_total += 1
        logger.error("task=%s failed", task.get_name(), exc_info=error)
        if self._on_failure is not None:
            self._on_failure(task.get_name(), error)


async def periodic(
    action: Callable[[], Awaitable[None] | None],
    *,
    interval_ms: int,
    clock: Clock,
    name: str,
    first_ms: int | None = None,
) -> None:
    """Call `action` every `interval_ms` until cancelled; log its errors and go on.

    The times are multiples of the interval from the start on. A call that takes longer than the
    interval makes the missed ones drop out; calls never overlap. `first_ms` is the delay of the
    first call, by default the interval.
    """
    if interval_ms <= 0:
        raise ValueError(f"periodic {name}: interval_ms={interval_ms} must be above 0")
    due_ms = clock.monotonic_ms() + (interval_ms if first_ms is None else first_ms)
    while True:
        wait_ms = due_ms - clock.monotonic_ms()
        await asyncio.sleep(max(wait_ms, 0) / 1000)
        try:
            result = action()
            if inspect.isawaitable(result):
                await result
        except Exception:
            # The root of a task: one failure must not end the periodic work.
            logger.exception("periodic=%s failed; it is tried again in %d ms", name, interval_ms)
        missed = max(0, clock.monotonic_ms() - due_ms) // interval_ms
        due_ms += (missed + 1) * interval_ms


class Patience:
    """A time limit that can only come nearer, also while a task waits for it."""

    def __init__(self, timeout_ms: int, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._until_ms = clock.monotonic_ms() + timeout_ms
        self._timer = self._loop.call_later(timeout_ms / 1000, self._end)

    def at_most(self, timeout_ms: int) -> None:
        """Lower the limit to this time from now."""
        until_ms = self._clock.monotonic_ms() + timeout_ms
        if until_ms < self._until_ms:
            self._timer.cancel()
            self._until_ms = until_ms
            self._timer = self._loop.call_later(timeout_ms / 1000, self._end)

    async def wait_for(self, work: Iterable[asyncio.Future[Any]]) -> bool:
        """Wait until all tasks have ended or the time is up; return whether they have ended."""
        left = set(work)
        while left and not self._over.done():
            done, _ = await asyncio.wait({*left, self._over}, return_when=asyncio.FIRST_COMPLETED)
            left -= done
        return not left

    def close(self) -> None:
        """Forget the time limit."""
        self._timer.cancel()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
