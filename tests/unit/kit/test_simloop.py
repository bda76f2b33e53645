"""The simulated loop: virtual time, order, executor, nodes, and the same run from the same seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from inorder.testing.clock import EPOCH_MS, FakeClock
from tests.kit.clock import SimClock
from tests.kit.simcluster import stream
from tests.kit.simloop import Shuffle, SimDeadlock, SimLoop, SimStepsExceeded, run


def test_time_jumps_to_the_next_timer():
    """An hour of sleep takes no time, and is exact."""

    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run(main) == 3600


def test_timeouts_work_in_virtual_time():
    """asyncio.timeout fires at its virtual instant."""

    async def main(loop: SimLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(60)
        return loop.time()

    assert run(main) == 5


def test_call_soon_keeps_the_order_asyncio_promises():
    """Whatever the seed, call_soon is first in, first out."""

    async def main(loop: SimLoop) -> list[int]:
        ran: list[int] = []
        for number in range(20):
            loop.call_soon(ran.append, number)
        await asyncio.sleep(1)
        return ran

    assert all(run(main, seed) == list(range(20)) for seed in range(10))


async def same_instant(loop: SimLoop) -> tuple[int, ...]:
    ran: list[int] = []
    for number in range(6):
        loop.call_at(5.0, ran.append, number)
    loop.call_at(4.0, ran.append, -1)
    await asyncio.sleep(6)
    return tuple(ran)


def test_timers_of_one_instant_are_shuffled_by_the_seed():
    """Earlier timers come first; the order of equals is the seed's."""
    orders = {run(same_instant, seed) for seed in range(20)}
    assert len(orders) > 10
    assert all(order[0] == -1 for order in orders)


def test_without_shuffle_timers_of_one_instant_keep_registration_order():
    """Shuffle.NONE is first in, first out throughout."""
    orders = {run(same_instant, seed, shuffle=Shuffle.NONE) for seed in range(5)}
    assert orders == {(-1, 0, 1, 2, 3, 4, 5)}


def test_shuffle_all_reorders_tasks():
    """The aggressive mode also reorders wake-ups of tasks."""

    async def main(_: SimLoop) -> tuple[int, ...]:
        ran: list[int] = []

        async def step(number: int) -> None:
            await asyncio.sleep(0)
            ran.append(number)

        await asyncio.gather(*(step(n) for n in range(6)))
        return tuple(ran)

    assert len({run(main, seed, shuffle=Shuffle.ALL) for seed in range(20)}) > 10
    assert {run(main, seed) for seed in range(20)} == {(0, 1, 2, 3, 4, 5)}


def test_a_deadlock_is_an_error_that_names_the_waiting_tasks():
    """If nothing can ever happen again, say who waits."""

    async def main(loop: SimLoop) -> None:
        waiter = asyncio.create_task(asyncio.Event().wait(), name="waits-for-nothing")
        await waiter

    with pytest.raises(SimDeadlock, match="waits-for-nothing"):
        run(main, 7)


def test_a_spinning_run_is_an_error():
    """Endless work without progress of time ends at the step limit."""

    async def main(_: SimLoop) -> None:
        for _ in iter(int, 1):
            await asyncio.sleep(0)

    with pytest.raises(SimStepsExceeded):
        run(main, steps_max=1000)


def test_an_error_in_a_callback_fails_the_run():
    """What asyncio would only log is raised."""

    async def main(loop: SimLoop) -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


def test_the_executor_runs_later_and_inline():
    """A function runs on the loop, at a later instant, and its result comes still later."""

    async def main(loop: SimLoop) -> tuple[float, float]:
        ran_at = await loop.run_in_executor(None, loop.time)
        return ran_at, loop.time()

    ran_at, back_at = run(main)
    assert 0 < ran_at < back_at


def test_the_executor_passes_errors_on():
    """An exception of the function is the caller's."""

    async def main(loop: SimLoop) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(None, int, "x")

    run(main)


