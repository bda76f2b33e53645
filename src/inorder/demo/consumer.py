"""One of the demo's consumers, in a process of its own, and the demo's handle on that process.

The child writes a line of JSON for each message that it handled, and one whenever the number of its
queues changes. SIGTERM ends it cleanly. It also ends when the demo's process is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from inorder.checker import Handled, HandledResult, queue_name
from inorder.client.consume.consumer import Consumer
from inorder.model import ReceivedMessage

TOPIC: Final = "orders"
GROUP: Final = "demo"
HANDLER_SECONDS: Final = 0.001
_LOOK_SECONDS: Final = 0.02
_CODE: Final = "import sys; from inorder.demo.consumer import main; main(*sys.argv[1:])"

OnHandled = Callable[["Child", Handled, str, int], None]


class Child:
    """A consumer process as the demo sees it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.queues = 0
        self.handled: list[Handled] = []

    @classmethod
    async def start(cls, name: str, namesrv: str) -> Child:
        """Start the process."""
        words = (sys.executable, "-c", _CODE, name, namesrv, str(os.getpid()))
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        return cls(name, process)

    async def listen(self, on_handled: OnHandled) -> None:
        """Read its lines until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                return  # it was killed while it wrote a line
            told = json.loads(line)
            if "queues" in told:
                self.queues = told["queues"]
                continue
            event = Handled(
                self.name, told["queue"], told["offset"], told["id"], told["key"],
                told["start_ns"], told["end_ns"], HandledResult.DONE,
            )  # fmt: skip
            self.handled.append(event)
            on_handled(self, event, told["step"], told["sequence"])

    async def end(self, number: int) -> None:
        """Send a signal and wait for its end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.wait()


def main(name: str, namesrv: str, parent: str) -> None:
    """Run as the child process."""
    asyncio.run(_consume(name, namesrv, int(parent)))


async def _consume(name: str, namesrv: str, parent: int) -> None:
    consumer = Consumer(namesrv, group=GROUP, consume_from="first", instance=f"demo-{name}")

    @consumer.on(TOPIC)
    async def handle(message: ReceivedMessage) -> None:
        start_ns = time.monotonic_ns()
        await asyncio.sleep(HANDLER_SECONDS)
        _tell(
            queue=queue_name(message.queue), offset=message.offset, id=message.message_id,
            key=message.key, step=message.tag, sequence=int(message.properties["sequence"]),
            start_ns=start_ns, end_ns=time.monotonic_ns(),
        )  # fmt: skip

    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with consumer:
        known = 0
        while not stopping.is_set() and os.getppid() == parent:
            count = sum(queue.topic == TOPIC for queue in consumer.assignment())
            if count != known:
                known = count
                _tell(queues=count)
            await asyncio.sleep(_LOOK_SECONDS)


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)
