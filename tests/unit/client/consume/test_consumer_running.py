"""Runs of calls: where they stop, what they tell; workers on the loop."""

from __future__ import annotations

import asyncio

import pytest

from inorder.client.consume.hooks import Hooks
from inorder.client.consume.registrations import fallback, register
from inorder.client.consume.rules.outcomes import DeadLetter, Handled, Outcome, Retry
from inorder.client.consume.workers import SLICE_MS, LoopWorkers, Run, end, in_handler, is_async
from inorder.errors import UsageError
from inorder.model import ReceivedMessage, TopicQueue
from inorder.testing.clock import FakeClock

QUEUE = TopicQueue("t", "b", 0)


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage("t", QUEUE, offset, b"", {}, f"id{offset}", 0, 0)


def run_of(count: int, may_start=lambda _: True) -> tuple[Run, list[Run]]:
    ended: list[Run] = []
    return Run(
        [(message(n),) for n in range(count)], may_start=may_start, ended=ended.append
    ), ended


async def work(call, run: Run, clock: FakeClock | None = None) -> None:
    workers = LoopWorkers(call, 1, clock or FakeClock())
    workers.submit(run)
    while workers._active:  # noqa: ASYNC110 - turns are counted, not time
        await asyncio.sleep(0)
    await workers.close()


def test_a_run_goes_to_its_end():
    """All calls returned: done counts them, nothing stopped it."""
    run, ended = run_of(3)
    seen = []

    async def call(batch) -> None:
        seen.append(batch[0].offset)
        assert in_handler(None)

    asyncio.run(work(call, run))
    assert (seen, run.done, run.stopped_at, ended) == ([0, 1, 2], 3, None, [run])
    assert not in_handler(None)


@pytest.mark.parametrize("error", [ValueError("x"), Retry(after=1), KeyError()])
def test_a_run_stops_at_the_first_error(error: Exception):
    """What follows is not started; the batch that failed is known."""
    run, _ = run_of(3)

    async def call(batch) -> None:
        if batch[0].offset == 1:
            raise error

    asyncio.run(work(call, run))
    assert (run.done, run.error, run.stopped_at) == (1, error, (message(1),))


@pytest.mark.parametrize("said", [Outcome.SUSPEND, Outcome.COMMIT, Outcome.ROLLBACK, Handled(0)])
def test_a_run_stops_when_a_handler_says_something(said: object):
    """An outcome is judged before the next call."""
    run, _ = run_of(3)

    async def call(batch) -> object:
        return said

    asyncio.run(work(call, run))
    assert (run.done, run.result, run.stopped_at) == (0, said, (message(0),))


@pytest.mark.parametrize("said", [Outcome.SUCCESS, Handled(1), Handled(5), "anything"])
def test_a_run_goes_on_after_a_success(said: object):
    """Whichever way a handler says it."""
    run, _ = run_of(3)

    async def call(batch) -> object:
        return said

    asyncio.run(work(call, run))
    assert (run.done, run.result, run.stopped_at, run.failed) == (3, None, None, False)


def test_a_handler_says_how_the_rest_of_its_list_failed():
    """As if it had raised the error, and with the number of messages that are done."""
    error = ValueError("x")
    run = Run(
        [(message(0), message(1)), (message(2),)], may_start=lambda _: True, ended=lambda _: None
    )

    async def call(batch) -> object:
        return Handled(1, error)

    asyncio.run(work(call, run))
    assert (run.done, run.result, run.error) == (0, Handled(1, error), error)
    assert (run.failed, run.is_part) == (True, True)


def test_a_cancelled_wait_inside_a_handler_is_a_failed_attempt():
    """Not the end of its worker: the next run is made."""
    run, ended = run_of(1)

    async def story() -> None:
        async def call(batch) -> None:
            if run.started_ms is not None and not ended:
                waiting = asyncio.get_running_loop().create_future()
                waiting.cancel()
                await waiting

        await work(call, run)

    asyncio.run(story())
    assert isinstance(run.error, asyncio.CancelledError)
    assert ended == [run]


def test_a_mistake_about_one_run_does_not_stop_the_others(caplog: pytest.LogCaptureFixture):
    """What follows a run may fail; the worker goes on, and it is said."""
    ended: list[Run] = []

    def fail(run: Run) -> None:
        raise AssertionError("ours")

    async def story() -> None:
        async def call(batch) -> None: ...

        workers = LoopWorkers(call, 1, FakeClock())
        workers.submit(Run([(message(0),)], may_start=lambda _: True, ended=fail))
        workers.submit(Run([(message(1),)], may_start=lambda _: True, ended=ended.append))
        while not ended:  # noqa: ASYNC110 - turns are counted, not time
            await asyncio.sleep(0)
        await workers.close()

    asyncio.run(story())
    assert "what follows a handler failed" in caplog.text


def test_a_mistake_about_many_runs_does_not_stop_the_others(caplog: pytest.LogCaptureFixture):
    """What follows from runs that ended together may fail, for one starter of them."""
    settled: list[str] = []

    def fail() -> None:
        raise AssertionError("ours")

    runs = [run_of(1)[0] for _ in range(3)]
    runs[0].settle = runs[1].settle = fail
    runs[2].settle = lambda: settled.append("other")
    end(runs)
    assert settled == ["other"]
    assert caplog.text.count("AssertionError: ours") == 1


def test_other_values_mean_done():
    """Return is done, whatever is returned."""
    run, _ = run_of(2)

    async def call(batch) -> object:
        return {"anything": 1}

    asyncio.run(work(call, run))
    assert run.done == 2


