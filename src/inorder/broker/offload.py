"""The broker's threads: syncs, file writes and cold reads, which would block the loop.

A function that runs here takes and returns plain values. It touches only state that the loop
captured for it (`Store.sync` uses descriptors and positions that the loop chose).

All syncs of the log run in one thread, one after another. The kernel reports a failed write-back to
only one `fdatasync` of a descriptor, so of two concurrent syncs the other would report success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Offload:
    """Runs blocking functions beside the loop, at most `threads_max` at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int = 4) -> None:
        self._loop = loop
        self._threads_max = threads_max
        self._pool: ThreadPoolExecutor | None = None
        self._log_thread: ThreadPoolExecutor | None = None
        self._running: set[asyncio.Future[object]] = set()

    def run(
        self,
        function: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        log_sync: bool = False,
    ) -> None:
        """Call `function` in a thread, then `done` or `failed` on the loop.

        `log_sync`: the function syncs the log; such calls run one after another.
        """
        future = self._submit(function, log_sync=log_sync)

        def finish(finished: asyncio.Future[T]) -> None:
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                done(finished.result())
            else:
                failed(error)

        future.add_done_callback(finish)

    async def call(self, function: Callable[[], T]) -> T:
        """Call `function` in a thread and return its result. It ends even without its caller."""
        return await asyncio.shield(self._submit(function, log_sync=False))

    def _submit(self, function: Callable[[], T], *, log_sync: bool) -> asyncio.Future[T]:
        if log_sync:
            if self._log_thread is None:
                self._log_thread = ThreadPoolExecutor(1, "inorder-log")
            executor = self._log_thread
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads_max, "inorder-disk")
            executor = self._pool
        future: asyncio.Future[T] = asyncio.ensure_future(
            self._loop.run_in_executor(executor, function)
        )
        self._running.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._running.discard)
        return future

    async def drain(self) -> None:
        """Wait for all running functions."""
        while self._running:
            await asyncio.wait(set(self._running))

    def close(self) -> None:
        """End the threads and accept no more work."""
        for executor in (self._pool, self._log_thread):
            if executor is not None:
                executor.shutdown(wait=True)
        self._pool = self._log_thread = None
