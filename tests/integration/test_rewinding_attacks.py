"""A group is rewound, or begins anew, while much else happens: kills, deletions, late requests."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, TypeVar

import pytest

from inorder.broker.resizing.rules import Versions
from inorder.broker.resizing.service import Resizing
from inorder.client.api import LeaseApi
from inorder.client.consume.consumer import Consumer
from inorder.client.rules.resizing import spread
from inorder.errors import TopicNotFound
from inorder.model import GroupQueue, ReceivedMessage, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.leases import Lease, LeaseBody, QueueWish
from inorder.wire.requests.offsets import CloneOffsets
from inorder.wire.requests.resizing import ResizeDecide
from tests.integration.resizekit import GROUP, KEYS, TOPIC, Town, play
from tests.integration.test_rewinding import Replay, replay
from tests.kit.disk import FakeFiles

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")

pytestmark = pytest.mark.slow


def versions(town: Town, topic: str = TOPIC) -> list[int]:
    """Tell which version the group reads at each broker."""
    brokers = town.cluster.brokers
    return [one.broker.resizing.view(topic, GROUP).groups[0].version for one in brokers]


def read_queues(town: Town) -> list[int]:
    """Tell how many queues of the topic are open at each broker."""
    configs = [one.broker.topics.get(TOPIC) for one in town.cluster.brokers]
    return [config.read_queues for config in configs if config is not None]


async def leave(town: Town) -> None:
    """Stop the consumer."""
    node, consumer = town.consumers.pop()
    await node.run(consumer.close())


async def done_with_two_versions(town: Town) -> None:
    """Handle messages of two versions of all keys, then stop the group."""
    await town.send(4)
    await town.consume()
    await town.admin.topics.resize(TOPIC, queues=11)
    await town.send(4)
    await town.all_handled()
    await town.released(2)
    await leave(town)
    town.handled.clear()


class Worst(Random):
    """What a power cut leaves of what was not synced: nothing."""

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        """Choose that it is lost: a file's changes ("none"), a directory's (0)."""
        return next(one for one in map(seq.__getitem__, range(len(seq))) if one in ("none", 0))


def test_a_broker_that_lost_grants_is_not_quiet_before_they_have_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A power cut took what it knew of owners: who was given a queue may handle it still."""
    crash = FakeFiles.crash
    monkeypatch.setattr(FakeFiles, "crash", lambda disk, _: crash(disk, Worst()))

    async def story(one: Replay) -> None:
        town, last = one.town, one.town.cluster.brokers[1]
        one.gate.set()
        await town.until(lambda: not one.running)
        await leave(town)
        one.gate.clear()
        one.gate_at = 6
        await town.send(1, keys=[one.key])
        await asyncio.sleep(2)  # it is on disk
        await one.consume()
        await town.until(lambda: one.running == [("broker-b", 6)])
        last.cut_power()
        await asyncio.sleep(0.5)
        await one.reset()
        await last.start()
        leases = last.broker.leases
        assert leases.get(GroupQueue.of(GROUP, one.new)) is None, "the grant was not lost"
        assert leases.closed_until_ms > last.broker.clock.monotonic_ms()
        await town.until(lambda: 2 in one.seen[7:])
        one.gate.set()
        await town.released(2)
        assert one.overlaps == []
        assert [number for number in one.seen[7:] if number < 3] == [0, 1, 2]

    replay(story)


