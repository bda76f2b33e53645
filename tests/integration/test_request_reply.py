"""Request and reply on a real broker in simulated time: replies, their order, and their ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from inorder.client.consume.rules.outcomes import Handled, Reply, Retry
from inorder.client.send.producer import Producer
from inorder.config import ClientConfig
from inorder.errors import RequestTimeout, TooManyOutstanding, UsageError
from inorder.model import Message, ReceivedMessage
from tests.integration.consumerkit import TOPIC, Kit, begin, consumer_of, place, play

orders = pytest.mark.parametrize("order", ["key", "queue", None])


async def responder(kit: Kit, *, order: Any = "queue", seconds: float = 0.0, **options: Any):
    """A consumer that answers every message with its body."""
    consumer = await consumer_of(kit)

    @consumer.on(TOPIC, order=order, **options)
    async def handle(message: ReceivedMessage) -> Reply:
        kit.got.append(message)
        await asyncio.sleep(seconds)
        return Reply(b"re " + message.body, {"of": message.key or "-"})

    await begin(kit, consumer)
    return consumer


@orders
def test_a_handler_answers_by_returning_a_reply(order: str | None) -> None:
    """The requester gets its body and properties; the message is done."""

    async def story(kit: Kit) -> None:
        consumer = await responder(kit, order=order)
        reply = await kit.producer.request(TOPIC, b"hello", key="k", properties={"a": "b"})
        assert isinstance(reply, Message)
        assert (reply.body, reply.properties["of"]) == (b"re hello", "k")
        assert reply.topic == "DefaultCluster_REPLY_TOPIC"
        (asked,) = kit.got
        assert asked.asks_reply
        assert asked.properties["a"] == "b"
        assert asked.message_id == asked.properties["CORRELATION_ID"]
        await kit.until(lambda: consumer.statistics().handled == 1)
        assert consumer.statistics().replied == 1
        found = kit.producer.statistics()
        assert (found.asking, found.replies, found.late_replies) == (0, 1, 0)

    play(story)


def test_replies_find_their_own_requests() -> None:
    """Many at a time, of several producers on one session, answered in any order."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order=None, concurrency=64)
        async def handle(message: ReceivedMessage) -> Reply:
            await asyncio.sleep((100 - int(message.body)) / 100)
            return Reply(message.body)

        await begin(kit, consumer)
        _, session = place(kit, consumer)
        others = [kit.producer, Producer(kit.producer._access.session), Producer(session)]
        replies = await asyncio.gather(
            *(others[n % 3].request(TOPIC, str(n).encode(), timeout=20) for n in range(99))
        )
        assert [int(reply.body) for reply in replies] == list(range(99))
        for one in others[1:]:
            await one.close()

    play(story, queues=4)


def test_a_request_takes_its_place_among_the_messages_of_its_key() -> None:
    """Also the first of a producer: what is sent after it is handled after it."""

    async def story(kit: Kit) -> None:
        await responder(kit, order="key")
        first = asyncio.create_task(kit.producer.request(TOPIC, b"0", key="k"))
        await asyncio.sleep(0)
        sends = [kit.producer.send_nowait(TOPIC, b"%d" % n, key="k") for n in range(1, 20)]
        last = asyncio.create_task(kit.producer.request(TOPIC, b"20", key="k"))
        await asyncio.gather(first, last, *sends)
        assert [int(message.body) for message in kit.got] == list(range(21))

    play(story, queues=4)


