"""Pulling, seeking, committing, on our broker and on Apache RocketMQ alike."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from inorder.aio import (
    Admin,
    Producer,
    PullConsumer,
    PullStatus,
    ReceivedMessage,
    Session,
    TopicQueue,
)
from inorder.errors import SubscriptionParseFailed, TopicNotRouted
from tests.suite.conftest import SuiteCluster, until_shown

pytestmark = pytest.mark.slow


def queue_of(topic: str, index: int = 0) -> TopicQueue:
    """Name a queue of the only broker."""
    return TopicQueue(topic, "broker-a", index)


async def fill(
    cluster: SuiteCluster, session: Session, topic: str, count: int, *, first: int = 0
) -> None:
    """Put numbers into queue 0, tags a and b in turn."""
    async with Producer(session) as producer:
        for number in range(first, first + count):
            tag = "b" if number % 2 else "a"
            await producer.send(topic, b"%d" % number, queue=queue_of(topic), tag=tag)
    await until_shown(cluster, session, topic, first + count)


async def poll_numbers(consumer: PullConsumer, count: int) -> list[int]:
    """Poll until so many came; return their numbers."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await consumer.poll(1)
    return [int(one.body) for one in found]


def test_a_queue_is_pulled_from_an_offset_on(cluster: SuiteCluster, topic: str) -> None:
    """Found, nothing new, moved: each with the offset to go on from."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 40)
        async with PullConsumer(session, group=cluster.unique("readers")) as consumer:
            queue = queue_of(topic)
            first = await consumer.pull(queue, 0)
            assert [int(one.body) for one in first.messages] == list(range(32))
            assert (first.status, first.next_offset) == (PullStatus.FOUND, 32)
            assert (first.min_offset, first.max_offset) == (0, 40)
            some = await consumer.pull(queue, 38, messages_max=1)
            assert ([int(one.body) for one in some.messages], some.next_offset) == ([38], 39)
            end = await consumer.pull(queue, 40)
            assert (end.status, end.next_offset) == (PullStatus.NOTHING_NEW, 40)
            beyond = await consumer.pull(queue, 1000)
            assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_MOVED, 40)

    cluster.play(story)


def test_a_waiting_pull_gets_what_comes(cluster: SuiteCluster, topic: str) -> None:
    """Without asking again."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 1)
        async with PullConsumer(session, group=cluster.unique("readers")) as consumer:
            waiting = asyncio.create_task(consumer.pull(queue_of(topic), 1, wait=15))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await fill(cluster, session, topic, 1, first=1)
            (message,) = (await waiting).messages
            assert (int(message.body), message.offset) == (1, 1)

    cluster.play(story)


def test_tags_are_selected(cluster: SuiteCluster, topic: str) -> None:
    """One, several, by subscription and by single pulls; a bad expression is refused."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 10)
        group = cluster.unique("readers")
        async with PullConsumer(session, group=group, consume_from="first") as consumer:
            only_b = [int(one.body) async for one in consumer.pull_all(queue_of(topic), tag="b")]
            assert only_b == [1, 3, 5, 7, 9]
            both = [m async for m in consumer.pull_all(queue_of(topic), 4, tag="a || b")]
            assert [int(one.body) for one in both] == [4, 5, 6, 7, 8, 9]
            none = [m async for m in consumer.pull_all(queue_of(topic), tag="c")]
            assert none == []
            await consumer.subscribe(topic, "a")
            assert await poll_numbers(consumer, 5) == [0, 2, 4, 6, 8]
            with pytest.raises(SubscriptionParseFailed):
                await consumer.pull(queue_of(topic), 0, tag="||")

    cluster.play(story)


def test_a_topic_is_subscribed_with_all_its_queues(cluster: SuiteCluster, topic: str) -> None:
    """Of each key in order; also what comes later; a topic that is not there says so."""

    async def story(session: Session, _: Admin) -> None:
        group = cluster.unique("readers")
        async with (
            Producer(session) as producer,
            PullConsumer(session, group=group, consume_from="first") as consumer,
        ):
            await consumer.subscribe(topic)
            assert len(consumer.assignment()) == 4
            for number in range(50):
                await producer.send(topic, b"%d" % number, key=f"k{number % 5}")
            numbers = await poll_numbers(consumer, 50)
            for key in range(5):
                of_key = [number for number in numbers if number % 5 == key]
                assert of_key == list(range(key, 50, 5))
            await consumer.unsubscribe(topic)
            assert consumer.assignment() == ()

        async with PullConsumer(session, group=group) as other:
            with pytest.raises(TopicNotRouted):
                await other.subscribe(cluster.unique("nowhere"))

    cluster.play(story)


def test_reading_goes_on_where_it_was_committed(cluster: SuiteCluster, topic: str) -> None:
    """By another consumer of the group; one of another group begins anew."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 20)
        group = cluster.unique("readers")
        queue = queue_of(topic)
        async with PullConsumer(session, group=group, consume_from="first") as consumer:
            assert await consumer.committed(queue) is None
            await consumer.assign([queue])
            assert [int(one.body) for one in await _exactly(consumer, 8)] == list(range(8))
            assert await consumer.position(queue) == 8
            await consumer.commit()
            assert [int(one.body) for one in await _exactly(consumer, 5)] == list(range(8, 13))
        async with Session(cluster.namesrv) as later:
            async with PullConsumer(later, group=group, consume_from="last") as consumer:
                assert await consumer.committed(queue) == 8
                await consumer.assign([queue])
                assert await poll_numbers(consumer, 12) == list(range(8, 20))
                await consumer.commit(queue, 3)
                assert await consumer.committed(queue) == 3
            async with PullConsumer(later, group=f"{group}-2", consume_from="first") as other:
                await other.assign([queue])
                assert await poll_numbers(other, 20) == list(range(20))

    cluster.play(story)


