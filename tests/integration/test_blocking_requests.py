"""`inorder.Producer.request` and plain handlers that reply, over real sockets and threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import inorder
import inorder.testing
from inorder.errors import RequestTimeout, UsageError

pytestmark = pytest.mark.slow


def test_threads_ask_and_plain_handlers_reply():
    """Each caller gets its own reply; the handlers of a key run in the order of the requests."""
    with inorder.testing.broker() as broker:
        broker.create_topic("sums", queues=4)
        order: dict[str | None, list[int]] = {}
        consumer = inorder.Consumer(broker.namesrv, group="adders", consume_from="first")

        @consumer.on("sums", order="key", concurrency=8)
        def add(message: inorder.ReceivedMessage) -> inorder.Reply:
            assert threading.current_thread().name.startswith("inorder handler")
            number = int(message.body)
            order.setdefault(message.key, []).append(number)
            return inorder.Reply(b"%d" % (number + 1), {"by": "adders"})

        def ask(caller: int) -> None:
            for number in range(25):
                reply = producer.request("sums", b"%d" % number, key=f"caller-{caller}")
                assert (int(reply.body), reply.properties["by"]) == (number + 1, "adders")

        with consumer, broker.producer() as producer, ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))
            found = producer.statistics()
            assert (found.asking, found.replies, found.late_replies) == (0, 100, 0)
        # A reply counts when the broker has answered, which may be after the caller has it.
        assert consumer.statistics().replied == 100
        assert order == {f"caller-{caller}": list(range(25)) for caller in range(4)}


def test_plain_sends_and_requests_of_one_producer_keep_their_order():
    """Also when a lone send went over the producer's direct connection before."""
    with inorder.testing.broker() as broker:
        broker.create_topic("steps", queues=2)
        got: list[bytes] = []
        consumer = inorder.Consumer(broker.namesrv, group="walkers", consume_from="first")

        @consumer.on("steps", order="queue")
        def walk(message: inorder.ReceivedMessage) -> inorder.Reply | None:
            got.append(message.body)
            return inorder.Reply(message.body) if message.asks_reply else None

        with consumer, broker.producer() as producer:
            for number in range(60):  # the first sixteen lone sends earn a connection of their own
                if number % 20 == 19:
                    assert producer.request("steps", b"%d" % number, key="k").body == b"%d" % number
                else:
                    producer.send("steps", b"%d" % number, key="k")
        assert got == [b"%d" % number for number in range(60)]


def test_nobody_replies_in_time():
    """The caller gets the error in its own thread, not before its time and not much later."""
    with inorder.testing.broker() as broker, broker.producer() as producer:
        broker.create_topic("silent")
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match="no reply to request"):
            producer.request("silent", b"hello?", timeout=0.5)
        assert time.monotonic() - began >= 0.5
        assert producer.statistics().asking == 0


def test_a_reply_is_checked_where_it_is_made():
    """In the handler, so that a mistake is a failed attempt with a clear text."""
    with pytest.raises(UsageError, match="give bytes"):
        inorder.Reply("text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least one"):
        inorder.Reply(b"")
    with pytest.raises(UsageError, match="CORRELATION_ID"):
        inorder.Reply(b"x", {"CORRELATION_ID": "mine"})
