"""First key maps: made in two steps, by whoever comes first, and finished by anybody (A13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inorder.client.admin import Admin
from inorder.client.consume.consumer import Consumer
from inorder.client.keymaps import Maker
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig
from inorder.errors import KeyMapConflict, TopicNotFound, TopicNotRouted, UsageError
from inorder.model import ReceivedMessage, SendReceipt, TopicConfig
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.routes import TopicRoute
from tests.kit.simcluster import SimCluster
from tests.kit.simloop import Node, SimLoop, run

pytestmark = pytest.mark.slow

TOPIC = "orders"
KEYS = [f"key-{number}" for number in range(8)]
Story = Callable[[SimCluster], Coroutine[Any, Any, None]]


def play(
    story: Story, *, seed: int = 1, brokers: int = 2, broker: BrokerConfig | None = None,
    known_to: list[tuple[int, ...]] | None = None,
) -> None:  # fmt: skip
    """Run a story on some brokers."""

    async def main(loop: SimLoop) -> None:
        known = known_to or [(0,)] * brokers
        cluster = SimCluster(loop, broker=broker, brokers=len(known), known_to=known)
        await cluster.start()
        await story(cluster)
        await cluster.stop()

    run(main, seed)


def texts(cluster: SimCluster, topic: str = TOPIC) -> list[str]:
    """Return the maps that brokers use."""
    return [one.broker.resizing.view(topic).map for one in cluster.brokers if one.node.alive]


async def send(producer: Producer, first: int, last: int) -> list[SendReceipt]:
    """Send the numbers of every key, each key's in order."""
    return await asyncio.gather(
        *(
            producer.send_nowait(TOPIC, b"%d" % number, key=key)
            for number in range(first, last)
            for key in KEYS
        )
    )


async def handled_in_order(cluster: SimCluster, count: int) -> list[int | None]:
    """Handle so many messages by key; return their fences. Fails if one overtakes another."""
    fences: list[int | None] = []
    highest: dict[str | None, int] = {}
    node, session = await cluster.client()
    consumer = Consumer(session, group="billing", consume_from="first")

    @consumer.on(TOPIC, order="key")
    async def handle(message: ReceivedMessage) -> None:
        assert message.fence is not None
        assert int(message.body) > highest.get(message.key, -1), (message.key, message.body)
        highest[message.key] = int(message.body)
        fences.append(message.fence.sequence)
        await asyncio.sleep(0.001)

    await node.run(consumer.start())
    async with asyncio.timeout(300):
        while len(fences) < count:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.1)
    await node.run(consumer.close())
    await node.run(session.close())
    return fences


async def closing(*clients: tuple[Node, Session]) -> None:
    for node, session in clients:
        await node.run(session.close())


@pytest.mark.parametrize("seed", range(8))
def test_two_first_sends_at_once_by_different_views_make_one_map(seed: int) -> None:
    """One sees both brokers, one sees broker-b alone: all keyed sends end up by one map."""

    async def story(cluster: SimCluster) -> None:
        both, one = await cluster.client(), await cluster.client(names=(1,))
        producers = [Producer(session) for _, session in (both, one)]
        waits = [
            asyncio.ensure_future(node.run(send(producer, 0, 3)))
            for (node, _), producer in zip((both, one), producers, strict=True)
        ]
        for receipts in await asyncio.gather(*waits[:1]):
            assert len(receipts) == 3 * len(KEYS)
        found = {text for text in texts(cluster) if text}
        assert len(found) == 1, found
        brokers = {broker for broker, _ in KeyMap.decode(found.pop()).queues}
        outcome = (await asyncio.gather(*waits[1:], return_exceptions=True))[0]
        # Who sees broker-b alone cannot reach keys of broker-a, and is told so.
        assert (brokers == {"broker-a", "broker-b"}) == isinstance(outcome, BaseException), outcome
        for (node, session), producer in zip((both, one), producers, strict=True):
            await node.run(producer.close())
            await closing((node, session))

    play(story, seed=seed, known_to=[(0,), (0, 1)])