async def _exactly(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await consumer.poll(1, messages_max=count - len(found))
    return found


def test_where_a_new_group_begins(cluster: SuiteCluster, topic: str) -> None:
    """At the first message, behind the last one, or at a time."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 5)
        await asyncio.sleep(0.05)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.05)
        await fill(cluster, session, topic, 5, first=5)
        queue = queue_of(topic)
        for consume_from, first in (("first", 0), ("last", 10), (middle, 5)):
            group = cluster.unique("readers")
            async with PullConsumer(session, group=group, consume_from=consume_from) as consumer:  # type: ignore[arg-type]
                await consumer.assign([queue])
                assert await consumer.position(queue) == first, consume_from

    cluster.play(story)


def test_seeking(cluster: SuiteCluster, topic: str) -> None:
    """To an offset, to a time, to the beginning, to the end; back and forth."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 10)
        await asyncio.sleep(0.05)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.05)
        await fill(cluster, session, topic, 10, first=10)
        queue = queue_of(topic)
        group = cluster.unique("readers")
        async with PullConsumer(session, group=group, consume_from="first") as consumer:
            await consumer.assign([queue])
            assert await poll_numbers(consumer, 20) == list(range(20))
            assert await consumer.seek(queue, 15) == 15
            assert await poll_numbers(consumer, 5) == list(range(15, 20))
            assert await consumer.seek(queue, middle) == 10
            assert await poll_numbers(consumer, 10) == list(range(10, 20))
            assert await consumer.seek(queue, "beginning") == 0
            assert await poll_numbers(consumer, 20) == list(range(20))
            assert await consumer.seek(queue, "end") == 20
            await fill(cluster, session, topic, 1, first=20)
            assert await poll_numbers(consumer, 1) == [20]
            assert await consumer.seek(queue, middle - timedelta(days=1)) == 0
            later = await consumer.seek(queue, datetime.now(UTC) + timedelta(days=1))
            assert later == 21

    cluster.play(story)


def test_a_paused_queue_gives_nothing(cluster: SuiteCluster, topic: str) -> None:
    """Until it is resumed; then nothing is missing."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 5)
        queue = queue_of(topic)
        group = cluster.unique("readers")
        async with PullConsumer(session, group=group, consume_from="first") as consumer:
            await consumer.assign([queue])
            consumer.pause(queue)
            assert consumer.paused() == (queue,)
            assert await consumer.poll(0.3) == []
            consumer.resume(queue)
            assert await poll_numbers(consumer, 5) == list(range(5))

    cluster.play(story)


def test_messages_one_by_one(cluster: SuiteCluster, topic: str) -> None:
    """`async for` gives them as they come."""

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 7)
        group = cluster.unique("readers")
        async with PullConsumer(session, group=group, consume_from="first") as consumer:
            await consumer.subscribe(topic)
            numbers: list[int] = []
            async with asyncio.timeout(20):
                async for message in consumer:
                    numbers.append(int(message.body))
                    if len(numbers) == 7:
                        break
            assert numbers == list(range(7))

    cluster.play(story)
