"""`inorder.client.admin` against a name server and a broker in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest

from inorder.broker.broker import Broker
from inorder.client.admin import Admin
from inorder.client.admin.cluster import NoBroker
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.clock import SystemClock
from inorder.config import BrokerConfig
from inorder.disk import OsFiles
from inorder.errors import (
    GroupNotFound,
    NotFound,
    OffsetOutOfRange,
    TopicNotRouted,
    UsageError,
)
from inorder.model import GroupConfig, Subscription, TopicConfig, TopicQueue
from inorder.wire.ids import offset_message_id
from inorder.wire.requests.groups import ConsumerData
from inorder.wire.requests.pulls import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessage,
)
from tests.integration.brokerkit import until
from tests.kit.cluster import Cluster

pytestmark = pytest.mark.slow

TOPIC = "orders"
LONG_AGO = datetime(2001, 1, 1)


def play(story: Callable[[Cluster, Session, Admin], Awaitable[None]]) -> None:
    """Run a story against a fresh cluster."""

    async def main() -> None:
        async with Cluster() as cluster:
            session = await cluster.session()
            await story(cluster, session, Admin(session))

    asyncio.run(main())


def queue_of(index: int) -> TopicQueue:
    """Name a queue of the only broker."""
    return TopicQueue(TOPIC, "broker-a", index)


async def fill(cluster: Cluster, admin: Admin, *, count: int = 6, queues: int = 2) -> list[str]:
    """Make the topic and send messages with keys order-0, order-1, ...; return their ids."""
    await admin.topics.create(TOPIC, queues=queues)
    producer = await cluster.producer()
    found = []
    for number in range(count):
        key = f"order-{number}"
        receipt = await producer.send(TOPIC, key.encode(), key=key, keys=[key])
        found.append(receipt.message_id)
    return found


def test_a_topic_from_birth_to_death() -> None:
    """Create, list, describe, update and delete, as name server and broker tell it."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        await fill(cluster, admin)
        assert TOPIC in await admin.topics.names()
        assert "TBW102" not in await admin.topics.names()
        assert "TBW102" in await admin.topics.names(system=True)
        assert (await admin.topics.table())[TOPIC]["broker-a"].write_queues == 2
        view = await admin.topics.describe(TOPIC)
        assert (view.messages, len(view.queues), view.put_rate) == (6, 2, pytest.approx(0.1))
        await admin.topics.update(TOPIC, perm=4)
        config = (await admin.topics.configs(TOPIC))["broker-a"]
        assert (config.perm, config.read_queues) == (4, 2)
        with pytest.raises(UsageError, match="topic resize orders --queues TOTAL"):
            await admin.topics.update(TOPIC, queues=1, shrink=True)
        await admin.topics.resize(TOPIC, queues=1)
        assert len((await admin.topics.describe(TOPIC)).queues) == 1
        await admin.topics.delete(TOPIC)
        assert TOPIC not in await admin.topics.names()
        for call in (admin.topics.delete, admin.topics.describe):
            with pytest.raises(TopicNotRouted, match="create it"):
                await call(TOPIC)

    play(story)


def test_an_ordered_topic_is_told_to_the_name_server() -> None:
    """Its queues stand in the name server's table, as RocketMQ's tool puts them there."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        await admin.topics.create(TOPIC, queues=3, order=True)
        kept = await session.ask_name_server(lambda api: api.get_kv("ORDER_TOPIC_CONFIG", TOPIC))
        assert kept == "broker-a:3"
        await admin.topics.delete(TOPIC)
        with pytest.raises(NotFound):
            await session.ask_name_server(lambda api: api.get_kv("ORDER_TOPIC_CONFIG", TOPIC))

    play(story)


def test_a_group_from_birth_to_death() -> None:
    """Create, list, describe with members, producers, and delete with its retry topic."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        await fill(cluster, admin)
        await admin.groups.create(GroupConfig("billing", retry_max_times=3))
        assert await admin.groups.names() == ["billing"]
        assert "TOOLS_CONSUMER" in await admin.groups.names(system=True)
        assert (await admin.groups.describe("billing")).members == ()
        other = await cluster.session()
        await other.route(TOPIC)
        other.set_consumer(ConsumerData("billing", subscriptions=(Subscription(TOPIC),)))
        other.add_producer("shop")
        await other.heartbeat()
        view = await admin.groups.describe("billing")
        assert [member.client_id for member in view.members] == [other.client_id]
        assert view.configs["broker-a"].retry_max_times == 3
        assert view.subscriptions[TOPIC].expression == "*"
        (producers,) = (await admin.groups.producers("shop")).values()
        assert [one.client_id for one in producers] == [other.client_id]
        assert await admin.groups.producers("nobody") == {}
        with pytest.raises(UsageError, match="online with 1 clients"):
            await admin.offsets.set("billing", queue_of(0), 0)
        await admin.groups.delete("billing")
        assert await admin.groups.names() == []
        with pytest.raises(TopicNotRouted):
            await admin.cluster.route("%RETRY%billing")
        with pytest.raises(GroupNotFound, match="no broker knows group billing"):
            await admin.groups.delete("billing")
        with pytest.raises(GroupNotFound):
            await admin.groups.describe("billing")

    play(story)


