"""The work behind `inorder bench`: this client against any cluster, through the public client.

The numbers are those of a program that uses the client. Where `client cpu` is near 100 %, the
client is the limit and not the cluster. The first messages (a tenth, a thousand at most) warm up
connections and queues and are not counted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from inorder.cli.output import progress
from inorder.client.admin import Admin
from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.errors import InorderError, RequestTimeout, UsageError
from inorder.model import SendReceipt

GROUP: Final = "inorder-bench"
ARRIVAL_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 1.0
_NUMBER_BYTES: Final = 8
_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_SHOW_EVERY: Final = 100

Another = Callable[[], Session]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a measurement."""

    topic: str | None
    size: int
    count: int
    keys: int
    queues: int
    window: int = 256
    producers: int = 1

    @property
    def warm_up(self) -> int:
        """Return the number of messages before the measurement."""
        return min(1000, max(1, self.count // 10))

    def key(self, number: int) -> str | None:
        """Return the key of a message."""
        return f"key-{number % self.keys}" if self.keys else None


@dataclass(slots=True)
class Measured:
    """The result of a measurement."""

    messages: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    latencies_ns: list[int] = field(default_factory=list)

    def latency_ms(self) -> dict[str, float]:
        """Return percentiles."""
        found = sorted(self.latencies_ns)
        if not found:
            return {}
        last = len(found) - 1
        return {
            name: round(found[min(last, int(part * len(found)))] / 1e6, 3)
            for name, part in _PERCENTILES.items()
        }


class _Stopwatch:
    """Wall time and CPU time of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, measured: Measured) -> Measured:
        measured.seconds = max(time.perf_counter() - self._wall, 1e-9)
        measured.cpu_seconds = time.process_time() - self._cpu
        return measured


async def measure_send(session: Session, admin: Admin, plan: Plan, another: Another) -> Measured:
    """Send with every producer at the same time."""
    async with _topic(session, admin, plan) as topic, AsyncExitStack() as stack:
        crew = [await _producer(another, stack) for _ in range(plan.producers)]
        for producer in crew:
            share = max(1, plan.warm_up // plan.producers)
            await _send(producer, topic, plan, range(share))
        measured = Measured(plan.count, plan.count * plan.size)
        with progress("sent", plan.count) as advance:
            watch = _Stopwatch()
            shares = [range(index, plan.count, plan.producers) for index in range(len(crew))]
            await asyncio.gather(
                *(_send(producer, topic, plan, share, advance=advance,
                        latencies_ns=measured.latencies_ns)
                  for producer, share in zip(crew, shares, strict=True))
            )  # fmt: skip
            return watch.stop(measured)


async def measure_pull(session: Session, admin: Admin, plan: Plan, another: Another) -> Measured:
    """Poll all queues from their beginning until enough has come."""
    async with _topic(session, admin, plan) as topic, AsyncExitStack() as stack:
        if plan.topic is None:
            producer = await _producer(another, stack)
            with progress("sent to be read", plan.count) as advance:
                await _send(producer, topic, plan, range(plan.count), advance=advance)
        view = await admin.topics.describe(topic)
        wanted = min(plan.count, view.messages)
        if not wanted:
            raise UsageError(f"topic {topic} is empty; send something first, or leave --topic out")
        consumer = await stack.enter_async_context(PullConsumer(session, group=GROUP))
        measured = Measured()
        with progress("read", wanted) as advance:
            watch = _Stopwatch()
            await consumer.assign([one.queue for one in view.queues if one.messages])
            for one in view.queues:
                if one.messages:
                    await consumer.seek(one.queue, one.min_offset)
            while measured.messages < wanted:
                start_ns = time.perf_counter_ns()
                left = min(wanted - measured.messages, session.config.poll_messages_max)
                found = await consumer.poll(ARRIVAL_SECONDS, messages_max=left)
                if not found:
                    raise RequestTimeout(_silence(measured.messages, wanted, consumer))
                measured.latencies_ns.append(time.perf_counter_ns() - start_ns)
                measured.messages += len(found)
                measured.size_bytes += sum(len(message.body) for message in found)
                advance(len(found))
            return watch.stop(measured)


async def measure_roundtrip(
    session: Session, admin: Admin, plan: Plan, another: Another
) -> Measured:
    """Send, and measure when each message arrives at a consumer of all queues."""
    async with _topic(session, admin, plan) as topic, AsyncExitStack() as stack:
        view = await admin.topics.describe(topic)
        consumer = await stack.enter_async_context(PullConsumer(session, group=GROUP))
        await consumer.assign([one.queue for one in view.queues])
        for one in view.queues:
            await consumer.seek(one.queue, one.max_offset)
        producer = await _producer(another, stack)
        trips = _RoundTrips(producer, consumer, topic, plan)
        await trips.run(plan.warm_up, lambda _: None)
        measured = Measured(plan.count, plan.count * trips.size)
        trips.latencies_ns = measured.latencies_ns
        with progress("there and back", plan.count) as advance:
            watch = _Stopwatch()
            await trips.run(plan.count, advance)
            return watch.stop(measured)


class _RoundTrips:
    """Messages that carry their number, and when each was sent."""

    def __init__(self, producer: Producer, consumer: PullConsumer, topic: str, plan: Plan) -> None:
        self.size = max(plan.size, _NUMBER_BYTES)
        self.latencies_ns: list[int] = []
        self._producer = producer
        self._consumer = consumer
        self._topic = topic
        self._plan = plan
        self._next = 0
        self._sent_ns: dict[int, int] = {}

    async def run(self, count: int, advance: Callable[[int], None]) -> None:
        receipts: deque[asyncio.Future[SendReceipt]] = deque()
        end, arrived, silent_seconds = self._next + count, 0, 0.0
        while arrived < count:
            while self._next < end and len(self._sent_ns) < self._plan.window:
                receipts.append(self._send())
            found = await self._consumer.poll(_POLL_SECONDS)
            now_ns = time.perf_counter_ns()
            while receipts and receipts[0].done():
                receipts.popleft().result()  # raises what went wrong
            silent_seconds = 0.0 if found else silent_seconds + _POLL_SECONDS
            if silent_seconds >= ARRIVAL_SECONDS:
                raise RequestTimeout(_silence(arrived, count, self._consumer))
            for message in found:
                number = int.from_bytes(message.body[:_NUMBER_BYTES])
                sent_ns = self._sent_ns.pop(number, None)
                if sent_ns is not None:  # others may send to a topic that was given
                    self.latencies_ns.append(now_ns - sent_ns)
                    arrived += 1
                    advance(1)
        await asyncio.gather(*receipts)

    def _send(self) -> asyncio.Future[SendReceipt]:
        number = self._next
        self._next += 1
        body = number.to_bytes(_NUMBER_BYTES) + bytes(self.size - _NUMBER_BYTES)
        self._sent_ns[number] = time.perf_counter_ns()
        return self._producer.send_nowait(self._topic, body, key=self._plan.key(number))


async def _send(
    producer: Producer,
    topic: str,
    plan: Plan,
    numbers: range,
    *,
    advance: Callable[[int], None] = lambda _: None,
    latencies_ns: list[int] | None = None,
) -> None:
    """Send with a full window; the first error ends it."""
    body = Random(plan.size).randbytes(plan.size)  # zeros would be packed to nothing
    slots = asyncio.Semaphore(plan.window)
    failed: list[BaseException] = []

    def answered(future: asyncio.Future[SendReceipt], start_ns: int) -> None:
        slots.release()
        if latencies_ns is not None:
            latencies_ns.append(time.perf_counter_ns() - start_ns)
        if not future.cancelled() and future.exception() is not None:
            failed.append(future.exception() or InorderError())

    for count, number in enumerate(numbers, 1):
        await slots.acquire()
        if failed:
            slots.release()
            break
        start_ns = time.perf_counter_ns()
        future = producer.send_nowait(topic, body, key=plan.key(number))
        future.add_done_callback(lambda done, start_ns=start_ns: answered(done, start_ns))  # type: ignore[misc]
        if count % _SHOW_EVERY == 0:
            advance(_SHOW_EVERY)
    for _ in range(plan.window):
        await slots.acquire()
    if failed:
        raise failed[0]


async def _producer(another: Another, stack: AsyncExitStack) -> Producer:
    """Return a producer on a connection of its own."""
    own = await stack.enter_async_context(another())
    return await stack.enter_async_context(Producer(own, group=GROUP))


@asynccontextmanager
async def _topic(session: Session, admin: Admin, plan: Plan) -> AsyncIterator[str]:
    """Yield the named topic, or a temporary one for the measurement."""
    if plan.topic is not None:
        await admin.cluster.route(plan.topic)
        yield plan.topic
        return
    name = f"inorder-bench-{session.clock.now_ms()}-{os.getpid()}"
    await admin.topics.create(name, queues=plan.queues)
    try:
        await _routed(session, name)
        yield name
    finally:
        await asyncio.shield(admin.topics.delete(name))


async def _routed(session: Session, topic: str) -> None:
    """Wait until the name server knows a new topic, which brokers register a moment later."""
    async with PullConsumer(session, group=GROUP) as reader:
        await reader.queues(topic, wait=ARRIVAL_SECONDS)


def _silence(arrived: int, wanted: int, consumer: PullConsumer) -> str:
    failing = "; ".join(consumer.statistics().failing.values())
    return (
        f"nothing came for {ARRIVAL_SECONDS:.0f} s after {arrived} of {wanted} messages"
        + (f": {failing}" if failing else "")
        + "; look at the broker with `inorder cluster brokers`"
    )
