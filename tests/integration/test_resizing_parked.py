"""A8: parked keys when their topic is resized: they live elsewhere, and nothing overtakes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.client.consume.parking import _KeyRedrive, _Over
from inorder.client.consume.rules.outcomes import Park
from inorder.config import ClientConfig, ConsumerConfig
from inorder.errors import ConnectionLost
from inorder.model import ReceivedMessage
from inorder.wire.requests.parking import QueuePlace, RedrivenBody
from tests.integration.resizekit import GROUP, KEYS, TOPIC, Town, play

BAD = set(KEYS[:4])
QUICK = ClientConfig(consumer=ConsumerConfig(suspend_ms=20))


class Bad:
    """Keys that fail while they are in the set."""

    def __init__(self, town: Town, keys: Iterable[str] = BAD) -> None:
        self.town = town
        self.keys = set(keys)
        self.good_until = -1  # numbers up to this do not fail
        self.pauses: Sequence[float] = (0.0,)

    async def consumer(self) -> Consumer:
        """Start a consumer that parks them."""
        node, session = await self.town.cluster.client(QUICK)
        consumer = Consumer(session, group=GROUP, consume_from="first")

        @consumer.on(TOPIC, order="key", concurrency=8, on_failure=Park(attempts=0))
        async def handle(message: ReceivedMessage) -> None:
            if message.key in self.keys and int(message.body) > self.good_until:
                raise ValueError("no")
            self.town.handled.append((message.key or "", int(message.body)))
            await asyncio.sleep(self.pauses[int(message.body) % len(self.pauses)])

        self.town.consumers.append((node, consumer))
        await node.run(consumer.start())
        return consumer

    def parked(self) -> int:
        """Return how many messages were set aside."""
        return sum(consumer.statistics().parked for _, consumer in self.town.consumers)


async def parked_everywhere(town: Town) -> dict[str, int]:
    """Return how many messages of each key are parked, over all its lists."""
    found: dict[str, int] = {}
    for one in await town.admin.parked.list(GROUP):
        found[one.key] = found.get(one.key, 0) + one.messages
    return found


async def redrive_all(town: Town) -> None:
    """Redrive until nothing is parked."""
    async with asyncio.timeout(120):
        while True:
            keys = await town.admin.parked.list(GROUP)
            if not keys:
                return
            if not any(one.redriving for one in keys):
                await town.admin.parked.redrive(GROUP)
            await asyncio.sleep(0.5)


async def move(town: Town) -> Bad:
    """Park keys, resize, and let newer messages of them come to their new queues."""
    bad = Bad(town)
    await bad.consumer()
    await bad.consumer()
    await town.send(5)
    await town.until(lambda: bad.parked() == 20)
    await town.admin.topics.resize(TOPIC, queues=7)
    bad.keys.clear()  # whoever does not know that they are parked handles them
    await town.send(5)
    await town.released(2)
    await town.until(lambda: bad.parked() == 40)
    assert not [key for key, _ in town.handled if key in BAD]
    assert await parked_everywhere(town) == dict.fromkeys(sorted(BAD), 10)
    return bad


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_parked_key_moves_and_nothing_overtakes(seed: int) -> None:
    """Its newer messages are parked in their new queue; the old list is redriven first."""

    async def tale(town: Town) -> None:
        await move(town)
        keys = await town.admin.parked.list(GROUP)
        assert any(one.moved_to is not None for one in keys), "no key moved: choose others"
        shown = await town.admin.parked.show(GROUP, KEYS[0])
        assert [int(message.body) for message in shown] == list(range(10))
        await redrive_all(town)
        await town.send(1)
        await town.all_handled()
        assert town.inversions() == []
        assert len(town.handled) == len(set(town.handled))

    play(tale, seed=seed)


@pytest.mark.slow
def test_a_parked_key_moves_over_kills() -> None:
    """Both brokers die between the resize and the redrive, and again while it runs."""

    async def tale(town: Town) -> None:
        await move(town)
        for broker in town.cluster.brokers:
            broker.kill()
            await broker.start()
        await asyncio.sleep(3)
        await town.admin.parked.redrive(GROUP, rate=20)
        await asyncio.sleep(1)
        for broker in town.cluster.brokers:
            broker.kill()
            await broker.start()
        await redrive_all(town)
        await town.all_handled()
        assert town.inversions() == []

    play(tale)


@pytest.mark.slow
def test_a_key_can_move_twice() -> None:
    """The lists of both layouts are drained, the oldest first."""

    async def tale(town: Town) -> None:
        await move(town)
        await town.admin.topics.resize(TOPIC, queues=16)
        await town.send(5)
        await town.until(
            lambda: all(
                one.broker.resizing.view(TOPIC, GROUP).groups[0].version == 3
                for one in town.cluster.brokers
            ),
            seconds=60,
        )
        await asyncio.sleep(2)
        assert await parked_everywhere(town) == dict.fromkeys(sorted(BAD), 15)
        await redrive_all(town)
        await town.all_handled()
        assert town.inversions() == []
        assert len(town.handled) == len(set(town.handled))

    play(tale)


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 2])
def test_a_key_that_would_come_back_is_still_redriven(brokers: int) -> None:
    """The second resize waits for its redrive, then ends; neither list is left without an owner."""

    async def tale(town: Town) -> None:
        bad = await move(town)
        lists = await town.admin.parked.list(GROUP)
        assert any(one.moved_to is not None for one in lists), "no key moved: choose others"
        bad.keys = set(BAD)
        await town.admin.topics.resize(TOPIC, queues=2)  # as it was: they would come back
        await town.send(5)
        await asyncio.sleep(5)
        assert not [key for key, _ in town.handled if key in BAD]
        bad.keys.clear()
        await redrive_all(town)
        await town.released(3)
        await town.all_handled()
        assert town.inversions() == []
        assert len(town.handled) == len(set(town.handled))

    play(tale, brokers=brokers)


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 2])
def test_a_key_whose_owner_died_before_it_forgot_its_older_list_is_redriven(
    brokers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old list is closed, a resize brings the key back to it: they point at each other."""
    dies, report = [True], _KeyRedrive._report

    async def die(self: _KeyRedrive, place: QueuePlace, body: RedrivenBody) -> None:
        if body.older is not None and dies:
            raise _Over("its owner died here")
        await report(self, place, body)

    monkeypatch.setattr(_KeyRedrive, "_report", die)

    async def tale(town: Town) -> None:
        await move(town)
        old = {one.key for one in await town.admin.parked.list(GROUP) if one.moved_to is not None}
        assert old, "no key moved: choose others"
        await town.admin.parked.redrive(GROUP)
        await town.until(lambda: len([1 for key, _ in town.handled if key in old]) >= 5 * len(old))
        await town.admin.parked.cancel(GROUP)
        await asyncio.sleep(2)
        lists = await town.admin.parked.list(GROUP)
        assert {one.key for one in lists if one.older} >= old, "they point to what is closed"
        assert not [one for one in lists if one.moved_to is not None]
        await town.admin.topics.resize(TOPIC, queues=2 * brokers)  # as it was: they come back
        await town.released(3)
        dies.clear()
        await redrive_all(town)
        await town.send(1)
        await town.all_handled()
        assert town.inversions() == []
        assert len(town.handled) == len(set(town.handled))

    play(tale, brokers=brokers)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_move_outlives_a_power_cut_under_async_flush(number: int) -> None:
    """The release is on disk, so the move is too: else no owner would redrive the old list."""

    async def tale(town: Town) -> None:
        bad = Bad(town)
        await bad.consumer()
        await town.send(5)
        await town.until(lambda: bad.parked() == 20)
        await asyncio.sleep(6)  # all of it is on disk
        await town.admin.topics.resize(TOPIC, queues=7)
        await town.released(2)
        before = {(one.queue, one.key, one.moved_to) for one in await town.admin.parked.list(GROUP)}
        assert any(to is not None for _, _, to in before), "no key moved: choose others"
        town.cluster.brokers[number].cut_power()
        await town.cluster.brokers[number].start()
        with suppress(ConnectionLost):  # nobody said that the machine died
            await town.admin.parked.list(GROUP)
        found = {(one.queue, one.key, one.moved_to) for one in await town.admin.parked.list(GROUP)}
        assert found == before
        bad.keys.clear()
        await redrive_all(town)
        await town.all_handled()
        assert town.inversions() == []

    play(tale)


@pytest.mark.slow
def test_without_the_move_keys_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is what keeps them in order: without it the new queue handles the newer ones."""

    async def nothing_moves(*_: object) -> bool:
        return True

    monkeypatch.setattr("inorder.broker.resizing.release.Releasing._move_parked", nothing_moves)

    async def tale(town: Town) -> None:
        with pytest.raises((AssertionError, TimeoutError)):
            async with asyncio.timeout(30):
                await move(town)

    play(tale)
