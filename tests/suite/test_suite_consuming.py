"""Consuming as a member of a group, on our broker and on Apache RocketMQ alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

import inorder
from inorder.aio import Admin, Consumer, Producer, ReceivedMessage, Session, TopicQueue
from inorder.client.consume.rules.outcomes import Retry
from tests.suite.conftest import SuiteCluster, until, until_shown

pytestmark = pytest.mark.slow

Handler = Callable[[ReceivedMessage], Awaitable[None]]
HANDLED_S = 40
"""RocketMQ's members learn of each other within a second or two, queues may take longer."""


class Seen:
    """Handles messages by writing them down."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def handle(self, message: ReceivedMessage) -> None:
        """Take it."""
        self.messages.append(message)

    def numbers(self) -> list[int]:
        """Return what came, in its order."""
        return [int(one.body) for one in self.messages]

    async def wait(self, count: int) -> None:
        """Wait until so many came."""

        async def enough() -> bool:
            return len(self.messages) >= count

        await until(enough, seconds=HANDLED_S)


async def fill(
    cluster: SuiteCluster, session: Session, topic: str, count: int, *, first: int = 0
) -> None:
    """Send numbers by ten keys, tags a and b in turn."""
    async with Producer(session) as producer:
        for number in range(first, first + count):
            tag = "b" if number % 2 else "a"
            await producer.send(topic, b"%d" % number, key=f"k{number % 10}", tag=tag)
    await until_shown(cluster, session, topic, first + count)


def consumer_of(
    session: Session, group: str, topic: str, handler: Handler, **how: object
) -> Consumer:
    """Return a consumer of one topic."""
    consumer = Consumer(session, group=group, consume_from="first")
    consumer.on(topic, **how)(handler)  # type: ignore[arg-type]
    return consumer


def in_order_of_keys(numbers: list[int], count: int, *, first: int = 0) -> bool:
    """Tell whether all are there once, each key's in order."""
    return sorted(numbers) == list(range(first, first + count)) and all(
        [number for number in numbers if number % 10 == key]
        == sorted(number for number in numbers if number % 10 == key)
        for key in range(10)
    )


def test_queues_are_handled_in_order_and_go_on_behind_the_commit(
    cluster: SuiteCluster, topic: str
) -> None:
    """All of it once; another consumer of the group gets only what came since."""
    group = cluster.unique("workers")

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 100)
        first, second = Seen(), Seen()
        async with consumer_of(session, group, topic, first.handle, order="queue"):
            await first.wait(100)
        assert in_order_of_keys(first.numbers(), 100)
        await fill(cluster, session, topic, 50, first=100)
        async with (
            Session(cluster.namesrv) as later,
            consumer_of(later, group, topic, second.handle, order="queue"),
        ):
            await second.wait(50)
        assert in_order_of_keys(second.numbers(), 50, first=100)

    cluster.play(story)


def test_a_message_that_is_to_come_again_is_not_overtaken(
    cluster: SuiteCluster, topic: str
) -> None:
    """`Retry` holds its queue; the message comes again, then the next ones."""
    group = cluster.unique("workers")
    seen = Seen()

    async def twice(message: ReceivedMessage) -> None:
        again = int(message.body) in (3, 14) and int(message.body) not in seen.numbers()
        await seen.handle(message)
        if again:
            raise Retry(after=0.05)

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 30)
        async with consumer_of(session, group, topic, twice, order="queue"):
            await seen.wait(32)

    cluster.play(story)
    for index in range(4):
        numbers = [int(one.body) for one in seen.messages if one.queue.index == index]
        assert numbers == sorted(numbers)
    assert sorted(seen.numbers()) == sorted([*range(30), 3, 14])


def test_members_share_the_queues(cluster: SuiteCluster, topic: str) -> None:
    """Two of a group get half of the queues each; when one leaves the other gets all."""
    group = cluster.unique("workers")

    async def story(session: Session, _: Admin) -> None:
        async with Session(cluster.namesrv) as other:
            one, two = Seen(), Seen()
            staying = consumer_of(session, group, topic, one.handle, order="queue")
            leaving = consumer_of(other, group, topic, two.handle, order="queue")

            async def shared() -> bool:
                return len(queues_of(staying)) == len(queues_of(leaving)) == 2

            async def all_of_them() -> bool:
                return len(queues_of(staying)) == 4

            def queues_of(consumer: Consumer) -> set[TopicQueue]:
                return {queue for queue in consumer.assignment() if queue.topic == topic}

            async with staying:
                async with leaving:
                    await until(shared, seconds=HANDLED_S)
                    assert not queues_of(staying) & queues_of(leaving)
                    await fill(cluster, session, topic, 40)
                    await one.wait(40 - len(two.messages))
                    await until_handled((one, two), 40)
                await until(all_of_them, seconds=HANDLED_S)
                await fill(cluster, session, topic, 40, first=40)
                await until_handled((one, two), 80)
        assert sorted(one.numbers() + two.numbers()) == list(range(80))
        assert one.messages
        assert two.messages

    cluster.play(story)


async def until_handled(seen: tuple[Seen, ...], count: int) -> None:
    """Wait until all of them together have so many."""

    async def enough() -> bool:
        return sum(len(one.messages) for one in seen) >= count

    await until(enough, seconds=HANDLED_S)


def test_without_order_many_handlers_run(cluster: SuiteCluster, topic: str) -> None:
    """Of one tag; each message once, several at a time."""
    group = cluster.unique("workers")
    seen, most = Seen(), [0, 0]

    async def slow(message: ReceivedMessage) -> None:
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(0.02)
        most[0] -= 1
        await seen.handle(message)

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 60)
        async with consumer_of(session, group, topic, slow, order=None, tag="b"):
            await seen.wait(30)

    cluster.play(story)
    assert sorted(seen.numbers()) == list(range(1, 60, 2))
    assert most[1] > 4


def test_broadcasting_gives_everything_to_everyone(
    cluster: SuiteCluster, topic: str, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two consumers of one group get all queues each."""
    group = cluster.unique("listeners")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # offsets are kept below it

    async def story(session: Session, _: Admin) -> None:
        await fill(cluster, session, topic, 20)
        async with Session(cluster.namesrv) as other:
            seen = []
            consumers = []
            for one in (session, other):
                seen.append(Seen())
                made = Consumer(
                    one, group=group, consume_from="first", message_model="broadcasting"
                )
                made.on(topic, order=None)(seen[-1].handle)
                consumers.append(made)
            async with consumers[0], consumers[1]:
                for one_seen in seen:
                    await one_seen.wait(20)
        assert [sorted(one.numbers()) for one in seen] == [list(range(20))] * 2

    cluster.play(story)


def test_plain_functions_are_called_in_threads(cluster: SuiteCluster, topic: str) -> None:
    """The blocking consumer: in order, off the main thread, and stopped as one should."""
    cluster.play(lambda session, _: fill(cluster, session, topic, 30))
    consumer = inorder.Consumer(
        cluster.namesrv, group=cluster.unique("workers"), consume_from="first"
    )
    numbers: list[int] = []
    done = threading.Event()

    @consumer.on(topic, order="queue")
    def handle(message: ReceivedMessage) -> None:
        assert threading.current_thread() is not threading.main_thread()
        numbers.append(int(message.body))
        if len(numbers) == 30:
            done.set()

    with consumer:
        assert done.wait(HANDLED_S)
    assert in_order_of_keys(numbers, 30)