def test_offsets_are_got_set_and_reset() -> None:
    """By offset and by time, on a group that is not online; lag follows."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        await fill(cluster, admin)
        await admin.groups.create(GroupConfig("g"))
        offsets, ends = admin.offsets, {}
        for one in await offsets.get("g", TOPIC):
            assert (one.min_offset, one.committed_offset) == (0, None)
            ends[one.queue] = one.max_offset
        assert sum(ends.values()) == 6
        assert await admin.groups.lag("g") == []
        await offsets.set("g", queue_of(0), 1)
        assert [one.committed_offset for one in await offsets.get("g", TOPIC)] == [1, None]
        lag = {one.queue: one.lag for one in await admin.groups.lag("g")}
        assert lag == {queue_of(0): ends[queue_of(0)] - 1, queue_of(1): ends[queue_of(1)]}
        with pytest.raises(UsageError, match="lies outside of queue 0"):
            await offsets.set("g", queue_of(0), 99)
        assert await offsets.reset("g", TOPIC, "end") == ends
        assert sum(one.lag for one in await admin.groups.lag("g", TOPIC)) == 0
        assert await offsets.reset("g", TOPIC, "beginning") == dict.fromkeys(ends, 0)
        assert await offsets.reset_queue("g", queue_of(1), 1) == 1
        with pytest.raises(UsageError, match="waits for its next pull"):
            await offsets.set("g", queue_of(1), 0)

    play(story)


def test_a_waiting_pull_learns_of_a_reset_at_once() -> None:
    """It is answered "offset moved" with the new offset; the next pull goes on from there."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        await fill(cluster, admin, queues=1)
        await admin.groups.create(GroupConfig("g"))
        api = await cluster.broker()
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND
        held = asyncio.create_task(
            api.pull_message(
                PullMessage("g", TOPIC, 0, 6, 32, flags, 0, 30_000, 0, "*", "TAG"),
                timeout_ms=10_000,
            )
        )
        broker = cluster.embedded._broker
        assert broker is not None
        await until(lambda: len(broker.waits) > 0 or held.done())
        await admin.offsets.reset_queue("g", queue_of(0), 2)
        answer = await held
        assert (answer.code, answer.reply.next_begin_offset) == (21, 2)
        assert (answer.reply.min_offset, answer.reply.max_offset) == (0, 6)
        again = await api.pull_message(
            PullMessage("g", TOPIC, 0, 2, 32, flags, 0, 30_000, 0, "*", "TAG")
        )
        assert (again.code, again.records()[0].queue_offset) == (0, 2)

    play(story)


def test_a_pull_that_commits_does_not_undo_a_reset() -> None:
    """The offset that it brings is of before; afterwards commits count again."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        await fill(cluster, admin, queues=1)
        await admin.groups.create(GroupConfig("g"))
        await admin.offsets.reset("g", TOPIC, "beginning")
        api = await cluster.broker()
        commits = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
        request = PullMessage("g", TOPIC, 0, 6, 32, commits, 6, 0, 0, "*", "TAG")
        first = await api.pull_message(request)
        assert (first.code, first.reply.next_begin_offset) == (21, 0)
        assert await api.query_offset("g", queue_of(0)) == 0
        second = await api.pull_message(request)
        assert second.code == 19
        assert await api.query_offset("g", queue_of(0)) == 6

    play(story)


def test_messages_are_found() -> None:
    """By both ids, by key, by offset and by time; what is not there says so."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        ids = await fill(cluster, admin)
        messages = admin.messages
        (found,) = await messages.by_id(TOPIC, ids[3])
        assert found.body == b"order-3"
        host = cluster.embedded._broker
        assert host is not None
        stored_id = offset_message_id(host.store_host, found.position)
        assert await messages.by_id(TOPIC, stored_id) == [found]
        for unknown in ("0" * 32, ids[3][:-1], "not an id"):
            with pytest.raises(NotFound, match="has no message"):
                await messages.by_id(TOPIC, unknown)
        assert await messages.by_key(TOPIC, "order-3") == [found]
        assert await messages.by_key(TOPIC, "order-3", until=LONG_AGO) == []
        assert await messages.by_offset(found.queue, found.offset) == found
        with pytest.raises(OffsetOutOfRange, match="it goes from 0 to below"):
            await messages.by_offset(found.queue, 99)
        all_of_them = await messages.by_time(TOPIC, LONG_AGO)
        assert sorted(one.message_id for one in all_of_them) == sorted(ids)
        assert len(await messages.by_time(TOPIC, count=2)) == 2
        assert await messages.by_time(TOPIC, None, LONG_AGO) == []

    play(story)


