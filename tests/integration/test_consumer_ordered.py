"""Ordered consumption on a real broker in simulated time: every outcome of a handler."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inorder.client.consume.consumer import Consumer
from inorder.client.consume.rules.outcomes import Block, DeadLetter, Handled, Outcome, Retry
from inorder.config import ClientConfig, ConsumerConfig
from inorder.errors import AlreadyClosed, NotStarted, UsageError
from inorder.model import GroupConfig, GroupQueue, Message, ReceivedMessage, TopicQueue
from tests.integration.consumerkit import (
    GROUP,
    TOPIC,
    Handle,
    Kit,
    begin,
    consumer_of,
    handler_of,
    leases_and_locks,
    play,
)

QUEUE = TopicQueue(TOPIC, "broker-a", 0)


@leases_and_locks
def test_messages_come_in_order_and_are_committed(stock: bool):
    """One handler per queue at a time, in the order of the queue; the commit follows in 5 s."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        running: dict[int, int] = {}

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            index = message.queue.index
            assert running.get(index, 0) == 0
            running[index] = 1
            await asyncio.sleep(0.001)
            running[index] = 0
            kit.got.append(message)

        await kit.send(50)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 50)
        for index in range(4):
            offsets = [m.offset for m in kit.got if m.queue.index == index]
            assert offsets == list(range(len(offsets)))
        await asyncio.sleep(6)
        for index in range(4):
            count = sum(m.queue.index == index for m in kit.got)
            assert await kit.committed(queue=index) == count
        assert consumer.statistics().handled == 50
        assert {q.index for q in consumer.assignment() if q.topic == TOPIC} == {0, 1, 2, 3}

    play(story, queues=4, stock=stock)


def test_a_failed_message_holds_its_queue_and_comes_again():
    """An exception suspends the queue for a second; the attempts are counted; nothing overtakes."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        times = []

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            if message.body == b"1" and message.attempt < 4:
                times.append(kit.loop.time())
                raise ValueError("not yet")

        await kit.send(3, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 6)
        assert kit.bodies() == [b"0", b"1", b"1", b"1", b"1", b"2"]
        assert [m.attempt for m in kit.got] == [1, 1, 2, 3, 4, 1]
        assert all(0.999 <= b - a < 1.1 for a, b in pairwise(times))
        assert consumer.statistics().failed == 3

    play(story)


@pytest.mark.parametrize(("after", "waits"), [(0, 0.01), (5, 5), (100, 30)])
def test_retry_suspends_the_queue_within_limits(after: float, waits: float):
    """`raise Retry(after=…)` waits as long as it says, from 10 ms to 30 s."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        times = []

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            times.append(kit.loop.time())
            if len(times) < 2:
                raise Retry(after=after)

        await kit.send(1)
        await begin(kit, consumer)
        await kit.until(lambda: len(times) == 2)
        assert waits - 0.001 <= times[1] - times[0] < waits + 0.1

    play(story)


def test_after_its_attempts_a_message_is_dead_lettered_and_the_queue_goes_on():
    """Block(attempts=2): three calls, then %DLQ%; the next message follows; all is committed."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, on_failure=Block(attempts=2))
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            if message.body == b"0":
                raise ValueError("poison")

        await kit.send(2, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 4)
        assert kit.bodies() == [b"0", b"0", b"0", b"1"]
        (dead,) = await kit.stored(f"%DLQ%{GROUP}")
        assert dead.body == b"0"
        assert dead.properties["RETRY_TOPIC"] == TOPIC
        assert consumer.statistics().dead_lettered == 1
        await consumer.commit()
        assert await kit.committed() == 2

    play(story)


def test_manual_commit_and_rollback():
    """With auto_commit=False nothing is committed before COMMIT; ROLLBACK brings all back."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        said = []

        @consumer.on(TOPIC, auto_commit=False)
        async def handle(message: ReceivedMessage) -> Outcome:
            kit.got.append(message)
            number = len(kit.got)
            outcome = {3: Outcome.ROLLBACK, 6: Outcome.COMMIT}.get(number, Outcome.SUCCESS)
            said.append((message.offset, outcome.name))
            return outcome

        await kit.send(4, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 7)
        assert [offset for offset, _ in said] == [0, 1, 2, 0, 1, 2, 3]
        await consumer.commit()
        assert await kit.committed() == 3  # the fourth message is taken, and not committed

    play(story)


