"""The process of a consumer that pops in order: handles, asks the ledger, writes all of it down.

It counts the invisible time of a batch from the sending of its pop and begins no message after
that. What it has begun it ends, and acknowledges, however late that is. A line is written,
unbuffered, before the next thing is done: whatever dies, what it did can be read. It stops when its
standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from inorder.config import NetConfig
from inorder.errors import InorderError
from inorder.net.connection import Connection
from tests.kit.popclient import Batch, Handle, PopClient, Popped
from tests.kit.simcluster import stream

FAIL_RATIO = 0.01
CHANGE_RATIO = 0.02
TRIES = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PopOrders:
    """What the process shall do."""

    address: str
    name: str
    group: str
    topic: str
    queues: int
    seed: int
    events: str
    ledger_port: int
    invisible_ms: int
    handle_s: float


class Diary:
    """Where it writes down what it does, a line of JSON each."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, **more: Any) -> None:
        """Write a line."""
        os.write(self._file, json.dumps({"what": what, **more}).encode() + b"\n")


class Ledger:
    """The other end of `pops.Ledger`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def apply(self, row: list[Any]) -> None:
        """Return when it has taken the effect, or refused it as old."""
        async with self._lock:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(json.dumps(row).encode() + b"\n")
            if not await reader.readline():
                raise ConnectionError("the ledger is gone")


class Popper:
    """Pops, handles and acknowledges until told to stop."""

    def __init__(self, orders: PopOrders) -> None:
        self._orders = orders
        self._draw: random.Random = stream(orders.seed, orders.name)
        self._diary = Diary(orders.events)
        self._ledger = Ledger(orders.ledger_port)
        self._connection: Connection | None = None
        self._client: PopClient | None = None
        self._attempts = 0
        self.stopping = False

    async def run(self) -> None:
        """Pop again and again; the same attempt until it is answered."""
        orders, attempt, queue_id, sent_ns = self._orders, "", -1, 0
        while not self.stopping:
            now_ns = time.monotonic_ns()
            if not attempt or now_ns - sent_ns > orders.invisible_ms * 300_000:
                self._attempts += 1
                attempt, sent_ns = f"{orders.name}-{self._attempts}", now_ns
                queue_id = self._draw.choice((-1, self._draw.randrange(orders.queues)))
            batch = await self._pop(attempt, queue_id)
            if batch is None:
                await asyncio.sleep(self._draw.uniform(0.01, 0.1))
                continue
            await self._handle_batch(batch, attempt, sent_ns)
            attempt = ""
        if self._connection is not None:
            self._connection.close()

    async def _pop(self, attempt: str, queue_id: int) -> Batch | None:
        orders = self._orders
        return await self._ask(
            lambda client: client.pop(
                orders.topic, invisible_ms=orders.invisible_ms, queue_id=queue_id, count=8,
                poll_ms=300, born_ms=int(time.time() * 1000), order=True, attempt=attempt,
            )
        )  # fmt: skip

    async def _ask(self, act: Any) -> Any:
        """Ask the broker; None: nobody knows what became of it."""
        try:
            if self._client is None or self._connection is None or self._connection.closed:
                net = NetConfig(tls_mode="disabled")
                self._connection = await Connection.open(self._orders.address, net)
                self._client = PopClient(self._connection, self._orders.group, timeout_ms=2000)
                await self._client.heartbeat(self._orders.name, self._orders.topic)
            return await act(self._client)
        except InorderError:
            return None

    async def _handle_batch(self, batch: Batch, attempt: str, sent_ns: int) -> None:
        at_ns = time.monotonic_ns()
        if batch.refused:
            self._diary.write("refused", code=batch.code, remark=batch.remark)
            await asyncio.sleep(0.1)
        until_ns = sent_ns + batch.invisible_ms * 1_000_000
        if at_ns >= until_ns:
            return
        queues: dict[int, list[Popped]] = {}
        for one in batch.messages:
            queues.setdefault(one.handle.queue_id, []).append(one)
        for queue_id, messages in queues.items():
            self._diary.write(
                "grant", attempt=attempt, queue=queue_id, token=batch.pop_time, sent=sent_ns,
                at=at_ns, until=until_ns, offsets=[one.handle.offset for one in messages],
            )  # fmt: skip
        await asyncio.gather(*(self._handle_queue(one, until_ns) for one in queues.values()))

    async def _handle_queue(self, rest: list[Popped], until_ns: int) -> None:
        while rest:
            if self._draw.random() < CHANGE_RATIO:
                changed = await self._change(rest, self._orders.invisible_ms)
                if changed is None:
                    return
                rest, new_ns = changed
                until_ns = max(until_ns, new_ns)
            if not await self._handle(rest[0], until_ns):
                return
            if not await self._acknowledge(rest.pop(0).handle):
                return

    async def _handle(self, one: Popped, until_ns: int) -> bool:
        handle, start_ns = one.handle, time.monotonic_ns()
        if start_ns >= until_ns:
            return False
        run = {
            "queue": handle.queue_id, "offset": handle.offset, "token": handle.pop_time,
            "id": one.properties["id"], "key": one.properties["__SHARDINGKEY"], "start": start_ns,
        }  # fmt: skip
        self._diary.write("start", **run)
        await asyncio.sleep(self._draw.uniform(0, self._orders.handle_s))
        failed = self._draw.random() < FAIL_RATIO
        if not failed:
            row = [handle.queue_id, handle.offset, handle.pop_time, run["id"], run["key"]]
            await self._ledger.apply(row)
        self._diary.write("end", **run, end=time.monotonic_ns(), done=not failed)
        return not failed

    async def _acknowledge(self, handle: Handle) -> bool:
        for _ in range(TRIES):
            known = {"queue": handle.queue_id, "offset": handle.offset, "token": handle.pop_time}
            sent_ns = time.monotonic_ns()
            self._diary.write("asked", **known, sent=sent_ns)
            code = await self._ask(lambda client: client.ack(handle))
            self._diary.write("acked", **known, sent=sent_ns, at=time.monotonic_ns(), code=code)
            if code is not None:
                return code == 0
            await asyncio.sleep(0.05)
        return False

    async def _change(
        self, rest: list[Popped], invisible_ms: int
    ) -> tuple[list[Popped], int] | None:
        """Give what is left of a batch another invisible time; None if it is lost."""
        kept, ends = list[Popped](), list[int]()
        for one in rest:
            handle, sent_ns = one.handle, time.monotonic_ns()
            known = {"queue": handle.queue_id, "offset": handle.offset, "token": handle.pop_time}
            answer = await self._ask(
                lambda client, handle=handle: client.change(handle, invisible_ms)
            )
            code, changed = answer if answer is not None else (None, None)
            until_ns = sent_ns + invisible_ms * 1_000_000 if changed is not None else 0
            self._diary.write(
                "changed", **known, sent=sent_ns, at=time.monotonic_ns(), code=code, until=until_ns
            )
            if code:
                return None
            kept.append(one if changed is None else Popped(one.record, changed, one.times))
            ends.append(until_ns)
        return kept, min(ends)


def start_words(orders: PopOrders) -> list[str]:
    """Return the command that does it."""
    return [sys.executable, "-m", "tests.crash.poppers", json.dumps(asdict(orders))]


async def consume(orders: PopOrders) -> None:
    """Pop until standard input ends."""
    popper = Popper(orders)
    running = asyncio.create_task(popper.run())
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([running, asyncio.ensure_future(ended)], return_when=asyncio.FIRST_COMPLETED)
    popper.stopping = True
    await running


if __name__ == "__main__":
    asyncio.run(consume(PopOrders(**json.loads(sys.argv[1]))))
