"""The pull consumer against a scripted server: subscribe, poll, seek, commit, pause."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.errors import (
    AlreadyClosed,
    CorruptRecord,
    NoPermission,
    SubscriptionParseFailed,
    TopicNotRouted,
    UsageError,
)
from inorder.model import TopicQueue
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body
from inorder.wire.fields import encode_fields
from inorder.wire.record import Record, encode
from inorder.wire.requests.offsets import OffsetReply
from inorder.wire.requests.pulls import PullReply
from tests.unit.client.scripted import QUEUES, Scripted, over_the_wire, refuse

Q0, Q1 = TopicQueue("t", "broker-a", 0), TopicQueue("t", "broker-a", 1)


def fill(server: Scripted, queue: int, count: int) -> None:
    records = server.queues[queue]
    for _ in range(count):
        records.append(Record("t", queue, len(records), 0, b"%d-%d" % (queue, len(records)), b""))


async def collect(consumer: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in await consumer.poll(5)]
    return found


def test_poll_returns_each_queue_in_order():
    """Everything once; an empty list when nothing comes in time."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 10)
        fill(server, 1, 7)
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.subscribe("t")
            assert consumer.assignment() == (Q0, Q1)
            found = await collect(consumer, 17)
            for queue, count in ((0, 10), (1, 7)):
                mine = [body for body in found if body.startswith(b"%d-" % queue)]
                assert mine == [b"%d-%d" % (queue, n) for n in range(count)]
            assert await consumer.poll(0.5) == []
            assert await consumer.poll(0) == []
            fill(server, 1, 1)
            assert await collect(consumer, 1) == [b"1-7"]

    over_the_wire(scenario)


def test_where_to_begin():
    """Where the group is; else the end, the beginning, or a time."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 10)
        fill(server, 1, 10)
        server.committed[1] = 4
        when = datetime(2030, 1, 1, tzinfo=UTC)
        server.answers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = [
            lambda command: command.reply(
                fields=encode_fields(
                    OffsetReply(7 if "1893456000000" in str(command.fields) else 0)
                )
            )
        ]
        for where, offset in (("last", 10), ("first", 0), (when, 7)):
            async with PullConsumer(client, group="g", consume_from=where) as consumer:
                await consumer.assign([Q0, Q1])
                assert await consumer.position(Q0) == offset
                assert await consumer.position(Q1) == 4

    over_the_wire(scenario)


def test_commit_saves_what_poll_returned():
    """No more, and only what changed; resuming goes on there."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 10)
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            first = await consumer.poll(5, messages_max=2)
            await consumer.commit()
            assert server.committed == {0: 2}
            await consumer.commit()
            assert server.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 1
            assert await consumer.committed(Q0) == 2
        async with PullConsumer(client, group="g") as consumer:
            await consumer.assign([Q0])
            (message,) = await consumer.poll(5, messages_max=1)
            assert message.offset == first[-1].offset + 1
            await consumer.commit(Q0)
            await consumer.commit(Q1, 9)
            assert server.committed == {0: 3, 1: 9}
            with pytest.raises(UsageError):
                await consumer.commit(offset=3)

    over_the_wire(scenario)


def test_seek_goes_anywhere_and_drops_what_was_read_ahead():
    """To an offset, the beginning, the end."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 10)
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            await collect(consumer, 10)
            assert await consumer.seek(Q0, 8) == 8
            assert await collect(consumer, 2) == [b"0-8", b"0-9"]
            assert await consumer.seek(Q0, "beginning") == 0
            assert (await consumer.poll(5, messages_max=1))[0].body == b"0-0"
            assert await consumer.seek(Q0, "end") == 10
            assert await consumer.poll(0.3) == []
            for wrong in (-1, "middle", True):
                with pytest.raises(UsageError):
                    await consumer.seek(Q0, wrong)
            with pytest.raises(UsageError, match="not read by this consumer"):
                await consumer.seek(Q1, 0)

    over_the_wire(scenario)


def test_a_paused_queue_returns_nothing():
    """The others go on; nothing is lost."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 3)
        fill(server, 1, 3)
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.subscribe("t")
            consumer.pause(Q0)
            assert consumer.paused() == (Q0,)
            assert await collect(consumer, 3) == [b"1-0", b"1-1", b"1-2"]
            assert await consumer.poll(0.3) == []
            consumer.resume()
            assert await collect(consumer, 3) == [b"0-0", b"0-1", b"0-2"]

    over_the_wire(scenario)


def test_reading_ahead_is_bounded():
    """At most the limit and one pull more, until somebody polls."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 100)
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            await asyncio.sleep(5)
            assert 10 <= consumer.statistics().prefetched_messages <= 12
            assert await collect(consumer, 100) == [b"0-%d" % n for n in range(100)]

    over_the_wire(scenario, config=ClientConfig(prefetch_messages_max=10))


def test_iteration_is_one_by_one_and_ends_with_close():
    """The position follows each message."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 5)
        consumer = PullConsumer(client, group="g", consume_from="first")
        await consumer.assign([Q0])
        seen = []
        async for message in consumer:
            seen.append(message.body)
            assert await consumer.position(Q0) == message.offset + 1
            if len(seen) == 5:
                asyncio.get_running_loop().call_later(1, asyncio.ensure_future, consumer.close())
        assert seen == [b"0-%d" % n for n in range(5)]
        with pytest.raises(AlreadyClosed):
            await consumer.poll()

    over_the_wire(scenario)


