"""One of two brokers is restarted: its queues leave the route for a moment, not their owner."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.client.consume.rules.assignment import REBALANCE_INTERVAL_MS
from inorder.client.rules.routes import ABSENT_MS, ASK_AGAIN_MAX_MS
from inorder.config import ConsumerConfig
from inorder.model import ReceivedMessage, TopicConfig, TopicQueue
from tests.integration.consumerkit import TOPIC, Kit, begin, consumer_of, play
from tests.kit.simcluster import SimBroker

HERE = [TopicQueue(TOPIC, "broker-a", index) for index in range(2)]
THERE = [TopicQueue(TOPIC, "broker-b", index) for index in range(2)]


async def two_brokers(kit: Kit, *, members: int = 1) -> tuple[SimBroker, list[Consumer]]:
    """Return the second broker, and consumers that share its queues and those of the first."""
    other = kit.cluster.brokers[1]
    _, session = await kit.client()
    await (await session.broker_at(other.address)).create_topic(TopicConfig(TOPIC, 2, 2))
    await session.close()
    consumers = [await consumer_of(kit) for _ in range(members)]
    for consumer in consumers:

        @consumer.on(TOPIC, order="queue")
        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.02)
            kit.got.append(message)

        await begin(kit, consumer)
    await asyncio.sleep(1)  # each has heard of the others
    await kit.until(lambda: assigned(*consumers) == HERE + THERE)
    return other, consumers


def assigned(*consumers: Consumer) -> list[TopicQueue]:
    """Return the topic's queues of all of them."""
    return sorted(q for consumer in consumers for q in consumer.assignment() if q.topic == TOPIC)


async def look(kit: Kit) -> None:
    """Let all clients ask for the route now."""
    for node, session, _ in kit.started:
        await node.run(session.refresh_route(TOPIC))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("stock", [False, True])
def test_the_queues_of_a_restarted_broker_stay_with_their_owner(members: int, stock: bool):
    """They flow again two seconds after it is back, and nothing is handled twice."""

    async def story(kit: Kit) -> None:
        other, consumers = await two_brokers(kit, members=members)
        before = [assigned(consumer) for consumer in consumers]
        await kit.send(40)
        await kit.until(lambda: len(kit.got) == 40)
        await other.stop()
        await look(kit)
        await asyncio.sleep(0.15)
        await other.start()
        back = kit.loop.time()
        await kit.send(40, timeout=30)
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 80)
        assert kit.loop.time() - back < 2.5
        await kit.until(lambda: [assigned(consumer) for consumer in consumers] == before, seconds=2)
        assert max(Counter(m.message_id for m in kit.got).values()) == 1

    play(story, queues=2, stock=stock, brokers=2)


@pytest.mark.parametrize("members", [1, 3])
def test_what_was_handled_when_the_broker_went_is_not_handled_again(members: int):
    """Also if it is away for longer than the lease: the epoch is still that of the owner."""

    async def story(kit: Kit) -> None:
        other, _ = await two_brokers(kit, members=members)
        await kit.send(100)
        assert len(kit.got) < 60  # the handlers are at work
        await other.stop()
        await look(kit)
        await asyncio.sleep(ConsumerConfig().lease_ms / 1000 + 3)
        await other.start()
        back = kit.loop.time()
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 100)
        assert kit.loop.time() - back < ASK_AGAIN_MAX_MS / 1000 + 1
        assert len(kit.got) == 100

    play(story, queues=2, brokers=2)


def test_the_queues_that_are_left_are_shared_as_by_members_that_keep_nothing():
    """What is kept is beside the share: each queue of the other broker has one owner."""

    async def story(kit: Kit) -> None:
        other, consumers = await two_brokers(kit, members=2)
        await other.stop()
        await look(kit)
        await asyncio.sleep(5)
        here = [[q for q in one.assignment() if q in HERE] for one in consumers]
        assert sorted(map(len, here)) == [1, 1]
        assert assigned(*consumers) == HERE + THERE
        await other.start()

    play(story, queues=2, brokers=2)


def test_a_broker_that_stays_away_loses_its_queues():
    """The route says so for a minute: then it is for good."""

    async def story(kit: Kit) -> None:
        other, (consumer,) = await two_brokers(kit)
        await other.stop()
        await look(kit)
        await asyncio.sleep(ABSENT_MS / 1000 - 1)
        assert assigned(consumer) == HERE + THERE
        await kit.until(
            lambda: assigned(consumer) == HERE, seconds=2 + REBALANCE_INTERVAL_MS / 1000
        )
        await other.start()

    play(story, queues=2, brokers=2)
