"""The process of a consumer that `consuming.py` starts and kills: handles and writes down each run.

A line is written, unbuffered, when a handler starts and another when it ends, before the consumer
knows of it: whatever dies afterwards, what took effect can be read. It stops when its standard
input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace

from inorder.aio import Consumer, ReceivedMessage
from inorder.checker import Handled, HandledResult, queue_name
from inorder.client.policies import Retry
from inorder.config import ClientConfig
from inorder.testing.history import write_history
from inorder.testing.seeds import stream

FAIL_RATIO = 0.02
FORGET_RATIO = 0.1
RETRY_S = 0.02
HANDLE_S_MAX = 0.003


@dataclass(frozen=True, slots=True)
class Orders:
    """What the process shall do."""

    namesrv: str
    name: str
    group: str
    topic: str
    seed: int
    events: str
    forgetful: bool = False
    """A planted bug: now and then it returns as if it was done, and has done nothing."""
    order: str = "queue"


class Notes:
    """Handles messages and writes down that it did."""

    def __init__(self, orders: Orders) -> None:
        self._name = orders.name
        self._forget_ratio = FORGET_RATIO if orders.forgetful else 0.0
        self._draw: random.Random = stream(orders.seed, orders.name)
        self._file = os.open(orders.events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def handle(self, message: ReceivedMessage) -> None:
        """Take a moment; now and then ask for another try."""
        run = Handled(
            self._name,
            queue_name(message.queue),
            message.offset,
            message.properties["id"],
            message.key,
            time.monotonic_ns(),
        )
        self._write(run)
        if self._draw.random() < self._forget_ratio:
            return
        failed = self._draw.random() < FAIL_RATIO
        await asyncio.sleep(self._draw.uniform(0, HANDLE_S_MAX))
        result = HandledResult.FAILED if failed else HandledResult.DONE
        self._write(replace(run, end_ns=time.monotonic_ns(), result=result))
        if failed:
            raise Retry(after=RETRY_S)

    def _write(self, run: Handled) -> None:
        for line in write_history([run]):
            os.write(self._file, f"{line}\n".encode())


async def consume(orders: Orders) -> None:
    """Consume until standard input ends; then stop as one should."""
    loop = asyncio.get_running_loop()
    config = ClientConfig(route_refresh_ms=2000)
    consumer = Consumer(
        orders.namesrv, group=orders.group, consume_from="first", instance=orders.name,
        config=config,
    )  # fmt: skip
    handle: Callable[[ReceivedMessage], Awaitable[None]] = Notes(orders).handle
    consumer.on(orders.topic, order="key" if orders.order == "key" else "queue")(handle)
    async with consumer:
        await loop.run_in_executor(None, sys.stdin.read)


def start_words(orders: Orders) -> list[str]:
    """Return the command that does it."""
    return [sys.executable, "-m", "tests.crash.consumers", json.dumps(asdict(orders))]


if __name__ == "__main__":
    asyncio.run(consume(Orders(**json.loads(sys.argv[1]))))
