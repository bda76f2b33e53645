"""`confluent-kafka` as `python -m bench clients` times it: `python pyconfluent.py BOOTSTRAP`.

    produce callback COUNT TOPIC              on_delivery for each message
    consume consume|poll COUNT TOPIC GROUP    consume(500), or poll() for each message
    topic COUNT TOPIC                         make a topic of so many partitions

Its settings are its own defaults but for `enable.idempotence`. Delivery reports are served every
thousand messages, which is faster than after each.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.drivers.traffic import (
    KEYS,
    UNIT_S,
    Clock,
    Effects,
    Place,
    bodies,
    number_of,
    obey,
    wrong_effects,
    wrong_storage,
)

LIST = 500
SERVE_EVERY = 1000
TIMEOUT_S = 30.0


def produce(mode: str, words: str, topic: str) -> dict[str, object]:
    """Send, then read the topic and compare."""
    assert mode == "callback"
    count, clock, keys = int(words), Clock(), KEYS
    reports: list[tuple[bytes, int, int]] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        reports.append((message.value(), message.partition(), message.offset()))

    producer = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True})
    producer.list_topics(topic, TIMEOUT_S)
    made, send = bodies(count), producer.produce
    clock.begin()
    for number, body in enumerate(made):
        while True:
            try:
                send(topic, body, keys[number % len(keys)], on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % SERVE_EVERY == 0:
            producer.poll(0)
    left = producer.flush(TIMEOUT_S)
    clock.end()
    receipts: list[Place] = [(-1, -1)] * count
    for body, queue, offset in reports:
        receipts[number_of(body)] = (queue, offset)
    wrong = [f"{left} messages left in the producer"] if left else []
    return clock.report(count, wrong + wrong_storage(stored(topic, count), receipts, count))


def topic(words: str, name: str) -> dict[str, object]:
    """Make a topic, and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": sys.argv[1]})
    admin.create_topics([NewTopic(name, int(words), 1)])[name].result(TIMEOUT_S)
    return {}


def stored(topic: str, count: int) -> dict[int, list[bytes]]:
    """Return what is in the partitions."""
    found: dict[int, list[bytes]] = {}
    consumer = _consumer("reads", commits=False)
    names = sorted(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in names])
    read = 0
    while messages := consumer.consume(LIST, TIMEOUT_S if read < count else 0.2):
        for message in messages:
            held = found.setdefault(message.partition(), [])
            if message.error() or message.offset() != len(held):
                raise AssertionError(f"{message.error()} {message.offset()} after {len(held)}")
            held.append(message.value())
        read += len(messages)
    consumer.close()
    return found


def consume(mode: str, words: str, topic: str, group: str) -> dict[str, object]:
    """Let a new group handle the whole topic."""
    effects = Effects(int(words))
    seen, count, clock, end = effects.seen, effects.count, effects.clock, effects.end
    consumer = _consumer(group, commits=True)
    consumer.subscribe([topic])

    def handle(message: Any) -> None:
        if message.error():
            raise KafkaException(message.error())
        if not clock.began:
            clock.begin()
        seen.append((message.key(), message.value()))
        if len(seen) >= count:
            end()

    until = time.monotonic() + UNIT_S
    while not effects.done.is_set() and time.monotonic() < until:
        if mode == "consume":
            for message in consumer.consume(LIST, TIMEOUT_S):
                handle(message)
        else:
            message = consumer.poll(TIMEOUT_S)
            if message is not None:
                handle(message)
    consumer.close()
    effects.give_up()
    return clock.report(count, wrong_effects(seen, count, in_order=True))


def _consumer(group: str, *, commits: bool) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": sys.argv[1],
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": commits,
        }
    )


if __name__ == "__main__":
    obey({"produce": produce, "consume": consume, "topic": topic})