@pytest.mark.parametrize(
    ("order", "auto_commit", "said", "counted"),
    [
        ("queue", True, Outcome.SUCCESS, (1, 0)),
        ("queue", True, Outcome.COMMIT, (1, 0)),  # taken as success, with a warning
        ("queue", True, Outcome.ROLLBACK, (1, 0)),
        ("queue", True, Outcome.SUSPEND, (0, 1)),
        ("queue", False, Outcome.SUCCESS, (1, 0)),
        ("queue", False, Outcome.COMMIT, (1, 0)),
        ("queue", False, Outcome.ROLLBACK, (0, 1)),
        ("queue", False, Outcome.SUSPEND, (0, 1)),
        ("key", True, Outcome.SUCCESS, (1, 0)),
        ("key", True, Outcome.SUSPEND, (0, 1)),
        (None, True, Outcome.SUCCESS, (1, 0)),
        (None, True, Outcome.SUSPEND, (0, 1)),
    ],
)
def test_what_a_handler_says_is_counted_as_it_is_meant(
    order: str | None, auto_commit: bool, said: Outcome, counted: tuple[int, int]
):
    """In statistics() and in the counts of the topic, which 307 answers: handled or failed."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order=order, auto_commit=auto_commit)
        async def handle(message: ReceivedMessage) -> Outcome:
            kit.got.append(message)
            return said

        await kit.send(1, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 1)
        await asyncio.sleep(0.01)
        statistics = consumer.statistics()
        assert (statistics.handled, statistics.failed) == counted
        topic = consumer._running().member.counts.of(TOPIC)
        assert (topic.handled, topic.failed) == counted

    play(story)


def test_a_dead_letter_keeps_the_flag_of_its_message():
    """Copies that the client sends to the retry topic are the message, its flag included."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, on_failure=DeadLetter(attempts=0))
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            raise ValueError("no")

        await kit.producer.send_batch([Message(TOPIC, b"x", key="k", flag=0x1234)])
        await begin(kit, consumer)
        await kit.until(lambda: consumer.statistics().dead_lettered == 1)
        assert kit.got[0].flag == 0x1234
        (dead,) = await kit.stored(f"%DLQ%{GROUP}")
        assert (dead.body, dead.flag) == (b"x", 0x1234)

    play(story)


def test_batches():
    """A handler of batches gets lists, in order, of one queue."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        sizes = []

        @consumer.on(TOPIC, batch=8)
        async def handle(messages: list[ReceivedMessage]) -> None:
            sizes.append(len(messages))
            kit.got += messages

        await kit.send(30, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 30)
        assert [m.offset for m in kit.got] == list(range(30))
        assert max(sizes) == 8

    play(story)


@pytest.mark.parametrize("order", ["queue", "key"])
def test_a_list_says_which_of_its_messages_failed(order: Any):
    """Those before are done for good, the failed one comes again, those behind were not tried."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        lists: list[list[tuple[int, int]]] = []

        @consumer.on(TOPIC, order=order, batch=10)
        async def handle(messages: list[ReceivedMessage]) -> Handled | None:
            lists.append([(message.offset, message.attempt) for message in messages])
            for done, message in enumerate(messages):
                if message.offset == 5 and message.attempt == 1:
                    return Handled(done, Retry(after=0.01))
                kit.got.append(message)
            return Handled(len(messages)) if messages[0].offset % 2 else None

        await kit.send(30, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 30)
        assert [message.offset for message in kit.got] == list(range(30)), "each once, in order"
        tried = [attempt for each in lists for offset, attempt in each if offset == 6]
        assert set(tried) == {1}, "a message behind the failed one was not tried"
        assert (5, 2) in [pair for each in lists for pair in each]
        await asyncio.sleep(6)
        assert await kit.committed() == 30
        assert (consumer.statistics().handled, consumer.statistics().failed) == (30, 1)

    play(story)