def test_new_queues_are_found_and_read_from_their_beginning():
    """What was stored before we knew of the queue is not skipped."""

    async def scenario(server: Scripted, client: Session) -> None:
        other = Scripted(server.loop, "10.0.0.2", "broker-b")
        await other.start()
        async with PullConsumer(client, group="g") as consumer:
            await consumer.subscribe("t")
            assert len(consumer.assignment()) == QUEUES
            fill(other, 0, 2)
            server.others.append(other)
            await asyncio.sleep(40)
            assert len(consumer.assignment()) == 2 * QUEUES
            assert await collect(consumer, 2) == [b"0-0", b"0-1"]
            await consumer.unsubscribe("t")
            assert consumer.assignment() == ()

    over_the_wire(scenario)


def test_a_broker_that_does_not_hold_pulls_is_not_flooded():
    """It answers at once; the consumer waits longer and longer instead."""

    async def scenario(server: Scripted, client: Session) -> None:
        async with PullConsumer(client, group="g") as consumer:
            await consumer.assign([Q0])
            assert await consumer.poll(10) == []
            assert server.count(RequestCode.PULL_MESSAGE) < 20

    over_the_wire(scenario)


def test_errors_that_pass_are_waited_out_and_shown():
    """A broker that is away for a while costs time, nothing else."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 3)
        server.answers[RequestCode.PULL_MESSAGE] = [refuse(ResponseCode.SYSTEM_BUSY)] * 8
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            assert await consumer.poll(0.1) == []
            assert consumer.statistics().failing == {Q0: "scripted"}
            assert len(await collect(consumer, 3)) == 3
            assert consumer.statistics().failing == {}

    over_the_wire(scenario)


def test_errors_that_stay_are_raised_by_poll():
    """Each poll raises them until they are gone."""

    async def scenario(server: Scripted, client: Session) -> None:
        fill(server, 0, 1)
        server.answers[RequestCode.PULL_MESSAGE] = [refuse(ResponseCode.NO_PERMISSION)] * 2
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            for _ in range(2):
                with pytest.raises(NoPermission):
                    await consumer.poll(5)
            assert await collect(consumer, 1) == [b"0-0"]

    over_the_wire(scenario)


def test_damaged_and_exploding_bodies_are_not_handed_out():
    """The checksum is compared, and nothing is unpacked beyond the limit."""

    async def scenario(server: Scripted, client: Session) -> None:
        bomb = compress_body("zlib", bytes(5 * 1024 * 1024))
        good = encode(Record("t", 0, 0, 0, b"body", b""))
        flipped = good.replace(b"body", b"b0dy")
        exploding = encode(Record("t", 0, 0, 0, bomb, b"", sys_flag=COMPRESSION_FLAGS["zlib"]))
        consumer = PullConsumer(client, group="g")
        for data in (flipped, exploding):
            server.answers[RequestCode.PULL_MESSAGE] = [
                lambda command, data=data: command.reply(
                    fields=encode_fields(PullReply(0, 1, 0, 1)), body=data
                )
            ]
            with pytest.raises(CorruptRecord):
                await consumer.pull(Q0, 0)

    over_the_wire(scenario)


def test_tags_select_by_the_word_itself():
    """`a || b`; equal hashes do not deceive; positions pass what was left out."""

    async def scenario(_: Scripted, client: Session) -> None:
        producer = Producer(client)
        for tag in ("Aa", "BB", "Aa", "x"):
            await producer.send("t", tag.encode(), tag=tag, queue=Q0)
        async with PullConsumer(client, group="g", consume_from="first") as consumer:
            await consumer.assign([Q0], tag="BB || x")
            assert await collect(consumer, 2) == [b"BB", b"x"]
            assert await consumer.position(Q0) == 4

    over_the_wire(scenario)


def test_a_topic_that_was_just_made_is_waited_for():
    """The name server knows it a moment after the send that made it."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.topics = set()
        asyncio.get_running_loop().call_later(0.2, server.topics.add, "t")
        async with PullConsumer(client, group="g") as consumer:
            with pytest.raises(TopicNotRouted):
                await consumer.queues("t")
            await consumer.subscribe("t")
            assert len(consumer.assignment()) == QUEUES

    over_the_wire(scenario)


def test_mistakes_are_said_so():
    """No group, nothing subscribed, both ways at once, an unknown topic, a bad expression."""

    async def scenario(_: Scripted, client: Session) -> None:
        with pytest.raises(UsageError, match="group"):
            PullConsumer(client, group="")
        with pytest.raises(UsageError, match="consume_from"):
            PullConsumer(client, group="g", consume_from="middle")
        with pytest.raises(UsageError, match="config="):
            PullConsumer(client, group="g", config=ClientConfig())
        consumer = PullConsumer(client, group="g")
        with pytest.raises(UsageError, match="nothing to read"):
            await consumer.poll()
        with pytest.raises(TopicNotRouted):
            await consumer.subscribe("unknown")
        with pytest.raises(SubscriptionParseFailed):
            await consumer.subscribe("t", "||")
        await consumer.subscribe("t")
        with pytest.raises(UsageError, match="already"):
            await consumer.subscribe("t")
        with pytest.raises(UsageError, match="subscribes"):
            await consumer.assign([Q0])
        with pytest.raises(UsageError, match="not subscribed"):
            await consumer.unsubscribe("u")
        await consumer.close()

    over_the_wire(scenario)
