"""Messages with a time of their own, on our broker and on Apache RocketMQ alike."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import inorder
from tests.suite.conftest import SuiteCluster

pytestmark = pytest.mark.slow

ROUNDED_MS = 1000
"""RocketMQ rounds times to its precision, a second."""


def test_a_message_with_a_time_comes_then(cluster: SuiteCluster, topic: str) -> None:
    """What was sent without a time comes before it; nothing comes early."""
    got: list[inorder.ReceivedMessage] = []
    consumer = inorder.Consumer(
        cluster.namesrv, group=cluster.unique("timers"), consume_from="first"
    )
    consumer.on(topic, order="queue")(got.append)
    with inorder.Producer(cluster.namesrv) as producer:
        due = datetime.now(UTC) + timedelta(seconds=3)
        producer.send(topic, b"due", key="k", deliver_at=due)
        producer.send(topic, b"delayed", key="k", delay=1.5)
        producer.send(topic, b"now", key="k")
        with consumer:
            for _ in range(600):
                if len(got) == 3:
                    break
                time.sleep(0.1)
    assert [message.body for message in got] == [b"now", b"delayed", b"due"]
    assert got[2].stored_at_ms >= due.timestamp() * 1000 - ROUNDED_MS


def test_messages_that_wait_are_counted(cluster: SuiteCluster, topic: str) -> None:
    """By topic and broker, until their time."""
    with inorder.Producer(cluster.namesrv) as producer, inorder.Admin(cluster.namesrv) as admin:
        for _ in range(2):
            producer.send(topic, b"later", delay=timedelta(minutes=90))
        for _ in range(600):
            found = [one.count for one in admin.messages.waiting() if one.topic == topic]
            if sum(found) == 2:
                break
            time.sleep(0.1)
        assert sum(found) == 2
