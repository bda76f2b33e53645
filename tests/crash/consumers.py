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
from typing import Any, Literal

from inorder.aio import Consumer, ReceivedMessage
from inorder.checker import Handled, HandledResult, queue_name
from inorder.checker.events import write_history
from inorder.client.consume.rules.outcomes import Retry
from inorder.config import ClientConfig
from tests.kit.simcluster import stream

FAIL_RATIO = 0.02
FORGET_RATIO = 0.1
RETRY_S = 0.02
HANDLE_S_MAX = 0.003

Handle = Callable[[ReceivedMessage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConsumerOrders:
    """What every such process is told."""

    namesrv: str
    name: str
    group: str
    topic: str
    seed: int
    events: str


@dataclass(frozen=True, slots=True)
class Orders(ConsumerOrders):
    """What the process shall do."""

    forgetful: bool = False
    """A planted bug: now and then it returns as if it was done, and has done nothing."""
    order: Literal["queue", "key"] = "queue"


class RunsFile:
    """Where a process writes its runs down."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, run: Handled) -> None:
        """Write a run down, as far as it is."""
        for line in write_history([run]):
            os.write(self._file, f"{line}\n".encode())


class Notes:
    """Handles messages and writes down that it did."""

    def __init__(self, orders: Orders) -> None:
        self._name = orders.name
        self._forget_ratio = FORGET_RATIO if orders.forgetful else 0.0
        self._draw: random.Random = stream(orders.seed, orders.name)
        self._runs = RunsFile(orders.events)

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
        self._runs.write(run)
        if self._draw.random() < self._forget_ratio:
            return
        failed = self._draw.random() < FAIL_RATIO
        await asyncio.sleep(self._draw.uniform(0, HANDLE_S_MAX))
        result = HandledResult.FAILED if failed else HandledResult.DONE
        self._runs.write(replace(run, end_ns=time.monotonic_ns(), result=result))
        if failed:
            raise Retry(after=RETRY_S)


async def consume(orders: ConsumerOrders, handle: Handle, config: ClientConfig, **how: Any) -> None:
    """Consume until standard input ends; then stop as one should."""
    consumer = Consumer(
        orders.namesrv, group=orders.group, consume_from="first", instance=orders.name,
        config=config,
    )  # fmt: skip
    consumer.on(orders.topic, **how)(handle)
    async with consumer:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def start_words(orders: ConsumerOrders, module: str = "tests.crash.consumers") -> list[str]:
    """Return the command that does it."""
    return [sys.executable, "-m", module, json.dumps(asdict(orders))]


def main() -> None:
    """Do as the arguments say."""
    orders = Orders(**json.loads(sys.argv[1]))
    config = ClientConfig(route_refresh_ms=2000)
    asyncio.run(consume(orders, Notes(orders).handle, config, order=orders.order))


if __name__ == "__main__":
    main()
