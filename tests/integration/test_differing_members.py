"""Members of one group that subscribe differently: said by broker and client, shown, refused."""

from __future__ import annotations

import logging

import pytest

from inorder.client.access import Access
from inorder.client.admin.cluster import Cluster
from inorder.client.admin.groups import Groups
from inorder.client.consume.consumer import Consumer
from inorder.config import BrokerConfig
from inorder.errors import BrokerError, SubscriptionsDiffer
from inorder.model import ReceivedMessage
from inorder.wire.extensions import ExtensionAnswer
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData
from inorder.wire.requests.pulls import parse_subscription
from tests.integration.consumerkit import GROUP, TOPIC, Kit, begin, consumer_of, place, play

BROKER, CLIENT = "inorder.broker.groups.handlers", "inorder.client.groups"
REFUSES = BrokerConfig(refuse_different_subscriptions=True)


async def member(kit: Kit, tag: str) -> Consumer:
    consumer = await consumer_of(kit)

    @consumer.on(TOPIC, order=None, tag=tag)
    async def handle(message: ReceivedMessage) -> None:
        kit.got.append(message)

    return consumer


def stock(client_id: str, tag: str, model: str = "CLUSTERING") -> ClientHeartbeat:
    """What a client of RocketMQ sends."""
    data = ConsumerData(
        GROUP, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET",
        (parse_subscription(TOPIC, tag, 1), parse_subscription(f"%RETRY%{GROUP}", "*", 1)),
    )  # fmt: skip
    return ClientHeartbeat(client_id, (data,), ())


def test_both_sides_warn_once_a_minute_and_name_who_wants_what(caplog: pytest.LogCaptureFixture):
    """Half of the messages would be skipped without a word: members and tags are in the log."""
    caplog.set_level(logging.WARNING)

    async def story(kit: Kit) -> None:
        first, second = await member(kit, "paid"), await member(kit, "shipped")
        ids = [place(kit, one)[1].client_id for one in (first, second)]
        assert ids[0] != ids[1]
        await begin(kit, first)
        await kit.until(lambda: len(first.assignment()) > 0)
        assert [r for r in caplog.records if "different subscriptions" in r.message] == []
        await begin(kit, second)
        began = kit.loop.time()
        await kit.until(lambda: kit.loop.time() - began > 299, seconds=400)
        for name, members in ((BROKER, 1), (CLIENT, 2)):
            said = [record.getMessage() for record in caplog.records if record.name == name]
            assert 4 * members <= len(said) <= 5 * members, said  # five minutes
            for text in said:
                assert all(word in text for word in (GROUP, TOPIC, "'paid'", "'shipped'", *ids))

    play(story, queues=4)


def test_the_warnings_end_with_the_difference(caplog: pytest.LogCaptureFixture):
    """The second member goes: nothing more is said."""
    caplog.set_level(logging.WARNING)

    async def story(kit: Kit) -> None:
        first, second = await member(kit, "paid"), await member(kit, "shipped")
        await begin(kit, first)
        await begin(kit, second)
        await place(kit, second)[0].run(second.close())
        caplog.clear()
        began = kit.loop.time()
        await kit.until(lambda: kit.loop.time() - began > 200, seconds=400)
        assert [r for r in caplog.records if "different subscriptions" in r.getMessage()] == []

    play(story)


def test_a_rocketmq_member_is_compared_too_and_describe_shows_it(caplog: pytest.LogCaptureFixture):
    """Its heartbeat says what it wants; `group describe` and the connections of the group tell."""
    caplog.set_level(logging.WARNING)

    async def story(kit: Kit) -> None:
        ours = await member(kit, "paid")
        await begin(kit, ours)
        _, session = await kit.client()
        api = await session.broker_at(kit.api.connection.address)
        reply = await api.heartbeat(stock("java@1", "*"))
        assert "java@1" in (reply.differing or "")
        assert any(r.name == BROKER and "java@1" in r.getMessage() for r in caplog.records)
        access = Access(session, config=None, tls=None)
        view = await Groups(access, Cluster(access)).describe(GROUP)
        (found,) = view.differences
        mine = place(kit, ours)[1].client_id
        assert found.topic == TOPIC
        assert dict(found.views) == {"*": ("java@1",), "paid": (mine,)}
        reply = await api.heartbeat(stock("java@1", "paid"))
        assert reply.differing is None
        view = await Groups(access, Cluster(access)).describe(GROUP)
        assert view.differences == ()
        await session.close()

    play(story)


def test_a_broker_that_is_set_to_refuses_the_second_member():
    """Our client raises what, who and what to do; the first goes on; the same tags are welcome."""

    async def story(kit: Kit) -> None:
        first, other, same = [await member(kit, tag) for tag in ("paid", "shipped", "paid")]
        await begin(kit, first)
        with pytest.raises(SubscriptionsDiffer, match=r"'shipped' by .*subscribe the same topics"):
            await begin(kit, other)
        await begin(kit, same)
        await kit.send(8, tag="paid")
        await kit.until(lambda: len(kit.got) == 8)
        await kit.until(lambda: len(first.assignment()) > 0 and len(same.assignment()) > 0)
        online = kit.cluster.broker.members.client_ids(GROUP)
        assert sorted(online) == sorted(place(kit, one)[1].client_id for one in (first, same))

    play(story, queues=4, broker=REFUSES)


def test_a_rocketmq_member_that_is_refused_gets_an_error_and_no_queues():
    """Code 7160 to its heartbeat, code 1 to the question who the members are; others stay."""

    async def story(kit: Kit) -> None:
        _, session = await kit.client()
        api = await session.broker_at(kit.api.connection.address)
        await kit.api.heartbeat(stock("java@1", "paid"))
        with pytest.raises(BrokerError) as caught:
            await api.heartbeat(stock("java@2", "*"))
        assert caught.value.code == ExtensionAnswer.SUBSCRIPTIONS_DIFFER
        assert "java@1" in str(caught.value)
        with pytest.raises(BrokerError, match="no consumer for this group"):
            await api.consumer_ids(GROUP)
        assert await kit.api.consumer_ids(GROUP) == ["java@1"]
        await api.heartbeat(stock("java@2", "paid"))
        assert await kit.api.consumer_ids(GROUP) == ["java@1", "java@2"]
        await session.close()

    play(story, broker=REFUSES)


def test_broadcasting_members_are_never_refused():
    """Each gets everything."""

    async def story(kit: Kit) -> None:
        _, session = await kit.client()
        api = await session.broker_at(kit.api.connection.address)
        await kit.api.heartbeat(stock("java@1", "paid", "BROADCASTING"))
        reply = await api.heartbeat(stock("java@2", "*", "BROADCASTING"))
        assert reply.differing is None
        await session.close()

    play(story, broker=REFUSES)
