"""`trace=True`: traces of sends and handlers in the trace topic of a broker that has one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.send.producer import Producer
from inorder.client.traces import WAITING_MAX, Tracer
from inorder.config import BrokerConfig
from inorder.errors import TransportError
from inorder.model import Message, ReceivedMessage, TopicQueue
from inorder.testing.clock import FakeClock
from inorder.wire.names import TRACE_TOPIC
from inorder.wire.requests.routes import TopicRoute
from tests.integration.consumerkit import TOPIC, Kit, begin, consumer_of, play

TRACES = BrokerConfig(trace_topic=True)


async def traces(kit: Kit) -> list[list[str]]:
    """The fields of all traces in the trace topic."""
    _, session = await kit.client()
    reader = PullConsumer(session, group="trace-readers")
    queue = TopicQueue(TRACE_TOPIC, "broker-a", 0)
    found = [message async for message in reader.pull_all(queue)]
    await session.close()
    return [
        one.split("\x01") for message in found for one in message.body.decode().split("\x02") if one
    ]


def test_a_message_is_traced_from_send_to_handler() -> None:
    """The tools of RocketMQ find all three traces by the id of the message, or by its keys."""

    async def story(kit: Kit) -> None:
        seen: list[str] = []

        def before(message: Message) -> None:
            seen.append(message.topic)

        session = kit.producer._access.session
        consumer = await consumer_of(kit, trace=True)

        @consumer.on(TOPIC, order="queue")
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)
            await asyncio.sleep(0.05)
            if len(kit.got) == 1:
                raise ValueError("not yet")

        await begin(kit, consumer)
        async with Producer(session, group="pg", trace=True, before_send=before) as producer:
            receipt = await producer.send(TOPIC, b"body", tag="paid", keys=["k1"])
        await kit.until(lambda: len(kit.got) == 2)
        await asyncio.sleep(3)
        found = await traces(kit)
        assert seen == [TOPIC]
        (pub,) = [one for one in found if one[0] == "Pub"]
        assert pub[3:8] == ["pg", TOPIC, receipt.message_id, "paid", "k1"]
        assert (pub[9], pub[13]) == ("4", "true")
        assert pub[8].endswith(":10911")
        begun = [one for one in found if one[0] == "SubBefore"]
        ended = [one for one in found if one[0] == "SubAfter"]
        assert [one[5:7] for one in begun] == [[receipt.message_id, "0"], [receipt.message_id, "1"]]
        assert [one[4] for one in ended] == ["false", "true"]
        assert [one[1] for one in ended] == [one[4] for one in begun]
        assert [one[8] for one in ended] == ["billing", "billing"]

    play(story, broker=TRACES)


def test_without_a_trace_topic_messages_flow_and_traces_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names the setting of the broker, once."""

    async def story(kit: Kit) -> None:
        session = kit.producer._access.session
        async with Producer(session, trace=True) as producer:
            for number in range(3):
                await producer.send(TOPIC, b"%d" % number)
                await asyncio.sleep(2)
            assert producer._tracer is not None
            assert producer._tracer.dropped == 3

    with caplog.at_level(logging.WARNING, "inorder"):
        play(story)
    said = [one.getMessage() for one in caplog.records if "traceTopicEnable" in one.getMessage()]
    assert len(said) == 1


def test_traces_take_bounded_room() -> None:
    """While they cannot be sent, further ones are dropped; sends do not wait for them."""
    tracer = Tracer("pg", "PRODUCE", FakeClock())
    before, after = tracer.before_send(None), tracer.after_send(None)
    for number in range(WAITING_MAX + 50):
        message = before(Message(TOPIC, b"%d" % number))
        assert message is not None
        after(message, None, TransportError("no"))
    assert (len(tracer._waiting), tracer.dropped) == (WAITING_MAX, 50)
    for number in range(WAITING_MAX + 50):  # refused before they were sent: no end is heard
        before(Message(TOPIC, b"%d" % number))
    assert len(tracer._sends) == WAITING_MAX


def test_traces_on_their_way_at_the_close_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that sends them is stopped in the middle; `close` sends them then."""

    async def story(kit: Kit) -> None:
        session = kit.producer._access.session
        route, asked = session.route, asyncio.Event()

        async def slow(topic: str) -> TopicRoute:
            if topic == TRACE_TOPIC and not asked.is_set():
                asked.set()
                await asyncio.sleep(3600)
            return await route(topic)

        async with Producer(session, group="pg", trace=True) as producer:
            monkeypatch.setattr(session, "route", slow)
            receipt = await producer.send(TOPIC, b"body")
            await asked.wait()
        found = await traces(kit)
        assert [one[5] for one in found] == [receipt.message_id]
        assert producer._tracer is not None
        assert producer._tracer.dropped == 0

    play(story, broker=TRACES)
