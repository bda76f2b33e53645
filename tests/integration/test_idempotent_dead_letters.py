"""Dead letters that a named producer sends itself: stored once, over restarts of the broker."""

from __future__ import annotations

import pytest

import inorder
import inorder.testing
from inorder.model import Message, TopicQueue

pytestmark = pytest.mark.slow

LETTERS = "%DLQ%billing"


def send(namesrv: str, numbers: range) -> None:
    with inorder.Producer(namesrv, id="letters:1") as producer:
        producer.send_batch(
            [Message(LETTERS, b"%d" % number) for number in numbers],
            queue=TopicQueue(LETTERS, "broker-a", 0),
            sequences=list(numbers),
        )


def test_an_idempotent_dead_letter_is_stored_once() -> None:
    """Sent again, also after a kill of the broker, it is not stored again; what is new, is."""
    with inorder.testing.broker() as broker:
        broker.create_topic(LETTERS, queues=1)
        send(broker.namesrv, range(1, 4))
        send(broker.namesrv, range(1, 4))
        broker.kill()
        broker.restart()
        send(broker.namesrv, range(1, 6))
        bodies = [message.body for message in broker.messages(LETTERS)]
    assert bodies == [b"1", b"2", b"3", b"4", b"5"]


def test_the_number_of_a_copy_does_not_count() -> None:
    """The broker makes a dead letter of it without a number: its producer may send its own."""
    with inorder.testing.broker() as broker:
        broker.create_topic(LETTERS, queues=1)
        broker.create_topic("orders", queues=1)
        with inorder.Producer(broker.namesrv, id="letters:1") as producer:
            producer.send("orders", b"7", key="k", sequence=7)
        consumer = inorder.Consumer(broker.namesrv, group="billing", consume_from="first")

        @consumer.on("orders", order="queue", on_failure=inorder.DeadLetter(attempts=0))
        def fail(message: inorder.ReceivedMessage) -> None:
            raise ValueError("no")

        with consumer:
            for _ in range(1000):
                if broker.messages(LETTERS):
                    break
        (copy,) = broker.messages(LETTERS)
        assert copy.body == b"7"
        # Why it is here, and nothing that numbers it.
        ours = [name for name in copy.properties if name.startswith("INORDER_")]
        assert ours == ["INORDER_DEAD_ERROR"]
        broker.kill()
        broker.restart()
        send(broker.namesrv, range(1, 4))
        assert [message.body for message in broker.messages(LETTERS)] == [b"7", b"1", b"2", b"3"]
