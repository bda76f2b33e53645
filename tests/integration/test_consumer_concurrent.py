"""Consumption without order, on a real broker in simulated time: retries, dead letters, limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from inorder.client.consume.rules.outcomes import DeadLetter, Handled, Retry
from inorder.config import ClientConfig, ConsumerConfig
from inorder.errors import NotFound
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.codes import RequestCode, ResponseCode
from tests.integration.consumerkit import GROUP, TOPIC, Kit, begin, consumer_of, play

QUEUE = TopicQueue(TOPIC, "broker-a", 0)
RETRY = f"%RETRY%{GROUP}"
DEAD = f"%DLQ%{GROUP}"


def test_many_handlers_run_at_a_time():
    """`concurrency` handlers of a topic run side by side, of one queue too; all is committed."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        running = most = 0

        @consumer.on(TOPIC, order=None, concurrency=7)
        async def handle(message: ReceivedMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            kit.got.append(message)

        await kit.send(100, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 100)
        assert most == 7
        await consumer.commit()
        assert await kit.committed() == 100

    play(story)


def test_the_offset_stays_at_the_first_unfinished_message():
    """A slow message holds the commit while later ones are done."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        release = asyncio.Event()

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            if message.offset == 3:
                await release.wait()
            kit.got.append(message)

        await kit.send(20, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 19)
        await consumer.commit()
        assert await kit.committed() == 3
        release.set()
        await kit.until(lambda: len(kit.got) == 20)
        await consumer.commit()
        assert await kit.committed() == 20

    play(story)


@pytest.mark.slow
def test_a_failed_message_comes_back_later_under_its_topic():
    """Send-back with growing delay: 10 s, 30 s, 1 min ..., topic restored, attempts counted."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        times = []

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            times.append(kit.loop.time())
            kit.got.append(message)
            if message.attempt < 4:
                raise ValueError("again")

        await kit.send(1)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 4)
        assert [m.attempt for m in kit.got] == [1, 2, 3, 4]
        assert {m.topic for m in kit.got} == {TOPIC}
        assert kit.got[-1].queue.topic == RETRY
        pauses = [b - a for a, b in pairwise(times)]
        for pause, level in zip(pauses, (10, 30, 60), strict=True):
            assert level <= pause < level + 1
        assert consumer.statistics().sent_back == 3
        await consumer.commit()
        assert await kit.committed() == 1

    play(story)


def test_retry_chooses_the_delay():
    """`raise Retry(after=5)` comes back after 5 s: the level that is long enough."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        times = []

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            times.append(kit.loop.time())
            if len(times) == 1:
                raise Retry(after=5)

        await kit.send(1)
        await begin(kit, consumer)
        await kit.until(lambda: len(times) == 2)
        assert 5 <= times[1] - times[0] < 6

    play(story)


@pytest.mark.parametrize("attempts", [0, 2, pytest.param(16, marks=pytest.mark.slow)])
def test_after_its_attempts_a_message_is_dead_lettered(attempts: int):
    """DeadLetter(attempts=n): n + 1 calls, then %DLQ%; 16 tries take hours, here none."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order=None, on_failure=DeadLetter(attempts=attempts))
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            raise ValueError("poison")

        await kit.send(1)
        await begin(kit, consumer)
        async with asyncio.timeout(100_000):
            while len(kit.got) < attempts + 1:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(5)
        await asyncio.sleep(1)
        (dead,) = await kit.stored(DEAD)
        assert dead.body == b"0"
        assert dead.properties["RETRY_TOPIC"] == TOPIC
        assert dead.redeliveries == attempts + 1
        await asyncio.sleep(30)
        assert len(kit.got) == attempts + 1

    play(story)


def test_a_partly_done_batch():
    """Handled(2) of a batch: two are done, the others go back."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        batches = []

        @consumer.on(TOPIC, order=None, batch=4)
        async def handle(messages: list[ReceivedMessage]) -> Handled | None:
            batches.append([m.body for m in messages])
            return Handled(2) if len(batches) == 1 else None

        await kit.send(4, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: sum(map(len, batches)) == 6)
        assert batches[0] == [b"0", b"1", b"2", b"3"]
        assert sorted(body for batch in batches[1:] for body in batch) == [b"2", b"3"]

    play(story)


def test_what_the_broker_does_not_take_back_is_tried_again_here():
    """If send-back fails, the message is handled again after 5 s and holds the offset."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        times = []

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            times.append(kit.loop.time())
            kit.got.append(message)
            if len(times) == 1:
                raise ValueError("once")

        refuse_codes(
            kit, {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2}, after_send=True
        )
        await kit.send(1)
        kit.refusing = True
        await begin(kit, consumer)
        await kit.until(lambda: len(times) == 1)
        await consumer.commit()
        with pytest.raises(NotFound):
            await kit.committed()
        await kit.until(lambda: len(times) == 2)
        assert 5 <= times[1] - times[0] < 5.5
        assert [m.attempt for m in kit.got] == [1, 2]
        await consumer.commit()
        assert await kit.committed() == 1

    play(story)


