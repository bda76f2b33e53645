"""How long a stop waits: a limit that only comes nearer."""

from __future__ import annotations

import asyncio

import pytest

from inorder.clock import SystemClock
from inorder.tasks import Patience


@pytest.mark.parametrize(
    ("first_ms", "then_ms", "waits"),
    [(0, None, False), (60_000, 0, False), (0, 60_000, False)],
)
def test_the_earliest_end_counts(first_ms: int, then_ms: int | None, waits: bool):
    """Whoever is most impatient decides, also while somebody waits."""

    async def main() -> bool:
        patience, never = (
            Patience(first_ms, SystemClock()),
            asyncio.get_running_loop().create_future(),
        )
        waiting = asyncio.create_task(patience.wait_for([never]))
        await asyncio.sleep(0)
        if then_ms is not None:
            patience.at_most(then_ms)
        try:
            async with asyncio.timeout(20):
                return await waiting
        finally:
            patience.close()

    assert asyncio.run(main()) is waits


def test_it_ends_with_the_work():
    """Not with the time: nothing to wait for, or all of it over."""

    async def main() -> None:
        patience, work = Patience(60_000, SystemClock()), asyncio.get_running_loop().create_future()
        assert await patience.wait_for([])
        waiting = asyncio.create_task(patience.wait_for([work]))
        await asyncio.sleep(0)
        work.set_result(None)
        assert await waiting
        patience.close()

    asyncio.run(main())
