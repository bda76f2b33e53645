"""Ordered sends and pulls of our client: `python -m bench.drivers.securing NAMESRV [KEYS_FILE]`.

The file has the credentials with which requests are signed. `run send WINDOW SECONDS` sends 1 KiB
under a thousand keys with a window of futures, `run sync 1 SECONDS` one after the other; `run pull
COUNT 0` reads the first messages of the topic.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from bench.drivers.work import numbers

TOPIC = "BenchSecured"
BODY = b"x" * 1024
KEYS = 1000
POLL_MAX = 1024


def main() -> None:
    """Obey until standard input ends."""
    from inorder import Credentials

    namesrv = sys.argv[1]
    credentials = Credentials.from_file(Path(sys.argv[2])) if sys.argv[2:] else None
    print("@ ready", flush=True)
    for line in sys.stdin:
        _, mode, number, seconds = line.split()
        ran = MODES[mode](namesrv, credentials, int(number), float(seconds))
        print("@ " + json.dumps(asyncio.run(ran)), flush=True)


async def send(namesrv: str, credentials: Any, window: int, seconds: float) -> dict[str, float]:
    """Send with a window."""
    from inorder.aio import Producer

    async with Producer(namesrv, credentials=credentials) as producer:
        await producer.send(TOPIC, BODY, key="k0")
        pending: deque[asyncio.Future[Any]] = deque()
        sent = 0
        began, cpu = time.perf_counter(), time.process_time()
        until = began + seconds
        while time.perf_counter() < until:
            pending.append(producer.send_nowait(TOPIC, BODY, key=f"k{sent % KEYS}"))
            sent += 1
            if len(pending) >= window:
                await pending.popleft()
        for future in pending:
            await future
        return numbers(sent, time.perf_counter() - began, time.process_time() - cpu)


async def sync(namesrv: str, credentials: Any, _: int, seconds: float) -> dict[str, float]:
    """Send one after the other."""
    from inorder.aio import Producer

    async with Producer(namesrv, credentials=credentials) as producer:
        await producer.send(TOPIC, BODY, key="k0")
        took: list[float] = []
        began, cpu = time.perf_counter(), time.process_time()
        until, at = began + seconds, began
        while at < until:
            await producer.send(TOPIC, BODY, key=f"k{len(took) % KEYS}")
            now = time.perf_counter()
            took.append(now - at)
            at = now
        return numbers(len(took), at - began, time.process_time() - cpu, took)


async def pull(namesrv: str, credentials: Any, count: int, _: float) -> dict[str, float]:
    """Read from the beginning of all queues."""
    from inorder.aio import PullConsumer

    async with PullConsumer(namesrv, group="bench-secured", credentials=credentials) as consumer:
        queues = await consumer.queues(TOPIC)
        began, cpu = time.perf_counter(), time.process_time()
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, "beginning")
        read = 0
        while read < count:
            found = await consumer.poll(5.0, messages_max=POLL_MAX)
            if not found:
                raise SystemExit(f"only {read} messages came")
            read += len(found)
        return numbers(read, time.perf_counter() - began, time.process_time() - cpu)


MODES = {"send": send, "sync": sync, "pull": pull}

if __name__ == "__main__":
    main()
