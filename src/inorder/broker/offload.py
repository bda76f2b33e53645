"""The broker's threads: syncs and cold reads, which would stop the loop if they ran on it.

Functions get plain values and return plain values; what they touch is written down beside them
(`Store.sync` only looks at descriptors and positions captured by the loop). One of the two modules
of the project in which threads exist.
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
        self._executor: ThreadPoolExecutor | None = None
        self._running: set[asyncio.Future[object]] = set()

    def run(
        self,
        function: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Call `function` in a thread, then `done` or `failed` on the loop."""
        future = self._submit(function)

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
        """Await the result of `function`, called in a thread."""
        return await self._submit(function)

    def _submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads_max, "inorder-disk")
        future: asyncio.Future[T] = asyncio.ensure_future(
            self._loop.run_in_executor(self._executor, function)
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
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
