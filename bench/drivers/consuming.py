"""Our consumer as the benchmark times it: `python -m bench.drivers.consuming NAMESRV`.

A line `run MODE HANDLER_MS COUNT GROUP` makes a new group work off the first COUNT messages of the
backlog; `@ began` comes with the first one, the numbers with the last. Modes: `orderly` and
`concurrent` call a plain function in threads, as Java does; `orderly-async` awaits on the loop.
Handlers read key and body. `bare MODE HANDLER_MS COUNT LANES` calls the same handler as often from
as many threads (or tasks) and nothing else: that is the rate that it allows.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

TOPIC = "BenchOrderly"
THREADS = 20


class Meter:
    """Counts calls; notes the time and the CPU of the first and the last."""

    def __init__(self, count: int) -> None:
        self._left = self._count = count
        self._lock = threading.Lock()
        self._began = self._cpu = 0.0
        self._body_bytes = 0
        self.done = threading.Event()
        self.numbers: dict[str, float] = {}

    def tick(self, key: str | None = "", body: bytes = b"") -> None:
        """A message was handled, and its key and body read."""
        with self._lock:
            self._left -= 1
            if key is not None:
                self._body_bytes += len(body)
            if self._left == self._count - 1:
                print("@ began", flush=True)
                self._began, self._cpu = time.perf_counter(), time.process_time()
            elif self._left == 0:
                seconds = time.perf_counter() - self._began
                cpu_s = time.process_time() - self._cpu
                self.numbers = {
                    "messages_per_s": (self._count - 1) / seconds,
                    "client_cpu_us_per_message": cpu_s / self._count * 1e6,
                    "seconds": seconds,
                    "body_bytes": self._body_bytes,
                }
                self.done.set()


def with_threads(namesrv: str, order: Any, handler_s: float, meter: Meter, group: str) -> None:
    """Call a plain function."""
    import inorder

    consumer = inorder.Consumer(namesrv, group=group, consume_from="first")

    @consumer.on(TOPIC, order=order, concurrency=THREADS)
    def handle(message: Any) -> None:
        if handler_s:
            time.sleep(handler_s)
        meter.tick(message.key, message.body)

    with consumer:
        meter.done.wait()


async def on_the_loop(namesrv: str, handler_s: float, meter: Meter, group: str) -> None:
    """Await a coroutine."""
    from inorder.aio import Consumer

    consumer = Consumer(namesrv, group=group, consume_from="first")

    @consumer.on(TOPIC, order="queue")
    async def handle(message: Any) -> None:
        if handler_s:
            await asyncio.sleep(handler_s)
        meter.tick(message.key, message.body)

    async with consumer:
        await asyncio.to_thread(meter.done.wait)


def bare_threads(handler_s: float, count: int, lanes: int) -> None:
    """Let threads do what the handlers do, and nothing else."""

    def handle() -> None:
        for _ in range(count // lanes):
            time.sleep(handler_s)

    threads = [threading.Thread(target=handle) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def bare_tasks(handler_s: float, count: int, lanes: int) -> None:
    """Let tasks do what the handlers do, and nothing else."""

    async def handle() -> None:
        for _ in range(count // lanes):
            await asyncio.sleep(handler_s)

    await asyncio.gather(*(handle() for _ in range(lanes)))


def on_a_loop(work: Any) -> Any:
    """Run a coroutine as our users would: on uvloop if it is there."""
    loop_factory: Any = None
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)


def bare(mode: str, handler_s: float, count: int, lanes: int) -> dict[str, float]:
    """Return the rate that the handlers allow."""
    began = time.perf_counter()
    if mode == "orderly-async":
        on_a_loop(bare_tasks(handler_s, count, lanes))
    else:
        bare_threads(handler_s, count, lanes)
    return {"messages_per_s": count / (time.perf_counter() - began)}


def main() -> None:
    """Obey until standard input ends."""
    namesrv = sys.argv[1]
    print("@ ready", flush=True)
    for line in sys.stdin:
        verb, mode, handler_ms, count, last = line.split()
        meter, handler_s, group = Meter(int(count)), float(handler_ms) / 1000, last
        if verb == "bare":
            print("@ " + json.dumps(bare(mode, handler_s, int(count), int(last))), flush=True)
            continue
        if mode == "orderly-async":
            on_a_loop(on_the_loop(namesrv, handler_s, meter, group))
        else:
            order = "queue" if mode == "orderly" else None
            with_threads(namesrv, order, handler_s, meter, group)
        print("@ " + json.dumps(meter.numbers), flush=True)


if __name__ == "__main__":
    main()
