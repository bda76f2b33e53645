"""Every verb of `Admin`, on our broker and on Apache RocketMQ alike."""

from __future__ import annotations

import ast
import inspect
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inorder.aio import Admin, Producer, ReceivedMessage, Session, TopicQueue
from inorder.client.admin import Cluster, Groups, Messages, Offsets, Topics
from inorder.client.admin.cluster import NoBroker
from inorder.errors import (
    GroupNotFound,
    NoPermission,
    NotFound,
    OffsetOutOfRange,
    SystemError_,
    TopicNotRouted,
    UsageError,
)
from inorder.model import GroupConfig, Subscription
from inorder.wire.ids import offset_message_id, pack_host
from inorder.wire.requests.groups import ConsumerData
from tests.suite.conftest import SuiteCluster, make_topic, until, until_shown

pytestmark = pytest.mark.slow

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


def queue_of(topic: str, index: int = 0) -> TopicQueue:
    """Name a queue of the only broker."""
    return TopicQueue(topic, "broker-a", index)


async def fill(cluster: SuiteCluster, session: Session, topic: str, count: int = 6) -> list[str]:
    """Send order-0, order-1, ... with that key; queues 0 and 1 in turn; return the ids."""
    async with Producer(session) as producer:
        ids = [
            (
                await producer.send(
                    topic, b"order-%d" % n, key=f"order-{n}", keys=[f"order-{n}", "all"],
                    queue=queue_of(topic, n % 2),
                )
            ).message_id
            for n in range(count)
        ]  # fmt: skip
    await until_shown(cluster, session, topic, count)
    return ids


def test_a_topic_from_birth_to_death(cluster: SuiteCluster) -> None:
    """create, names, table, configs, describe, find_queue, update, delete."""
    topic = cluster.unique("orders")

    async def story(session: Session, admin: Admin) -> None:
        topics = admin.topics
        await make_topic(admin, topic, queues=2)
        await fill(cluster, session, topic)
        assert topic in await topics.names()
        assert "TBW102" not in await topics.names()
        assert "TBW102" in await topics.names(system=True)
        assert (await topics.table())[topic]["broker-a"].write_queues == 2
        config = (await topics.configs(topic))["broker-a"]
        assert (config.read_queues, config.write_queues, config.perm) == (2, 2, 6)
        view = await topics.describe(topic)
        assert (view.messages, len(view.queues)) == (6, 2)
        assert [queue.max_offset for queue in view.queues] == [3, 3]
        assert await topics.find_queue(topic, 1) == queue_of(topic, 1)
        with pytest.raises(UsageError, match="has no queue 9"):
            await topics.find_queue(topic, 9)
        await topics.update(topic, perm=4)
        assert (await topics.configs(topic))["broker-a"].perm == 4
        await topics.update(topic, perm=6)
        if cluster.differs("resize"):
            await topics.update(topic, queues=3)
            with pytest.raises(UsageError, match="could not be read any more"):
                await topics.update(topic, queues=1)
            for refused in (
                topics.resize(topic, queues=4),
                topics.resize_status(topic),
                topics.abort_resize(topic),
            ):
                with pytest.raises(UsageError, match="cannot resize a topic in order"):
                    await refused
        else:
            with pytest.raises(UsageError, match="inorder topic resize"):
                await topics.update(topic, queues=3)
            await topics.resize(topic, queues=3)
            version = (await topics.resize_status(topic)).version
            assert (await topics.abort_resize(topic)).version == version  # it is over
            assert await topics.release_group(topic, "nobody") == version
            with pytest.raises(UsageError, match="nothing to repair"):
                await topics.repair(topic)
        assert len((await topics.describe(topic)).queues) == 3
        await topics.delete(topic)
        await until(lambda: _gone(admin, topic))
        for call in (topics.delete, topics.describe, topics.configs):
            with pytest.raises(TopicNotRouted):
                await call(topic)

    cluster.play(story)


async def _gone(admin: Admin, topic: str) -> bool:
    return topic not in await admin.topics.names()


def test_an_ordered_topic_is_told_to_the_name_server(cluster: SuiteCluster) -> None:
    """`create(order=True)` writes its queues into the name server's table."""
    topic = cluster.unique("ordered")

    async def story(session: Session, admin: Admin) -> None:
        await admin.topics.create(topic, queues=3, order=True)
        kept = await session.ask_name_server(lambda api: api.get_kv("ORDER_TOPIC_CONFIG", topic))
        assert kept == "broker-a:3"
        await until(lambda: _routed(admin, topic))
        await admin.topics.delete(topic)
        with pytest.raises(NotFound):
            await session.ask_name_server(lambda api: api.get_kv("ORDER_TOPIC_CONFIG", topic))

    cluster.play(story)


async def _routed(admin: Admin, topic: str) -> bool:
    try:
        return bool((await admin.cluster.route(topic)).queues)
    except TopicNotRouted:
        return False


