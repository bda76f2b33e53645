"""Our consumer over a backlog of keys, as `python -m bench keyed` times it.

    python -m bench.drivers.keying NAMESRV

A line `run MODE HANDLER_MS COUNT GROUP` makes a new group work off the backlog until COUNT messages
are done; `@ began` comes with the first one, the numbers with the last. Modes:

    queue          order="queue"; handlers await on the loop
    key            order="key" with WORKERS handlers
    key-parked     the same, and one key of a hundred fails and is parked
    leased         order="queue", a plain function in threads that does nothing, under leases
    classic        the same under RocketMQ's locks: leases are switched off in this process
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bench.drivers.consuming import Meter, on_a_loop

TOPIC = "BenchKeyed"
KEYS = 1000
WORKERS = 64
FAILING = 100
"""One key of so many fails."""
_NO_LEASES = 1 << 30


def fails(key: str | None) -> bool:
    """Tell whether the messages of a key fail."""
    return key is not None and int(key[1:]) % FAILING == 0


async def handle_keys(mode: str, namesrv: str, handler_s: float, meter: Meter, group: str) -> None:
    """Await handlers on the loop."""
    from inorder.aio import ClientConfig, Consumer
    from inorder.client.consume.rules.outcomes import Block, Park
    from inorder.config import ConsumerConfig

    parked = mode == "key-parked"
    config = ClientConfig(consumer=ConsumerConfig(suspend_ms=20))
    consumer = Consumer(namesrv, group=group, consume_from="first", config=config)

    @consumer.on(
        TOPIC,
        order="queue" if mode == "queue" else "key",
        concurrency=WORKERS,
        on_failure=Park(attempts=1) if parked else Block(),
    )
    async def handle(message: Any) -> None:
        await asyncio.sleep(handler_s)
        if parked and fails(message.key):
            raise ValueError("a bad key")
        meter.tick()

    async with consumer:
        await asyncio.to_thread(meter.done.wait)


def do_nothing(namesrv: str, meter: Meter, group: str) -> None:
    """Call a plain function that does nothing."""
    import inorder

    consumer = inorder.Consumer(namesrv, group=group, consume_from="first")

    @consumer.on(TOPIC, order="queue")
    def handle(_: Any) -> None:
        meter.tick()

    with consumer:
        meter.done.wait()


def main() -> None:
    """Obey until standard input ends."""
    from inorder.client.consume import leases

    known = leases.LEASES_SINCE
    namesrv = sys.argv[1]
    print("@ ready", flush=True)
    for line in sys.stdin:
        _, mode, handler_ms, count, group = line.split()
        meter = Meter(int(count))
        leases.LEASES_SINCE = _NO_LEASES if mode == "classic" else known  # type: ignore[misc]
        if mode in ("leased", "classic"):
            do_nothing(namesrv, meter, group)
        else:
            on_a_loop(handle_keys(mode, namesrv, float(handler_ms) / 1000, meter, group))
        print("@ " + json.dumps(meter.numbers), flush=True)


if __name__ == "__main__":
    main()
