"""Waiting for a number to be reached."""

from __future__ import annotations

import asyncio

import pytest

from inorder.tasks import Watermark


def test_waiters_wake_in_the_order_of_their_marks() -> None:
    """Only those whose mark is reached go on; equal marks in the order of arrival."""

    async def story() -> None:
        mark = Watermark(10)
        woken: list[str] = []

        async def wait(name: str, position: int) -> None:
            await mark.wait_reached(position)
            woken.append(name)

        await wait("already", 10)
        tasks = [
            asyncio.ensure_future(wait(name, position))
            for name, position in [("late", 30), ("b", 20), ("c", 20), ("a", 15)]
        ]
        await asyncio.sleep(0)
        assert mark.waiting == 4
        mark.advance(5)
        mark.advance(20)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert woken == ["already", "a", "b", "c"]
        assert repr(mark) == "Watermark(reached=20, waiting=1)"
        mark.advance(31)
        await asyncio.gather(*tasks)
        assert woken[-1] == "late"

    asyncio.run(story())


def test_failure_reaches_all_who_wait_now_or_later() -> None:
    """What was reached stays reached; the rest will never be."""

    async def story() -> None:
        mark = Watermark(10)
        waiting = asyncio.ensure_future(mark.wait_reached(11))
        await asyncio.sleep(0)
        mark.fail(OSError("no more"))
        with pytest.raises(OSError, match="no more"):
            await waiting
        with pytest.raises(OSError, match="no more"):
            await mark.wait_reached(12)
        await mark.wait_reached(10)
        assert "failed: no more" in repr(mark)

    asyncio.run(story())


def test_a_cancelled_waiter_does_not_disturb_the_others() -> None:
    """Cancellation of one leaves the rest to be woken."""

    async def story() -> None:
        mark = Watermark()
        first, second = (asyncio.ensure_future(mark.wait_reached(1)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        assert mark.waiting == 1
        mark.advance(1)
        await second
        assert first.cancelled()

    asyncio.run(story())
