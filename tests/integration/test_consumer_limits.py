"""The limits of a topic are shared by its queues, and shared anew when queues come or go."""

from __future__ import annotations

import asyncio

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.config import ClientConfig, ConsumerConfig
from inorder.model import ReceivedMessage
from tests.integration.consumerkit import GROUP, TOPIC, Kit, play


def queues_of(consumer: Consumer) -> int:
    return sum(queue.topic == TOPIC for queue in consumer.assignment())


@pytest.mark.slow
def test_the_limits_of_a_topic_are_shared_anew() -> None:
    """Alone a member has four queues and a quarter of the limit for each, with a peer the half."""

    async def story(kit: Kit) -> None:
        config = ClientConfig(
            consumer=ConsumerConfig(topic_messages_max=40, pull_messages_max=1),
            heartbeat_interval_ms=1000,
        )
        release = asyncio.Event()
        consumers = []
        for _ in range(2):
            node, session = await kit.client(config)
            consumer = Consumer(session, group=GROUP, consume_from="first")

            @consumer.on(TOPIC, order=None, concurrency=1)
            async def handle(message: ReceivedMessage) -> None:
                await release.wait()
                kit.got.append(message)

            consumers.append((node, session, consumer))
        await kit.send(400)
        await kit.start(*consumers[0])
        alone = consumers[0][2]
        await kit.until(lambda: queues_of(alone) == 4)
        await asyncio.sleep(10)
        assert alone.statistics().cached_messages == 4 * (10 + 1)
        await kit.start(*consumers[1])
        peer = consumers[1][2]
        await kit.until(lambda: queues_of(alone) == queues_of(peer) == 2)
        await asyncio.sleep(10)
        assert peer.statistics().cached_messages == 2 * (20 + 1)
        assert alone.statistics().cached_messages == 2 * (20 + 1)
        release.set()

    play(story, queues=4)
