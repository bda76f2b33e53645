"""Order by key on a real broker in simulated time: many handlers per queue, each key in order."""

from __future__ import annotations

import asyncio
from collections import Counter

from inorder.client.consume.rules.outcomes import DeadLetter, Retry
from inorder.config import ClientConfig, ConsumerConfig
from inorder.model import ReceivedMessage
from tests.integration.consumerkit import GROUP, TOPIC, Kit, begin, consumer_of, play


def numbers_of(got: list[ReceivedMessage], key: str) -> list[int]:
    return [int(message.body) for message in got if message.key == key]


def test_keys_run_beside_each_other_and_each_in_order():
    """One queue, five keys, a slow handler: five at a time, never two of one key."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        running: Counter[str] = Counter()
        most = 0

        @consumer.on(TOPIC, order="key", concurrency=64)
        async def handle(message: ReceivedMessage) -> None:
            nonlocal most
            assert running[message.key] == 0, "two handlers of one key"
            running[message.key] += 1
            most = max(most, running.total())
            await asyncio.sleep(0.01)
            running[message.key] -= 1
            kit.got.append(message)

        await kit.send(100)
        await begin(kit, consumer)
        began = kit.loop.time()
        await kit.until(lambda: len(kit.got) == 100)
        assert most == 5
        assert kit.loop.time() - began < 20 * 0.01 * 2, "20 rounds of five, not 100 of one"
        for key in range(5):
            assert numbers_of(kit.got, f"k{key}") == list(range(key, 100, 5))
        await asyncio.sleep(6)
        assert await kit.committed() == 100

    play(story)


def test_a_failing_key_holds_itself_only():
    """Its messages wait in order behind it; the others go on; the commit waits for it."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        healed = False

        @consumer.on(TOPIC, order="key", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if message.key == "k1" and not healed:
                raise ValueError("not yet")
            kit.got.append(message)

        await kit.send(50)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 40)
        await asyncio.sleep(6)
        assert await kit.committed() == 1, "the first message of k1 is not done"
        healed = True
        await kit.until(lambda: len(kit.got) == 50)
        assert numbers_of(kit.got, "k1") == list(range(1, 50, 5))
        await asyncio.sleep(6)
        assert await kit.committed() == 50

    play(story)


def test_retry_says_when():
    """`Retry(after=)` holds the key for just that long, also beyond the 30 s of a queue."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        times = []

        @consumer.on(TOPIC, order="key", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"0":
                times.append(kit.loop.time())
                if len(times) == 1:
                    raise Retry(after=45)
            kit.got.append(message)

        await kit.send(10)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 10)
        assert 45 <= times[1] - times[0] < 45.2
        assert kit.bodies()[-2:] == [b"0", b"5"]

    play(story)


def test_a_key_that_is_put_off_for_long_does_not_hold_one_that_is_put_off_for_short():
    """Each has its own time, also when nothing else happens in the queue."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        began = {}

        @consumer.on(TOPIC, order="key", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if message.key not in began:
                began[message.key] = kit.loop.time()
                raise Retry(after=60 if message.key == "k0" else 1)
            assert kit.loop.time() - began[message.key] < (60.2 if message.key == "k0" else 1.2)
            kit.got.append(message)

        await kit.send(2)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 2)
        assert kit.bodies() == [b"1", b"0"]

    play(story)


def test_a_dead_letter_lets_its_key_go_on():
    """After the attempts the message goes to the dead letters, and what follows it is handled."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        tried = Counter()

        @consumer.on(TOPIC, order="key", concurrency=8, on_failure=DeadLetter(attempts=2))
        async def handle(message: ReceivedMessage) -> None:
            tried[message.body] += 1
            if message.body == b"3":
                raise ValueError("never")
            kit.got.append(message)

        await kit.send(10)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 9)
        assert tried[b"3"] == 3
        assert numbers_of(kit.got, "k3") == [8]
        dead = await kit.stored(f"%DLQ%{GROUP}")
        assert [message.body for message in dead] == [b"3"]
        await asyncio.sleep(6)
        assert await kit.committed() == 10

    play(story)


def test_a_message_without_a_key_is_a_barrier():
    """It runs alone, unless it is told to run beside the others."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        running = 0

        @consumer.on(TOPIC, order="key", concurrency=8, key_of="customer")
        async def handle(message: ReceivedMessage) -> None:
            nonlocal running
            running += 1
            await asyncio.sleep(0.01)
            if "customer" not in message.properties:
                assert running == 1
            running -= 1
            kit.got.append(message)

        for number in range(9):
            properties = {} if number % 3 == 2 else {"customer": f"c{number}"}
            await kit.producer.send(
                TOPIC, str(number).encode(), key="same queue", properties=properties
            )
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 9)
        order = [int(message.body) for message in kit.got]
        assert [sorted(order[at : at + 3]) for at in (0, 3, 6)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert [order[at] for at in (2, 5, 8)] == [2, 5, 8]

    play(story)


def test_a_batch_is_of_one_key():
    """A handler of batches gets consecutive messages of one key."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        batches = []

        @consumer.on(TOPIC, order="key", concurrency=4, batch=4)
        async def handle(messages: list[ReceivedMessage]) -> None:
            batches.append([message.key for message in messages])
            kit.got += messages

        await kit.send(100)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 100)
        assert all(len(set(keys)) == 1 for keys in batches)
        assert max(map(len, batches)) == 4
        for key in range(5):
            assert numbers_of(kit.got, f"k{key}") == list(range(key, 100, 5))

    play(story)


def test_a_clean_hand_over_repeats_nothing():
    """The old owner lets its handlers end and commits; the new one begins behind them."""

    async def story(kit: Kit) -> None:
        consumers = []
        for _ in range(2):
            consumer = await consumer_of(kit)

            @consumer.on(TOPIC, order="key", concurrency=8)
            async def handle(message: ReceivedMessage) -> None:
                await asyncio.sleep(0.05)
                kit.got.append(message)

            consumers.append(consumer)
        await kit.send(200)
        await begin(kit, consumers[0])
        await kit.until(lambda: len(kit.got) > 60)
        await begin(kit, consumers[1])
        await kit.until(lambda: len(kit.got) > 120)
        first = next(entry for entry in kit.started if entry[2] is consumers[0])
        await first[0].run(consumers[0].close())
        await kit.until(lambda: len(kit.got) >= 200)
        await asyncio.sleep(2)
        for key in range(5):
            handled = numbers_of(kit.got, f"k{key}")
            first_times = list(dict.fromkeys(handled))
            assert first_times == sorted(first_times) == list(range(key, 200, 5))
        repeated = len(kit.got) - 200
        assert repeated <= 2 * 8, "at most what was done above the lowest unfinished one"

    play(story, queues=2)


def test_a_stuck_key_does_not_fill_the_memory():
    """Beyond the span the queue is pulled no more, until the key moves."""
    config = ClientConfig(consumer=ConsumerConfig(cached_span_max=100))

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit, config)
        healed = False

        @consumer.on(TOPIC, order="key", concurrency=8)
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"0" and not healed:
                raise ValueError("not yet")
            kit.got.append(message)

        await kit.send(1000)
        await begin(kit, consumer)
        await asyncio.sleep(30)
        assert 80 <= len(kit.got) <= 200
        healed = True
        await kit.until(lambda: len(kit.got) == 1000)
        assert numbers_of(kit.got, "k0") == list(range(0, 1000, 5))

    play(story)
