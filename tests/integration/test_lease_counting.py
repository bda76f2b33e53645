"""A lease counts from the sending of a request, however long its answer takes."""

from __future__ import annotations

import asyncio

from inorder.config import ClientConfig, ConsumerConfig
from inorder.model import ReceivedMessage
from tests.integration.consumerkit import TOPIC, Kit, begin, consumer_of, play
from tests.kit.simcluster import BROKER_HOST

SLOW_MS = 250
CONFIG = ClientConfig(consumer=ConsumerConfig(lease_ms=4000, grace_ms=2000))


def test_a10_trust_counts_from_the_sending_not_from_the_answer() -> None:
    """A10: answers take a quarter of a second; the trust is at least that old when they come."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit, CONFIG)

        @consumer.on(TOPIC, order="queue")
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)

        await begin(kit, consumer)
        await kit.send(1)
        await kit.until(lambda: len(kit.got) == 1)
        node, session, _ = kit.started[-1]
        kit.loop.network.set_delay(BROKER_HOST, node.host, SLOW_MS, SLOW_MS + 5)
        await asyncio.sleep(1)
        assert consumer._service is not None
        ages = []
        for _ in range(400):
            (assigned,) = [
                one
                for one in consumer._service.member.assigned_queues.values()
                if one.queue.topic == TOPIC
            ]
            ages.append(session.clock.monotonic_ms() - assigned.lease.lock_sent_ms)
            await asyncio.sleep(0.01)
        assert min(ages) >= SLOW_MS - 1
        assert max(ages) < CONFIG.consumer.grace_ms

    play(story)
