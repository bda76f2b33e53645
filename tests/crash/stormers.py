"""The process of a consumer in the storm: handles, asks the store, writes each run down.

The store is another process: one that is stopped in the middle of a handler holds none of its
locks. It stops when its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, replace
from typing import Literal

from inorder.aio import ReceivedMessage
from inorder.checker import Handled, HandledResult, queue_name
from inorder.client.consume.rules.outcomes import Retry
from inorder.config import ClientConfig, ConsumerConfig
from tests.crash import consumers
from tests.crash.consumers import ConsumerOrders, RunsFile
from tests.kit.simcluster import stream

FAIL_RATIO = 0.01
RETRY_S = 0.02


@dataclass(frozen=True, slots=True)
class StormOrders(ConsumerOrders):
    """What the process shall do."""

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

    def __init__(self, orders: StormOrders) -> None:
        self._orders = orders
        self._draw: random.Random = stream(orders.seed, orders.name)
        self._store = Store(orders.store_port)
        self._runs = RunsFile(orders.events)

    async def handle(self, message: ReceivedMessage) -> None:
        """Take a moment; now and then ask for another try."""
        run = Handled(
            self._orders.name, queue_name(message.queue), message.offset,
            message.properties["id"], message.key, time.monotonic_ns(),
            epoch=message.fence.epoch, fence=message.fence.sequence,
        )  # fmt: skip
        self._runs.write(run)
        result = HandledResult.FAILED
        try:
            await asyncio.sleep(self._draw.uniform(0, self._orders.handle_s))
            if self._draw.random() < FAIL_RATIO:
                raise Retry(after=RETRY_S)
            await self._store.apply(message)
            result = HandledResult.DONE
        finally:
            self._runs.write(replace(run, end_ns=time.monotonic_ns(), result=result))


def start_words(orders: StormOrders) -> list[str]:
    """Return the command that does it."""
    return consumers.start_words(orders, "tests.crash.stormers")


def main() -> None:
    """Do as the arguments say."""
    orders = StormOrders(**json.loads(sys.argv[1]))
    config = ClientConfig(
        route_refresh_ms=2000,
        consumer=ConsumerConfig(lease_ms=orders.lease_ms, grace_ms=orders.grace_ms),
    )
    handle = Notes(orders).handle
    asyncio.run(consumers.consume(orders, handle, config, order=orders.order, concurrency=8))


if __name__ == "__main__":
    main()
