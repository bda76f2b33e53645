"""Tasks with names and an owner.

asyncio's TaskGroup must be entered and left by one task, which does not suit objects with `start`
and `stop`. This one belongs to such an object: nothing is started that `stop` does not end, nothing
fails unseen, and the number of tasks has a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from inorder.errors import AlreadyClosed, SystemBusy
from inorder.logs import get_logger

logger = get_logger(__name__)

OnFailure = Callable[[str, BaseException], None]


@dataclass(frozen=True, slots=True)
class TasksStatistics:
    """What a group runs."""

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
        """Start nothing more; give the tasks `drain_ms` to end, then cancel what is left."""
        self._stopped = True
        current = asyncio.current_task()
        if drain_ms > 0 and (running := self._running - {current}):
            await asyncio.wait(running, timeout=drain_ms / 1000)
        for task in self._running - {current}:
            task.cancel()
        while running := self._running - {current}:
            await asyncio.wait(running)

    def statistics(self) -> TasksStatistics:
        """Return a snapshot."""
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