@pytest.mark.parametrize("order", ["queue", "key"])
def test_of_a_list_only_the_message_that_failed_is_dead_lettered(order: Any):
    """Its attempts count, those of its neighbours do not."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order=order, batch=10, on_failure=DeadLetter(attempts=1))
        async def handle(messages: list[ReceivedMessage]) -> Handled | None:
            for done, message in enumerate(messages):
                if message.offset == 5:
                    return Handled(done, ValueError("bad"))
                kit.got.append(message)
            return None

        await kit.send(20, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 19)
        assert [m.offset for m in kit.got] == [at for at in range(20) if at != 5]
        dead = await kit.stored(f"%DLQ%{GROUP}")
        assert [message.body for message in dead] == [b"5"]

    play(story)


def test_pause_and_resume():
    """A paused queue is neither pulled nor handled; resume goes on at once."""

    async def story(kit: Kit) -> None:
        consumer, _ = await handler_of(kit, seconds=0)
        await begin(kit, consumer)
        await kit.until(lambda: QUEUE in consumer.assignment())
        consumer.pause(QUEUE)
        assert consumer.paused() == (QUEUE,)
        await kit.send(3, key="k")
        await asyncio.sleep(200)  # longer than a queue without a pull is kept
        assert kit.got == []
        consumer.resume()
        await kit.until(lambda: len(kit.got) == 3, seconds=2)
        assert consumer.paused() == ()

    play(story)


@leases_and_locks
def test_seek_goes_on_elsewhere_and_commits_it(stock: bool):
    """seek lets the handler end, commits the offset and begins there; also backwards."""

    async def story(kit: Kit) -> None:
        consumer, _ = await handler_of(kit, seconds=0)
        await kit.send(10, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 10)
        assert await consumer.seek(QUEUE, 7) == 7
        await kit.until(lambda: len(kit.got) == 13)
        assert [m.offset for m in kit.got[10:]] == [7, 8, 9]
        await kit.until(lambda: QUEUE in consumer.assignment())
        assert await consumer.seek(QUEUE, "beginning") == 0
        await kit.until(lambda: len(kit.got) == 23)
        with pytest.raises(UsageError, match="not assigned"):
            await consumer.seek(TopicQueue(TOPIC, "broker-a", 9), 0)

    play(story, stock=stock)


@leases_and_locks
def test_an_offset_that_is_not_stored_is_corrected(stock: bool):
    """A group whose offset lies beyond the end goes on at the end, and says so to the broker."""

    async def story(kit: Kit) -> None:
        await kit.send(5, key="k")
        await kit.api.update_group(GroupConfig(GROUP))
        kit.cluster.broker.offsets.commit(GROUP, QUEUE.topic, QUEUE.index, 100, 0)
        consumer, _ = await handler_of(kit, seconds=0)
        await begin(kit, consumer)
        await asyncio.sleep(2)
        assert await kit.committed() == 5
        await kit.send(1, key="k")
        await kit.until(lambda: len(kit.got) == 1)
        assert kit.got[0].offset == 5

    play(story, stock=stock)


@leases_and_locks
def test_a_group_goes_on_where_it_committed(stock: bool):
    """A stored offset counts more than consume_from."""

    async def story(kit: Kit) -> None:
        await kit.send(5, key="k")
        await kit.api.update_group(GroupConfig(GROUP))
        await kit.api.update_offset(GROUP, QUEUE, 3)
        consumer, _ = await handler_of(kit, seconds=0)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 2)
        assert [m.offset for m in kit.got] == [3, 4]

    play(story, stock=stock)


@pytest.mark.slow
@leases_and_locks
def test_a_long_handler_keeps_its_lock(stock: bool):
    """The lock is renewed while a handler runs for minutes; nobody else gets the queue."""

    async def story(kit: Kit) -> None:
        consumers = [await consumer_of(kit), await consumer_of(kit)]
        running = []

        for number, consumer in enumerate(consumers):

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage, number: int = number) -> None:
                assert running == []
                running.append(number)
                await asyncio.sleep(150)
                running.clear()
                kit.got.append(message)

        await kit.send(2, key="k")
        await begin(kit, consumers[0])
        await kit.until(lambda: running == [0])
        await begin(kit, consumers[1])  # it may be allocated the queue, but must wait
        await kit.until(lambda: len(kit.got) == 2, seconds=1000)
        assert [m.offset for m in kit.got] == [0, 1]

    play(story, stock=stock)


@leases_and_locks
def test_close_lets_the_handler_end_and_commits_it(stock: bool):
    """Stop pulling, finish the handler, commit, unlock, unregister: nothing is handled twice."""

    async def story(kit: Kit) -> None:
        consumer, _ = await handler_of(kit, seconds=2)
        await kit.send(3, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: consumer.statistics().running == 1)
        begun = kit.loop.time()
        await consumer.close()
        assert kit.loop.time() - begun < 2.5
        assert len(kit.got) == 1
        assert await kit.committed() == 1
        assert not kit.cluster.broker.locks.held(GROUP)
        assert GROUP not in kit.cluster.broker.members.groups()
        assert consumer.statistics().queues[QUEUE] == 1
        with pytest.raises(AlreadyClosed):
            await consumer.start()

    play(story, stock=stock)


@leases_and_locks
def test_close_gives_up_on_a_handler_that_does_not_end(stock: bool):
    """After close_timeout_ms it returns; the lock is not given back while the handler may run."""

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=ConsumerConfig(close_timeout_ms=3000))
        consumer = await consumer_of(kit, config)

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(10_000)

        await kit.send(1, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: consumer.statistics().running == 1)
        begun = kit.loop.time()
        await consumer.close()
        assert 3 <= kit.loop.time() - begun < 4
        assert GroupQueue.of(GROUP, QUEUE) in kit.cluster.broker.locks.held(GROUP)

    play(story, stock=stock)


def test_a_handler_can_end_the_run_of_its_consumer():
    """close() in a handler lets run() return, with what is done committed."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            await consumer.close()

        await kit.send(3, key="k")
        await consumer.run()
        assert kit.bodies()[0] == b"0"
        assert await kit.committed() == len(kit.got)

    play(story)


