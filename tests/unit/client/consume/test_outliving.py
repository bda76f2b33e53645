"""Handlers that outlive their lease: cancelled where that can be, and their worker goes on."""

from __future__ import annotations

import asyncio

import pytest

from inorder.client.consume.workers import LoopWorkers, Run
from inorder.model import ReceivedMessage, TopicQueue
from inorder.testing.clock import FakeClock

QUEUE = TopicQueue("t", "b", 0)


def run_of(ended: list[Run], count: int = 1, may_start=lambda _: True) -> Run:
    messages = [ReceivedMessage("t", QUEUE, n, b"", {}, f"id{n}", 0, 0) for n in range(count)]
    return Run([(one,) for one in messages], may_start=may_start, ended=ended.append)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_cancelled_handler_is_no_failed_attempt():
    """What it did not finish goes back as it was; what it finished before counts."""

    async def story() -> None:
        ended: list[Run] = []
        waits = asyncio.Event()

        async def call(batch) -> None:
            if batch[0].offset == 1:
                await waits.wait()

        workers = LoopWorkers(call, 1, FakeClock())
        run = run_of(ended, 3)
        workers.submit(run)
        await turns()
        assert run.cancel()
        assert run.cancel(), "again is fine"
        await turns()
        assert ended == [run]
        assert (run.done, run.error, run.stopped_at) == (1, None, None)
        await workers.close()

    asyncio.run(story())


@pytest.mark.parametrize("deaf", [False, True])
def test_the_worker_goes_on_with_the_next_run(deaf: bool):
    """Also if the handler swallows the cancellation; a later one that fails is seen as such."""

    async def story() -> None:
        ended: list[Run] = []
        lease = True

        async def call(batch) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if not deaf:
                    raise

        async def fails(batch) -> None:
            raise asyncio.CancelledError  # something that it waited for was cancelled

        workers = LoopWorkers(call, 1, FakeClock())
        first, second = run_of(ended, 2, lambda _: lease), run_of(ended)
        workers.submit(first)
        await turns()
        workers.submit(second)
        lease = False
        workers._call = fails
        assert first.cancel()
        await turns()
        assert ended == [first, second]
        assert first.done == int(deaf)
        assert first.error is None
        assert isinstance(second.error, asyncio.CancelledError)
        await workers.close()

    asyncio.run(story())


def test_a_worker_that_is_closed_ends_all_the_same():
    """The end of the consumer is not taken for the end of a lease."""

    async def story() -> None:
        ended: list[Run] = []

        async def call(batch) -> None:
            await asyncio.sleep(3600)

        workers = LoopWorkers(call, 1, FakeClock())
        run = run_of(ended)
        workers.submit(run)
        await turns()
        run.cancel()
        await workers.close()
        assert ended == []

    asyncio.run(story())


def test_nobody_can_stop_a_plain_handler():
    """A run in a thread, or one that has not begun, says so."""
    assert not run_of([]).cancel()