@pytest.mark.parametrize("steps", range(1, 5))
def test_a_map_whose_maker_dies_is_finished_by_the_next(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any of its steps: the next first send makes the same topic, with one map."""
    left = [steps]
    step = Maker._do

    async def dying(self: Maker, what: Any) -> None:
        if not left[0]:
            await asyncio.Event().wait()
        left[0] -= 1
        await step(self, what)

    async def story(cluster: SimCluster) -> None:
        node, session = await cluster.client()
        doomed = asyncio.ensure_future(node.run(Admin(session).topics.create(TOPIC, queues=2)))
        await asyncio.sleep(3)
        cluster.loop.kill(node)
        assert not doomed.done()
        left[0] = -1
        other = await cluster.client()
        producer = Producer(other[1])
        assert len(await other[0].run(send(producer, 0, 2))) == 2 * len(KEYS)
        found = set(texts(cluster))
        assert len(found) == 1, found
        assert found != {""}
        await other[0].run(producer.close())
        await closing(other)

    monkeypatch.setattr(Maker, "_do", dying)
    play(story)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("killed", [0, 1])
def test_a_closed_map_survives_a_kill_and_is_opened(seed: int, killed: int) -> None:
    """A broker that has it closed is killed and comes back: no send is taken before it is open."""

    async def story(cluster: SimCluster) -> None:
        client = await cluster.client()
        producer = Producer(client[1])
        wait = asyncio.ensure_future(client[0].run(send(producer, 0, 2)))
        async with asyncio.timeout(20):
            while not cluster.brokers[killed].broker.resizing.is_making(TOPIC):  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
        cluster.brokers[killed].kill()
        await asyncio.sleep(0.2)
        await cluster.brokers[killed].start()
        assert len(await wait) == 2 * len(KEYS)
        assert len(set(texts(cluster))) == 1
        await client[0].run(producer.close())
        await closing(client)

    play(story, seed=seed)


async def unmapped(cluster: SimCluster) -> tuple[Node, Session]:
    """Make a topic without a map, as RocketMQ clients do, with messages of ours."""
    node, session = await cluster.client()
    for one in cluster.brokers:
        api = await node.run(session.broker_at(one.address))
        await node.run(api.create_topic(TopicConfig(TOPIC, 3, 3)))
    return node, session


@pytest.mark.parametrize("seed", range(3))
def test_a_topic_with_messages_gets_its_first_map_in_order(seed: int) -> None:
    """Sent before, during and after: handled in order; what was stored keeps version 0."""

    async def story(cluster: SimCluster) -> None:
        node, session = await unmapped(cluster)
        producer = Producer(session)
        await node.run(send(producer, 0, 5))
        load = asyncio.ensure_future(node.run(send(producer, 5, 15)))
        status = await node.run(Admin(session).topics.resize(TOPIC, queues=4))
        assert (status.version, status.queues) == (1, 4)
        await load
        await node.run(send(producer, 15, 20))
        assert len(set(texts(cluster))) == 1
        fences = await handled_in_order(cluster, 20 * len(KEYS))
        versions = {None if one is None else one >> 52 for one in fences}
        assert versions == {0, 1}
        await node.run(producer.close())
        await closing((node, session))

    play(story, seed=seed)


def test_keys_are_not_placed_by_the_template_while_a_broker_is_not_registered() -> None:
    """It serves its topics a moment before they are in the routes; the send waits for them."""

    async def story(cluster: SimCluster) -> None:
        node, session = await cluster.client()
        api = await node.run(session.broker_at(cluster.brokers[0].address))
        await node.run(api.create_topic(TopicConfig(TOPIC, 9, 9)))
        first = Producer(session)
        homes = {one.queue for one in await node.run(send(first, 0, 1))}
        other, newcomer = await cluster.client()
        fetch, asked = newcomer._fetch, 0

        async def fetch_late(topic: str) -> TopicRoute:
            nonlocal asked
            asked += topic == TOPIC
            if topic == TOPIC and asked <= 4:
                raise TopicNotRouted(f"no name server knows topic {topic}")
            return await fetch(topic)

        newcomer._fetch = fetch_late  # type: ignore[method-assign]
        second = Producer(newcomer)
        placed = await other.run(send(second, 1, 2))
        assert asked > 4
        assert {one.queue for one in placed} == homes
        await handled_in_order(cluster, 2 * len(KEYS))
        await node.run(first.close())
        await other.run(second.close())
        await closing((node, session), (other, newcomer))

    play(story, brokers=1)


def test_code_17_gives_no_map_to_a_topic_with_messages() -> None:
    """As an older `inorder topic create` asks: refused, and told what does it."""

    async def story(cluster: SimCluster) -> None:
        node, session = await unmapped(cluster)
        producer = Producer(session)
        await node.run(send(producer, 0, 1))
        api = await node.run(session.broker_at(cluster.brokers[0].address))
        config = TopicConfig(TOPIC, 3, 3, attributes={"inorder.keymap": "1/broker-a:0-2"})
        with pytest.raises(Exception, match="topic resize"):
            await node.run(api.create_topic(config))
        await node.run(producer.close())
        await closing((node, session))

    play(story)


def test_sends_make_no_topic_where_brokers_do_not_allow_it() -> None:
    """autoCreateTopicEnable=false: an error, and no topic; an operator still makes one."""

    async def story(cluster: SimCluster) -> None:
        node, session = await cluster.client(ClientConfig(send_timeout_ms=1000))
        producer = Producer(session)
        with pytest.raises(Exception, match="create it"):
            await node.run(producer.send(TOPIC, b"x", key="k"))
        maker = Maker(session, TOPIC, lambda: _addresses(cluster), auto=True)
        with pytest.raises(TopicNotFound, match="autoCreateTopicEnable"):
            await node.run(maker.make(["broker-a"], lambda _: (("broker-a", 0),), timeout_ms=1000))
        assert TOPIC not in cluster.broker.topics
        await node.run(Admin(session).topics.create(TOPIC, queues=2))
        await node.run(producer.send(TOPIC, b"x", key="k"))
        await node.run(producer.close())
        await closing((node, session))

    play(story, broker=BrokerConfig(auto_create_topics=False))


async def _addresses(cluster: SimCluster) -> dict[str, str]:
    return {one.name: one.address for one in cluster.brokers}


def test_two_open_maps_of_one_version_are_told_and_repaired() -> None:
    """Keyed sends name the verb, keyless ones go on; after the repair all goes, in order."""

    async def story(cluster: SimCluster) -> None:
        sides = [await cluster.client(names=(number,)) for number in (0, 1)]
        for node, session in sides:
            await node.run(Admin(session).topics.create(TOPIC, queues=2))
        assert texts(cluster) == ["1/broker-a:0-1", "1/broker-b:0-1"]
        node, session = await cluster.client(names=(0, 1))
        producer = Producer(session)
        with pytest.raises(KeyMapConflict, match="inorder topic repair orders"):
            await node.run(producer.send(TOPIC, b"0", key="k"))
        with pytest.raises(KeyMapConflict):
            await node.run(producer.send(TOPIC, b"0", key="k"))
        await node.run(producer.send(TOPIC, b"0"))
        admin = Admin(session)
        status = await node.run(admin.topics.repair(TOPIC))
        assert (status.version, status.brokers) == (2, {"broker-a": 2, "broker-b": 2})
        assert set(texts(cluster)) == {"2/broker-a:0-1/broker-b:0-1"}
        async with asyncio.timeout(60):
            while True:
                try:
                    await node.run(send(producer, 1, 4))
                    break
                except KeyMapConflict:  # it asks again after a while
                    await asyncio.sleep(1)
        with pytest.raises(UsageError, match="nothing to repair"):
            await node.run(admin.topics.repair(TOPIC))
        await node.run(producer.close())
        await closing((node, session), *sides)

    play(story, known_to=[(0,), (1,)])


def test_a_broker_that_is_gone_for_good_is_left_out() -> None:
    """`resize --without`: its keys go to the others; theirs never waited."""

    async def story(cluster: SimCluster) -> None:
        node, session = await cluster.client(ClientConfig(send_timeout_ms=2000))
        admin, producer = Admin(session), Producer(session)
        await node.run(admin.topics.create(TOPIC, queues=2))
        await node.run(send(producer, 0, 2))
        cluster.brokers[0].kill()
        await asyncio.sleep(1)

        async def each() -> list[SendReceipt | BaseException]:
            waits = [producer.send_nowait(TOPIC, b"2", key=key) for key in KEYS]
            return await asyncio.gather(*waits, return_exceptions=True)

        outcomes = await node.run(each())
        assert any(isinstance(one, SendReceipt) for one in outcomes)
        assert any(not isinstance(one, SendReceipt) for one in outcomes)
        status = await node.run(admin.topics.resize(TOPIC, queues=3, without=["broker-a"]))
        assert (status.version, status.brokers) == (2, {"broker-b": 3})
        assert all(isinstance(one, SendReceipt) for one in await node.run(each()))
        await node.run(producer.close())
        await closing((node, session))
        await cluster.brokers[0].start()

    play(story)
