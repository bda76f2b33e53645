"""Sending, on our broker and on Apache RocketMQ alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from inorder.aio import (
    Admin,
    ClientConfig,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    Session,
    TopicQueue,
)
from inorder.errors import InorderError
from tests.suite.conftest import QUEUES, SuiteCluster, until, until_shown

pytestmark = pytest.mark.slow


async def stored(
    cluster: SuiteCluster, session: Session, topic: str, count: int
) -> dict[int, list[ReceivedMessage]]:
    """Return what each queue of a topic holds; so many it must be in all."""
    await until_shown(cluster, session, topic, count)
    consumer = PullConsumer(session, group="suite-readers")
    return {
        queue.index: [message async for message in consumer.pull_all(queue)]
        for queue in await consumer.queues(topic)
    }


def java_hash(text: str) -> int:
    """Return String.hashCode() of an ASCII text."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def test_messages_of_a_key_lie_in_one_queue_in_order(cluster: SuiteCluster, topic: str) -> None:
    """The queue is that of Java's SelectMessageQueueByHash; receipts say where each one lies."""

    async def story(session: Session, _: Admin) -> None:
        sent: dict[str, list[tuple[int, int]]] = {}
        async with Producer(session) as producer:
            for number in range(60):
                key = f"order-{number % 12}"
                receipt = await producer.send(topic, b"%d" % number, key=key)
                assert receipt.queue.index == abs(java_hash(key)) % QUEUES
                sent.setdefault(key, []).append((receipt.offset, number))
        found: dict[str, list[tuple[int, int]]] = {}
        for messages in (await stored(cluster, session, topic, 60)).values():
            for one in messages:
                assert one.key is not None
                found.setdefault(one.key, []).append((one.offset, int(one.body)))
        assert found == sent

    cluster.play(story)


def test_a_selector_chooses_the_queue(cluster: SuiteCluster, topic: str) -> None:
    """orderId % number of queues, as RocketMQ's own example does it."""

    def by_order(queues: Sequence[TopicQueue], _: Message, order_id: int) -> TopicQueue:
        return queues[order_id % len(queues)]

    async def story(session: Session, _: Admin) -> None:
        async with Producer(session) as producer:
            for order_id in range(20):
                body = b"%d" % order_id
                receipt = await producer.send(topic, body, selector=by_order, arg=order_id)
                assert receipt.queue.index == order_id % QUEUES
        for index, messages in (await stored(cluster, session, topic, 20)).items():
            assert [int(one.body) for one in messages] == list(range(index, 20, QUEUES))

    cluster.play(story)


def test_a_queue_may_be_named(cluster: SuiteCluster, topic: str) -> None:
    """Everything goes there and nowhere else."""

    async def story(session: Session, _: Admin) -> None:
        queue = TopicQueue(topic, "broker-a", 2)
        async with Producer(session) as producer:
            offsets = [(await producer.send(topic, b"x", queue=queue)).offset for _ in range(5)]
        assert offsets == [0, 1, 2, 3, 4]
        found = await stored(cluster, session, topic, 5)
        assert [len(found[index]) for index in range(QUEUES)] == [0, 0, 5, 0]

    cluster.play(story)


def test_messages_without_a_key_go_round(cluster: SuiteCluster, topic: str) -> None:
    """Each queue in turn."""

    async def story(session: Session, _: Admin) -> None:
        async with Producer(session) as producer:
            for _number in range(3 * QUEUES):
                await producer.send(topic, b"x")
        assert {
            len(found) for found in (await stored(cluster, session, topic, 3 * QUEUES)).values()
        } == {3}

    cluster.play(story)


def test_sends_that_nobody_waits_for_keep_their_order(cluster: SuiteCluster, topic: str) -> None:
    """300 at once over 20 keys: of each key stored in the order of the calls, each once."""

    async def story(session: Session, _: Admin) -> None:
        async with Producer(session) as producer:
            futures = [
                producer.send_nowait(topic, b"%d" % number, key=f"k{number % 20}")
                for number in range(300)
            ]
            receipts = await asyncio.gather(*futures)
        numbers: dict[str | None, list[int]] = {}
        for index, messages in (await stored(cluster, session, topic, 300)).items():
            for one in messages:
                numbers.setdefault(one.key, []).append(int(one.body))
                receipt = receipts[int(one.body)]
                assert (receipt.queue.index, receipt.offset) == (index, one.offset)
        assert numbers == {f"k{key}": list(range(key, 300, 20)) for key in range(20)}

    cluster.play(story)


def test_a_batch_goes_to_the_queues_of_its_keys(cluster: SuiteCluster, topic: str) -> None:
    """In order within each; a receipt for each message, in its place."""

    async def story(session: Session, _: Admin) -> None:
        messages = [
            Message(topic, b"%d" % number, f"k{number % 7}", tag="even" if number % 2 else "odd")
            for number in range(100)
        ]
        async with Producer(session) as producer:
            receipts = await producer.send_batch(messages)
        found = await stored(cluster, session, topic, 100)
        for number, receipt in enumerate(receipts):
            one = found[receipt.queue.index][receipt.offset]
            assert (int(one.body), one.message_id) == (number, receipt.message_id)
            assert (one.key, one.tag) == (messages[number].key, messages[number].tag)
        assert sum(map(len, found.values())) == 100
        for of_queue in found.values():
            assert [int(one.body) for one in of_queue] == sorted(int(one.body) for one in of_queue)

    cluster.play(story)