def test_offsets_of_several_topics_are_cloned_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow disk: no topic's rest is over before its own offsets are set."""
    topics = [TOPIC, "second", "third", "fourth"]
    keep, slow = Resizing._keep, list[Resizing]()

    async def slowly(self: Resizing, topic: str, old: Versions | None, new: Versions) -> None:
        if self in slow and new is not old:
            await asyncio.sleep(0.3)
        await keep(self, topic, old, new)

    monkeypatch.setattr(Resizing, "_keep", slowly)

    async def story(town: Town) -> None:
        seen: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.topic)

        for topic in topics[1:]:
            await town.admin.topics.create(topic, queues=2)
        await town.send(1)
        assert town.producer is not None
        for topic in topics[1:]:
            for key in KEYS:
                await town.producer.send(topic, b"0", key=key)
        node, session = await town.cluster.client()
        consumer = Consumer(session, group=GROUP, consume_from="first")
        for topic in topics:
            consumer.on(topic, order="key")(handle)
        await node.run(consumer.start())
        await town.until(lambda: len(seen) == len(topics) * len(KEYS))
        for topic in topics:
            await town.admin.topics.resize(topic, queues=9)
        await town.until(lambda: all(versions(town, topic) == [2, 2] for topic in topics))
        await node.run(consumer.close())
        broker = town.broker(0)
        for topic in topics:
            for queue_id in broker.offsets.queues(GROUP, topic):
                broker.offsets.put("source", topic, queue_id, 0, 0)
        slow.append(broker.resizing)
        api = await town.session.broker_at(town.cluster.brokers[0].address)
        await api.ask(CloneOffsets("source", GROUP, "", offline=True))
        await asyncio.sleep(5)
        for topic in topics:
            assert set(broker.offsets.queues(GROUP, topic).values()) == {0}
            assert versions(town, topic) == [1, 1], topic

    play(story)


def test_a_late_copy_of_a_lease_request_does_not_end_a_revoke() -> None:
    """It is refused: its sender has the queue by it, or by a later one, and is to give it back."""

    async def story(one: Replay) -> None:
        town = one.town
        await one.reset()
        await town.until(lambda: one.rests() == [True, True])
        lease = town.broker(1).leases.get(GroupQueue.of(GROUP, one.new))
        assert lease is not None
        assert lease.is_revoked
        api = LeaseApi(await town.session.broker_at(town.cluster.brokers[1].address))
        again = await api.lease(
            Lease(GROUP, *lease.owner, lease.terms.lease_ms, lease.terms.grace_ms),
            LeaseBody([QueueWish(TOPIC, one.new.index, 0, lease.request_number)]),
        )
        assert again.granted == []
        assert [refused.queue for refused in again.refused] == [one.new.index]
        assert lease.is_revoked
        await asyncio.sleep(20)
        assert one.seen == [0, 1, 2, 3, 4, 5]
        await one.finish()

    replay(story)


def test_an_owner_continues_over_a_kill_while_its_queue_is_revoked() -> None:
    """It renews its lease at the broker that started again, finishes, and gives the queue back."""

    async def story(one: Replay) -> None:
        await one.reset()
        await one.town.until(lambda: one.rests() == [True, True])
        killed = one.town.cluster.brokers[1]
        killed.kill()
        await killed.start()
        await asyncio.sleep(60)  # longer than any lease
        assert one.running == [("broker-b", 5)]
        assert one.rests() == [True, True]
        await one.finish()
        await asyncio.sleep(5)
        assert one.seen == [0, 1, 2, 3, 4, 5, 0, 1, 2], "what ended meanwhile was committed"

    replay(story)


def test_a_group_that_was_deleted_with_its_offsets_begins_with_the_oldest_version() -> None:
    """It comes again, and is held at the end of version 1 until it is done with it."""

    async def story(town: Town) -> None:
        await done_with_two_versions(town)
        await town.admin.groups.delete(GROUP)
        await asyncio.sleep(5)
        await town.consume(pause=0.02)
        await town.all_handled()
        assert town.inversions() == []

    play(story)


