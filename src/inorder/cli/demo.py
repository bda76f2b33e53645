"""The demo: orders go through their steps by key, are pulled back, and the order is checked.

It is the whole story of the library in one process: a name server and a broker on free ports of
loopback and in a temporary directory, several producers, a consumer, and the order checker.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inorder.checker import (
    Committed,
    Event,
    Handled,
    HandledResult,
    Report,
    Sent,
    Stored,
    check,
    queue_name,
)
from inorder.cli.failures import EXIT_FAILED
from inorder.cli.render import Output, as_json, table
from inorder.client.producer import Producer
from inorder.client.pullconsumer import PullConsumer
from inorder.client.session import Session
from inorder.config import BrokerConfig, NameServerConfig
from inorder.embedded import Embedded
from inorder.model import ReceivedMessage, TopicConfig, TopicQueue

TOPIC = "orders"
QUEUES = 8
STEPS = ("created", "paid", "packed", "shipped", "delivered", "rated")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What happened."""

    orders: int
    producers: int
    messages: int
    queues: int
    send_seconds: float
    sent_per_second: int
    pull_seconds: float
    pulled_per_second: int
    sample_key: str
    sample_steps: tuple[str, ...]
    in_order: bool
    findings: tuple[str, ...]
    verdict: str


def run_demo(orders: int = 6000, producers: int = 4, output: Output = Output.TABLE) -> None:
    """Play the demo and print it; exit with 1 if the checker found anything."""
    chatty = output is Output.TABLE
    with tempfile.TemporaryDirectory(prefix="inorder-demo-") as folder:
        result = asyncio.run(_play(Path(folder), orders, producers, chatty=chatty))
    if chatty:
        print(_story(result))
    else:
        print(as_json(asdict(result)))
    if not result.in_order:
        raise SystemExit(EXIT_FAILED)


async def _play(folder: Path, orders: int, producers: int, *, chatty: bool) -> DemoResult:
    cluster = Embedded(
        NameServerConfig(port=0, data=str(folder / "namesrv")),
        BrokerConfig(port=0, data=str(folder / "broker")),
    )
    async with cluster:
        if chatty:
            print(f"name server {cluster.namesrv_address}, broker {cluster.broker_address}")
        async with Session(cluster.namesrv_address) as session:
            api = await session.broker_at(cluster.broker_address)
            await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES, order=True))
            if chatty:
                print(
                    f"{producers} producers send {len(STEPS)} steps of {orders} orders, "
                    f"interleaved, to {QUEUES} queues ..."
                )
            sent, send_seconds = await _send(session, orders, producers)
            read, pull_seconds = await _pull(session)
    events: list[Event] = [*sent, *read.events]
    return _judge(
        check(events),
        read.steps,
        orders=orders,
        producers=producers,
        send_seconds=send_seconds,
        pull_seconds=pull_seconds,
    )


async def _send(session: Session, orders: int, producers: int) -> tuple[list[Sent], float]:
    """Let each producer walk its share of the orders through the steps, all at the same time."""
    history: list[Sent] = []

    async def walk(producer: Producer, name: str, key: str) -> None:
        for sequence, step in enumerate(STEPS):
            body = f"{key} {step}".encode()
            receipt = await producer.send(
                TOPIC, body, key=key, tag=step, properties={"sequence": str(sequence)}
            )
            where = queue_name(receipt.queue)
            history.append(
                Sent(name, key, sequence, receipt.message_id, queue=where, offset=receipt.offset)
            )

    crew = [Producer(session, group=f"demo-{number}") for number in range(producers)]
    begin = time.perf_counter()
    await asyncio.gather(
        *(
            walk(crew[number % producers], f"producer-{number % producers}", f"order-{number}")
            for number in range(orders)
        )
    )
    seconds = time.perf_counter() - begin
    for producer in crew:
        await producer.close()
    return history, seconds


@dataclass(frozen=True, slots=True)
class _Read:
    """What the consumer saw: events for the checker, and the steps of each order."""

    events: list[Event]
    steps: dict[str, list[str]]


async def _pull(session: Session) -> tuple[_Read, float]:
    """Read every queue to its end, side by side; note when each message was looked at."""
    consumer = PullConsumer(session, group="demo")
    read = _Read([], {})

    async def drain(queue: TopicQueue) -> None:
        offset = 0
        async for message in consumer.pull_all(queue):
            start_ns = time.monotonic_ns()
            read.steps.setdefault(message.key or "", []).append(message.tag or "")
            read.events.extend(_seen(message, start_ns, time.monotonic_ns()))
            offset = message.offset + 1
        if offset:
            await consumer.commit(queue, offset)
            read.events.append(
                Committed("consumer", queue_name(queue), offset, time.monotonic_ns())
            )

    begin = time.perf_counter()
    await asyncio.gather(*(drain(queue) for queue in await consumer.queues(TOPIC)))
    return read, time.perf_counter() - begin


def _seen(message: ReceivedMessage, start_ns: int, end_ns: int) -> list[Event]:
    queue, offset = queue_name(message.queue), message.offset
    id_, key = message.message_id, message.key
    sequence = int(message.properties["sequence"])
    return [
        Stored(queue, offset, id_, key, sequence),
        Handled("consumer", queue, offset, id_, key, start_ns, end_ns, HandledResult.DONE),
    ]


def _judge(
    report: Report,
    steps: dict[str, list[str]],
    *,
    orders: int,
    producers: int,
    send_seconds: float,
    pull_seconds: float,
) -> DemoResult:
    sample = f"order-{orders // 2}"
    acknowledged = report.counts["acknowledged"]
    return DemoResult(
        orders=orders,
        producers=producers,
        messages=acknowledged,
        queues=report.counts["queues"],
        send_seconds=round(send_seconds, 3),
        sent_per_second=round(acknowledged / send_seconds),
        pull_seconds=round(pull_seconds, 3),
        pulled_per_second=round(report.counts["handled"] / pull_seconds),
        sample_key=sample,
        sample_steps=tuple(steps.get(sample, ())),
        in_order=report.ok,
        findings=tuple(map(str, report.findings)),
        verdict=str(report),
    )


def _story(result: DemoResult) -> str:
    rows: list[tuple[Any, ...]] = [
        ("send", result.messages, f"{result.send_seconds:.2f}", f"{result.sent_per_second:,}"),
        ("pull", result.messages, f"{result.pull_seconds:.2f}", f"{result.pulled_per_second:,}"),
    ]
    return "\n".join(
        (
            "",
            table(("", "messages", "seconds", "messages/s"), rows),
            "",
            f"{result.sample_key}: {' -> '.join(result.sample_steps)}",
            f"order checker: {result.verdict}",
            "stopped clean",
        )
    )
