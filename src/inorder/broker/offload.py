"""The broker's threads: syncs and cold reads, which would stop the loop if they ran on it.

Functions get plain values and return plain values; what they touch is written down beside them
(`Store.sync` only looks at descriptors and positions captured by the loop). One of the two modules
of the project in which threads exist.

All syncs of the log run in one thread, one after another: the kernel reports a failed write-back to
one `fdatasync` of a descriptor only, so of two at a time the other would be told that all is well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Offload:
    """Run blocking functions beside the loop, at most `threads_max` at a time."""

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

        `log_sync` says that it syncs the log: such calls run one after another.
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
        """Call `function` in a thread and return its result; a caller that is cancelled goes on."""
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
        """Wait for what is running."""
        while self._running:
            await asyncio.wait(set(self._running))

    def close(self) -> None:
        """Let the threads end; nothing more is taken."""
        for executor in (self._pool, self._log_thread):
            if executor is not None:
                executor.shutdown(wait=True)
        self._pool = self._log_thread = None