def test_mistakes_are_named():
    """What is not there yet, or makes no sense, is refused before anything starts."""
    consumer = Consumer("127.0.0.1:1", group="g")

    async def good(message: ReceivedMessage) -> None: ...

    def plain(message: ReceivedMessage) -> None: ...

    with pytest.raises(UsageError, match="order='keys'"):
        consumer.on("t", order="keys")(good)
    with pytest.raises(UsageError, match="for order='key'"):
        consumer.on("t", key_of="customer")(good)
    with pytest.raises(UsageError, match="keyless='maybe'"):
        consumer.on("t", order="key", keyless="maybe")(good)
    with pytest.raises(UsageError, match=r"inorder\.Consumer"):
        consumer.on("t")(plain)
    with pytest.raises(UsageError, match="batch=0"):
        consumer.on("t", batch=0)(good)
    with pytest.raises(UsageError, match="nothing follows"):
        consumer.on("t", order=None, on_failure=Block())(good)
    with pytest.raises(UsageError, match="for order='queue'"):
        consumer.on("t", order=None, auto_commit=False)(good)
    with pytest.raises(UsageError, match="dead letters"):
        consumer.on("%DLQ%g")(good)
    consumer.on("t", on_failure=DeadLetter(attempts=3))(good)
    with pytest.raises(UsageError, match="has a handler already"):
        consumer.on("t")(good)
    with pytest.raises(NotStarted):
        consumer.assignment()
    with pytest.raises(UsageError, match="needs a group"):
        Consumer("127.0.0.1:1", group="")
    with pytest.raises(UsageError, match="message_model"):
        Consumer("127.0.0.1:1", group="g", message_model="cluster")
    with pytest.raises(UsageError, match="register a handler"):
        asyncio.run(Consumer("127.0.0.1:1", group="g").start())


def test_broadcasting_consumers_have_an_id_that_stays():
    """`ip@DEFAULT`, as RocketMQ's: their offset file is found again after a restart."""

    async def story() -> list[str]:
        ids = []
        for instance in ("", "second"):
            consumer = Consumer(
                "127.0.0.1:1", group="g", message_model="broadcasting", instance=instance
            )
            session = await consumer._access.open()
            ids.append(session.client_id.partition("@")[2])
            await consumer.close()
        return ids

    assert asyncio.run(story()) == ["DEFAULT", "second"]


def test_a_second_consumer_of_the_group_on_one_client_is_refused():
    """To a broker both would be one: the error says what to do."""

    async def story(kit: Kit) -> None:
        node, session = await kit.client()
        consumers = [Consumer(session, group=GROUP) for _ in range(2)]
        for consumer in consumers:

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None: ...

        await kit.start(node, session, consumers[0])
        with pytest.raises(UsageError, match="instance="):
            await node.run(consumers[1].start())

    play(story)


