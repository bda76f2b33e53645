"""Name servers that differ: whoever asks whom, a key has one queue, and is handled in order (A13).

broker-a ── N1            a producer on "N2;N1" finds broker-b alone at N2, without the map
broker-b ── N1, N2        that was made through N1
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inorder.client.admin import Admin
from inorder.client.consume.consumer import Consumer
from inorder.client.send.producer import Producer
from inorder.config import ClientConfig
from inorder.model import ReceivedMessage, SendReceipt
from tests.kit.simcluster import SimCluster
from tests.kit.simloop import SimLoop, run

pytestmark = pytest.mark.slow

TOPIC = "orders"
KEYS = [f"key-{number}" for number in range(8)]
Handled = list[tuple[str, int, int | None]]


def play(story: Callable[[SimCluster], Coroutine[Any, Any, None]], *, seed: int = 1) -> None:
    """Run a story on two brokers, of which the second name server knows one."""

    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, brokers=2, known_to=[(0,), (0, 1)])
        await cluster.start()
        await story(cluster)
        await cluster.stop()

    run(main, seed)


async def send(producer: Producer, first: int, last: int) -> list[SendReceipt]:
    """Send the numbers of every key, each key's in order."""
    return await asyncio.gather(
        *(
            producer.send_nowait(TOPIC, b"%d" % number, key=key)
            for number in range(first, last)
            for key in KEYS
        )
    )


async def handle_all(cluster: SimCluster, count: int, names: tuple[int, ...]) -> Handled:
    """Handle so many messages with a consumer of these name servers."""
    handled: Handled = []
    node, session = await cluster.client(names=names)
    consumer = Consumer(session, group="billing", consume_from="first")

    @consumer.on(TOPIC, order="key")
    async def handle(message: ReceivedMessage) -> None:
        assert message.fence is not None
        handled.append((message.key or "", int(message.body), message.fence.sequence))
        await asyncio.sleep(0.001)

    await node.run(consumer.start())
    async with asyncio.timeout(300):
        while len(handled) < count:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.1)
    await node.run(consumer.close())
    await node.run(session.close())
    return handled


def brokers_of_keys(receipts: list[SendReceipt]) -> dict[str, set[str]]:
    """Return on which brokers the messages of each key lie."""
    found: dict[str, set[str]] = {}
    for place, receipt in enumerate(receipts):
        found.setdefault(KEYS[place % len(KEYS)], set()).add(receipt.queue.broker)
    return found


def judge(handled: Handled) -> tuple[int, int]:
    """Return how many messages came behind a newer one of their key, and how many have no fence."""
    highest: dict[str, int] = {}
    inversions = 0
    for key, number, _ in handled:
        inversions += number < highest.get(key, -1)
        highest[key] = max(number, highest.get(key, -1))
    return inversions, sum(sequence is None for _, _, sequence in handled)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reader", [(0,), (1, 0), (0, 1)])
def test_a_key_stays_in_its_queue_when_the_first_name_server_knows_less(
    seed: int, reader: tuple[int, ...]
) -> None:
    """800 messages of 8 keys, the poorer name server dies half way: one broker a key, in order."""

    async def story(cluster: SimCluster) -> None:
        admin_node, admin_session = await cluster.client()
        await admin_node.run(Admin(admin_session).topics.create(TOPIC, queues=4))
        node, session = await cluster.client(names=(1, 0))
        producer = Producer(session)
        receipts = await node.run(send(producer, 0, 50))
        cluster.names[1].kill()
        await asyncio.sleep(40)  # routes are asked for again
        receipts += await node.run(send(producer, 50, 100))
        await cluster.names[1].start()
        assert {key: len(where) for key, where in brokers_of_keys(receipts).items()} == (
            dict.fromkeys(KEYS, 1)
        )
        handled = await handle_all(cluster, len(receipts), reader)
        assert judge(handled) == (0, 0)
        for its_node, its_session in ((node, session), (admin_node, admin_session)):
            if its_session is session:
                await node.run(producer.close())
            await its_node.run(its_session.close())

    play(story, seed=seed)


def test_a_producer_of_the_poorer_name_server_learns_the_map_from_a_broker() -> None:
    """It sees broker-b alone: b's refusal brings the map; keys of broker-a wait, and say so."""

    async def story(cluster: SimCluster) -> None:
        admin_node, admin_session = await cluster.client()
        await admin_node.run(Admin(admin_session).topics.create(TOPIC, queues=4))
        node, session = await cluster.client(ClientConfig(send_timeout_ms=2000), names=(1,))
        producer = Producer(session)

        async def each() -> list[SendReceipt | BaseException]:
            waits = [producer.send_nowait(TOPIC, b"0", key=key) for key in KEYS]
            return await asyncio.gather(*waits, return_exceptions=True)

        outcomes = await node.run(each())
        stored = [one for one in outcomes if isinstance(one, SendReceipt)]
        failed = [str(one) for one in outcomes if not isinstance(one, SendReceipt)]
        assert stored
        assert {one.queue.broker for one in stored} == {"broker-b"}
        assert failed
        assert all("broker-a" in text for text in failed), failed
        await node.run(producer.close())
        await node.run(session.close())
        await admin_node.run(admin_session.close())

    play(story)