def test_a_group_from_birth_to_death(cluster: SuiteCluster, topic: str) -> None:
    """create, names, table, configs, describe, consumers, producers, delete."""
    group, shop = cluster.unique("billing"), cluster.unique("shop")

    async def story(session: Session, admin: Admin) -> None:
        groups = admin.groups
        await fill(cluster, session, topic)
        await groups.create(GroupConfig(group, retry_max_times=3))
        assert group in await groups.names()
        assert "TOOLS_CONSUMER" not in await groups.names()
        assert "TOOLS_CONSUMER" in await groups.names(system=True)
        assert (await groups.table())[group]["broker-a"].retry_max_times == 3
        await groups.create(GroupConfig(group, retry_max_times=5))
        assert (await groups.configs(group))["broker-a"].retry_max_times == 5
        assert (await groups.describe(group)).members == ()
        assert await groups.consumers(group) == {}
        async with Session(cluster.namesrv) as other:
            await other.route(topic)
            other.set_consumer(ConsumerData(group, subscriptions=(Subscription(topic),)))
            other.add_producer(shop)
            await other.heartbeat()
            view = await groups.describe(group)
            assert [member.client_id for member in view.members] == [other.client_id]
            assert view.subscriptions[topic].expression == "*"
            (online,) = (await groups.consumers(group)).values()
            assert [one.client_id for one in online.connections] == [other.client_id]
            (senders,) = (await groups.producers(shop)).values()
            assert [one.client_id for one in senders] == [other.client_id]
            with pytest.raises(UsageError, match="online with 1 clients"):
                await admin.offsets.set(group, queue_of(topic), 0)
        assert await groups.producers(cluster.unique("nobody")) == {}
        await groups.delete(group)
        assert group not in await groups.names()
        for call in (groups.delete, groups.describe, groups.configs):
            with pytest.raises(GroupNotFound, match="no broker knows group"):
                await call(group)

    cluster.play(story)


def test_offsets_are_got_set_and_reset(cluster: SuiteCluster, topic: str) -> None:
    """get, at_time, set, reset, reset_queue; the lag of the group follows."""
    group = cluster.unique("readers")

    async def story(session: Session, admin: Admin) -> None:
        offsets = admin.offsets
        await fill(cluster, session, topic)
        await admin.groups.create(GroupConfig(group))
        queues = [one.queue for one in await offsets.get(group, topic)]
        assert [queue.index for queue in queues] == [0, 1, 2, 3]
        assert [
            (one.min_offset, one.max_offset, one.committed_offset)
            for one in await offsets.get(group, topic)
        ] == [(0, 3, None), (0, 3, None), (0, 0, None), (0, 0, None)]
        await offsets.set(group, queues[0], 1)
        assert (await offsets.get(group, topic))[0].committed_offset == 1
        lag = {one.queue.index: one.lag for one in await admin.groups.lag(group, topic)}
        assert (lag[0], sum(lag.values())) == (2, 5)
        with pytest.raises(UsageError, match="lies outside of queue 0"):
            await offsets.set(group, queues[0], 99)
        assert await offsets.at_time(queues[0], LONG_AGO) == 0
        ends = await offsets.reset(group, topic, "end")
        assert [ends[queue] for queue in queues] == [3, 3, 0, 0]
        assert sum(one.lag for one in await admin.groups.lag(group)) == 0
        assert await offsets.reset(group, topic, "beginning") == dict.fromkeys(queues, 0)
        assert sum(one.lag for one in await admin.groups.lag(group, topic)) == 6
        assert await offsets.reset_queue(group, queues[1], 2) == 2
        with pytest.raises(UsageError, match="waits for its next pull"):
            await offsets.set(group, queues[1], 0)

    cluster.play(story)


def test_messages_are_found(cluster: SuiteCluster, topic: str) -> None:
    """by_id with both ids, by_key, by_offset, by_time, read; what is not there says so."""

    async def story(session: Session, admin: Admin) -> None:
        messages = admin.messages
        ids = await fill(cluster, session, topic)
        if cluster.differs("shown-at-once"):
            await until(lambda: messages.by_key(topic, "order-5"))
        found: list[ReceivedMessage] = await messages.by_key(topic, "order-5")
        assert [one.message_id for one in found] == [ids[5]]
        assert len(await messages.by_key(topic, "all")) == 6
        assert len(await messages.by_key(topic, "all", count=2)) == 2
        assert await messages.by_key(topic, "order-3", until=LONG_AGO) == []
        assert await messages.by_key(topic, "order-33") == []
        (third,) = await messages.by_id(topic, ids[3])
        assert third.body == b"order-3"
        (node,) = await admin.cluster.brokers()
        host, _, port = node.address.rpartition(":")
        place = offset_message_id(pack_host(host, int(port)), third.position)
        assert await messages.by_id(topic, place) == [third]
        for unknown in ("0" * 32, ids[3][:-1], "not an id"):
            with pytest.raises(NotFound, match="has no message"):
                await messages.by_id(topic, unknown)
        assert await messages.by_offset(third.queue, third.offset) == third
        with pytest.raises(OffsetOutOfRange, match="it goes from 0 to below 3"):
            await messages.by_offset(third.queue, 99)
        batch = await messages.read(queue_of(topic, 1), 1)
        assert [one.body for one in batch.messages] == [b"order-3", b"order-5"]
        assert (batch.next_offset, batch.end_offset) == (3, 3)
        everything = await messages.by_time(topic, LONG_AGO)
        assert sorted(one.message_id for one in everything) == sorted(ids)
        assert len(await messages.by_time(topic, count=2)) == 2
        assert await messages.by_time(topic, until=LONG_AGO) == []

    cluster.play(story)


