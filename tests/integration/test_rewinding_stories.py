"""Resizes, parked keys, redrives, resets in any order: what a reset brings again comes in order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import Literal

import pytest

from inorder.errors import InorderError
from tests.integration.resizekit import GROUP, TOPIC, Town, play
from tests.integration.test_resizing_parked import Bad

pytestmark = pytest.mark.slow

KEYS = [f"k{number}" for number in range(12)]
COUNTS = (3, 4, 7, 11)
Kind = Literal["calm", "wild", "slow"]
PAUSES: dict[Kind, tuple[float, ...]] = {
    "calm": (0.0,), "wild": (0.0, 0.0, 0.1, 1.0), "slow": (0.0, 0.3, 2.0, 7.0),
}  # fmt: skip


class Life:
    """What a seed makes of a topic and its group.

    A wild one does not wait until all is quiet, kills brokers, and has its consumers killed before
    a reset, so that all that is handled afterwards is of after it. In a slow one handlers run when
    the group is rewound.
    """

    def __init__(self, town: Town, random: Random, kind: Kind) -> None:
        self.town = town
        self.random = random
        self.wild = kind == "wild"
        self.bad = Bad(town, [])
        self.bad.pauses = PAUSES[kind]
        self.moments: list[tuple[int, dict[str, int]]] = []  # and what was sent until then
        self.before: dict[str, int] = {}  # what the last reset leaves out

    def choose(self) -> set[str]:
        """Return some of the keys."""
        return set(self.random.sample(KEYS, self.random.choice((0, 2, 6))))

    async def begin(self) -> None:
        """Start the consumers."""
        for _ in range(self.random.choice((1, 2)) if self.wild else 1):
            await self.bad.consumer()

    async def quiet(self) -> None:
        """Let the group come as far as it can."""
        await asyncio.sleep(self.random.choice((0.1, 1, 5)) if self.wild else 5)
        if self.wild and self.random.random() < 0.2:
            one = self.random.choice(self.town.cluster.brokers)
            one.kill()
            await one.start()

    async def send(self) -> None:
        """Send some messages; some of them fail."""
        self.moments.append((self.town.broker(0).clock.now_ms() + 1, dict(self.town.sent)))
        await asyncio.sleep(0.01)
        self.bad.keys = self.choose()
        for _ in range(self.random.choice((1, 2))):
            await self.town.send(1, keys=self.random.sample(KEYS, 9))
        await self.quiet()

    async def redrive(self) -> None:
        """Redrive all keys; some of them fail again, perhaps not at once."""
        self.bad.keys, self.bad.good_until = self.choose(), self.random.choice((-1, 1, 3))
        await self.town.admin.parked.redrive(GROUP)
        await self.quiet()
        self.bad.good_until = -1

    async def resize(self) -> None:
        """Give the topic another number of queues; the group may have to wait for a redrive."""
        count = self.random.choice(COUNTS)
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.town.admin.topics.resize(TOPIC, queues=count, wait=False)
                    break
                except InorderError:  # a broker was killed just now
                    await asyncio.sleep(1)
        await self.quiet()

    async def reset(self) -> None:
        """Set the group back to the beginning, or a moment: all comes again, in order."""
        to: Literal["beginning"] | datetime = "beginning"
        self.before = {}
        if self.random.random() < 0.4:
            moment_ms, self.before = self.random.choice(self.moments)
            to = datetime.fromtimestamp(moment_ms / 1000, UTC)
        if self.wild:
            for node, _ in self.town.consumers:
                self.town.loop.kill(node)
            self.town.consumers.clear()
        await self.town.admin.offsets.reset(GROUP, TOPIC, to)
        self.town.handled.clear()
        self.bad.keys = self.choose()
        if self.wild:
            await self.begin()
        await self.quiet()

    async def end(self) -> None:
        """Handle all there is."""
        self.bad.keys.clear()
        self.bad.pauses = (0.0,)
        parked = self.town.admin.parked
        async with asyncio.timeout(600):
            while await parked.list(GROUP) or not self.wanted() <= set(self.town.handled):
                if [one for one in await parked.list(GROUP) if not one.redriving]:
                    await parked.redrive(GROUP)
                await asyncio.sleep(1)

    def wanted(self) -> set[tuple[str, int]]:
        """Return what has to be handled since the last reset, besides what is parked."""
        return {
            (key, number) for key, last in self.town.sent.items()
            for number in range(self.before.get(key, -1) + 1, last + 1)
        }  # fmt: skip


def live(seed: int, kind: Kind) -> None:
    """Play a seed: since the last reset each key's messages were handled in order, all of them."""
    random = Random(seed)

    async def story(town: Town) -> None:
        life = Life(town, random, kind)
        await life.begin()
        for _ in range(random.choice((0, 2, 3, 4))):
            await life.send()
            if random.random() < 0.4:
                await life.redrive()
            await life.resize()
        await life.send()
        for _ in range(random.choice((1, 2))):
            if kind == "slow" and random.random() < 0.5:
                await life.redrive()
            await life.reset()
            if random.random() < 0.5:
                await life.redrive()
        await life.end()
        assert town.inversions() == []
        assert kind == "wild" or len(town.handled) == len(set(town.handled))

    play(story, brokers=random.choice((1, 2)))


@pytest.mark.parametrize("kind", PAUSES)
@pytest.mark.parametrize("seed", range(8))
def test_after_a_reset_a_key_comes_in_order_whatever_was_parked_and_wherever_it_lies(
    seed: int, kind: Kind
) -> None:
    """Over up to five versions of the key map and two resets, with redrives that fail again."""
    live(seed, kind)
