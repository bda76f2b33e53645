"""A group is rewound to before a resize, on two brokers: its replay waits for what is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inorder.broker.resizing.release import Rewinding
from inorder.client.rules.resizing import spread
from inorder.errors import InvalidParameter
from inorder.model import GroupQueue, ReceivedMessage, TopicConfig, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.offsets import CloneOffsets
from inorder.wire.requests.resizing import ResizeRelease, ResizeRewind
from tests.integration.resizekit import GROUP, TOPIC, Town, play

pytestmark = pytest.mark.slow

Queue = TopicQueue


class Replay:
    """A key that a resize brought from one broker to the other, and who handles it when."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.key, self.old, self.new = "", Queue("", "", 0), Queue("", "", 0)
        self.running: list[tuple[str, int]] = []
        self.overlaps: list[tuple[tuple[str, int], ...]] = []
        self.gate = asyncio.Event()
        """Opens when the newest message may end, whose handler is the first to get it."""
        self.seen: list[int] = []
        self.gate_at = 5

    async def prepare(self) -> None:
        """Send a key's messages 0 to 2, resize, send 3 to 5; all but the last are handled."""
        town = self.town
        before = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
        after = KeyMap.of(2, spread(["broker-a", "broker-b"], 9))
        self.key = town.keys_moved(9)[0]
        self.old = Queue(TOPIC, *before.queue(self.key))
        self.new = Queue(TOPIC, *after.queue(self.key))
        await town.send(3, keys=[self.key])
        await self.consume()
        await town.admin.topics.resize(TOPIC, queues=9)
        await town.send(3, keys=[self.key])
        await town.until(lambda: [number for _, number in self.running] == [self.gate_at])

    async def consume(self) -> None:
        """Handle; the newest message takes until the gate opens."""

        async def handle(message: ReceivedMessage) -> None:
            one = (message.queue.broker, int(message.body))
            self.running.append(one)
            self.seen.append(one[1])
            if len(self.running) > 1:
                self.overlaps.append(tuple(self.running))
            try:
                first = one[1] == self.gate_at and self.seen.count(self.gate_at) == 1
                await (self.gate.wait() if first else asyncio.sleep(0.05))
            finally:
                self.running.remove(one)

        await self.town.handle(handle)

    async def reset(self) -> None:
        """Set the group back to the key's first message."""
        await self.town.admin.offsets.reset_queue(GROUP, self.old, 0)

    def rests(self) -> list[bool]:
        """Tell where the group gets nothing."""
        brokers = self.town.cluster.brokers
        return [one.broker.resizing.view(TOPIC, GROUP).groups[0].rests for one in brokers]

    async def finish(self) -> None:
        """Let the newest message end: what the old queue holds is handled once more."""
        self.gate.set()
        await self.town.until(lambda: self.seen.count(2) > 1)
        await self.town.released(2)
        assert self.seen[:6] == [0, 1, 2, 3, 4, 5]
        assert [number for number in self.seen[6:] if number < 3] == [0, 1, 2]
        assert self.overlaps == []


def replay(story: Callable[[Replay], Any], **more: Any) -> None:
    """Run a story of a key that has moved, and of which the newest message is being handled."""

    async def main(town: Town) -> None:
        one = Replay(town)
        await one.prepare()
        await story(one)

    play(main, **more)


def test_a_replay_does_not_begin_beside_a_handler_in_the_keys_new_queue() -> None:
    """A11, P4, P9: the other broker asks for the queue, and the old messages wait for its end."""

    async def story(one: Replay) -> None:
        await one.reset()
        await one.town.until(lambda: one.rests() == [True, True])
        await asyncio.sleep(60)  # longer than any lease
        assert one.rests() == [True, True]
        assert one.seen == [0, 1, 2, 3, 4, 5]
        await one.finish()
        assert one.seen[6:] == [0, 1, 2], "what ended meanwhile was committed"

    replay(story)


