"""Delays and times of our producer, on a real broker, mostly in simulated time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.errors import IllegalOperation, UsageError
from inorder.model import ReceivedMessage
from inorder.sync.admin import Admin
from inorder.testing.brokers import RunningBroker
from inorder.testing.clock import EPOCH_MS
from tests.integration.consumerkit import GROUP, TOPIC, Kit, play


def test_a_delayed_message_comes_when_it_is_due() -> None:
    """Level 1 is a second, level 2 five; the messages around them do not wait; each comes once."""

    async def story(kit: Kit) -> None:
        node, session = await kit.client()
        consumer = Consumer(session, group=GROUP, consume_from="first")
        came: dict[bytes, float] = {}

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            came[message.body] = kit.loop.time()

        await kit.start(node, session, consumer)
        began = kit.loop.time()
        await kit.producer.send(TOPIC, b"five seconds", key="k", delay_level=2)
        await kit.producer.send(TOPIC, b"one second", key="k", delay_level=1)
        await kit.producer.send(TOPIC, b"now", key="k", delay_level=0)
        await kit.until(lambda: len(kit.got) == 3)
        assert kit.bodies() == [b"now", b"one second", b"five seconds"]
        assert 1 <= came[b"one second"] - began < 1.1
        assert 5 <= came[b"five seconds"] - began < 5.1
        assert {message.key for message in kit.got} == {"k"}

    play(story)


def test_a_message_comes_at_the_time_that_was_asked_for() -> None:
    """`deliver_at=` and any `delay=`, to the millisecond, from all producers of one message."""

    async def story(kit: Kit) -> None:
        node, session = await kit.client()
        consumer = Consumer(session, group=GROUP, consume_from="first")
        came: dict[bytes, float] = {}

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            came[message.body] = kit.loop.time()

        await kit.start(node, session, consumer)
        began = kit.loop.time()
        base = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(seconds=began)
        send = kit.producer.send
        receipt = await send(TOPIC, b"at", key="k", deliver_at=base + timedelta(seconds=3.217))
        assert receipt.handle is not None
        await send(TOPIC, b"after", key="k", delay=1.45)
        level = await send(TOPIC, b"level", key="k", delay=5)
        assert level.handle is None, "a level has this delay"
        gone = await kit.producer.send_nowait(
            TOPIC, b"gone", key="k", deliver_at=base + timedelta(seconds=2)
        )
        past = await send(TOPIC, b"now", key="k", deliver_at=base - timedelta(days=1))
        assert past.handle is None
        assert gone.handle is not None
        assert await kit.producer.recall(TOPIC, gone.handle) == gone.message_id
        with pytest.raises(UsageError, match="for a message of topic"):
            await kit.producer.recall("other", gone.handle)
        await kit.until(lambda: len(kit.got) == 4)
        assert kit.bodies() == [b"now", b"after", b"at", b"level"]
        assert 1.45 <= came[b"after"] - began < 1.6
        assert 3.217 <= came[b"at"] - began < 3.4
        with pytest.raises(IllegalOperation, match="timestamp invalid"):
            await kit.producer.recall(TOPIC, receipt.handle)

    play(story)


def test_the_blocking_producer_sends_with_a_time_and_recalls(inorder_broker: RunningBroker) -> None:
    """And the operator sees how many wait."""
    inorder_broker.create_topic("orders")
    with inorder_broker.producer() as producer, Admin(inorder_broker.namesrv) as admin:
        receipt = producer.send("orders", b"x", delay=timedelta(hours=1, milliseconds=1))
        future = producer.send_nowait("orders", b"y", delay=4000)
        assert receipt.handle is not None
        assert future.result(10).handle is not None
        assert [(one.topic, one.count) for one in admin.messages.waiting()] == [("orders", 2)]
        assert producer.recall("orders", receipt.handle) == receipt.message_id