@pytest.mark.parametrize(("workers", "ordered"), [(1, True), (4, False)])
def test_an_executor_with_one_worker_keeps_order(workers: int, ordered: bool):
    """One thread is a queue; several are not."""

    async def main(loop: SimLoop) -> list[int]:
        ran: list[int] = []
        executor = ThreadPoolExecutor(workers)
        await asyncio.gather(*(loop.run_in_executor(executor, ran.append, n) for n in range(10)))
        executor.shutdown()
        return ran

    results = [run(main, seed) for seed in range(10)]
    assert all(result == sorted(result) for result in results) is ordered


def test_a_killed_node_runs_nothing_more_not_even_finally():
    """kill -9: no cleanup, no callback."""

    async def main(loop: SimLoop) -> list[str]:
        log: list[str] = []
        node = loop.node("10.0.0.1")

        async def work() -> None:
            try:
                while True:
                    await asyncio.sleep(1)
                    log.append("tick")
            finally:
                log.append("finally")

        with node.here():
            task = asyncio.create_task(work())
        await asyncio.sleep(2.5)
        loop.kill(node)
        await asyncio.sleep(10)
        assert not task.done()
        return list(log)

    assert run(main) == ["tick", "tick"]


def test_a_frozen_node_goes_on_when_thawed():
    """SIGSTOP and SIGCONT: what was due meanwhile comes at once."""

    async def main(loop: SimLoop) -> list[float]:
        ticks: list[float] = []
        node = loop.node("10.0.0.1")

        async def work() -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append(loop.time())

        with node.here():
            task = asyncio.create_task(work())
        await asyncio.sleep(1.5)
        loop.freeze(node)
        await asyncio.sleep(8)
        loop.thaw(node)
        await asyncio.sleep(1.2)
        task.cancel()
        return ticks

    assert run(main) == [1, 9.5, 10.5]


def test_node_run_returns_the_result_of_its_coroutine():
    """Work inside a node sees the node's host."""

    async def main(loop: SimLoop) -> str:
        async def host() -> str:
            return loop.current_host

        return await loop.node("10.0.0.7").run(host())

    assert run(main) == "10.0.0.7"


def test_sim_clock_follows_the_loop_and_can_be_skewed():
    """Wall clock = epoch + virtual time + skew; monotonic time knows no skew."""

    async def main(loop: SimLoop) -> tuple[int, int]:
        clock = SimClock(loop, skew_ms=-500)
        await asyncio.sleep(2)
        return clock.now_ms() - EPOCH_MS, clock.monotonic_ms()

    assert run(main) == (1500, 2000)


def test_fake_clock_moves_by_hand():
    """Setting the wall clock leaves monotonic time alone."""
    clock = FakeClock()
    clock.advance(10)
    clock.set_wall_clock(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5, 10)


def test_random_streams_are_independent_and_repeatable():
    """The same name and seed give the same numbers, another name others."""
    assert stream(1, "a").random() == stream(1, "a").random()
    assert stream(1, "a").random() != stream(1, "b").random()
    assert stream(1, "a").random() != stream(2, "a").random()


SCENARIO = textwrap.dedent(
    """
    import asyncio
    from tests.kit.simloop import run

    class Echo(asyncio.Protocol):
        def connection_made(self, transport): self.transport = transport
        def data_received(self, data): self.transport.write(data)

    class Client(asyncio.Protocol):
        def __init__(self): self.got = b""
        def data_received(self, data): self.got += data

    async def main(loop):
        with loop.node("10.0.0.1").here():
            server = await loop.create_server(Echo, "10.0.0.1", 80)
        async def talk(number):
            transport, client = await loop.create_connection(Client, "10.0.0.1", 80)
            for part in {f"{number}-{n}" for n in range(3)} and range(20):
                transport.write(bytes([part]) * 500)
                await loop.run_in_executor(None, len, b"x")
            while len(client.got) < 10_000:
                await asyncio.sleep(0.01)
            transport.close()
        await asyncio.gather(*(talk(n) for n in range(5)))
        server.close()
        return loop.trace_digest()

    print(run(main, SEED))
    """
)


def digest(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    script = SCENARIO.replace("SEED", str(seed))
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_under_any_hash_seed():
    """Two processes with other hash seeds see the same trace; another seed another one."""
    assert digest(1, "0") == digest(1, "4711")
    assert digest(1, "0") != digest(2, "0")
