"""Reading without an event loop, as Spark's workers do: ranges, bulk, small answers, restarts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import inorder
from inorder.config import BrokerConfig
from inorder.errors import ConnectFailed, TopicNotRouted
from inorder.model import Message, TopicQueue
from inorder.net.blocking import BlockingConnection
from inorder.spark import cluster as module
from inorder.spark.cluster import Cluster, close_all
from inorder.testing import broker
from inorder.testing.brokers import RunningBroker
from inorder.wire.record import decode_all

pytestmark = pytest.mark.slow


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with broker() as found:
        yield found
    close_all()


def fill(namesrv: str, count: int) -> TopicQueue:
    """Send numbered messages into one queue; return it."""
    with inorder.Producer(namesrv) as producer:
        for start in range(0, count, 5000):
            receipts = producer.send_batch(
                [
                    Message("orders", b"%d" % at, key="one", tag="even" if at % 2 == 0 else "odd")
                    for at in range(start, min(count, start + 5000))
                ]
            )
    return receipts[0].queue


def numbers(cluster: Cluster, queue: TopicQueue, start: int, end: int, tag: str = "*") -> list[int]:
    return [
        int(record.body)
        for pulled in cluster.read(queue, start, end, tag)
        for record in decode_all(pulled.data)
        if record.queue_offset < end
    ]


def test_a_range_comes_whole_and_in_order(running: RunningBroker) -> None:
    """Large answers of our broker: far fewer requests than 32 messages each."""
    queue = fill(running.namesrv, 5000)
    cluster = Cluster(running.namesrv, group="g")
    assert queue in cluster.queues("orders")
    assert (cluster.oldest([queue]), cluster.ends([queue])) == ({queue: 0}, {queue: 5000})
    assert numbers(cluster, queue, 10, 4990) == list(range(10, 4990))
    assert len(list(cluster.read(queue, 0, 5000))) < 10


def test_answers_of_32_are_asked_for_ahead(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RocketMQ broker ignores the field: the range still comes whole and in order."""
    queue = fill(running.namesrv, 1000)
    monkeypatch.setattr(module, "BULK_BYTES", 0)
    cluster = Cluster(running.namesrv, group="g")
    assert numbers(cluster, queue, 3, 997) == list(range(3, 997))


def test_a_filter_is_the_brokers_work(running: RunningBroker) -> None:
    """Only matching messages come, and the end of the range is reached."""
    queue = fill(running.namesrv, 1000)
    cluster = Cluster(running.namesrv, group="g")
    assert numbers(cluster, queue, 0, 1000, "odd") == list(range(1, 1000, 2))


def test_a_reader_that_stops_early_leaves_the_connection_usable(running: RunningBroker) -> None:
    """Answers that nobody wants any more are not taken for others."""
    queue = fill(running.namesrv, 20_000)
    cluster = Cluster(running.namesrv, group="g")
    for _ in range(3):
        next(cluster.read(queue, 0, 20_000))
        assert cluster.ends([queue]) == {queue: 20_000}


def test_progress_is_kept_by_the_broker(running: RunningBroker) -> None:
    """What a group committed is what it reads back."""
    queue = fill(running.namesrv, 10)
    cluster = Cluster(running.namesrv, group="g")
    assert cluster.committed(queue) is None
    numbers(cluster, queue, 0, 10)  # the first pull makes the group
    cluster.commit(queue, 7)
    assert cluster.committed(queue) == 7


def test_a_restarted_broker_is_found_again(running: RunningBroker) -> None:
    """A range is read over a restart in its middle."""
    queue = fill(running.namesrv, 20_000)
    cluster = Cluster(running.namesrv, group="g")
    found = []
    for pulled in cluster.read(queue, 0, 20_000):
        if not found:
            running.restart()
        found += [int(record.body) for record in decode_all(pulled.data)]
    assert found == list(range(20_000))


def test_nobody_there_is_said_plainly() -> None:
    """A closed port and an unknown topic have their own errors."""
    with pytest.raises(ConnectFailed, match="is a server listening"):
        BlockingConnection("127.0.0.1:1")
    with broker(config=BrokerConfig(auto_create_topics=False)) as running:
        with pytest.raises(TopicNotRouted, match="nothing"):
            Cluster(running.namesrv, group="g").queues("nothing")
        close_all()