def refuse_codes(kit: Kit, codes: set[int], *, after_send: bool) -> None:
    """Let the broker answer SYSTEM_BUSY to some requests while `kit.refusing` is set."""
    behind = kit.cluster.broker.server.handler
    kit.refusing = not after_send

    class Refusing:
        def connection_made(self, connection) -> None:
            behind.connection_made(connection)

        def connection_lost(self, connection, reason: str) -> None:
            behind.connection_lost(connection, reason)

        def frames_received(self, connection, frames) -> None:
            from inorder.wire.header import decode_command

            passed = []
            for frame in frames:
                command = decode_command(frame)
                if kit.refusing and command.code in codes:
                    connection.send(command.reply(ResponseCode.SYSTEM_BUSY, "a fault of the test"))
                else:
                    passed.append(frame)
            if passed:
                behind.frames_received(connection, passed)

    kit.cluster.broker.server.handler = Refusing()


@pytest.mark.slow
def test_a_handler_that_takes_too_long_is_cleaned():
    """After the timeout the message is sent back, and the offset goes on."""

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=ConsumerConfig(handler_timeout_ms=60_000))
        consumer = await consumer_of(kit, config)

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            if message.attempt == 1 and message.body == b"0":
                await asyncio.sleep(500)

        await kit.send(3, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 4)
        assert kit.got[-1].attempt == 2
        await asyncio.sleep(10)
        assert await kit.committed() == 3
        await asyncio.sleep(500)  # the end of the first handler changes nothing
        assert len(kit.got) == 4

    play(story)


def test_flow_control_stops_the_pull():
    """No more than the limit and one pull of messages are here; then it waits."""

    async def story(kit: Kit) -> None:
        consumer_config = ConsumerConfig(cached_messages_max=40)
        consumer = await consumer_of(kit, ClientConfig(consumer=consumer_config))
        release = asyncio.Event()

        @consumer.on(TOPIC, order=None, concurrency=2)
        async def handle(message: ReceivedMessage) -> None:
            await release.wait()
            kit.got.append(message)

        await kit.send(200, key="k")
        await begin(kit, consumer)
        await asyncio.sleep(30)
        assert 40 < consumer.statistics().cached_messages <= 40 + 32
        release.set()
        await kit.until(lambda: len(kit.got) == 200)

    play(story)


def test_the_span_of_offsets_is_limited():
    """One stuck message stops the pull when the newest is too far ahead of it."""

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=ConsumerConfig(cached_span_max=50))
        consumer = await consumer_of(kit, config)
        release = asyncio.Event()

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            await (release.wait() if message.offset == 0 else asyncio.sleep(1))
            kit.got.append(message)

        await kit.send(300, key="k")
        await begin(kit, consumer)
        await asyncio.sleep(2)
        assert 50 < consumer.statistics().pulled <= 50 + 2 * 32
        release.set()
        await kit.until(lambda: len(kit.got) == 300)

    play(story)


def test_ordered_and_concurrent_topics_in_one_consumer():
    """Each topic has its own mode; retries of the concurrent one find their handler."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        others = []

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)

        @consumer.on("others", order=None)
        async def handle_others(message: ReceivedMessage) -> None:
            others.append((message.topic, message.attempt))
            if message.attempt == 1:
                raise ValueError("once")

        await kit.send(5)
        await kit.producer.send("others", b"x")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 5 and len(others) == 2)
        assert others == [("others", 1), ("others", 2)]

    play(story)


def test_consume_from_a_time():
    """A datetime is accepted; on a queue whose beginning the broker does not offer it counts."""

    async def story(kit: Kit) -> None:
        when = datetime.fromtimestamp(kit.cluster.clock.now_ms() / 1000, UTC)
        consumer = await consumer_of(kit, consume_from=when)

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)

        await begin(kit, consumer)
        await kit.send(2)
        await kit.until(lambda: len(kit.got) == 2)

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [
        ("timestamp", [b"new"]),  # half an hour before the consumer was made
        ("an hour ago", [b"newer", b"new"]),
        ("first", [b"old", b"newer", b"new"]),
        ("last", []),
    ],
)
def test_a_group_without_an_offset_begins_where_it_says(consume_from: str, expected: list[bytes]):
    """On a queue of which the broker does not offer the beginning, as it does of a young one."""

    async def story(kit: Kit) -> None:
        kit.cluster.broker.store.reader.hot_bytes = -1  # nothing is young
        for body, minutes in ((b"old", 40), (b"newer", 20), (b"new", 20)):
            await kit.producer.send(TOPIC, body, key="k")
            await asyncio.sleep(minutes * 60)
        hour_ago = datetime.fromtimestamp(kit.cluster.clock.now_ms() / 1000 - 3600, UTC)
        begins = hour_ago if consume_from == "an hour ago" else consume_from
        consumer = await consumer_of(kit, consume_from=begins)

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)

        await begin(kit, consumer)
        await asyncio.sleep(30)
        assert kit.bodies() == expected

    play(story)


def test_redeliveries_do_not_change_the_message():
    """A message that came back has its body, key and properties, and knows its origin."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order=None)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            if message.attempt == 1:
                raise ValueError("once")

        await kit.producer.send(TOPIC, b"x" * 10_000, key="k", tag="t", properties={"a": "b"})
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 2)
        first, second = kit.got
        assert second.properties["ORIGIN_MESSAGE_ID"]
        same = replace(
            second, queue=first.queue, offset=0, redeliveries=0, position=first.position,
            stored_at_ms=first.stored_at_ms, properties=first.properties,
        )  # fmt: skip
        assert same == first
        assert second.properties.items() >= {"a": "b", "TAGS": "t", "__SHARDINGKEY": "k"}.items()

    play(story)
