"""A group is rewound to before a resize, or begins anew, and has keys parked: none overtakes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inorder.broker.cluster import Peers
from inorder.client.rules.resizing import spread
from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.parking import ParkMove
from tests.integration.resizekit import GROUP, TOPIC, Town, play
from tests.integration.test_resizing_parked import Bad, parked_everywhere, redrive_all

pytestmark = pytest.mark.slow


async def parked_between(town: Town) -> tuple[str, Bad]:
    """Let a key be handled, be parked in version 2, and be back in its first queue in version 3."""
    key = town.keys_moved(11)[0]
    bad = Bad(town, [])
    await bad.consumer()
    await town.send(2, keys=[key])
    await town.all_handled()
    await town.admin.topics.resize(TOPIC, queues=11)
    await town.released(2)
    bad.keys = {key}
    await town.send(2, keys=[key])
    await town.until(lambda: bad.parked() == 2)
    await town.admin.topics.resize(TOPIC, queues=4)
    await town.released(3)
    return key, bad


async def redriven(town: Town, key: str, count: int) -> None:
    """Redrive all: a key's messages are handled once, in order."""
    await redrive_all(town)
    await town.until(lambda: len([1 for one, _ in town.handled if one == key]) >= count)
    assert [number for one, number in town.handled if one == key] == list(range(count))


