"""What a newcomer gives a producer: whole numbers as keys, delays in seconds, and mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import inorder
import inorder.aio
import inorder.testing
from inorder.errors import UsageError
from inorder.sync.direct import LONE_SENDS
from inorder.testing import RunningBroker


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A broker with a topic of several queues."""
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=8)
        yield running


def test_a_number_and_its_digits_are_one_key(broker: RunningBroker) -> None:
    """By every way to send, in one queue, in order."""
    with broker.producer() as producer:
        for n in range(LONE_SENDS + 3):  # the last ones by the caller's own thread
            producer.send("orders", b"%d" % n, key=42 if n % 2 else "42")
        assert producer._direct is not None
        assert producer._direct.sent > 0
        producer.send_nowait("orders", b"a", key=42)
        producer.send_oneway("orders", b"b", key=42)
        producer.send_batch([inorder.Message("orders", b"c", key=42)])  # type: ignore[arg-type]

        async def main() -> None:
            async with inorder.aio.Producer(broker.namesrv) as other:
                await other.send("orders", b"d", key=42, keys=[7, "seven"])  # type: ignore[list-item]
                await other.send_nowait("orders", b"e", key=42)

        asyncio.run(main())
    found = broker.messages("orders")
    numbers = [b"%d" % n for n in range(LONE_SENDS + 3)]
    assert [message.body for message in found] == [*numbers, b"a", b"b", b"c", b"d", b"e"]
    assert {(message.key, message.queue.index) for message in found} == {
        ("42", found[0].queue.index)
    }
    assert found[-2].properties["KEYS"] == "7 seven"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"topic": b"orders", "body": "x"}, "swapped"),
    ({"body": "x"}, "the body is a str"),
    ({"key": ""}, "key= is empty"),
    ({"key": 1.5}, "whole number"),
    ({"properties": {"n": 5}}, "property 'n' has the value 5"),
    ({"deliver_at": "noon"}, "is a str; give a datetime"),
    ({"delay_level": 99}, r"no delay level 99; the levels are 1 \(1s\) to 18 \(2h\)"),
    ({"delay": 10, "delay_level": 3}, "not both"),
]


@pytest.mark.parametrize(("given", "text"), MISTAKES)
def test_a_mistake_says_what_is_wrong(
    broker: RunningBroker, given: dict[str, Any], text: str
) -> None:
    """At the call, the same from both producers, also from one that sends by itself."""
    arguments = {"topic": "orders", "body": b"x"} | given
    with broker.producer() as producer:
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(UsageError, match=text):
                send(**arguments)
        for _ in range(LONE_SENDS + 3):
            producer.send("orders", b"x", key="k")
        with pytest.raises(UsageError, match=text):
            producer.send(**arguments)

    async def main() -> None:
        async with inorder.aio.Producer(broker.namesrv) as other:
            with pytest.raises(UsageError, match=text):
                await other.send(**arguments)
            with pytest.raises(UsageError, match=text):
                other.send_nowait(**arguments)

    asyncio.run(main())


def test_a_batch_of_something_else_is_refused(broker: RunningBroker) -> None:
    """Tuples are no messages: which one, and what to write."""
    with broker.producer() as producer, pytest.raises(UsageError, match=r"message 0 .* a tuple"):
        producer.send_batch([("orders", b"x")])  # type: ignore[list-item]


@pytest.mark.slow
def test_a_delay_in_seconds_is_kept(broker: RunningBroker) -> None:
    """As seconds or as a timedelta; the message carries the level."""
    with broker.producer() as producer, broker.consumer() as consumer:
        consumer.subscribe("orders")
        producer.send("orders", b"later", key="k", delay=1)
        producer.send_nowait("orders", b"later", key="k", delay=timedelta(seconds=1))
        producer.send("orders", b"now", key="k")
        found: list[inorder.ReceivedMessage] = []
        while len(found) < 3:
            found += consumer.poll(10)
        assert [message.body for message in found] == [b"now", b"later", b"later"]
