"""Threads that call plain handlers.

    the portal's loop                    a worker's thread
    submit(run) ── inbox ──────────────> its calls, one after the other
    run.ended(run) <── outbox, one wake-up for many ──

A thread starts when a run waits and no worker is idle, up to the limit. To start a thread takes
long on a busy machine, so the loop starts only one at a time; the new thread starts the next one if
more are needed, and then begins to work. While all threads are busy, one wake-up tells the loop of
many ended runs (`tells_loop`), and the loop checks by itself every 50 ms. It wakes in an empty
context, so that it does not inherit a handler's context variables. Threads are daemons: a handler
that never returns does not keep the process alive. Why threads: decisions 27 and 29.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from queue import SimpleQueue
from typing import Final

from inorder.client.consume.rules.outcomes import Reply, tells_loop
from inorder.client.consume.workers import (
    Answer,
    Batch,
    Call,
    Run,
    begin_call,
    end,
    end_call,
    no_answer,
)
from inorder.clock import Clock

_LOOK_S: Final = 0.05
_ANSWER_S: Final = 60.0
"""How long a thread waits at most for the loop to send a reply, which has a shorter limit."""


class ThreadWorkers:
    """Calls plain handlers in threads, up to a number of them at a time."""

    def __init__(
        self,
        call: Call,
        count: int,
        clock: Clock,
        consumer: object = None,
        answer: Answer = no_answer,
    ) -> None:
        self.capacity = (
            2 * count
        )  # one run waits behind each running one, so that no thread is idle
        self._count = count
        self._call = call
        self._answer = answer
        self._clock = clock
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Run | None] = SimpleQueue()
        self._outbox: deque[Run] = deque()
        self._threads: list[threading.Thread] = []
        self._replying: set[asyncio.Task[None]] = set()
        self._starting = threading.Lock()  # for the three below
        self._wanted = 0
        self._is_starting = False
        self._closed = False
        self._pending = 0  # runs that were submitted and have not ended
        self._woken = False
        self._look: asyncio.TimerHandle | None = None

    def submit(self, run: Run) -> None:
        """Make the calls of a run, as soon as a thread is free."""
        self._pending += 1
        self._inbox.put(run)
        if self._pending > self._wanted < self._count:
            with self._starting:
                self._wanted += 1
                to_start, self._is_starting = not self._is_starting, True
            if to_start:
                self._start(self._begin)
        self._watch()

    def halt(self) -> None:
        """Do nothing: threads check before each call whether it may start."""

    async def close(self) -> None:
        """End the threads; those whose handler still runs end when it does."""
        if self._look is not None:
            self._look.cancel()
        with self._starting:
            self._closed = True
        self._inbox.put(None)
        if self._pending == 0:
            for thread in self._threads:  # each is on its way out: no handler runs
                thread.join()  # a thread that starts others is joined before them
        self._threads.clear()

    def _start(self, work: Callable[[], None]) -> None:
        name = f"inorder handler {len(self._threads) + 1}"
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _begin(self) -> None:
        """Start the other threads that are wanted, then work."""
        while True:
            with self._starting:
                if self._closed or len(self._threads) >= self._wanted:
                    self._is_starting = False
                    break
            self._start(self._work)
        self._work()

    def _work(self) -> None:
        while (run := self._inbox.get()) is not None:
            self._make(run)
            self._outbox.append(run)
            del run  # its messages need not wait for the next one
            if not self._woken and tells_loop(
                len(self._outbox), self._inbox.qsize(), workers=self._count
            ):
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(self._deliver, context=Context())
        self._inbox.put(None)  # for the others

    def _make(self, run: Run) -> None:
        handler, consumer, monotonic_ms = self._call, self._consumer, self._clock.monotonic_ms
        now_ms = monotonic_ms()
        while (batch := run.next(now_ms)) is not None:
            call = begin_call(consumer)
            try:
                value = handler(batch)
                if isinstance(value, Reply):
                    self._reply(batch, value)
                if not run.returned(value):
                    break
            except BaseException as error:
                # The user's code: any exception is a failed attempt and does not end the thread.
                run.error = error
                break
            finally:
                end_call(call)
                now_ms = monotonic_ms()
        run.close(now_ms)

    def _reply(self, batch: Batch, reply: Reply) -> None:
        """Let the loop send a reply, and wait for it."""
        sent: Future[None] = Future()

        def begin() -> None:
            task = self._loop.create_task(self._answer(batch, reply), name="reply")
            self._replying.add(task)
            task.add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            self._replying.discard(task)
            sent.set_result(None)

        # A loop that is closed sends nothing any more, and the message counts as done nowhere.
        with contextlib.suppress(RuntimeError, TimeoutError):
            self._loop.call_soon_threadsafe(begin, context=Context())
            sent.result(_ANSWER_S)

    def _deliver(self) -> None:
        self._woken = False
        ended = []
        while self._outbox:
            ended.append(self._outbox.popleft())
        self._pending -= len(ended)
        end(ended)

    def _watch(self) -> None:
        """Deliver ended runs soon, even if every thread is too busy to wake the loop."""
        if self._look is None and self._inbox.qsize() > self._count:
            self._look = self._loop.call_later(_LOOK_S, self._deliver_late)

    def _deliver_late(self) -> None:
        self._look = None
        self._deliver()
        self._watch()