def test_a_move_that_was_under_way_when_a_group_was_rewound_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer comes after the reset: what the replay parks is moved, too, before it goes on."""
    asked, gate, ask = asyncio.Event(), asyncio.Event(), Peers.ask

    async def slowly(self: Peers, topic: str, name: str, request: Any, body: bytes = b"") -> Any:
        if isinstance(request, ParkMove):
            asked.set()
            await gate.wait()
        return await ask(self, topic, name, request, body)

    monkeypatch.setattr(Peers, "ask", slowly)

    async def story(town: Town) -> None:
        parked, other = town.keys_moved(11)[:2]
        old = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map).queue(parked)
        bad = Bad(town, [parked])
        await bad.consumer()
        await town.send(2, keys=[parked, other])
        await town.until(lambda: bad.parked() == 2 and len(town.handled) == 2)
        await town.admin.topics.resize(TOPIC, queues=11)
        await asked.wait()
        await town.admin.offsets.reset_queue(GROUP, TopicQueue(TOPIC, *old), 0)
        bad.keys = {parked, other}
        town.handled.clear()
        gate.set()
        await town.until(lambda: bad.parked() == 4)
        await town.released(2)
        assert set(await parked_everywhere(town)) == {parked, other}
        bad.keys.clear()
        await town.send(2, keys=[other])
        await asyncio.sleep(5)
        assert town.handled == [], "newer ones of the key went past those that are parked"
        await redriven(town, other, 4)

    play(story)


def test_a_group_that_was_deleted_moves_again_what_it_parks() -> None:
    """It comes again, and begins with version 1: that keys were moved before means nothing."""

    async def story(town: Town) -> None:
        key = town.keys_moved(7)[0]
        bad = Bad(town, [])
        await bad.consumer()
        await town.send(2, keys=[key])
        await town.all_handled()
        await town.admin.topics.resize(TOPIC, queues=7)
        await town.released(2)
        town.loop.kill(town.consumers.pop()[0])
        await town.send(2, keys=[key])
        await town.admin.topics.resize(TOPIC, queues=3)  # the group waits in version 2
        await asyncio.sleep(5)
        await town.admin.groups.delete(GROUP)
        await asyncio.sleep(15)
        town.handled.clear()
        bad.keys = {key}
        await bad.consumer()
        await town.until(lambda: bad.parked() >= 2)
        bad.keys.clear()
        await town.released(3)
        await asyncio.sleep(2)
        assert town.handled == [], "version 2 of the key was handled before version 1"
        await redriven(town, key, 4)

    play(story, brokers=1)


def test_older_messages_that_join_a_parked_key_are_redriven_before_the_group_goes_on() -> None:
    """The key is back in its first queue and parked there; version 2 of it lies elsewhere."""

    async def story(town: Town) -> None:
        key = town.keys_moved(11)[0]
        bad = Bad(town, [])
        await bad.consumer()
        await town.two_versions(key, 11)
        await town.admin.topics.resize(TOPIC, queues=4)
        await town.released(3)
        bad.keys = {key}
        await town.send(1, keys=[key])
        await town.until(lambda: bad.parked() == 1)
        bad.keys.clear()
        town.handled.clear()
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await asyncio.sleep(10)
        assert town.handled == [], "version 2 was handled, and version 1 is parked"
        assert await parked_everywhere(town) == {key: 3}
        views = [one.broker.resizing.view(TOPIC, GROUP) for one in town.cluster.brokers]
        assert [view.groups[0].version for view in views] == [1, 1]
        await redriven(town, key, 5)

    play(story)


@pytest.mark.parametrize("newest", [0, 1])
def test_a_key_parked_in_a_version_between_is_redriven_in_the_order_of_the_versions(
    newest: int,
) -> None:
    """It is back in its first queue, with an older list elsewhere; what is older still joins it."""

    async def story(town: Town) -> None:
        key, bad = await parked_between(town)
        await town.send(newest, keys=[key])
        await town.until(lambda: bad.parked() == 2 + newest)
        bad.keys.clear()
        town.handled.clear()
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await asyncio.sleep(10)
        assert town.handled == []
        assert await parked_everywhere(town) == {key: 4 + newest}
        views = [one.broker.resizing.view(TOPIC, GROUP) for one in town.cluster.brokers]
        assert [view.groups[0].version for view in views] == [1, 1]
        await redriven(town, key, 4 + newest)
        await town.released(3)

    play(story)


def test_a_key_whose_older_list_is_closed_lets_no_version_between_overtake_the_oldest() -> None:
    """Its redrive failed in the newest version; what a replay brings first is redriven first."""

    async def story(town: Town) -> None:
        key, bad = await parked_between(town)
        await town.send(1, keys=[key])
        await town.until(lambda: bad.parked() == 3)
        bad.good_until = 3
        await town.admin.parked.redrive(GROUP)
        await town.until(lambda: len(town.handled) == 4)
        await asyncio.sleep(5)
        assert [one.last_error for one in await town.admin.parked.list(GROUP)] == ["ValueError: no"]
        bad.keys.clear()
        town.handled.clear()
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await asyncio.sleep(10)
        assert town.handled == [], "version 2 was handled, and version 1 is parked"
        assert await parked_everywhere(town) == {key: 3}
        await redriven(town, key, 5)

    play(story)


def test_a_removed_queue_has_an_owner_for_a_redrive() -> None:
    """A key comes there again in a replay, though no message ever lay there."""

    async def story(town: Town) -> None:
        wide = KeyMap.of(2, spread(["broker-a"], 11))
        keys = [text for text in map("k{}".format, range(99)) if wide.queue(text)[1] > 5]
        key, other = keys[:2]
        bad = Bad(town, [key])
        await bad.consumer()
        await town.send(2, keys=[key, other])
        await town.until(lambda: bad.parked() == 2)
        await town.admin.topics.resize(TOPIC, queues=11)
        await town.released(2)
        bad.keys.clear()
        await redriven(town, key, 2)
        await town.admin.topics.resize(TOPIC, queues=2)
        await town.released(3)
        bad.keys = {other}
        await town.send(1, keys=[key, other])
        await town.until(lambda: bad.parked() == 3)
        bad.keys = {key}
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        town.handled.clear()
        await town.until(lambda: bad.parked() == 7)  # the group waits for a redrive of the other
        await asyncio.sleep(5)
        bad.keys.clear()
        await redriven(town, key, 3)
        assert [number for one, number in town.handled if one == other] == [0, 1, 2]

    play(story, brokers=1)
