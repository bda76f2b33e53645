"""Consumers with SQL92 filters: order, commits, refusals, and both kinds of brokers."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.consume.rules.outcomes import Retry
from inorder.config import BrokerConfig
from inorder.errors import SubscriptionParseFailed, SystemError_, UsageError
from inorder.model import ReceivedMessage, TopicQueue
from tests.integration.consumerkit import (
    TOPIC,
    Kit,
    begin,
    consumer_of,
    leases_and_locks,
    place,
    play,
)

QUEUE = TopicQueue(TOPIC, "broker-a", 0)


async def send(kit: Kit, count: int, start: int = 0) -> None:
    """Send messages of five keys with an amount; every third is above 10."""
    for number in range(start, start + count):
        amount = 50 if number % 3 == 0 else number % 10
        await kit.producer.send(
            TOPIC, str(number).encode(), key=f"k{number % 5}",
            properties={"amount": str(amount), "country": "de"},
        )  # fmt: skip


def wanted(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count) if number % 3 == 0]


async def member(kit: Kit, order: str | None = "queue", sql: str = "amount > 10") -> Consumer:
    consumer = await consumer_of(kit)

    @consumer.on(TOPIC, order=order, sql=sql)  # type: ignore[arg-type]
    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.001)
        kit.got.append(message)

    return consumer


@leases_and_locks
@pytest.mark.parametrize("order", ["queue", "key", None])
def test_only_what_matches_is_handled_and_the_commit_passes_the_rest(
    stock: bool, order: str | None
):
    """Under leases, locks and without order: filtered messages count as done, as with tags."""

    async def story(kit: Kit) -> None:
        await send(kit, 40)
        consumer = await member(kit, order, "amount > 10 AND country = 'de'")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == len(wanted(40)))
        await send(kit, 20, start=40)  # while the pulls are held
        await kit.until(lambda: len(kit.got) == len(wanted(60)))
        if order == "queue":
            assert kit.bodies() == wanted(60)
        for key in range(5):
            of_key = [int(m.body) for m in kit.got if m.key == f"k{key}"]
            assert order is None or of_key == sorted(of_key)
        assert sorted(kit.bodies()) == sorted(wanted(60))
        await asyncio.sleep(40)  # held pulls end meanwhile and say how far they looked
        assert await kit.committed() == 60

    play(story, stock=stock)


def test_a_hand_over_goes_on_behind_what_was_filtered():
    """The next owner starts at the commit: nothing is handled twice, nothing is left out."""

    async def story(kit: Kit) -> None:
        await send(kit, 60)
        first, second = await member(kit, "key"), await member(kit, "key")
        await begin(kit, first)
        await kit.until(lambda: len(kit.got) > 5)
        await begin(kit, second)
        await place(kit, first)[0].run(first.close())
        await kit.until(lambda: len(kit.got) >= len(wanted(60)))
        await asyncio.sleep(5)
        assert sorted(kit.bodies()) == sorted(wanted(60))

    play(story)


def test_retries_are_not_filtered_again():
    """A message that matched once comes back by the retry topic, as on RocketMQ."""

    async def story(kit: Kit) -> None:
        await send(kit, 4)
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order=None, sql="amount > 10 AND KEYS IS NULL")
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            if message.redeliveries == 0 and message.body == b"3":
                raise Retry(after=1)

        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 3, seconds=100)
        assert [(m.body, m.redeliveries) for m in kit.got] == [(b"0", 0), (b"3", 0), (b"3", 1)]

    play(story)


def test_a_bad_expression_is_refused_where_it_is_written():
    """With its place marked, before anything is asked; a tag beside it is refused, too."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        node, session = await kit.client()
        reader = PullConsumer(session, group="reader")

        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)

        with pytest.raises(SubscriptionParseFailed, match=r"\n  amount > > 5\n           \^$"):
            consumer.on(TOPIC, sql="amount > > 5")(handle)
        with pytest.raises(UsageError, match="give tag='paid' or sql=, not both"):
            consumer.on(TOPIC, tag="paid", sql="amount > 5")(handle)
        with pytest.raises(SubscriptionParseFailed, match=r"\^$"):
            await reader.subscribe(TOPIC, sql="amount LIKE 'x'")
        with pytest.raises(UsageError, match="not both"):
            await reader.assign([QUEUE], "paid", sql="amount > 5")
        consumer.on(TOPIC, tag="*", sql="amount > 5")(handle)
        await session.close()
        del node

    play(story)


@leases_and_locks
def test_a_broker_that_filters_by_tags_only_is_told_at_the_start(stock: bool):
    """Asked by code 46, as RocketMQ's clients do; a pull consumer hears it at its first pull."""

    async def story(kit: Kit) -> None:
        await send(kit, 1)
        consumer = await member(kit)
        with pytest.raises(SystemError_, match="enablePropertyFilter=true on broker broker-a"):
            await begin(kit, consumer)
        _, session = await kit.client()
        reader = PullConsumer(session, group="reader", consume_from="first")
        await reader.subscribe(TOPIC, sql="amount > 10")
        with pytest.raises(SystemError_, match="enablePropertyFilter=true"):
            await reader.poll(5)
        await reader.close()
        await session.close()

    play(story, broker=BrokerConfig(property_filter=False), stock=stock)


def test_pull_consumers_and_tools_filter_too():
    """Subscribed, assigned, by a single pull and by `pull_all`; one question for each broker."""

    async def story(kit: Kit) -> None:
        await send(kit, 30)
        _, session = await kit.client()
        reader = PullConsumer(session, group="reader", consume_from="first")
        await reader.subscribe(TOPIC, sql="amount > 10")
        got: list[bytes] = []
        while len(got) < len(wanted(30)):
            got += [message.body for message in await reader.poll(1)]
        assert got == wanted(30)
        other = PullConsumer(session, group="other", consume_from="first")
        await other.assign([QUEUE], sql="amount > 10")
        assert [m.body for m in await other.poll(1)] == wanted(30)
        result = await other.pull(QUEUE, 1, sql="amount > 10", messages_max=2)
        assert [message.body for message in result.messages] == [b"3", b"6"]
        found = [m.body async for m in other.pull_all(QUEUE, sql="amount > 10")]
        assert found == wanted(30)
        assert session.filters_taken == {("broker-a", "amount > 10")}
        await reader.close()
        await other.close()
        await session.close()

    play(story)


def test_members_with_different_expressions_are_warned_of(caplog: pytest.LogCaptureFixture):
    """Each would skip messages that the other wants; the warning shows the expressions."""
    caplog.set_level(logging.WARNING)

    async def story(kit: Kit) -> None:
        first, second = await member(kit), await member(kit, sql="amount > 20")
        await begin(kit, first)
        await begin(kit, second)
        await kit.until(
            lambda: any("different subscriptions" in r.getMessage() for r in caplog.records)
        )
        said = next(r.getMessage() for r in caplog.records if "different sub" in r.getMessage())
        assert "SQL92: amount > 10" in said
        assert "SQL92: amount > 20" in said

    play(story)
