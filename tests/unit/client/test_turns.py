"""Lines in front of queues: strictly first come, first served."""

from __future__ import annotations

import asyncio

from inorder.client.turns import Turns
from inorder.testing.seeds import stream
from inorder.testing.simloop import SimLoop, run


def test_turns_pass_in_the_order_of_joining():
    """However long each takes."""

    async def main(loop: SimLoop) -> list[int]:
        turns, order = Turns(), []
        random = stream(loop.seed, "work")

        async def work(number: int) -> None:
            async with turns.join("line"):
                await asyncio.sleep(random.random())
                order.append(number)

        await asyncio.gather(*(work(n) for n in range(10)))
        assert len(turns) == 0
        return order

    assert all(run(main, seed) == list(range(10)) for seed in range(5))


def test_other_lines_do_not_wait():
    """Lines are independent."""

    async def main(loop: SimLoop) -> float:
        turns = Turns()

        async def work(line: str) -> None:
            async with turns.join(line):
                await asyncio.sleep(10)

        await asyncio.gather(*(work(str(n)) for n in range(5)))
        return loop.time()

    assert run(main) == 10


def test_whoever_gives_up_does_not_let_others_overtake():
    """The third waits for the first also when the second is cancelled."""

    async def main(_: SimLoop) -> list[str]:
        turns, log = Turns(), []

        async def work(name: str) -> None:
            async with turns.join("line"):
                log.append(f"{name} in")
                await asyncio.sleep(10)
                log.append(f"{name} out")

        tasks = [asyncio.create_task(work(name)) for name in "abc"]
        await asyncio.sleep(1)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(turns) == 0
        return log

    assert run(main) == ["a in", "a out", "c in", "c out"]


def test_a_failure_frees_the_line():
    """An exception ends the turn."""

    async def main(_: SimLoop) -> int:
        turns = Turns()

        async def fail() -> None:
            async with turns.join("line"):
                raise ValueError

        done = await asyncio.gather(fail(), fail(), return_exceptions=True)
        return sum(isinstance(error, ValueError) for error in done)

    assert run(main) == 2


def test_who_leaves_without_having_entered_keeps_the_order():
    """A place that was taken and given up does not let the next one in early."""

    async def main(_: SimLoop) -> list[str]:
        turns, log = Turns(), []

        async def work(name: str) -> None:
            async with turns.join("line"):
                await asyncio.sleep(10)
                log.append(name)

        first = asyncio.create_task(work("first"))
        await asyncio.sleep(1)
        given_up = turns.join("line")
        last = asyncio.create_task(work("last"))
        await asyncio.sleep(1)
        given_up.leave()
        given_up.leave()
        assert not given_up.done.done()
        await asyncio.gather(first, last)
        assert "line" not in turns
        return log

    assert run(main) == ["first", "last"]