def test_a_plain_commit_that_goes_back_pauses_a_group_like_a_reset() -> None:
    """Code 15 sets a stopped group's offsets to zero, one queue after the other."""

    async def story(town: Town) -> None:
        await done_with_two_versions(town)
        for one in town.cluster.brokers:
            offsets = dict(one.broker.offsets.queues(GROUP, TOPIC))
            for queue_id in (queue_id for queue_id, offset in offsets.items() if offset):
                queue = TopicQueue(TOPIC, one.broker.config.name, queue_id)
                await town.admin.offsets.set(GROUP, queue, 0)
        await town.until(lambda: versions(town) == [1, 1], 10)
        await town.consume(pause=0.02)
        await town.all_handled()
        await town.released(2)
        assert town.inversions() == []

    play(story)


def test_a_reset_of_a_topic_that_is_deleted_meanwhile_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for the disk, and is refused: who makes the topic again begins at its beginning."""
    keep, saving, gate = Resizing._keep, asyncio.Event(), asyncio.Event()

    async def slowly(self: Resizing, topic: str, old: Versions | None, new: Versions) -> None:
        if any(group.rests for group in new.groups.values()):
            saving.set()
            await gate.wait()
        await keep(self, topic, old, new)

    monkeypatch.setattr(Resizing, "_keep", slowly)

    async def story(town: Town) -> None:
        await town.send(6)
        await town.consume()
        await town.all_handled()
        await town.admin.topics.resize(TOPIC, queues=9)
        await town.released(2)
        await leave(town)
        queue = TopicQueue(TOPIC, "broker-a", 0)
        broker = town.broker(0)
        assert broker.offsets.query(GROUP, TOPIC, 0) > 4
        reset = asyncio.ensure_future(town.admin.offsets.reset_queue(GROUP, queue, 4))
        await saving.wait()
        gone = asyncio.ensure_future(town.admin.topics.delete(TOPIC))
        await town.until(lambda: TOPIC not in broker.topics)
        gate.set()
        with pytest.raises(TopicNotFound, match="was deleted meanwhile"):
            await reset
        await gone
        assert broker.offsets.queues(GROUP, TOPIC) == {}
        assert TOPIC not in broker.resizing.topics
        await town.admin.topics.create(TOPIC, queues=2)
        town.handled.clear()
        town.sent.clear()
        await town.send(6)
        await town.consume()
        await town.all_handled()
        assert town.inversions() == []

    play(story)


def test_an_operator_gets_answers_while_a_broker_is_gone_for_good() -> None:
    """The group waits for it: it is named, and the group is released at the others."""

    async def story(one: Replay) -> None:
        topics, gone = one.town.admin.topics, one.town.cluster.brokers[1]
        gone.kill()
        await one.reset()
        await asyncio.sleep(10)
        status = await topics.resize_status(TOPIC)
        assert status.away == ("broker-b",)
        assert not status.is_done
        assert [(group.group, group.rests) for group in status.waiting] == [(GROUP, True)]
        assert 0 not in one.seen[6:]
        assert await topics.release_group(TOPIC, GROUP) == 2
        await one.town.until(lambda: 0 in one.seen[6:])
        assert (await topics.resize_status(TOPIC)).waiting == ()
        one.gate.set()
        await gone.start()

    replay(story)


def test_closed_queues_are_opened_for_a_reset_while_a_plan_stands_still() -> None:
    """A resize was decided, and whoever ran it died: nobody has to take it up first."""

    async def story(town: Town) -> None:
        await town.send(3)
        await town.consume()
        await town.all_handled()
        await town.admin.topics.resize(TOPIC, queues=2)  # of 4
        await town.send(3)
        await town.all_handled()
        await town.released(2)
        await town.until(lambda: read_queues(town) == [1, 1])
        first = await town.session.broker_at(town.cluster.brokers[0].address)
        plan = KeyMap.of(3, spread(["broker-a", "broker-b"], 5))
        await first.ask(ResizeDecide(TOPIC, "dead", 3, plan.encode()))
        town.handled.clear()
        await town.admin.offsets.reset(GROUP, TOPIC, "beginning")
        await town.all_handled()
        assert town.inversions() == []
        assert (await town.admin.topics.resize_status(TOPIC)).plan is not None

    play(story)