def test_the_cluster_tells_of_its_brokers() -> None:
    """Names, addresses, numbers and settings; an unknown broker is named with those there are."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        address = cluster.embedded.broker_address
        (node,) = await admin.cluster.brokers()
        assert (node.cluster, node.name, node.address) == ("DefaultCluster", "broker-a", address)
        assert node.is_master
        assert await admin.cluster.find(address) == await admin.cluster.find("broker-a") == node
        assert (await admin.cluster.runtime("broker-a"))["brokerVersionDesc"] == "V5_3_3"
        assert (await admin.cluster.settings(address))["brokerName"] == "broker-a"
        with pytest.raises(UsageError, match=r"no broker b is registered; there is: broker-a"):
            await admin.cluster.find("b")
        with pytest.raises(NoBroker, match="the name server knows DefaultCluster/broker-a"):
            await admin.topics.create(TOPIC, cluster="elsewhere")
        with pytest.raises(UsageError, match="has no queue 9"):
            await fill(cluster, admin)
            await admin.topics.find_queue(TOPIC, 9)

    play(story)


def test_two_brokers_are_operated_as_one(tmp_path: Path) -> None:
    """Each master is told, answers are put together, and a queue needs its broker's name."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        config = BrokerConfig(name="broker-b", port=0, data=str(tmp_path), namesrv=cluster.namesrv)
        second = Broker(config, SystemClock(), OsFiles())
        await second.start()
        try:
            await admin.topics.create(TOPIC, queues=2, order=True)
            await admin.groups.create(GroupConfig("g"))
            kept = await session.ask_name_server(
                lambda api: api.get_kv("ORDER_TOPIC_CONFIG", TOPIC)
            )
            assert kept == "broker-a:2;broker-b:2"
            producer = await cluster.producer()
            ids = [
                (await producer.send(TOPIC, b"x", key=f"k{n}", keys=["all"])).message_id
                for n in range(8)
            ]
            view = await admin.topics.describe(TOPIC)
            assert list(view.configs) == ["broker-a", "broker-b"]
            assert (view.messages, len(view.queues)) == (8, 4)
            assert {queue.queue.broker for queue in view.queues if queue.messages} == {
                "broker-a",
                "broker-b",
            }
            assert len(await admin.messages.by_key(TOPIC, "all")) == 8
            for one in ids:
                assert len(await admin.messages.by_id(TOPIC, one)) == 1
            await admin.offsets.reset("g", TOPIC, "beginning")
            assert sum(one.lag for one in await admin.groups.lag("g")) == 8
            with pytest.raises(UsageError, match="has queue 0 on broker-a, broker-b"):
                await admin.topics.find_queue(TOPIC, 0)
            found = await admin.topics.find_queue(TOPIC, 0, "broker-b")
            assert found == TopicQueue(TOPIC, "broker-b", 0)
            await admin.topics.delete(TOPIC)
            assert TOPIC not in second.topics
        finally:
            await second.stop()

    play(story)


def test_a_topic_has_a_key_map_that_follows_its_queues() -> None:
    """At the broker and at the name server; producers take over the next version by themselves."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        async def kept() -> str | None:
            return await session.ask_name_server(lambda api: api.get_kv("INORDER_KEYMAP", TOPIC))

        for _ in range(2):  # again is no change
            await admin.topics.create(TOPIC, queues=2)
            config = (await admin.topics.configs(TOPIC))["broker-a"]
            assert config.attributes["inorder.keymap"] == await kept() == "1/broker-a:0-1"
        async with Producer(session) as producer:
            keys = [f"key-{n}" for n in range(20)]
            sends = [producer.send_nowait(TOPIC, b"x", key=key) for key in keys for _ in range(5)]
            await admin.topics.resize(TOPIC, queues=3)
            sends += [producer.send_nowait(TOPIC, b"x", key=key) for key in keys for _ in range(5)]
            receipts = await asyncio.gather(*sends)
            assert {receipt.queue.index for receipt in receipts[100:]} == {0, 1, 2}
        assert await kept() == "2/broker-a:0-2"
        assert (await admin.topics.describe(TOPIC)).messages == 200
        await admin.topics.delete(TOPIC)
        with pytest.raises(NotFound):
            await kept()
        await admin.topics.create(TOPIC, queues=2)
        assert await kept() == "3/broker-a:0-1", "versions of a name are never used again (A5)"

    play(story)


def test_a_topic_without_a_key_map_keeps_its_messages_readable() -> None:
    """Other queue counts are set as they are; fewer only if the caller says that he means it."""

    async def story(cluster: Cluster, session: Session, admin: Admin) -> None:
        api = await session.broker_at((await admin.cluster.masters())[0].address)
        await api.create_topic(TopicConfig("plain", 2, 2))
        await admin.topics.update("plain", queues=3)
        with pytest.raises(UsageError, match="could not be read any more"):
            await admin.topics.update("plain", queues=1)
        await admin.topics.update("plain", queues=1, shrink=True)
        assert (await admin.topics.configs("plain"))["broker-a"].read_queues == 1
        status = await admin.topics.resize("plain", queues=4)
        assert (status.version, status.queues) == (1, 4), "its first map"

    play(story)
