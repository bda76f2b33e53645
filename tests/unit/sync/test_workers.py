"""Threads that call plain handlers: as many as needed, none left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from inorder.client.consume.workers import Run
from inorder.clock import SystemClock
from inorder.model import ReceivedMessage, TopicQueue
from inorder.sync.workers import ThreadWorkers


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage("t", TopicQueue("t", "b", 0), offset, b"", {}, "", 0, 0)


def run_of(offset: int, ended: Callable[[Run], None], count: int = 1) -> Run:
    batches = [(message(offset + n),) for n in range(count)]
    return Run(batches, may_start=lambda _: True, ended=ended)


def handlers() -> set[threading.Thread]:
    """Return the threads of workers; brokers of other tests may have theirs come and go."""
    return {one for one in threading.enumerate() if one.name.startswith("inorder handler")}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads make it true
            await asyncio.sleep(0.001)


def test_runs_are_called_in_threads_and_end_on_the_loop():
    """The calls happen elsewhere; what follows from them here."""

    async def story() -> None:
        here = threading.get_ident()
        called: list[int] = []
        ended: list[int] = []
        workers = ThreadWorkers(
            lambda batch: called.append(threading.get_ident()), 2, SystemClock()
        )
        runs = [run_of(n, lambda _: ended.append(threading.get_ident()), 3) for n in range(4)]
        for run in runs:
            workers.submit(run)
        await until(lambda: len(ended) == 4)
        assert here not in called
        assert set(ended) == {here}
        assert [run.done for run in runs] == [3, 3, 3, 3]
        await workers.close()

    before = handlers()
    asyncio.run(story())
    assert handlers() <= before


def test_threads_start_when_they_are_needed_up_to_the_limit():
    """One run, one thread; many runs, `count` threads; all are gone after close."""

    async def story() -> None:
        gate, running, ended = threading.Event(), [], []

        def call(batch) -> None:
            running.append(batch[0].offset)
            gate.wait(10)

        workers = ThreadWorkers(call, 3, SystemClock())
        assert workers.capacity == 6
        before = handlers()
        workers.submit(run_of(0, ended.append))
        await until(lambda: len(running) == 1)
        assert len(handlers() - before) == 1
        for number in range(1, 8):
            workers.submit(run_of(number, ended.append))
        await until(lambda: len(running) == 3)
        assert len(handlers() - before) == 3
        gate.set()
        await until(lambda: len(ended) == 8)
        await workers.close()
        assert handlers() <= before

    asyncio.run(story())


def test_what_a_handler_raises_is_told_and_the_thread_goes_on():
    """Also what is no Exception: SystemExit of a handler ends nothing."""

    async def story() -> None:
        ended: list[Run] = []

        def call(batch) -> None:
            if batch[0].offset == 0:
                raise SystemExit(3)
            if batch[0].offset == 1:
                raise ValueError("x")

        workers = ThreadWorkers(call, 1, SystemClock())
        for number in range(3):
            workers.submit(run_of(number, ended.append))
        await until(lambda: len(ended) == 3)
        assert [type(run.error).__name__ for run in ended] == [
            "SystemExit", "ValueError", "NoneType",
        ]  # fmt: skip
        await workers.close()

    asyncio.run(story())


def test_what_ended_is_told_although_all_threads_are_busy():
    """With enough to do nobody wakes the loop for a single run; it looks by itself."""

    async def story() -> None:
        gate, ended = threading.Event(), []

        def call(batch) -> None:
            if batch[0].offset:
                gate.wait(10)

        workers = ThreadWorkers(call, 2, SystemClock())
        for number in range(8):
            workers.submit(run_of(number, ended.append))
        await until(lambda: len(ended) == 1)
        assert not gate.is_set()
        gate.set()
        await until(lambda: len(ended) == 8)
        await workers.close()

    asyncio.run(story())


def test_runs_that_ended_together_are_settled_once():
    """Whoever started them deals with all of them at once, after the last was told."""

    async def story() -> None:
        gate, ended, settled = threading.Event(), [], []
        workers = ThreadWorkers(lambda batch: gate.wait(10), 2, SystemClock())

        def settle() -> None:
            settled.append(len(ended))

        for number in range(4):
            run = run_of(number, ended.append)
            run.settle = settle
            workers.submit(run)
        gate.set()
        while len(workers._outbox) < 4:
            pass  # the loop hears of nothing meanwhile
        await until(lambda: len(ended) == 4)
        assert settled == [4]
        await workers.close()

    asyncio.run(story())