@pytest.mark.parametrize(("run_max_ms", "pauses"), [(60_000, 0), (200, 4)])
def test_a_queue_pauses_after_its_longest_run(run_max_ms: int, pauses: int):
    """`run_max_ms` of handlers without a break, then 10 ms in which others get their turn."""

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=ConsumerConfig(run_max_ms=run_max_ms))
        consumer, got = await handler_of(kit, seconds=0.02, config=config)
        await kit.send(50, key="k")
        began = kit.loop.time()
        await begin(kit, consumer)
        await kit.until(lambda: len(got) == 50)
        spent_ms = (kit.loop.time() - began) * 1000
        assert pauses * 10 <= spent_ms - 50 * 20 < pauses * 10 + 40

    play(story)


@pytest.mark.parametrize("order", ["queue", "key"])
def test_an_ordered_broadcast_tries_again_and_drops_nothing(order: str, tmp_path: Path):
    """Each member holds its own queue, or key, until the message is done, or dead-lettered."""
    consumers = ConsumerConfig(offsets_dir=str(tmp_path))

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=consumers)
        model = {"config": config, "message_model": "broadcasting"}
        members = [await consumer_of(kit, **model) for _ in range(2)]
        seen: list[list[tuple[int, int]]] = [[], []]
        for number, policy in enumerate((Block(), DeadLetter(attempts=2))):

            def handler(number: int = number) -> Handle:
                async def handle(message: ReceivedMessage) -> None:
                    seen[number].append((message.offset, message.attempt))
                    if message.offset == 0 and message.attempt < 5:
                        raise ValueError("not yet")

                return handle

            members[number].on(TOPIC, order=order, on_failure=policy)(handler())
        await kit.send(2, key="k")
        for member in members:
            await begin(kit, member)
        await kit.until(lambda: all((1, 1) in one for one in seen))
        assert seen[0] == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1)]
        assert seen[1] == [(0, 1), (0, 2), (0, 3), (1, 1)]
        assert [member.statistics().dropped for member in members] == [0, 0]
        assert [one.body for one in await kit.stored(f"%DLQ%{GROUP}")] == [b"0"]

    play(story)


def test_class_handlers_and_hooks():
    """A class with `handle` is made and called; hooks see every call and its end."""

    async def story(kit: Kit) -> None:
        seen: list[tuple[str, int, str]] = []
        node, session = await kit.client()
        consumer = Consumer(
            session,
            group=GROUP,
            consume_from="first",
            before_handle=lambda one: seen.append(("before", one.messages[0].offset, one.status)),
            after_handle=lambda one: seen.append(("after", one.messages[0].offset, one.status)),
        )

        @consumer.on(TOPIC)
        class Bill:
            def __init__(self) -> None:
                self.failed = False

            async def handle(self, message: ReceivedMessage) -> None:
                if not self.failed:
                    self.failed = True
                    raise ValueError("once")
                kit.got.append(message)

        await kit.send(1)
        await kit.start(node, session, consumer)
        await kit.until(lambda: len(kit.got) == 1)
        assert seen == [
            ("before", 0, ""), ("after", 0, "SUSPEND_CURRENT_QUEUE_A_MOMENT"),
            ("before", 0, ""), ("after", 0, "SUCCESS"),
        ]  # fmt: skip

    play(story)


def test_tags_are_filtered_by_the_broker_and_compared_here():
    """Only the tags asked for arrive; the offset moves past the others."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, tag="even || other")
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)

        for number in range(10):
            tag = "odd" if number % 2 else "even"
            await kit.producer.send(TOPIC, b"%d" % number, key="k", tag=tag)
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 5)
        await asyncio.sleep(25)  # the end of the next pull
        assert {m.tag for m in kit.got} == {"even"}
        assert await kit.committed() == 10

    play(story)


def test_received_messages_tell_where_they_come_from():
    """Queue, offset, times, properties, attempt: what a handler may want to know."""

    async def story(kit: Kit) -> None:
        consumer, _ = await handler_of(kit, seconds=0)
        await kit.producer.send(TOPIC, b"x", key="k", tag="t", properties={"colour": "red"})
        await begin(kit, consumer)
        await kit.until(lambda: len(kit.got) == 1)
        (message,) = kit.got
        assert (message.queue, message.offset, message.attempt) == (QUEUE, 0, 1)
        assert (message.key, message.tag, message.properties["colour"]) == ("k", "t", "red")
        assert message.stored_at_ms >= message.born_at_ms > 0
        assert replace(message, redeliveries=2).attempt == 3

    play(story)