def test_a_large_batch_is_split(cluster: SuiteCluster, topic: str) -> None:
    """By size; still in order, still one receipt each."""

    async def story(_: Session, __: Admin) -> None:
        config = ClientConfig(batch_bytes_max=8192, compression="none")
        async with Session(cluster.namesrv, config=config) as session:
            async with Producer(session) as producer:
                messages = [Message(topic, b"%04d" % n + b"." * 1000, "k") for n in range(40)]
                receipts = await producer.send_batch(messages)
            assert [one.offset for one in receipts] == list(range(40))
            found = (await stored(cluster, session, topic, 40))[receipts[0].queue.index]
            assert [int(one.body[:4]) for one in found] == list(range(40))

    cluster.play(story)


@pytest.mark.parametrize("how", ["zlib", "lz4", "zstd", "none"])
def test_large_bodies_are_packed(cluster: SuiteCluster, topic: str, how: str) -> None:
    """And come back as they were; small ones are left alone."""

    async def story(_: Session, __: Admin) -> None:
        bodies = [b"a" * 100, b"b" * 4096, bytes(range(256)) * 400]
        async with Session(cluster.namesrv, config=ClientConfig(compression=how)) as session:
            async with Producer(session) as producer:
                for body in bodies:
                    await producer.send(topic, body, key="k")
            found = [
                one
                for messages in (await stored(cluster, session, topic, len(bodies))).values()
                for one in messages
            ]
        assert [one.body for one in found] == bodies
        sizes = [after.position - before.position for before, after in pairwise(found)]
        assert (sizes[1] < 4096) == (how != "none"), sizes

    cluster.play(story)


def test_one_way_sends_arrive_in_their_place(cluster: SuiteCluster, topic: str) -> None:
    """Between sends that are answered, over one connection, in the order of the calls."""

    async def story(session: Session, _: Admin) -> None:
        queue = TopicQueue(topic, "broker-a", 0)
        async with Producer(session) as producer:
            for number in range(0, 20, 2):
                await producer.send_oneway(topic, b"%d" % number, queue=queue)
                await _until_stored(session, queue, number + 1)
                await producer.send(topic, b"%d" % (number + 1), queue=queue)
        found = (await stored(cluster, session, topic, 20))[0]
        assert [int(one.body) for one in found] == list(range(20))

    cluster.play(story)


async def _until_stored(session: Session, queue: TopicQueue, count: int) -> None:
    """Wait for a send that is not answered: RocketMQ's threads may swap it with the next one."""
    api = await session.reader_of(queue)

    async def is_stored() -> bool:
        return await api.max_offset(queue) >= count

    await until(is_stored)


def test_a_message_comes_back_as_it_was_sent(cluster: SuiteCluster, topic: str) -> None:
    """Body, key, tag, index keys and the sender's own properties."""

    async def story(session: Session, _: Admin) -> None:
        async with Producer(session) as producer:
            receipt = await producer.send(
                topic, "größer ✓".encode(), key="order-42", tag="paid", keys=["one", "two"],
                properties={"source": "wéb", "empty-like": "0"},
            )  # fmt: skip
        (found,) = (await stored(cluster, session, topic, 1))[receipt.queue.index]
        assert found.body.decode() == "größer ✓"
        assert (found.key, found.tag, found.message_id) == ("order-42", "paid", receipt.message_id)
        assert (found.topic, found.queue, found.offset) == (topic, receipt.queue, 0)
        assert found.properties["KEYS"] == "one two"
        assert found.properties["source"] == "wéb"
        assert found.properties["empty-like"] == "0"
        assert 0 < found.born_at_ms <= found.stored_at_ms + 1000

    cluster.play(story)


def test_a_body_above_the_limit_is_refused(cluster: SuiteCluster, topic: str) -> None:
    """Before anything is sent; the next one is stored as if nothing had been."""

    async def story(session: Session, _: Admin) -> None:
        async with Producer(session) as producer:
            with pytest.raises(InorderError, match="4194304"):
                await producer.send(topic, b"x" * (4 * 1024 * 1024 + 1), key="k")
            receipt = await producer.send(topic, b"x", key="k")
        assert receipt.offset == 0

    cluster.play(story)


def test_a_send_makes_a_topic(cluster: SuiteCluster) -> None:
    """From the template, with the queues that the client asks for."""
    name = cluster.unique("made-by-a-send")

    async def story(session: Session, admin: Admin) -> None:
        async with Producer(session) as producer:
            await producer.send(name, b"x", key="k")

        async def named() -> bool:
            return name in await admin.topics.names()

        await until(named)
        assert (await admin.topics.configs(name))["broker-a"].write_queues == 4
        assert sum(map(len, (await stored(cluster, session, name, 1)).values())) == 1

    cluster.play(story)
