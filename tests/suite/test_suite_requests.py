"""Request and reply with our clients at both ends, on our broker and on Apache RocketMQ alike."""

from __future__ import annotations

import pytest

import inorder
from inorder.errors import RequestTimeout
from tests.suite.conftest import SuiteCluster

pytestmark = pytest.mark.slow


def test_a_request_gets_its_reply(cluster: SuiteCluster, topic: str) -> None:
    """Under leases or locks, each key in the order of its requests; a plain message gets none."""
    got: list[int] = []
    group = cluster.unique("responders")
    consumer = inorder.Consumer(cluster.namesrv, group=group, consume_from="first")

    @consumer.on(topic, order="key")
    def handle(message: inorder.ReceivedMessage) -> inorder.Reply | None:
        got.append(int(message.body))
        return inorder.Reply(b"re " + message.body) if message.asks_reply else None

    with consumer, inorder.Producer(cluster.namesrv) as producer:
        for number in range(10):
            if number % 3 == 1:
                producer.send(topic, b"%d" % number, key="k")
                continue
            reply = producer.request(topic, b"%d" % number, key="k", timeout=30)
            assert reply.body == b"re %d" % number
        assert producer.statistics().replies == 7
    assert got == list(range(10))


def test_a_request_without_a_responder_times_out(cluster: SuiteCluster, topic: str) -> None:
    """Its message is stored all the same."""
    with (
        inorder.Producer(cluster.namesrv) as producer,
        pytest.raises(RequestTimeout, match="is stored in"),
    ):
        producer.request(topic, b"hello?", timeout=2)
