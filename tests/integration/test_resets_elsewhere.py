"""Resets that concern other brokers, or a group that an operator had let go on."""

from __future__ import annotations

import asyncio

import pytest

from inorder.errors import TransportError
from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap
from tests.integration.resizekit import GROUP, TOPIC, Town, play
from tests.integration.test_resizing_parked import Bad, redrive_all

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_newer_is_given_once_a_reset_is_answered(whole: bool) -> None:
    """Version 1 of the key lies at the first broker, version 2 at the last, which has no other."""

    async def story(town: Town) -> None:
        old = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
        key = town.keys_moved(7)[0]
        bad = Bad(town, [])
        await bad.consumer()
        await town.two_versions(key, 7)
        await asyncio.sleep(3)
        node, consumer = town.consumers.pop()
        await node.run(consumer.close())
        await asyncio.sleep(20)
        town.handled.clear()
        if whole:
            await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        else:  # one queue; what is sent now waits in the newer version
            await town.send(1, keys=[key])
            await town.admin.offsets.reset_queue(GROUP, TopicQueue(TOPIC, *old.queue(key)), 0)
        await bad.consumer()
        wanted = range(4) if whole else (0, 1, 4)
        await town.until(lambda: {(key, one) for one in wanted} <= set(town.handled))
        assert town.inversions() == []

    play(story)


def test_a_reset_names_brokers_that_are_left_out() -> None:
    """One is down: what it has is not set back, and the operator knows."""

    async def story(town: Town) -> None:
        await town.consume()
        await town.send(3)
        await town.all_handled()
        await asyncio.sleep(5)
        last = town.cluster.brokers[1]
        last.kill()
        await asyncio.sleep(1)
        town.handled.clear()
        with pytest.raises(TransportError, match="broker-b of topic orders is not registered"):
            await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await last.start()
        await asyncio.sleep(5)
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await town.all_handled()

    play(story)


def test_a_key_parked_in_a_removed_queue_is_redriven_after_a_release() -> None:
    """The queue stays open for it, and is closed when the key is live."""

    async def story(town: Town) -> None:
        places = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
        names = [f"k{number}" for number in range(100)]
        parked = next(name for name in names if places.queue(name)[1] == 3)
        slow = next(name for name in names if places.queue(name)[1] == 0)
        bad = Bad(town, [parked])
        await bad.consumer()
        await town.send(2, keys=[parked])
        await town.until(lambda: bad.parked() == 2)
        bad.pauses = (20.0,)
        await town.send(1, keys=[slow])  # version 1 is not done: its handler runs
        await town.until(lambda: (slow, 0) in town.handled)
        bad.pauses = (0.0,)
        await town.admin.topics.resize(TOPIC, queues=1, wait=False)
        await town.admin.topics.release_group(TOPIC, GROUP)
        await asyncio.sleep(40)
        bad.keys.clear()
        await redrive_all(town)
        await town.all_handled()
        config = town.broker(0).topics.get(TOPIC)
        assert config is not None
        assert config.read_queues == 1

    play(story, brokers=1, queues=4)


def test_after_a_release_a_reset_does_not_stand_still() -> None:
    """A key was to come back onto its own older list when the operator let the group go on."""

    async def story(town: Town) -> None:
        maps = [
            KeyMap.of(version, [("broker-a", number) for number in range(count)])
            for version, count in ((1, 2), (2, 4), (3, 11))
        ]
        key = next(
            name for name in map("k{}".format, range(1000))
            if maps[0].queue(name) == maps[2].queue(name) != maps[1].queue(name)
        )  # fmt: skip
        bad = Bad(town, [key])
        await bad.consumer()
        await town.send(1, keys=[key])
        await town.until(lambda: bad.parked() == 1)
        await town.admin.topics.resize(TOPIC, queues=4)
        await town.released(2)
        await town.admin.topics.resize(TOPIC, queues=11, wait=False)
        await asyncio.sleep(2)
        await town.send(1, keys=[key])
        await town.admin.topics.release_group(TOPIC, GROUP)
        await asyncio.sleep(2)
        bad.keys.clear()
        town.handled.clear()
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        async with asyncio.timeout(300):
            while await town.admin.parked.list(GROUP):
                await town.admin.parked.redrive(GROUP)
                await asyncio.sleep(5)
        await town.all_handled()
        await town.released(3)
        assert town.inversions() == []

    play(story, brokers=1)
