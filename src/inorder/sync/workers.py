"""Threads that call plain handlers.

    the portal's loop                    a worker's thread
    submit(run) ── inbox ──────────────> its calls, one after the other
    run.ended(run) <── outbox, one wake-up for many ──

A thread starts when a run waits and no worker is idle, up to the limit. The threads are daemons: a
handler that never returns does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from queue import SimpleQueue

from inorder.client.running import HANDLING, Call, Run, end
from inorder.clock import Clock


class ThreadWorkers:
    """Calls plain handlers in threads of its own, so many at a time."""

    def __init__(self, call: Call, count: int, clock: Clock) -> None:
        self.capacity = 2 * count  # one that waits behind each that runs: no thread is ever idle
        self._count = count
        self._call = call
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Run | None] = SimpleQueue()
        self._outbox: deque[Run] = deque()
        self._threads: list[threading.Thread] = []
        self._pending = 0  # runs that were submitted and have not ended
        self._woken = False

    def submit(self, run: Run) -> None:
        """Make the calls of a run, as soon as a thread is free."""
        self._pending += 1
        self._inbox.put(run)
        if self._pending > len(self._threads) < self._count:
            name = f"inorder handler {len(self._threads) + 1}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    async def close(self) -> None:
        """End the threads; those whose handler still runs end when it does."""
        for _ in self._threads:
            self._inbox.put(None)
        if self._pending == 0:
            for thread in self._threads:  # each is on its way out: no handler runs
                thread.join()
        self._threads.clear()

    def _work(self) -> None:
        HANDLING.set(True)
        while (run := self._inbox.get()) is not None:
            self._make(run)
            self._outbox.append(run)
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(self._deliver)
            del run  # its messages need not wait for the next one

    def _make(self, run: Run) -> None:
        clock, call = self._clock, self._call
        for batch in run.batches:
            if not run.goes_on(clock.monotonic_ms()):
                break
            try:
                if not run.returned(call(batch)):
                    break
            except BaseException as error:
                # The caller's own code: whatever it raises is a failed attempt, not our end.
                run.error = error
                break
        run.close(clock.monotonic_ms())

    def _deliver(self) -> None:
        self._woken = False
        while self._outbox:
            run = self._outbox.popleft()
            self._pending -= 1
            end(run)