@orders
def test_a_reply_is_sent_before_its_message_is_done(order: str | None) -> None:
    """The next message of the key waits for it; no commit passes it."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        events: list[str] = []

        @consumer.on(TOPIC, order=order, concurrency=1)
        async def handle(message: ReceivedMessage) -> Reply:
            events.append(f"handled {message.body.decode()}")
            return Reply(message.body)

        replies = kit.cluster.broker.replies
        take = replies.take

        async def slowly(*args: Any) -> Any:
            await asyncio.sleep(0.5)
            events.append("pushed")
            return await take(*args)

        replies.take = slowly  # type: ignore[method-assign]
        await begin(kit, consumer)
        await asyncio.gather(*(kit.producer.request(TOPIC, b"%d" % n, key="k") for n in range(3)))
        assert events == ["handled 0", "pushed", "handled 1", "pushed", "handled 2", "pushed"]

    play(story)


def test_a_late_reply_is_dropped_and_counted() -> None:
    """The caller was told that none came; the message is handled nevertheless."""

    async def story(kit: Kit) -> None:
        consumer = await responder(kit, seconds=3)
        with pytest.raises(RequestTimeout, match=r"no reply to request .* stored in orders"):
            await kit.producer.request(TOPIC, b"slow", timeout=1)
        await kit.until(lambda: consumer.statistics().handled == 1)
        await kit.until(lambda: kit.producer.statistics().late_replies == 1)
        assert consumer.statistics().replied == 1, "the requester took it, as RocketMQ's does"
        assert kit.producer.statistics().asking == 0

    play(story)


def test_a_message_that_is_handled_again_is_answered_again() -> None:
    """The requester takes the first reply; the second one is late."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order="queue", batch=1)
        async def handle(message: ReceivedMessage) -> Reply:
            kit.got.append(message)
            return Reply(str(len(kit.got)).encode())

        await begin(kit, consumer)
        node, session = place(kit, consumer)
        reply = await kit.producer.request(TOPIC, b"once")
        kit.loop.kill(node)  # before it has committed
        del session
        await responder(kit)
        await kit.until(lambda: len(kit.got) == 2, 60)
        await kit.until(lambda: kit.producer.statistics().late_replies == 1)
        assert reply.body == b"1"

    play(story)


