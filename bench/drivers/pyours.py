"""Our client as `python -m bench clients` times it: `python -m bench.drivers.pyours NAMESRV`.

    produce MODE COUNT TOPIC         nowait | aio | batch
    consume MODE COUNT TOPIC GROUP   queue | none | key | aio | lists | key-lists

Handlers are plain functions that `inorder.Consumer` calls, as most people write them; in `aio` they
are coroutines of `inorder.aio`. `lists` and `key-lists` get up to 500 messages a call.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import Any

import inorder
from bench.drivers.consuming import on_a_loop
from bench.drivers.traffic import (
    HELD_MAX,
    KEYS,
    Clock,
    Effects,
    Place,
    bodies,
    obey,
    wrong_effects,
    wrong_storage,
)

BATCH = 1000
LIST = 500
READ_TIMEOUT_S = 30
ORDERS = {"queue": "queue", "none": None, "key": "key", "lists": "queue", "key-lists": "key"}


def place(receipt: inorder.SendReceipt) -> Place:
    """Read what a receipt says."""
    return receipt.queue.index, receipt.offset


def nowait(topic: str, count: int, clock: Clock) -> list[Place]:
    """Send in a plain loop, and read every receipt."""
    keys, places = KEYS, []
    with inorder.Producer(sys.argv[1]) as producer:
        made, send, held = bodies(count), producer.send_nowait, deque[Any]()
        producer.start()
        clock.begin()
        for number, body in enumerate(made):
            held.append(send(topic, body, key=keys[number % len(keys)]))
            if len(held) >= HELD_MAX:
                places += [place(held.popleft().result()) for _ in range(HELD_MAX // 2)]
        places += [place(future.result()) for future in held]
        clock.end()
    return places


def on_aio(topic: str, count: int, clock: Clock) -> list[Place]:
    """Do the same on the caller's event loop."""

    async def send_all() -> list[Place]:
        from inorder.aio import Producer

        keys, places = KEYS, []
        async with Producer(sys.argv[1]) as producer:
            made, send, held = bodies(count), producer.send_nowait, deque[Any]()
            clock.begin()
            for number, body in enumerate(made):
                held.append(send(topic, body, key=keys[number % len(keys)]))
                if len(held) >= HELD_MAX:
                    places += [place(await held.popleft()) for _ in range(HELD_MAX // 2)]
            places += [place(await future) for future in held]
            clock.end()
        return places

    found: list[Place] = on_a_loop(send_all())
    return found


def in_batches(topic: str, count: int, clock: Clock) -> list[Place]:
    """Send a thousand a call."""
    keys, places = KEYS, []
    with inorder.Producer(sys.argv[1]) as producer:
        made, message = bodies(count), inorder.Message
        producer.start()
        clock.begin()
        for start in range(0, count, BATCH):
            receipts = producer.send_batch(
                [
                    message(topic, body, keys[number % len(keys)])
                    for number, body in enumerate(made[start : start + BATCH], start)
                ]
            )
            places += [place(receipt) for receipt in receipts]
        clock.end()
    return places


PRODUCE = {"nowait": nowait, "aio": on_aio, "batch": in_batches}


def produce(mode: str, words: str, topic: str) -> dict[str, object]:
    """Send, then read the topic and compare."""
    count, clock = int(words), Clock()
    receipts = PRODUCE[mode](topic, count, clock)
    return clock.report(count, wrong_storage(stored(topic, count), receipts, count))


def stored(topic: str, count: int) -> dict[int, list[bytes]]:
    """Return what is in the queues, until as many have come as were sent, and nothing follows."""
    found: dict[int, list[bytes]] = {}
    read = 0
    with inorder.PullConsumer(sys.argv[1], group="reads", consume_from="first") as consumer:
        consumer.subscribe(topic)
        while messages := consumer.poll(timeout=READ_TIMEOUT_S if read < count else 0.2):
            for message in messages:
                held = found.setdefault(message.queue.index, [])
                if message.offset != len(held):
                    raise AssertionError(f"{message.queue}: {message.offset} after {len(held)}")
                held.append(message.body)
            read += len(messages)
    return found


def consume(mode: str, words: str, topic: str, group: str) -> dict[str, object]:
    """Let a new group handle the whole topic."""
    effects = Effects(int(words))
    if mode == "aio":
        on_a_loop(handle_on_aio(topic, group, effects))
    else:
        handle_in_threads(mode, topic, group, effects)
    wrong = wrong_effects(effects.seen, effects.count, in_order=mode != "none")
    return effects.clock.report(effects.count, wrong)


def handle_in_threads(mode: str, topic: str, group: str, effects: Effects) -> None:
    """Have plain functions called."""
    seen, count, clock, end = effects.seen, effects.count, effects.clock, effects.end
    consumer = inorder.Consumer(sys.argv[1], group=group, consume_from="first")
    order: Any = ORDERS[mode]

    def handle_one(message: inorder.ReceivedMessage) -> None:
        if not clock.began:
            clock.begin()
        seen.append((message.key, message.body))
        if len(seen) >= count:
            end()

    def handle_some(messages: list[inorder.ReceivedMessage]) -> None:
        if not clock.began:
            clock.begin()
        seen.extend([(message.key, message.body) for message in messages])
        if len(seen) >= count:
            end()

    if mode.endswith("lists"):
        consumer.on(topic, order=order, batch=LIST)(handle_some)
    else:
        consumer.on(topic, order=order)(handle_one)
    with consumer:
        effects.wait()


async def handle_on_aio(topic: str, group: str, effects: Effects) -> None:
    """Have a coroutine awaited for each message."""
    from inorder.aio import Consumer

    seen, count, clock, end = effects.seen, effects.count, effects.clock, effects.end
    consumer = Consumer(sys.argv[1], group=group, consume_from="first")

    @consumer.on(topic, order="queue")
    async def handle(message: inorder.ReceivedMessage) -> None:
        if not clock.began:
            clock.begin()
        seen.append((message.key, message.body))
        if len(seen) >= count:
            end()

    async with consumer:
        await asyncio.to_thread(effects.wait)


if __name__ == "__main__":
    obey({"produce": produce, "consume": consume})
