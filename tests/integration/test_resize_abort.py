"""Taking a resize back: a broker is gone for good while the others have stopped for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inorder.client.admin.resizing import InterruptedResize
from inorder.errors import InvalidParameter, ResizeUnderWay, TransportError
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import (
    ResizeDecide,
    ResizeGo,
    ResizeStop,
    ResizeWithdraw,
)
from tests.integration.resizekit import KEYS, TOPIC, Town, play

pytestmark = pytest.mark.slow


def plan(plan_id: str = "one", queues: int = 4) -> tuple[str, str, int, str]:
    places = [(name, n) for name in ("broker-a", "broker-b") for n in range(queues)]
    return TOPIC, plan_id, 2, KeyMap.of(2, places).encode()


async def ask(town: Town, number: int, request: Any) -> None:
    await (await town.session.broker_at(town.cluster.brokers[number].address)).ask(request)


def homes(town: Town) -> list[str]:
    """Return the keys that live at the first broker."""
    key_map = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
    return [key for key in KEYS if key_map.queue(key)[0] == "broker-a"]


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_a_resize_that_waits_for_a_dead_broker_is_aborted(stopped: bool, killed: bool) -> None:
    """The others go on; the one that comes back late is told, and the next resize is as any."""

    async def story(town: Town) -> None:
        await town.send(2)
        await town.consume()
        dead = town.cluster.brokers[1]
        await ask(town, 0, ResizeDecide(*plan()))
        if stopped:
            await ask(town, 1, ResizeStop(*plan()))
        dead.kill()
        await ask(town, 0, ResizeStop(*plan()))
        with pytest.raises(TransportError, match="broker-b"):
            await town.admin.topics.resize(TOPIC, wait=2)
        waiting = asyncio.ensure_future(town.send(1, keys=homes(town)))
        await asyncio.sleep(1)
        assert not waiting.done(), "keyed sends wait"
        if killed:
            town.cluster.brokers[0].kill()
            await town.cluster.brokers[0].start()
            await asyncio.sleep(1)
        found = await town.admin.topics.abort_resize(TOPIC)
        assert (found.version, found.queues, found.plan) == (1, 4, None)
        assert found.away == ("broker-b",)
        await waiting
        await dead.start()
        await asyncio.sleep(1)
        assert town.broker(1).resizing.versions(TOPIC).stopped is stopped
        found = await town.admin.topics.abort_resize(TOPIC)
        assert (found.away, found.stopped) == ((), ())
        await town.send(2)
        assert (await town.admin.topics.resize(TOPIC, queues=7)).version == 2
        await town.send(2)
        await town.all_handled()
        assert town.inversions() == []
        await town.released(2)

    play(story)


def test_a_broker_that_was_not_told_is_found_by_the_next_resize() -> None:
    """It stopped for a plan that was taken back while it was away."""

    async def story(town: Town) -> None:
        await town.send(2)
        await ask(town, 0, ResizeDecide(*plan()))
        await ask(town, 1, ResizeStop(*plan()))
        town.cluster.brokers[1].kill()
        await town.admin.topics.abort_resize(TOPIC)
        await town.cluster.brokers[1].start()
        await asyncio.sleep(1)
        status = await town.admin.topics.resize(TOPIC, queues=7)
        assert (status.version, status.queues, status.plan) == (2, 7, None)
        await town.send(2)

    play(story)


def test_a_late_request_of_an_aborted_plan_is_refused() -> None:
    """Also by a broker that had not heard of the plan, and after a kill."""

    async def story(town: Town) -> None:
        await ask(town, 0, ResizeDecide(*plan()))
        assert (await town.admin.topics.abort_resize(TOPIC)).away == ()
        for number in (0, 1):
            town.cluster.brokers[number].kill()
            await town.cluster.brokers[number].start()
            for late in (ResizeStop(*plan()), ResizeDecide(*plan())):
                with pytest.raises(InvalidParameter):
                    await ask(town, number, late)
        await town.send(1)
        assert (await town.admin.topics.abort_resize(TOPIC)).plan is None, "again is the same"

    play(story)


def test_a_plan_that_may_be_open_somewhere_is_finished_not_aborted() -> None:
    """Once the first broker has let it go on; it stays so over a kill."""

    async def story(town: Town) -> None:
        await town.send(2)
        await ask(town, 0, ResizeDecide(*plan()))
        for number in (0, 1):
            await ask(town, number, ResizeStop(*plan()))
        with pytest.raises(InvalidParameter, match="decided at broker broker-a"):
            await ask(town, 1, ResizeGo(TOPIC, "one", 2))
        await ask(town, 0, ResizeGo(TOPIC, "one", 2))
        town.cluster.brokers[0].kill()
        await town.cluster.brokers[0].start()
        with pytest.raises(ResizeUnderWay, match="--resume"):
            await town.admin.topics.abort_resize(TOPIC)
        with pytest.raises(InvalidParameter, match="too late"):
            await ask(town, 0, ResizeWithdraw(TOPIC, "one"))
        assert (await town.admin.topics.resize(TOPIC)).version == 2
        await town.send(1)

    play(story)


def test_without_the_first_broker_nothing_is_aborted() -> None:
    """It alone knows whether the others may have opened."""

    async def story(town: Town) -> None:
        await ask(town, 0, ResizeDecide(*plan()))
        await ask(town, 1, ResizeStop(*plan()))
        town.cluster.brokers[0].kill()
        with pytest.raises(TransportError, match="broker-a"):
            await town.admin.topics.abort_resize(TOPIC)
        assert town.broker(1).resizing.versions(TOPIC).stopped
        await town.cluster.brokers[0].start()

    play(story)


def test_of_a_resize_and_its_abort_one_comes() -> None:
    """Both at once, under load: one map, in order, and nothing is left that stands still."""

    async def story(town: Town, delay_ms: int) -> tuple[int, bool]:
        await town.send(3)
        await town.consume(pause=0.002)
        load = asyncio.ensure_future(town.send(4))
        resizing = asyncio.ensure_future(town.admin.topics.resize(TOPIC, queues=7, wait=2))
        await asyncio.sleep(delay_ms / 1000)
        began = town.broker(0).resizing.versions(TOPIC).plan is not None
        results: list[Any] = await asyncio.gather(
            resizing, town.admin.topics.abort_resize(TOPIC), return_exceptions=True
        )
        expected = (ResizeUnderWay, InterruptedResize, InvalidParameter)
        assert all(
            isinstance(one, expected) or not isinstance(one, BaseException) for one in results
        ), results
        known = [town.broker(number).resizing.versions(TOPIC) for number in (0, 1)]
        await load
        status = await town.admin.topics.resize(TOPIC, queues=5)
        assert (status.queues, status.plan) == (5, None)
        await town.send(2)
        await town.all_handled()
        assert town.inversions() == []
        assert known[0].map == known[1].map
        return known[0].version, began

    def at(delay_ms: int) -> tuple[int, bool]:
        return play(lambda town: story(town, delay_ms), seed=delay_ms + 1)

    found = {at(delay_ms) for delay_ms in range(1, 40, 2)}
    assert found >= {(1, True), (2, True)}, "both must happen, or the test shows nothing"
