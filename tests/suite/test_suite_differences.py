"""What Apache RocketMQ does otherwise is listed, shown by a test, and not skipped."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from inorder.aio import (
    Admin,
    ClientConfig,
    Consumer,
    Park,
    Producer,
    PullConsumer,
    ReceivedMessage,
    Session,
)
from inorder.errors import UsageError
from inorder.model import Fence, TopicConfig
from tests.crash.frontdoor import FrontDoor
from tests.crash.proxy import Proxy
from tests.suite.conftest import SuiteCluster, make_topic, until
from tests.suite.differences import DIFFERENCES, PAGE, page


def test_the_page_says_what_the_table_says() -> None:
    """`python -m tests.suite.differences` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_difference_is_shown() -> None:
    """Each line of the table is asked for by a test of this suite, and no test skips."""
    source = "".join(
        path.read_text() for path in sorted(Path(__file__).parent.glob("test_suite_*.py"))
    )
    asked = set(re.findall(r'\.differs\("([^"]+)"\)', source))
    assert asked == {difference.name for difference in DIFFERENCES}
    assert not re.search(r"pytest\.(skip|xfail|mark\.skip)", source.replace('r"pytest', ""))


@pytest.mark.slow
def test_a_send_whose_answer_was_lost(cluster: SuiteCluster, tmp_path: Path) -> None:
    """Is sent again: ours stores it once, RocketMQ twice; what comes later lies behind."""
    topic = cluster.unique("lost-answers")

    async def story(session: Session, admin: Admin) -> None:
        await make_topic(admin, topic, queues=1)
        (node,) = await admin.cluster.brokers()
        host, _, port = node.address.rpartition(":")
        proxy, door = Proxy((host, int(port))), FrontDoor(tmp_path)
        await door.start(await proxy.start(), TopicConfig(topic, 1, 1))
        config = ClientConfig(request_timeout_ms=1000)
        async with Session(door.namesrv, config=config) as through, Producer(through) as producer:
            await producer.send(topic, b"0", key="k")
            proxy.lose_answers()
            lost = producer.send_nowait(topic, b"1", key="k")
            later = producer.send_nowait(topic, b"2", key="k")
            receipts = await asyncio.gather(lost, later)
        await door.stop()
        await proxy.stop()
        consumer = PullConsumer(session, group="suite-readers")
        (queue,) = await consumer.queues(topic)
        found = [int(one.body) async for one in consumer.pull_all(queue)]
        if cluster.differs("stored-once"):
            assert found == sorted(found)
            assert set(found) == {0, 1, 2}
            assert found.count(1) > 1, "and others too, if their answers take too long"
        else:
            assert found == [0, 1, 2]
            assert [receipt.offset for receipt in receipts] == [1, 2]

    cluster.play(story)


@pytest.mark.slow
def test_the_client_says_once_what_does_not_hold(
    cluster: SuiteCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where sends cannot be numbered its log tells so, a single time; elsewhere it is silent."""

    async def story(session: Session, _: Admin) -> None:
        for _number in range(2):
            async with Producer(session) as producer:
                for number in range(8):
                    await producer.send(topic, b"%d" % number, key=f"k{number}")

    with caplog.at_level(logging.INFO, logger="inorder.client"):
        cluster.play(story)
    said = [one.getMessage() for one in caplog.records if "numbered sends" in one.getMessage()]
    assert len(said) == (1 if cluster.differs("numbered-sends") else 0), said


@pytest.mark.slow
def test_a_pipeline_that_runs_again(cluster: SuiteCluster, topic: str) -> None:
    """A named producer stores nothing twice; where that cannot be kept it does not begin."""
    name = cluster.unique("pipeline")

    async def run(session: Session, sequences: range) -> list[int]:
        async with Producer(session, id=name) as producer:
            return [
                (await producer.send(topic, b"%d" % number, key="k", sequence=number)).offset
                for number in sequences
            ]

    async def story(session: Session, _: Admin) -> None:
        if cluster.differs("named-producers"):
            with pytest.raises(UsageError, match="named producer"):
                await run(session, range(10, 50, 10))
            return
        assert await run(session, range(10, 50, 10)) == [0, 1, 2, 3]
        assert await run(session, range(10, 70, 10)) == [0, 1, 2, 3, 4, 5]

    cluster.play(story)


def test_who_owns_a_queue_is_told(cluster: SuiteCluster) -> None:
    """Where the broker tells; else the reason is said."""

    async def story(_: Session, admin: Admin) -> None:
        group = cluster.unique("group")
        if cluster.differs("who-holds-locks"):
            with pytest.raises(UsageError, match="does not tell"):
                await admin.locks.list(group)
            return
        assert await admin.locks.list(group) == []

    cluster.play(story)


@pytest.mark.slow
def test_a_handler_can_fence_where_there_are_leases(
    cluster: SuiteCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that grows along the key, and the epoch of the owner; else nothing, said once."""
    fences: list[Fence] = []

    async def story(session: Session, _: Admin) -> None:
        async with Producer(session) as producer:
            for number in range(3):
                await producer.send(topic, b"%d" % number, key="k")
        consumer = Consumer(session, group=cluster.unique("fencers"), consume_from="first")

        @consumer.on(topic)
        async def handle(message: ReceivedMessage) -> None:
            fences.append(message.fence)

        async def handled() -> bool:
            return len(fences) == 3

        async with consumer:
            await until(handled, seconds=40)

    with caplog.at_level(logging.INFO, logger="inorder.client"):
        cluster.play(story)
    said = [one.getMessage() for one in caplog.records if "knows no leases" in one.getMessage()]
    if cluster.differs("fences"):
        assert (set(fences), len(said)) == ({Fence(None, None)}, 1)
        return
    sequences = [fence.sequence for fence in fences if fence.sequence is not None]
    assert sequences == sorted(set(sequences))
    assert len(sequences) == 3
    assert (len({fence.epoch for fence in fences}), said) == (1, [])


@pytest.mark.slow
def test_a_key_that_fails_is_parked_where_it_can_be(cluster: SuiteCluster, topic: str) -> None:
    """Where it cannot be, the consumer says so before it begins."""
    handled: list[str | None] = []

    async def story(session: Session, admin: Admin) -> None:
        async with Producer(session) as producer:
            for key in ("bad", "good"):
                await producer.send(topic, b"x", key=key)
        group = cluster.unique("parkers")
        consumer = Consumer(session, group=group, consume_from="first")

        @consumer.on(topic, order="key", on_failure=Park(attempts=0))
        async def handle(message: ReceivedMessage) -> None:
            if message.key == "bad":
                raise ValueError("it fails")
            handled.append(message.key)

        if cluster.differs("parking"):
            with pytest.raises(UsageError, match="keeps no parked keys"):
                await consumer.start()
            await consumer.close()
            return

        async def parked() -> bool:
            return [one.key for one in await admin.parked.list(group)] == ["bad"]

        async with consumer:
            await until(parked)
        assert handled == ["good"]

    cluster.play(story)
