"""The process of a consumer in the storm: handles, asks the store, writes each run down.

The store is another process: one that is stopped in the middle of a handler holds none of its
locks. It stops when its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Literal

from inorder.aio import Consumer, ReceivedMessage
from inorder.checker import Handled, HandledResult, queue_name
from inorder.client.policies import Retry
from inorder.config import ClientConfig, ConsumerConfig
from inorder.testing.history import write_history
from inorder.testing.seeds import stream

FAIL_RATIO = 0.01
RETRY_S = 0.02


@dataclass(frozen=True, slots=True)
class Orders:
    """What the process shall do."""

    namesrv: str
    name: str
    group: str
    topic: str
    seed: int
    events: str
    store_port: int
    order: Literal["queue", "key"]
    lease_ms: int
    grace_ms: int
    handle_s: float


class Store:
    """The other end of `storm.Ledger`: asks it to apply an effect, and waits for its word."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def apply(self, message: ReceivedMessage) -> None:
        """Return when the store has taken the effect, or refused it as old."""
        row = [message.key, message.fence.sequence, message.properties["id"]]
        async with self._lock:
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(json.dumps(row).encode() + b"\n")
                answer = await reader.readline()
            except BaseException:
                self._streams = None  # an answer may be on its way: it is nobody's
                raise
        if not answer:
            raise ConnectionError("the store is gone")


class Notes:
    """Handles messages and writes down that it did."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._draw: random.Random = stream(orders.seed, orders.name)
        self._store = Store(orders.store_port)
        self._file = os.open(orders.events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def handle(self, message: ReceivedMessage) -> None:
        """Take a moment; now and then ask for another try."""
        run = Handled(
            self._orders.name, queue_name(message.queue), message.offset,
            message.properties["id"], message.key, time.monotonic_ns(),
            epoch=message.fence.epoch, fence=message.fence.sequence,
        )  # fmt: skip
        self._write(run)
        result = HandledResult.FAILED
        try:
            await asyncio.sleep(self._draw.uniform(0, self._orders.handle_s))
            if self._draw.random() < FAIL_RATIO:
                raise Retry(after=RETRY_S)
            await self._store.apply(message)
            result = HandledResult.DONE
        finally:
            self._write(replace(run, end_ns=time.monotonic_ns(), result=result))

    def _write(self, run: Handled) -> None:
        for line in write_history([run]):
            os.write(self._file, f"{line}\n".encode())


async def consume(orders: Orders) -> None:
    """Consume until standard input ends; then stop as one should."""
    config = ClientConfig(
        route_refresh_ms=2000,
        consumer=ConsumerConfig(lease_ms=orders.lease_ms, grace_ms=orders.grace_ms),
    )
    consumer = Consumer(
        orders.namesrv, group=orders.group, consume_from="first", instance=orders.name,
        config=config,
    )  # fmt: skip
    consumer.on(orders.topic, order=orders.order, concurrency=8)(Notes(orders).handle)
    async with consumer:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def start_words(orders: Orders) -> list[str]:
    """Return the command that does it."""
    return [sys.executable, "-m", "tests.crash.stormers", json.dumps(asdict(orders))]


if __name__ == "__main__":
    asyncio.run(consume(Orders(**json.loads(sys.argv[1]))))