def test_the_cluster_tells_of_its_brokers(cluster: SuiteCluster, topic: str) -> None:
    """info, brokers, masters, find, api, each, route, settings."""

    async def story(_: Session, admin: Admin) -> None:
        nodes = admin.cluster
        (node,) = await nodes.brokers()
        assert (node.cluster, node.name, node.is_master) == ("DefaultCluster", "broker-a", True)
        assert (await nodes.info()).clusters == {"DefaultCluster": ("broker-a",)}
        assert await nodes.masters() == await nodes.masters(cluster="DefaultCluster") == [node]
        assert await nodes.find(node.address) == await nodes.find("broker-a") == node
        assert topic in await (await nodes.api(node.address)).topics()
        assert topic in (await nodes.each(lambda api: api.topics()))[node]
        assert (await nodes.route(topic)).queues[0].broker_name == "broker-a"
        assert (await nodes.settings(node.address))["brokerName"] == "broker-a"
        with pytest.raises(UsageError, match="no broker b is registered"):
            await nodes.find("b")
        with pytest.raises(NoBroker, match="DefaultCluster/broker-a"):
            await nodes.masters(cluster="elsewhere")

    cluster.play(story)


def test_a_broker_tells_its_numbers(cluster: SuiteCluster) -> None:
    """RocketMQ's names; a real one cannot in its first second."""

    async def story(_: Session, admin: Admin) -> None:
        async def ask() -> dict[str, str]:
            try:
                return await admin.cluster.runtime("broker-a")
            except SystemError_ as error:
                if "NoSuchElementException" not in error.remark:
                    raise
                return {}

        if cluster.differs("runtime-at-start"):
            await until(ask)
        numbers = await admin.cluster.runtime("broker-a")
        assert numbers["brokerVersionDesc"] == "V5_3_3"
        assert int(numbers["putMessageTimesTotal"]) >= 0

    cluster.play(story)


def test_settings_at_run_time(cluster: SuiteCluster) -> None:
    """RocketMQ lets everybody change them; ours refuses unless it was started to allow it."""

    async def story(_: Session, admin: Admin) -> None:
        if not cluster.differs("run-time-settings"):
            with pytest.raises(NoPermission):
                await admin.cluster.update_settings("broker-a", {"traceOn": "false"})
            return
        before = (await admin.cluster.settings("broker-a"))["traceOn"]
        await admin.cluster.update_settings("broker-a", {"traceOn": "false"})
        assert (await admin.cluster.settings("broker-a"))["traceOn"] == "false"
        await admin.cluster.update_settings("broker-a", {"traceOn": before})

    cluster.play(story)


def test_a_broker_deletes_only_what_has_expired(cluster: SuiteCluster, topic: str) -> None:
    """Nothing has: every message stays, and so does its offset."""

    async def story(session: Session, admin: Admin) -> None:
        async with Producer(session) as producer:
            receipt = await producer.send(topic, b"x")
        (node,) = await admin.cluster.brokers()
        await admin.cluster.clean(node.address)
        await until_shown(cluster, session, topic, 1)
        assert (await admin.messages.by_offset(receipt.queue, receipt.offset)).body == b"x"

    cluster.play(story)


def test_traces_of_an_unknown_message_are_none(cluster: SuiteCluster, topic: str) -> None:
    """Any topic can hold traces; a message that is none tells nothing."""

    async def story(session: Session, admin: Admin) -> None:
        async with Producer(session) as producer:
            receipt = await producer.send(topic, b"no trace", keys=["traced"])
        await until_shown(cluster, session, topic, 1)
        assert await admin.messages.traces(receipt.message_id, topic=topic) == []
        assert await admin.messages.traces("traced", topic=topic) == []

    cluster.play(story)


def test_no_verb_is_left_out() -> None:
    """Every public method of `Admin`'s nouns is called somewhere in this suite."""
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else ""
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    verbs = {
        f"{noun.__name__}.{name}"
        for noun in (Cluster, Groups, Messages, Offsets, Topics)
        for name, _ in inspect.getmembers(noun, inspect.isfunction)
        if not name.startswith("_")
    }
    assert {verb for verb in verbs if verb.partition(".")[2] not in called} == set()
