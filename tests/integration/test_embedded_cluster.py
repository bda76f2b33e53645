"""The testing kit's cluster on a real loop and on the simulated one; the demo."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from inorder.checker import Sent, Stored, check, queue_name
from inorder.cli.output import Output
from inorder.demo.orders import run_demo
from inorder.errors import NotFound, TopicNotFound
from inorder.model import GroupConfig, TopicConfig, TopicQueue
from inorder.wire.ids import offset_message_id
from inorder.wire.requests.pulls import QueryMessage
from tests.kit.clock import SimClock
from tests.kit.cluster import Cluster
from tests.kit.disk import FakeFiles
from tests.kit.simloop import SimLoop, run


async def send_and_read(cluster: Cluster) -> None:
    """Send interleaved keys and check what comes back."""
    producer, consumer = await cluster.producer(), await cluster.consumer()
    events: list[Sent | Stored] = []

    async def walk(key: str) -> None:
        for sequence in range(5):
            receipt = await producer.send(
                "orders", b"x", key=key, tag="even" if sequence % 2 else "odd"
            )
            queue = queue_name(receipt.queue)
            events.append(
                Sent("p", key, sequence, receipt.message_id, queue=queue, offset=receipt.offset)
            )

    await asyncio.gather(*(walk(f"order-{n}") for n in range(10)))
    for queue in await consumer.queues("orders"):
        events += [
            Stored(queue_name(queue), message.offset, message.message_id, message.key)
            async for message in consumer.pull_all(queue)
        ]
    report = check(events)
    assert report.ok, report
    assert report.counts["stored"] == 50


def test_a_cluster_on_real_sockets():
    """In a temporary directory that is gone afterwards."""

    async def main() -> None:
        async with Cluster() as cluster:
            await send_and_read(cluster)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_cluster_on_the_simulated_loop():
    """The same code, a disk in memory, virtual time."""

    async def main(loop: SimLoop) -> None:
        async with Cluster(files=FakeFiles(), clock=SimClock(loop)) as cluster:
            await send_and_read(cluster)

    for seed in range(3):
        run(main, seed)


def test_messages_survive_a_restart(tmp_path: Path):
    """Stop, start on the same data, go on at the next offset."""

    async def main() -> None:
        async with Cluster(data=tmp_path) as cluster:
            first = await (await cluster.producer()).send("orders", b"1", key="k")
            await cluster.restart()
            second = await (await cluster.producer()).send("orders", b"2", key="k")
            assert (second.queue, second.offset) == (first.queue, first.offset + 1)
            consumer = await cluster.consumer()
            read = [message.body async for message in consumer.pull_all(first.queue)]
            assert read == [b"1", b"2"]

    asyncio.run(main())


def test_every_method_of_the_broker_api():
    """Each request is answered by a running broker as its type says."""

    async def main() -> None:
        async with Cluster() as cluster:
            api = await cluster.broker()
            await api.create_topic(TopicConfig("t", 2, 2))
            assert (await api.topics())["t"].read_queues == 2
            assert await api.system_topics()
            receipt = await (await cluster.producer()).send("t", b"body", key="k", keys=["word"])
            queue = receipt.queue
            assert (await api.min_offset(queue), await api.max_offset(queue)) == (0, 1)
            assert await api.search_offset(queue, 0) == 0
            assert await api.earliest_ms(queue) > 0
            with pytest.raises(NotFound):
                await api.query_offset("g", queue, set_zero_if_not_found=False)
            await api.update_group(GroupConfig("g"))
            assert "g" in await api.groups()
            consumer = await cluster.consumer("g")
            await consumer.commit(queue, 1)
            assert await consumer.committed(queue) == 1
            (record,) = [r async for r in consumer.pull_all(queue)]
            stored = await api.view_message(record.position)
            assert stored.body == b"body"
            assert len(offset_message_id(stored.store_host, stored.position)) == 32
            request = QueryMessage("t", "word", 10, 0, 2**62)
            assert [r.body for r in await api.query_message(request)] == [b"body"]
            locked = await api.lock("me", "g", [queue])
            assert locked == (queue,)
            assert await api.lock("you", "g", [queue]) == ()
            await api.unlock("me", "g", [queue])
            assert await api.lock("you", "g", [queue]) == (queue,)
            assert (await api.runtime_info())["brokerVersionDesc"]
            assert await api.settings()
            await api.delete_group("g")
            assert "g" not in await api.groups()
            await api.delete_topic("t")
            assert "t" not in await api.topics()

    asyncio.run(main())


def test_every_method_of_the_name_server_api():
    """Routes, lists, key-value config and write permissions."""

    async def main() -> None:
        async with Cluster() as cluster:
            session = await cluster.session()
            ask = session.ask_name_server
            await (await cluster.broker()).create_topic(TopicConfig("t", 2, 2))
            assert [q.broker_name for q in (await ask(lambda api: api.route("t"))).queues] == [
                "broker-a"
            ]
            with pytest.raises(TopicNotFound):
                await ask(lambda api: api.route("nobody"))
            assert "broker-a" in (await ask(lambda api: api.cluster_info())).brokers
            assert "t" in await ask(lambda api: api.topics())
            assert "t" in await ask(lambda api: api.topics_by_cluster("DefaultCluster"))
            await ask(lambda api: api.put_kv("n", "k", "v"))
            assert await ask(lambda api: api.get_kv("n", "k")) == "v"
            assert await ask(lambda api: api.kv_list("n")) == {"k": "v"}
            await ask(lambda api: api.delete_kv("n", "k"))
            with pytest.raises(NotFound):
                await ask(lambda api: api.get_kv("n", "k"))
            assert await ask(lambda api: api.wipe_write_perm("broker-a")) > 0
            assert await ask(lambda api: api.add_write_perm("broker-a")) > 0
            await ask(lambda api: api.delete_topic("t"))
            assert "t" not in await ask(lambda api: api.topics())

    asyncio.run(main())


def test_a_held_pull_is_woken_by_the_message():
    """Long polling: the answer comes with the append, not with a timer."""

    async def main(loop: SimLoop) -> float:
        async with Cluster(files=FakeFiles(), clock=SimClock(loop)) as cluster:
            producer, consumer = await cluster.producer(), await cluster.consumer()
            await (await cluster.broker()).create_topic(TopicConfig("t", 1, 1))
            queue = TopicQueue("t", "broker-a", 0)
            waiting = asyncio.create_task(consumer.pull(queue, 0, wait=15))
            await asyncio.sleep(3)
            assert not waiting.done()
            start = loop.time()
            await producer.send("t", b"x")
            (message,) = (await waiting).messages
            assert message.body == b"x"
            return loop.time() - start

    assert run(main) < 0.1


@pytest.mark.slow
def test_the_demo_finds_everything_in_order(capsys: pytest.CaptureFixture[str]):
    """Small, as JSON: the numbers fit and the checker has no findings."""
    run_demo(orders=30, producers=3, output=Output.JSON, clean=True)
    result = json.loads(capsys.readouterr().out)
    assert result["in_order"]
    assert result["messages"] == 30 * 6 == sum(result["handled"].values())
    assert result["repeated"] == 0
    assert result["sample_steps"] == ["created", "paid", "packed", "shipped", "delivered", "rated"]
    assert result["findings"] == []
    parking = result["parking"]
    assert (parking["parked"], parking["redriven"], parking["findings"]) == (10, 15, [])
    assert parking["first_error"] == "LookupError: customer-13 is not in the books"


@pytest.mark.slow
def test_the_demo_tells_its_story(capsys: pytest.CaptureFixture[str]):
    """As a table: rates, a sample order, the verdict, and a clean stop."""
    run_demo(orders=10, producers=2, clean=True)
    told = capsys.readouterr().out
    assert "created -> paid -> packed -> shipped -> delivered -> rated" in told
    assert "order checker: in order" in told
    assert "customer-13 is parked with 10 payments" in told
    assert "customer-13 is live: 16 payments in order; order checker: in order" in told
    assert told.rstrip().endswith("stopped clean")
