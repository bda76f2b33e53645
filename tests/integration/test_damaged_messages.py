"""One body that nobody can unpack, in the middle of a queue: what each kind of consumer does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import inorder
from inorder import aio
from inorder.client.session import Session
from inorder.errors import CorruptRecord
from inorder.model import ReceivedMessage, TopicQueue
from inorder.testing import RunningBroker
from inorder.testing import broker as running_broker
from inorder.wire.header import Command
from tests.integration.brokerkit import send_fields

pytestmark = pytest.mark.slow

TOPIC, GROUP, BAD, COUNT = "Orders", "CG", 5, 10
QUEUE = TopicQueue(TOPIC, "broker-a", 0)
GOOD = [b"%d" % number for number in range(COUNT)]


@contextlib.contextmanager
def damaged() -> Iterator[RunningBroker]:
    """A broker with ten messages in queue 0; the sixth says it is zlib and is not."""
    with running_broker() as broker:
        broker.create_topic(TOPIC, queues=1)
        asyncio.run(_fill(broker))
        yield broker


async def _fill(broker: RunningBroker) -> None:
    async with Session(broker.namesrv) as session:
        api = await session.broker_at(broker.address)
        for number, body in enumerate(GOOD):
            flags = "1" if number == BAD else "0"
            fields = send_fields(b=TOPIC, e="0", f=flags, i=f"__SHARDINGKEY\x01k{number % 2}\x02")
            answer = await api._connection.call(Command.request(310, fields, body), 10_000)
            assert answer.code == 0, answer.remark


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [one.body for one in messages]


def test_a_blocking_pull_consumer_gets_what_is_whole() -> None:
    """Five, then an error that names the offset, as often as it asks; behind a seek the rest."""
    with damaged() as broker, inorder.PullConsumer(broker.namesrv, group=GROUP) as consumer:
        assert bodies(list(consumer.pull(QUEUE, 0).messages)) == GOOD[:BAD]
        consumer.assign([QUEUE])
        consumer.seek(QUEUE, 0)
        got: list[ReceivedMessage] = []
        while len(got) < BAD:
            got += consumer.poll(10)
        assert bodies(got) == GOOD[:BAD]
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=f"offset {BAD}"):
                consumer.poll(10)
        consumer.commit()
        assert consumer.committed(QUEUE) == BAD
        consumer.seek(QUEUE, BAD + 1)
        got = []
        while len(got) < COUNT - BAD - 1:
            got += consumer.poll(10)
        assert bodies(got) == GOOD[BAD + 1 :]


def test_an_async_pull_consumer_gets_what_is_whole() -> None:
    """The same of `aio`, also where a queue is read to its end."""

    async def main(namesrv: str) -> None:
        async with aio.PullConsumer(namesrv, group=GROUP) as consumer:
            got: list[ReceivedMessage] = []
            with pytest.raises(CorruptRecord, match=f"offset {BAD}"):
                async for message in consumer.pull_all(QUEUE):
                    got += [message]
            assert bodies(got) == GOOD[:BAD]
            rest = [one async for one in consumer.pull_all(QUEUE, BAD + 1)]
            assert bodies(rest) == GOOD[BAD + 1 :]

    with damaged() as broker:
        asyncio.run(main(broker.namesrv))


def committed(namesrv: str) -> int:
    """Return how far the group is."""
    with inorder.PullConsumer(namesrv, group=GROUP) as reader:
        return reader.committed(QUEUE) or 0


def skip(namesrv: str) -> None:
    """Let the group go on behind the damaged message, as an operator does."""
    with inorder.PullConsumer(namesrv, group=GROUP) as reader:
        reader.commit(QUEUE, BAD + 1)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something to happen."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.parametrize("order", ["queue", "key", None])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_consumer_handles_what_is_whole_and_waits(kind: str, order: Any) -> None:
    """It commits up to the damaged message and passes it only when an operator says so."""
    got: list[bytes] = []

    @contextlib.contextmanager
    def consuming(namesrv: str) -> Iterator[None]:
        consumer = inorder.Consumer(namesrv, group=GROUP, consume_from="first")
        if kind == "blocking":

            @consumer.on(TOPIC, order=order)
            def handle(message: ReceivedMessage) -> None:
                got.append(message.body)

        else:

            @consumer.on(TOPIC, order=order)
            async def handle_async(message: ReceivedMessage) -> None:
                got.append(message.body)

        with consumer:
            yield

    with damaged() as broker:
        with consuming(broker.namesrv):
            until(lambda: len(got) >= BAD and committed(broker.namesrv) == BAD)
            assert sorted(got) == GOOD[:BAD]
            time.sleep(1.5)  # it is pulled again and again
            assert len(got) == BAD
            assert committed(broker.namesrv) == BAD, "it is not passed"
        skip(broker.namesrv)
        with consuming(broker.namesrv):
            until(lambda: len(got) >= COUNT - 1)
        assert sorted(got) == GOOD[:BAD] + GOOD[BAD + 1 :]


def test_an_admin_reads_what_is_whole() -> None:
    """`inorder tail` and `message` show the messages before it, then the error."""
    with damaged() as broker, inorder.Admin(broker.namesrv) as admin:
        read = admin.messages.read(QUEUE, 0, count=32)
        assert (bodies(list(read.messages)), read.next_offset) == (GOOD[:BAD], BAD)
        with pytest.raises(CorruptRecord, match=f"offset {BAD}"):
            admin.messages.read(QUEUE, BAD)