def test_a_run_stops_when_its_queue_is_given_up():
    """The question is asked before every call."""
    asked = []

    def may_start(now_ms: int) -> bool:
        asked.append(now_ms)
        return len(asked) < 3

    run, _ = run_of(5, may_start)

    async def call(batch) -> None: ...

    asyncio.run(work(call, run))
    assert (run.done, run.stopped_at, len(asked)) == (2, None, 3)


def test_a_run_ends_with_its_slice_of_time():
    """So that what it did can be committed; the calls left over are for the next run."""
    clock = FakeClock()
    run, _ = run_of(5)

    async def call(batch) -> None:
        clock.advance(SLICE_MS - 10)

    asyncio.run(work(call, run, clock))
    assert run.done == 2
    assert run.spent_ms == 2 * (SLICE_MS - 10)


@pytest.mark.parametrize(
    ("done", "result", "error", "calls"),
    [
        (0, None, None, 0),
        (2, None, None, 2),
        (2, Outcome.SUSPEND, None, 3),
        (0, None, ValueError(), 1),
    ],
)
def test_calls_that_were_made_are_counted(done, result, error, calls):
    """Those that simply returned, and the one that did not."""
    run, _ = run_of(3)
    run.done, run.result, run.error = done, result, error
    assert run.calls == calls


def test_calls_that_a_worker_has_not_begun_can_be_cancelled():
    """Each call is made by the worker or given back, never both; the run ends behind its call."""
    run, ended = run_of(5)
    reclaimed = []

    async def call(batch) -> None:
        if batch[0].offset == 1:
            reclaimed.extend(run.reclaim())

    asyncio.run(work(call, run))
    assert [batch[0].offset for batch in reclaimed] == [2, 3, 4]
    assert (run.done, len(run.batches), ended) == (2, 2, [run])
    assert not run.reclaim()


def test_a_call_that_was_just_cancelled_is_not_made():
    """The loop may reclaim it between the check of the queue and the call."""

    def may_start(_: int) -> bool:
        run.reclaim()
        return True

    run, ended = run_of(3, may_start)

    async def call(batch) -> None:
        raise AssertionError("it was given back")

    asyncio.run(work(call, run))
    assert (run.done, run.error, run.batches, ended) == (0, None, [], [run])


def test_so_many_at_a_time():
    """Never more runs than workers; the others wait in order."""

    async def story() -> None:
        running: list[int] = []
        gate = asyncio.Event()

        async def call(batch) -> None:
            running.append(batch[0].offset)
            await gate.wait()

        workers = LoopWorkers(call, 2, FakeClock())
        ended: list[Run] = []
        for number in range(5):
            workers.submit(Run([(message(number),)], may_start=lambda _: True, ended=ended.append))
        for _ in range(5):
            await asyncio.sleep(0)
        assert running == [0, 1]
        gate.set()
        while len(ended) < 5:  # noqa: ASYNC110 - turns are counted, not time
            await asyncio.sleep(0)
        assert running == [0, 1, 2, 3, 4]
        await workers.close()

    asyncio.run(story())


def test_a_handler_that_never_waits_does_not_hold_the_loop():
    """Others get their turn between the runs of a worker."""

    async def story() -> None:
        ended: list[Run] = []

        async def call(batch) -> None: ...

        workers = LoopWorkers(call, 1, FakeClock())
        for number in range(1000):
            workers.submit(Run([(message(number),)], may_start=lambda _: True, ended=ended.append))
        turns = 0
        while len(ended) < 1000:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10
        await workers.close()

    asyncio.run(story())


def registered(handler, **options):
    defaults = {
        "order": "queue", "tag": "*", "concurrency": 20, "batch": 1, "on_failure": None,
        "auto_commit": True, "hooks": Hooks(), "version": 1,
    }  # fmt: skip
    return register("t", handler, **(defaults | options))


def test_kinds_of_handlers():
    """Functions, objects with handle, classes, callable objects; plain and async."""

    class Object:
        async def handle(self, message: ReceivedMessage) -> str:
            return "object"

    class Callable_:
        async def __call__(self, message: ReceivedMessage) -> str:
            return "callable"

    async def function(message: ReceivedMessage) -> str:
        return "function"

    def plain(message: ReceivedMessage) -> str:
        return "plain"

    for handler, said in [
        (Object, "object"), (Object(), "object"), (Callable_(), "callable"),
        (function, "function"),
    ]:  # fmt: skip
        found = registered(handler)
        assert found.is_async
        assert asyncio.run(found.call((message(0),))) == said
    found = registered(plain)
    assert not found.is_async
    assert found.call((message(0),)) == "plain"
    assert not is_async(plain)
    with pytest.raises(UsageError, match="is no handler"):
        registered(7)


def test_batches_are_lists():
    """batch=1: the message itself; above: a list, also of one."""

    def handler(value: object) -> object:
        return value

    assert registered(handler).call((message(0),)) == message(0)
    assert registered(handler, batch=4).call((message(0),)) == [message(0)]


def test_defaults_are_rocketmqs():
    """Ordered: tried for ever; without order: 16 times again, then dead-lettered."""

    def handler(message: ReceivedMessage) -> None: ...

    assert registered(handler).redeliveries_max == 2**31 - 1
    assert registered(handler, order=None).redeliveries_max == 16
    assert registered(handler, on_failure=DeadLetter(3)).redeliveries_max == 3


def test_a_topic_without_a_handler_is_refused_with_the_reason():
    """It can only come by the retry topic of a group whose members differ."""
    with pytest.raises(UsageError, match="no handler for that topic"):
        asyncio.run(fallback("lost").call((message(0),)))
