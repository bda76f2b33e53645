"""The blocking client's everyday path, on our broker and on Apache RocketMQ alike."""

from __future__ import annotations

import time

import pytest

import inorder
from tests.suite.conftest import SuiteCluster

pytestmark = pytest.mark.slow


def test_send_read_commit_and_go_on(cluster: SuiteCluster, topic: str) -> None:
    """Sends of all kinds in order; a second consumer goes on behind the commit."""
    with inorder.Producer(cluster.namesrv) as producer:
        first = producer.send(topic, b"0", key="k")
        futures = [producer.send_nowait(topic, b"%d" % n, key="k") for n in range(1, 10)]
        producer.flush()
        batch = producer.send_batch([inorder.Message(topic, b"%d" % n, "k") for n in range(10, 15)])
        assert [future.result().offset for future in futures] == list(range(1, 10))
        assert [receipt.offset for receipt in batch] == list(range(10, 15))
    group = cluster.unique("readers")
    with inorder.PullConsumer(cluster.namesrv, group=group, consume_from="first") as consumer:
        consumer.assign([first.queue])
        assert poll(consumer, 6) == list(range(6))
        consumer.commit()
    with inorder.PullConsumer(cluster.namesrv, group=group) as consumer:
        consumer.assign([first.queue])
        assert poll(consumer, 9) == list(range(6, 15))
        assert consumer.seek(first.queue, 13) == 13
        assert poll(consumer, 2) == [13, 14]


def poll(consumer: inorder.PullConsumer, count: int) -> list[int]:
    """Return the next numbers."""
    found: list[int] = []
    until = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < until, f"only {found} came"
        found += [int(one.body) for one in consumer.poll(1, messages_max=count - len(found))]
    return found
