"""Dead letters say why, and a handler can ask for them at once; on a real broker, simulated."""

from __future__ import annotations

import asyncio

import pytest

from inorder.client.consume.rules.outcomes import Block, DeadLetter, Park, Policy, Reject
from inorder.model import Message, ReceivedMessage
from inorder.wire.extensions import DEAD_ERROR
from tests.integration.consumerkit import GROUP, TOPIC, Kit, begin, consumer_of, play

DEAD = f"%DLQ%{GROUP}"


async def dead_after(kit: Kit, error: Exception, *, order: str | None, policy: Policy) -> None:
    """Let a handler fail always, and wait for the dead letter."""
    consumer = await consumer_of(kit)

    @consumer.on(TOPIC, order=order, on_failure=policy)
    async def handle(message: ReceivedMessage) -> None:
        kit.got.append(message)
        raise error

    await begin(kit, consumer)
    async with asyncio.timeout(3600):
        while kit.cluster.broker.store.find_queue(DEAD, 0) is None:  # noqa: ASYNC110 - simulated
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)


@pytest.mark.parametrize("order", ["queue", "key", None])
def test_a_dead_letter_says_how_its_last_try_failed(order: str | None):
    """Type and text of the exception, in one property, whoever made the letter."""

    async def story(kit: Kit) -> None:
        await kit.send(1, key="k")
        error = ValueError("no stock")
        await dead_after(kit, error, order=order, policy=DeadLetter(attempts=1))
        (dead,) = await kit.stored(DEAD)
        assert dead.properties[DEAD_ERROR] == "ValueError: no stock"
        assert (dead.body, len(kit.got)) == (b"0", 2)

    play(story)


@pytest.mark.parametrize("order", ["queue", None])
def test_the_error_of_a_dead_letter_is_escaped_and_cut(order: str | None):
    """What the exception says cannot break properties, lines or terminals, nor grow."""

    async def story(kit: Kit) -> None:
        await kit.send(1, key="k")
        error = ValueError("a\x01b\x02c\n\x1b[31m" + "x" * 5000)
        await dead_after(kit, error, order=order, policy=DeadLetter(attempts=0))
        (dead,) = await kit.stored(DEAD)
        text = dead.properties[DEAD_ERROR]
        assert text.startswith("ValueError: a\\x01b\\x02c")
        assert text.isprintable()
        assert len(text) < 1100
        assert dead.key == "k"

    play(story)


@pytest.mark.parametrize("order", ["queue", None])
def test_a_message_full_of_properties_is_dead_lettered_all_the_same(order: str | None):
    """The error is left out where it has no room."""

    async def story(kit: Kit) -> None:
        full = {f"p{number}": "x" * 1000 for number in range(31)}
        await kit.producer.send_batch([Message(TOPIC, b"full", key="k", properties=full)])
        error = ValueError("y" * 900)
        await dead_after(kit, error, order=order, policy=DeadLetter(attempts=0))
        (dead,) = await kit.stored(DEAD)
        assert dead.body == b"full"
        assert DEAD_ERROR not in dead.properties

    play(story)


@pytest.mark.parametrize("stock", [False, True], ids=["lease", "lock"])
@pytest.mark.parametrize(
    ("order", "policy"),
    [("queue", DeadLetter(5)), ("queue", Block(5)), ("key", DeadLetter(5)), (None, DeadLetter(5))],
)
def test_a_rejected_message_is_a_dead_letter_at_once(
    stock: bool, order: str | None, policy: Policy
):
    """RocketMQ's delay level -1; what follows goes on."""

    async def story(kit: Kit) -> None:
        await kit.send(3, key="k")
        await dead_after(kit, Reject("unknown customer"), order=order, policy=policy)
        dead = await kit.stored(DEAD)
        assert [one.body for one in dead] == [b"0", b"1", b"2"]
        assert sorted(m.offset for m in kit.got) == [0, 1, 2]
        assert dead[0].properties[DEAD_ERROR] == "Reject: unknown customer"

    play(story, stock=stock)


def test_a_queue_that_blocks_for_ever_lets_no_rejected_message_go():
    """Block() means that nothing leaves its queue: the message comes again."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            if len(kit.got) < 4:
                raise Reject("never")

        await kit.send(2, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 5)
        assert [m.offset for m in kit.got] == [0, 0, 0, 0, 1]

    play(story)


def test_a_rejected_message_of_a_key_that_may_be_parked_is_parked():
    """At the first try; its text is the reason."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order="key", on_failure=Park(attempts=5))
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            raise Reject("never")

        await kit.send(2, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: consumer.statistics().parked == 2)
        assert [m.offset for m in kit.got] == [0]

    play(story)
