"""A consumer process of the hand-over benchmark: writes down each message that it is given.

    python -m bench.drivers.handing NAMESRV NAME GROUP TOPIC FILE

A line `start_ns end_ns queue offset epoch` per message, written when the handler is done; the start
is also written by itself, so that one who is killed has said it. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

HANDLER_S = 0.001


async def consume(namesrv: str, name: str, group: str, topic: str, path: str) -> None:
    """Consume until standard input ends; then stop as one should."""
    from inorder.aio import Consumer

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    consumer = Consumer(namesrv, group=group, consume_from="first", instance=name)

    @consumer.on(topic, order="queue")
    async def handle(message: Any) -> None:
        start_ns = time.monotonic_ns()
        place = f"{message.queue.index} {message.offset} {message.fence.epoch or 0}"
        os.write(file, f"{name} {start_ns} 0 {place}\n".encode())
        await asyncio.sleep(HANDLER_S)
        os.write(file, f"{name} {start_ns} {time.monotonic_ns()} {place}\n".encode())

    async with consumer:
        print("@ ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
