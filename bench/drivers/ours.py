"""Our client as the benchmark times it; `python -m bench.drivers.ours NAMESRV [asyncio]`.

`asyncio` as a second argument hides uvloop, if it is installed, from the client.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from typing import Any

from bench.drivers.work import BODY, KEY, TAG, TOPIC, numbers


def main() -> None:
    """Obey until standard input ends."""
    namesrv = sys.argv[1]
    if sys.argv[2:] == ["asyncio"]:
        sys.modules["uvloop"] = None  # type: ignore[assignment]  # importing it fails from now on
    print("@ ready", flush=True)
    for line in sys.stdin:
        _, mode, window, seconds = line.split()
        measured = MODES[mode](namesrv, int(window), float(seconds))
        print("@ " + json.dumps(measured), flush=True)


def flood(namesrv: str, window: int, seconds: float) -> dict[str, float]:
    """Send with a window of futures, on the loop that asyncio.run is given."""
    loop_factory: Any = None
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_flood(namesrv, window, seconds))


async def _flood(namesrv: str, window: int, seconds: float) -> dict[str, float]:
    from inorder.aio import Producer

    async with Producer(namesrv) as producer:
        await producer.send(TOPIC, BODY, tag=TAG, keys=(KEY,))
        pending: deque[asyncio.Future[Any]] = deque()
        sent = 0
        began, cpu = time.perf_counter(), time.process_time()
        until = began + seconds
        while time.perf_counter() < until:
            pending.append(producer.send_nowait(TOPIC, BODY, tag=TAG, keys=(KEY,)))
            sent += 1
            if len(pending) >= window:
                await pending.popleft()
        for future in pending:
            await future
        return numbers(sent, time.perf_counter() - began, time.process_time() - cpu)


def one_by_one(namesrv: str, _: int, seconds: float) -> dict[str, float]:
    """Send with the blocking producer, one after the other."""
    import inorder

    with inorder.Producer(namesrv) as producer:
        for _ in range(20):
            producer.send(TOPIC, BODY, tag=TAG, keys=(KEY,))
        took: list[float] = []
        began, cpu = time.perf_counter(), time.process_time()
        until, at = began + seconds, began
        while at < until:
            producer.send(TOPIC, BODY, tag=TAG, keys=(KEY,))
            now = time.perf_counter()
            took.append(now - at)
            at = now
        return numbers(len(took), at - began, time.process_time() - cpu, took)


MODES = {"async": flood, "sync": one_by_one}

if __name__ == "__main__":
    main()