def test_a_failed_attempt_sends_no_reply() -> None:
    """The attempt that succeeds does."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order="queue")
        async def handle(message: ReceivedMessage) -> Reply:
            if message.attempt < 3:
                raise Retry(after=0.1)
            return Reply(str(message.attempt).encode())

        await begin(kit, consumer)
        assert (await kit.producer.request(TOPIC, b"x")).body == b"3"

    play(story)


def test_a_reply_that_nobody_asked_for_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    """The message is done, and nothing is sent."""

    async def story(kit: Kit) -> None:
        consumer = await responder(kit)
        await kit.send(5)
        await kit.until(lambda: consumer.statistics().handled == 5)
        assert (consumer.statistics().replied, consumer.statistics().unreplied) == (0, 0)

    with caplog.at_level(logging.WARNING, "inorder"):
        play(story)
    said = [one.getMessage() for one in caplog.records if "asks for none" in one.getMessage()]
    assert said == [f"topic={TOPIC} a Reply to a message that asks for none is not sent"]


def test_a_reply_of_a_handler_of_lists_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can tell which message it answers."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order="queue", batch=8)
        async def handle(messages: list[ReceivedMessage]) -> Reply | Handled:
            return Reply(b"for whom?") if len(messages) > 1 else Handled(1)

        waiting = [
            asyncio.create_task(kit.producer.request(TOPIC, b"x", timeout=5)) for _ in range(4)
        ]
        await asyncio.sleep(1)
        await begin(kit, consumer)
        for one in waiting:
            with pytest.raises(RequestTimeout):
                await one
        assert consumer.statistics().handled == 4

    with caplog.at_level(logging.WARNING, "inorder"):
        play(story)
    assert "register with batch=1" in caplog.text


def test_a_requester_that_is_gone_holds_up_nobody() -> None:
    """Its reply is counted as not delivered, and the queue goes on."""

    async def story(kit: Kit) -> None:
        node, session = await kit.client()
        other = Producer(session)
        asked = asyncio.create_task(other.request(TOPIC, b"x", timeout=60))
        await asyncio.sleep(1)
        asked.cancel()
        await other.close()
        await session.close()
        del node
        consumer = await responder(kit)
        await kit.send(1)
        await kit.until(lambda: len(kit.got) == 2, 10)
        assert consumer.statistics().unreplied == 1

    play(story)


def test_requests_are_bounded() -> None:
    """At the limit a call is refused; nothing is sent."""

    async def story(kit: Kit) -> None:
        node, session = await kit.client(ClientConfig(requests_waiting_max=2))
        producer = Producer(session)
        waiting = [asyncio.create_task(producer.request(TOPIC, b"x", timeout=5)) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(TooManyOutstanding, match="requests_waiting_max"):
            await producer.request(TOPIC, b"x")
        assert producer.statistics().asking == 2
        waiting[0].cancel()
        await asyncio.sleep(0)
        with pytest.raises(RequestTimeout):
            await producer.request(TOPIC, b"y", timeout=1)
        with pytest.raises(RequestTimeout):
            await waiting[1]
        await producer.close()
        await session.close()
        del node

    play(story)


def test_a_producer_that_closes_waits_for_its_replies() -> None:
    """Like for the outcomes of its sends."""

    async def story(kit: Kit) -> None:
        await responder(kit, seconds=2)
        node, session = await kit.client()
        producer = Producer(session)
        asked = asyncio.create_task(producer.request(TOPIC, b"x"))
        await asyncio.sleep(1)
        await producer.close()
        assert producer.statistics().asking == 0
        assert (await asked).body == b"re x"
        await session.close()
        del node

    play(story)


def test_a_named_producer_sends_no_requests() -> None:
    """Its message would not be stored again by a later run, and no reply would come."""

    async def story(kit: Kit) -> None:
        named = Producer(kit.producer._access.session, id="nightly")
        with pytest.raises(UsageError, match="named producer"):
            await named.request(TOPIC, b"x", key="k")
        await named.close()

    play(story)


def test_a_requester_beside_a_consumer_is_known_at_once() -> None:
    """Its session has a connection already, and its last heartbeat named no producer."""

    async def story(kit: Kit) -> None:
        consumer = await responder(kit)
        _, session = place(kit, consumer)
        await asyncio.sleep(40)
        async with Producer(session) as producer:
            assert (await producer.request(TOPIC, b"x", timeout=2)).body == b"re x"

    play(story)


def test_a_broker_knows_the_requester_before_it_stores_the_request() -> None:
    """Also when the message goes out at once, over a connection that is in use."""

    async def story(kit: Kit) -> None:
        consumer = await responder(kit)
        _, session = place(kit, consumer)
        broker = kit.cluster.broker
        known: list[bool] = []
        put = broker.sends._put

        def watched(*message: Any) -> int:
            known.append(broker.members.producer_of(session.client_id) is not None)
            return put(*message)

        broker.sends._put = watched  # type: ignore[method-assign]
        async with Producer(session) as producer:
            await producer.send(TOPIC, b"plain")
            known.clear()
            assert (await producer.request(TOPIC, b"x")).body == b"re x"
        assert known == [True]

    play(story)


def test_a_reply_comes_by_another_broker_of_the_cluster() -> None:
    """As responders of RocketMQ do it: the requester is known at every broker of the cluster."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order="queue")
        async def handle(message: ReceivedMessage) -> Reply:
            kit.got.append(message)
            return Reply(message.queue.broker.encode())

        await begin(kit, consumer)
        assert (await kit.producer.request(TOPIC, b"0")).body == b"broker-a"
        await asyncio.sleep(1)
        client_id = kit.producer._access.session.client_id  # type: ignore[union-attr]
        brokers = [one.broker for one in kit.cluster.brokers]
        assert len(brokers) == 2
        assert all(one.members.producer_of(client_id) is not None for one in brokers)

        async def refuse(*_: Any) -> str:
            return "push reply message fail"

        brokers[0].replies._push = refuse  # type: ignore[method-assign]
        assert (await kit.producer.request(TOPIC, b"1")).body == b"broker-a"
        await kit.until(lambda: brokers[1].replies.pushed == 1)
        assert brokers[0].replies.failed == 1

    play(story, brokers=2)
