"""The process of producers that `producing.py` starts: sends without waiting, notes each outcome.

It stops when its standard input ends, waits for the outcome of what is on its way, and writes what
it was told as a history (`inorder.checker.write_history`).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import zlib
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inorder.aio import ClientConfig, Message, Producer, SendReceipt, SendStatus, Session
from inorder.checker import Event, Sent, SentResult, queue_name
from inorder.checker.events import write_history
from inorder.errors import BatchIncomplete, InorderError, TransportError
from tests.crash.pipelines import Pipeline
from tests.crash.planted import plant
from tests.kit.simcluster import stream

TOPIC = "orders"
WINDOW = 64
BATCH_RATIO = 0.1
LONE_RATIO = 0.5
"""Of the other bursts: messages whose callers wait, so that each is a request of its own."""
TIMEOUTS_S = (0.3, 2.0, 10.0, 60.0)
CONFIG = ClientConfig(request_timeout_ms=700, retry_max_ms=200, send_timeout_ms=60_000)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process shall do."""

    namesrv: str
    names: tuple[str, ...]
    seed: int
    keys: int
    rate: float
    own_sessions: bool
    events: str
    plant: str
    pipeline: str = ""
    """The name of a named producer to run beside the others; empty: none."""
    queues: int = 0


@dataclass(frozen=True, slots=True)
class Letter:
    """One message."""

    key: str
    sequence: int
    id: str
    body: bytes

    @property
    def message(self) -> Message:
        """Return what is sent; the id and the number can be read from the log."""
        properties = {"id": self.id, "sequence": str(self.sequence)}
        return Message(TOPIC, self.body, self.key, properties=properties)


class Sender:
    """One producer and what it was told."""

    def __init__(self, name: str, producer: Producer, orders: Orders) -> None:
        self.events: list[Event] = []
        self.errors: Counter[str] = Counter()
        self._name = name
        self._producer = producer
        self._orders = orders
        self._draw: random.Random = stream(orders.seed, name)
        self._next: Counter[str] = Counter()
        self._window = asyncio.Semaphore(WINDOW)
        self._working: set[asyncio.Future[Any]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send bursts until told to stop; then wait for what is on its way."""
        draw = self._draw
        while not stop.is_set():
            burst = draw.randint(1, WINDOW)
            timeout_s = draw.choice(TIMEOUTS_S)
            if draw.random() < BATCH_RATIO:
                await self._begin([self._letter() for _ in range(burst)], timeout_s)
            else:
                waits = draw.random() < LONE_RATIO
                for _ in range(burst):
                    await self._begin([self._letter()], timeout_s, waits=waits)
            await asyncio.sleep(draw.uniform(0, 2) * burst / self._orders.rate)
        if self._working:
            await asyncio.wait(self._working)

    def _letter(self) -> Letter:
        key = f"key-{self._draw.randrange(self._orders.keys)}"
        sequence = self._next[key]
        self._next[key] += 1
        id_ = f"{self._name}/{key}/{sequence}"
        return Letter(key, sequence, id_, id_.encode() + b"." * self._draw.randrange(300))

    async def _begin(self, letters: list[Letter], timeout_s: float, *, waits: bool = False) -> None:
        """Hand letters to the producer in this very order, and do not wait for their fate."""
        for _ in letters:
            await self._window.acquire()
        if len(letters) == 1 and not waits:
            self._single(letters[0], timeout_s)
            return
        work = self._lone(letters[0], timeout_s) if waits else self._batch(letters, timeout_s)
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        await asyncio.sleep(0)  # it has its place in the line now

    def _single(self, letter: Letter, timeout_s: float) -> None:
        message = letter.message
        future = self._producer.send_nowait(
            TOPIC, message.body, key=message.key, properties=message.properties, timeout=timeout_s
        )
        self._working.add(future)

        def done(_: Any) -> None:
            self._working.discard(future)
            error = future.exception()
            assert error is None or isinstance(error, InorderError), error
            self._note(letter, error or future.result())

        future.add_done_callback(done)

    async def _lone(self, letter: Letter, timeout_s: float) -> None:
        message = letter.message
        try:
            outcome: Any = await self._producer.send(
                TOPIC,
                message.body,
                key=message.key,
                properties=message.properties,
                timeout=timeout_s,
            )
        except InorderError as error:
            outcome = error
        self._note(letter, outcome)

    async def _batch(self, letters: list[Letter], timeout_s: float) -> None:
        messages = [letter.message for letter in letters]
        outcomes: list[Any]
        try:
            outcomes = [*await self._producer.send_batch(messages, timeout=timeout_s)]
        except BatchIncomplete as error:
            outcomes = [*error.outcomes]
        except InorderError as error:
            outcomes = [error] * len(letters)
        for letter, outcome in zip(letters, outcomes, strict=True):
            self._note(letter, outcome)

    def _note(self, letter: Letter, outcome: SendReceipt | BaseException) -> None:
        self._window.release()
        result, queue, offset = SentResult.OK, None, None
        if isinstance(outcome, SendReceipt):
            if outcome.offset >= 0:  # -1: stored, and the broker did not get to say where
                queue, offset = queue_name(outcome.queue), outcome.offset
            if outcome.status is not SendStatus.OK:  # a power cut may take it
                self.errors[outcome.status.name] += 1
                result = SentResult.UNKNOWN
        else:
            self.errors[type(outcome).__name__] += 1
            in_doubt = isinstance(outcome, TransportError)
            result = SentResult.UNKNOWN if in_doubt else SentResult.FAILED
        digest = f"{zlib.crc32(letter.body):08x}"
        self.events.append(
            Sent(self._name, letter.key, letter.sequence, letter.id, result, queue, offset, digest)
        )


async def produce(orders: Orders) -> list[Event]:
    """Run the producers until standard input ends; return what they were told."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    reading = loop.run_in_executor(None, sys.stdin.read)
    reading.add_done_callback(lambda _: stop.set())
    async with AsyncExitStack() as stack:
        senders = []
        for name in orders.names:
            if orders.own_sessions:
                session = await stack.enter_async_context(Session(orders.namesrv, config=CONFIG))
                producer = Producer(session)
            else:
                producer = Producer(orders.namesrv, config=CONFIG)
            senders.append(Sender(name, await stack.enter_async_context(producer), orders))
        pipelines = []
        if orders.pipeline:
            pipelines.append(
                Pipeline(
                    orders.pipeline, orders.namesrv, topic=TOPIC, queues=orders.queues,
                    seed=orders.seed, config=CONFIG,
                )
            )  # fmt: skip
        await asyncio.gather(*(one.run(stop) for one in (*senders, *pipelines)))
        for sender in senders:
            print(sender._name, dict(sender.errors), sender._producer.statistics())
        for pipeline in pipelines:
            print(orders.pipeline, dict(pipeline.attempts))
    return [event for one in (*senders, *pipelines) for event in one.events]


def main() -> None:
    """Do what the first argument says."""
    orders = Orders(**json.loads(sys.argv[1]))
    plant(orders.plant)
    lines = write_history(asyncio.run(produce(orders)))
    Path(orders.events).write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