@pytest.mark.parametrize("without", ["rest", "wait"])
def test_without_the_pause_or_the_wait_they_overlap(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: the others are not told, or nobody waits for who has the queue."""
    if without == "wait":
        monkeypatch.setattr(Rewinding, "_is_owned", lambda *_: False)
    else:
        monkeypatch.setattr(Rewinding, "version_touched", lambda *_: None)

    async def story(one: Replay) -> None:
        await one.reset()
        await one.town.until(lambda: 0 in one.seen[6:])
        assert one.overlaps

    replay(story)


def test_a_broker_that_is_away_is_waited_for() -> None:
    """It may give newer messages as soon as it is back: nothing is replayed before it knows."""

    async def story(one: Replay) -> None:
        away = one.town.cluster.brokers[1]
        away.kill()
        await one.reset()
        await asyncio.sleep(30)
        assert 0 not in one.seen[6:]
        assert one.rests()[0]
        await away.start()
        await one.finish()

    replay(story)


@pytest.mark.parametrize("number", [0, 1])
def test_a_pause_outlives_a_restart(number: int) -> None:
    """Killed with the answer on its way, a broker knows that the group rests, and goes on."""

    async def story(one: Replay) -> None:
        other = one.town.cluster.brokers[1 - number]
        one.town.loop.freeze(other.node)
        if number:
            api = await one.town.session.broker_at(one.town.cluster.brokers[1].address)
            await api.ask(ResizeRewind(TOPIC, GROUP, 1, 1))
        else:
            await one.reset()
        one.town.cluster.brokers[number].kill()
        await one.town.cluster.brokers[number].start()
        assert one.rests()[number]
        one.town.loop.thaw(other.node)
        if not number:
            await one.finish()
        one.gate.set()
        await one.town.released(2)
        await one.town.until(lambda: one.rests() == [False, False])

    replay(story)


def test_an_operator_may_insist() -> None:
    """A broker that is gone for good would be waited for: a forced release ends the rest."""

    async def story(one: Replay) -> None:
        one.town.cluster.brokers[1].kill()
        await one.reset()
        first = await one.town.session.broker_at(one.town.cluster.brokers[0].address)
        await first.ask(ResizeRelease(TOPIC, GROUP, 2, force=True))
        await one.town.until(lambda: 0 in one.seen[6:])
        assert not one.town.broker(0).resizing.view(TOPIC, GROUP).groups[0].rests
        await one.town.cluster.brokers[1].start()

    replay(story)


def test_cloned_offsets_set_a_group_back_like_a_reset() -> None:
    """The same rest, by another request."""

    async def story(one: Replay) -> None:
        broker = one.town.broker(0)
        broker.offsets.put("source", TOPIC, one.old.index, 0, 0)
        api = await one.town.session.broker_at(one.town.cluster.brokers[0].address)
        await api.ask(CloneOffsets("source", GROUP, TOPIC, offline=True))
        await one.town.until(lambda: one.rests() == [True, True])
        await one.finish()

    replay(story)


def test_a_consumer_that_is_frozen_is_waited_for_as_long_as_its_lease_lasts() -> None:
    """Then the replay begins; it cannot go on with what it has, also if nobody had the queue."""

    async def story(one: Replay) -> None:
        frozen = one.town.consumers[0][0]
        key = GroupQueue.of(GROUP, one.new)
        one.town.loop.freeze(frozen)
        await one.reset()
        await one.town.until(lambda: one.rests() == [True, True])
        assert one.town.broker(1).leases.get(key) is not None
        await one.town.until(lambda: one.rests() == [False, False])
        assert one.town.broker(1).leases.get(key) is None
        assert one.town.broker(1).leases.past(key) is None
        await one.consume()
        await one.town.until(lambda: one.seen.count(2) > 1)
        one.town.loop.thaw(frozen)
        await asyncio.sleep(5)
        one.gate.set()
        await one.town.released(2)

    replay(story)


def test_a_lease_that_had_run_out_before_is_not_taken_up_again() -> None:
    """Its owner was frozen, and nobody has had the queue since: it would go on where it was."""

    async def story(one: Replay) -> None:
        key = GroupQueue.of(GROUP, one.new)
        one.town.loop.freeze(one.town.consumers[0][0])
        await one.town.until(lambda: one.town.broker(1).leases.past(key) is not None)
        await one.reset()
        await one.town.until(lambda: one.rests() == [False, False])
        assert one.town.broker(1).leases.past(key) is None
        one.town.loop.thaw(one.town.consumers[0][0])
        one.gate.set()
        await one.town.released(2)

    replay(story)


def test_the_next_version_waits_for_a_handler_of_what_was_skipped() -> None:
    """An operator skips the rest of a version: what is handled ends, then the next begins."""

    async def story(town: Town) -> None:
        one = Replay(town)
        one.gate_at = 1
        await one.prepare()
        await town.admin.offsets.reset_queue(GROUP, one.old, 3)
        await asyncio.sleep(60)
        assert one.seen == [0, 1]
        one.gate.set()
        await town.until(lambda: 5 in one.seen)
        assert one.overlaps == []
        assert one.seen == [0, 1, 3, 4, 5]

    play(story)


def test_a_release_that_was_under_way_when_a_group_was_rewound_does_not_count() -> None:
    """One broker had it done, was set back and asks on: the other, done since, must not go on."""

    async def story(town: Town) -> None:
        before = KeyMap.decode(town.broker(0).resizing.versions(TOPIC).map)
        homes = {before.queue(text)[0]: text for text in map("k{}".format, range(1000))}
        slow, seen = False, list[tuple[str, int]]()

        async def handle(message: ReceivedMessage) -> None:
            seen.append((message.queue.broker, int(message.body)))
            await asyncio.sleep(100 if slow and message.queue.broker == "broker-a" else 0.01)

        await town.send(3, keys=list(homes.values()))
        await town.handle(handle)
        await town.until(lambda: len(seen) == 6)
        await asyncio.sleep(6)  # it is committed
        gate, asked = asyncio.Event(), asyncio.Event()
        first, second = (town.broker(number).resizing.releasing for number in (0, 1))
        progress = first._progress

        async def slowly(*args: Any) -> Any:
            asked.set()
            await gate.wait()
            return await progress(*args)

        async def not_yet(*_: Any) -> None: ...

        first._progress, second._release = slowly, not_yet  # type: ignore[method-assign]
        await town.admin.topics.resize(TOPIC, queues=9)
        await asked.wait()
        slow = True
        for key in homes.values():
            queue = TopicQueue(TOPIC, *before.queue(key))
            await town.admin.offsets.reset_queue(GROUP, queue, 0)
        await town.until(lambda: seen.count(("broker-a", 0)) > 1 < seen.count(("broker-b", 2)))
        await asyncio.sleep(10)
        gate.set()
        await asyncio.sleep(2)
        views = [one.broker.resizing.view(TOPIC, GROUP) for one in town.cluster.brokers]
        assert [view.groups[0].version for view in views] == [1, 1]

    play(story)


def test_a_status_names_a_paused_group() -> None:
    """Whoever waits for a replay sees why it does not begin."""

    async def story(one: Replay) -> None:
        await one.reset()
        await one.town.until(lambda: one.rests() == [True, True])
        (waiting,) = (await one.town.admin.topics.resize_status(TOPIC)).waiting
        assert (waiting.group, waiting.version, waiting.rests) == (GROUP, 1, True)
        await asyncio.sleep(5)  # the others are given back
        held = await one.town.admin.locks.list(GROUP, topic=TOPIC)
        assert [lock.queue for lock in held if lock.recalled] == [one.new], "what is handled"
        await one.finish()
        assert (await one.town.admin.topics.resize_status(TOPIC)).is_done

    replay(story)


def test_a_topic_without_a_map_sets_nobody_back() -> None:
    """The request names what is wrong, and leaves nothing behind."""

    async def story(town: Town) -> None:
        api = await town.session.broker_at(town.cluster.brokers[0].address)
        await api.create_topic(TopicConfig("plain", 1, 1))
        with pytest.raises(InvalidParameter, match="no key map"):
            await api.ask(ResizeRewind("plain", GROUP, 1, 1))
        for version, term in ((0, 1), (1, 0), (1, 1 << 60)):
            with pytest.raises(InvalidParameter, match="is not rewound"):
                await api.ask(ResizeRewind(TOPIC, GROUP, version, term))
        assert {one: known.groups for one, known in town.broker(0).resizing.topics.items()} == {
            TOPIC: {}
        }

    play(story)
