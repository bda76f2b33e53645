"""Single rules of consumption, each seen on a simulated cluster; docs/reference has the list."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from unittest.mock import patch

import pytest

from inorder.client.api import BrokerApi, Pulled
from inorder.config import ClientConfig, ConsumerConfig
from inorder.model import ReceivedMessage
from inorder.wire.requests.connections import SendBack
from inorder.wire.requests.pulls import PullMessage
from tests.integration.consumerkit import (
    TOPIC,
    Kit,
    begin,
    consumer_of,
    handler_of,
    leases_and_locks,
    play,
)

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@leases_and_locks
def test_the_queues_of_an_ordered_consumer_are_handled_side_by_side(stock: bool):
    """One handler of each queue at a time, of all four queues at once."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        running: Counter[int] = Counter()
        most = 0

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            nonlocal most
            running[message.queue.index] += 1
            assert running[message.queue.index] == 1
            most = max(most, running.total())
            await asyncio.sleep(0.1)
            running[message.queue.index] -= 1
            kit.got.append(message)

        for number in range(40):
            await kit.producer.send(TOPIC, b"%d" % number, key=f"k{number}")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 40)
        assert most == 4

    play(story, queues=4, stock=stock)


@pytest.mark.parametrize("order", ["queue", None])
def test_a_queue_has_one_pull_at_a_time(order: str | None):
    """And each begins where the answer before it said."""
    under_way: Counter[int] = Counter()
    offsets: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    pull = BrokerApi.pull_message

    async def counted(
        api: BrokerApi, request: PullMessage, *, timeout_ms: int | None = None
    ) -> Pulled:
        if request.topic != TOPIC or request.consumer_group == "reader":
            return await pull(api, request, timeout_ms=timeout_ms)
        under_way[request.queue_id] += 1
        assert under_way[request.queue_id] == 1
        try:
            answer = await pull(api, request, timeout_ms=timeout_ms)
        finally:
            under_way[request.queue_id] -= 1
        offsets[request.queue_id].append((request.queue_offset, answer.reply.next_begin_offset))
        return answer

    async def story(kit: Kit) -> None:
        consumer, got = await handler_of(kit, order=order, seconds=0.001)  # type: ignore[arg-type]
        await begin(kit, consumer)
        for _ in range(4):
            await kit.send(100)
            await asyncio.sleep(1)
        await kit.until(lambda: len(got) == 400)

    with patch.object(BrokerApi, "pull_message", counted):
        play(story, queues=2)
    for pulls in offsets.values():
        assert len(pulls) > 3
        assert all(before[1] == after[0] for before, after in pairwise(pulls))


def test_an_entry_of_the_schedule_topic_holds_the_time_instead_of_the_tag():
    """When it is due: stored + the delay of its level."""

    async def story(kit: Kit) -> None:
        await kit.producer.send(TOPIC, b"later", key="k", tag="paid", delay_level=3)
        (waiting,) = await kit.stored(SCHEDULE, 2)
        queue = kit.cluster.broker.store.find_queue(SCHEDULE, 2)
        assert queue is not None
        entry = queue.entry(0)
        assert entry is not None
        assert entry[2] == waiting.stored_at_ms + 10_000
        assert waiting.tag == "paid"

    play(story)


@pytest.mark.slow
def test_what_took_too_long_comes_back_with_level_3_however_often():
    """As RocketMQ's cleanExpiredMsg: 10 s later, also at the second time."""
    levels: list[int] = []
    send_back = BrokerApi.send_back

    async def noted(api: BrokerApi, request: SendBack, *, timeout_ms: int | None = None) -> None:
        levels.append(request.delay_level)
        await send_back(api, request, timeout_ms=timeout_ms)

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=ConsumerConfig(handler_timeout_ms=60_000))
        consumer = await consumer_of(kit, config)

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            if message.attempt < 3:
                await asyncio.sleep(180)

        await kit.send(1, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 3, seconds=3600)

    with patch.object(BrokerApi, "send_back", noted):
        play(story)
    assert levels == [3, 3]
