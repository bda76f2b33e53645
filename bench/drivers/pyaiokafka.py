"""`aiokafka` as `python -m bench clients` times it: `python pyaiokafka.py BOOTSTRAP`.

    produce send COUNT TOPIC             a future for each message
    consume getmany COUNT TOPIC GROUP    getmany of 500

Its settings are its own defaults but for `enable_idempotence`. It runs on asyncio's own loop.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from bench.drivers.traffic import (
    HELD_MAX,
    KEYS,
    UNIT_S,
    Clock,
    Effects,
    Place,
    bodies,
    obey,
    wrong_effects,
    wrong_storage,
)

LIST = 500
TIMEOUT_MS = 30_000


async def send_all(topic: str, count: int, clock: Clock) -> list[Place]:
    """Send in a plain loop, and read every receipt."""
    keys, places = [key.encode() for key in KEYS], []
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1], enable_idempotence=True) as producer:
        await producer.partitions_for(topic)
        made, send, held = bodies(count), producer.send, deque[Any]()
        clock.begin()
        for number, body in enumerate(made):
            held.append(await send(topic, body, keys[number % len(keys)]))
            if len(held) >= HELD_MAX:
                for _ in range(HELD_MAX // 2):
                    where = await held.popleft()
                    places.append((where.partition, where.offset))
        for future in held:
            where = await future
            places.append((where.partition, where.offset))
        clock.end()
    return places


def produce(mode: str, words: str, topic: str) -> dict[str, object]:
    """Send, then read the topic and compare."""
    assert mode == "send"
    count, clock = int(words), Clock()
    receipts = asyncio.run(send_all(topic, count, clock))
    held = asyncio.run(stored(topic, count))
    return clock.report(count, wrong_storage(held, receipts, count))


async def stored(topic: str, count: int) -> dict[int, list[bytes]]:
    """Return what is in the partitions."""
    found: dict[int, list[bytes]] = {}
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=sys.argv[1], auto_offset_reset="earliest"
    ) as consumer:
        read = 0
        while some := await consumer.getmany(timeout_ms=TIMEOUT_MS if read < count else 200):
            for where, messages in some.items():
                held = found.setdefault(where.partition, [])
                for message in messages:
                    if message.offset != len(held):
                        raise AssertionError(f"{message.offset} after {len(held)}")
                    held.append(message.value)
                read += len(messages)
    return found


async def handle_all(topic: str, group: str, effects: Effects) -> None:
    """Handle messages until all are."""
    seen, count, clock, end = effects.seen, effects.count, effects.clock, effects.end
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=sys.argv[1], group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        until = time.monotonic() + UNIT_S
        while not effects.done.is_set() and time.monotonic() < until:
            some: dict[TopicPartition, list[Any]] = await consumer.getmany(
                timeout_ms=TIMEOUT_MS, max_records=LIST
            )
            for messages in some.values():
                for message in messages:
                    if not clock.began:
                        clock.begin()
                    seen.append((message.key, message.value))
                    if len(seen) >= count:
                        end()


def consume(mode: str, words: str, topic: str, group: str) -> dict[str, object]:
    """Let a new group handle the whole topic."""
    assert mode == "getmany"
    effects = Effects(int(words))
    asyncio.run(handle_all(topic, group, effects))
    effects.give_up()
    wrong = wrong_effects(effects.seen, effects.count, in_order=True)
    return effects.clock.report(effects.count, wrong)


if __name__ == "__main__":
    obey({"produce": produce, "consume": consume})
