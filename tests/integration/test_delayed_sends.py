"""`delay_level=` of our producer, on a real broker in simulated time."""

from __future__ import annotations

from inorder.client.consume.consumer import Consumer
from inorder.model import ReceivedMessage
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
