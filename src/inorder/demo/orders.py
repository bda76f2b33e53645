"""The demo: two processes handle orders by key, in their steps, and one process is killed.

It starts a name server and a broker on free loopback ports and in a temporary directory, several
producers, and consumers in two processes that share the queues. One consumer process is killed
half-way, the other takes over its queues, and the order checker judges the run. Then a key is
parked and redriven (`demo/parking.py`).
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from inorder.checker import Event, Handled, Report, Rules, Sent, Stored, check, queue_name
from inorder.cli.output import Output, table
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, NameServerConfig
from inorder.demo.consumer import TOPIC, Child
from inorder.demo.parking import ParkingResult, play_parking
from inorder.demo.playing import Say, play, until
from inorder.embedded import Embedded
from inorder.model import TopicConfig

QUEUES: Final = 8
STEPS: Final = ("created", "paid", "packed", "shipped", "delivered", "rated")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo."""

    orders: int
    producers: int
    messages: int
    queues: int
    send_seconds: float
    sent_per_second: int
    handle_seconds: float
    handled: dict[str, int]
    """By consumer: how many messages it handled."""
    repeated: int
    """Handled by both: finished by the killed process, but not committed."""
    hand_over: str
    hand_over_seconds: float
    sample_key: str
    sample_steps: tuple[str, ...]
    in_order: bool
    findings: tuple[str, ...]
    verdict: str
    parking: ParkingResult | None = None


@dataclass(slots=True)
class _Seen:
    """The consumers' reports: messages by id, and the steps of each order as they were handled."""

    ids: dict[str, Stored] = field(default_factory=dict)
    steps: dict[str, list[str]] = field(default_factory=dict)

    def note(self, _: Child, event: Handled, step: str, sequence: int) -> None:
        if event.id in self.ids:
            return
        self.ids[event.id] = Stored(event.queue, event.offset, event.id, event.key, sequence)
        self.steps.setdefault(event.key or "", []).append(step)


def run_demo(
    orders: int = 6000,
    producers: int = 4,
    output: Output = Output.TABLE,
    *,
    clean: bool = False,
) -> None:
    """Play the demo and print it; exit with 1 if the checker found anything.

    `clean`: the second consumer is stopped instead of killed, which needs no waiting.
    """
    play(
        lambda folder, say: _play(folder, orders, producers, clean=clean, say=say),
        lambda _: "stopped clean",
        output,
    )


async def _play(folder: Path, orders: int, producers: int, *, clean: bool, say: Say) -> DemoResult:
    cluster = Embedded(
        NameServerConfig(port=0, data=str(folder / "namesrv")),
        BrokerConfig(port=0, data=str(folder / "broker")),
    )
    async with cluster, Session(cluster.namesrv_address) as session:
        say(f"name server {cluster.namesrv_address}, broker {cluster.broker_address}")
        api = await session.broker_at(cluster.broker_address)
        await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES, order=True))
        children = [await Child.start(name, cluster.namesrv_address) for name in ("A", "B")]
        seen = _Seen()
        listening = [asyncio.create_task(child.listen(seen.note)) for child in children]
        try:
            result = await _act(session, children, seen, orders, producers, clean=clean, say=say)
        finally:
            for child in children:
                await child.end(signal.SIGKILL)
            await asyncio.gather(*listening)
        say(_story(result))
        parking = await play_parking(session, cluster.broker_address, say)
        return replace(result, parking=parking, in_order=result.in_order and parking.in_order)


async def _act(
    session: Session,
    children: list[Child],
    seen: _Seen,
    orders: int,
    producers: int,
    *,
    clean: bool,
    say: Say,
) -> DemoResult:
    survivor, victim = children
    await until(lambda: all(child.queues for child in children), "both consumers have queues")
    for child in children:
        say(
            f"consumer {child.name}, process {child.process.pid}: {child.queues} of {QUEUES} queues"
        )
    say(f"{producers} producers send {len(STEPS)} steps of {orders} orders, interleaved ...")
    begin = time.perf_counter()
    sending = asyncio.create_task(_send(session, orders, producers))
    total = orders * len(STEPS)
    await until(lambda: len(seen.ids) >= total / 2 and bool(victim.handled), "half is handled")
    its = {event.queue for event in victim.handled}
    ended = time.monotonic_ns()
    if clean:
        say(f"half is handled: consumer {victim.name} is stopped")
        await victim.end(signal.SIGTERM)
    else:
        say(
            f"half is handled: kill -9 of consumer {victim.name}. Its queues stand for the grace "
            "of its leases, 1 s (Apache RocketMQ: its locks run out after 60 s) ..."
        )
        await victim.end(signal.SIGKILL)

    def taken_over() -> Handled | None:
        later = (event for event in survivor.handled if event.start_ns > ended)
        return next((event for event in later if event.queue in its), None)

    sent, send_seconds = await sending
    await until(
        lambda: taken_over() is not None or len(seen.ids) == total, "the survivor has taken over"
    )
    first = taken_over()
    seconds = 0.0 if first is None else (first.start_ns - ended) / 1e9
    say(f"consumer {survivor.name} has its queues after {seconds:.1f} s")
    await until(lambda: len(seen.ids) == total, "everything is handled")
    handle_seconds = time.perf_counter() - begin
    await survivor.end(signal.SIGTERM)
    report = check(
        [*sent, *seen.ids.values(), *_handled(children)], rules=Rules(handled_once=clean)
    )
    return _judge(
        report, children, seen,
        orders=orders, producers=producers, send_seconds=send_seconds,
        handle_seconds=handle_seconds, hand_over="stopped" if clean else "killed",
        hand_over_seconds=seconds,
    )  # fmt: skip


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


def _handled(children: list[Child]) -> list[Event]:
    return [event for child in children for event in child.handled]


def _judge(
    report: Report, children: list[Child], seen: _Seen, *, orders: int, **measured: Any
) -> DemoResult:
    sample = f"order-{orders // 2}"
    acknowledged = report.counts["acknowledged"]
    handled = {child.name: len(child.handled) for child in children}
    return DemoResult(
        orders=orders,
        producers=measured["producers"],
        messages=acknowledged,
        queues=report.counts["queues"],
        send_seconds=round(measured["send_seconds"], 3),
        sent_per_second=round(acknowledged / measured["send_seconds"]),
        handle_seconds=round(measured["handle_seconds"], 3),
        handled=handled,
        repeated=sum(handled.values()) - len(seen.ids),
        hand_over=measured["hand_over"],
        hand_over_seconds=round(measured["hand_over_seconds"], 3),
        sample_key=sample,
        sample_steps=tuple(seen.steps.get(sample, ())),
        in_order=report.ok,
        findings=tuple(map(str, report.findings)),
        verdict=str(report),
    )


def _story(result: DemoResult) -> str:
    rows: list[tuple[Any, ...]] = [
        ("sent", result.messages, f"{result.send_seconds:.2f}"),
        *((f"handled by {name}", count, "") for name, count in result.handled.items()),
        ("handled twice", result.repeated, ""),
        ("all", result.messages, f"{result.handle_seconds:.2f}"),
        (f"{result.hand_over}, taken over", "", f"{result.hand_over_seconds:.2f}"),
    ]
    return "\n".join(
        (
            "",
            table(("", "messages", "seconds"), rows),
            "",
            f"{result.sample_key}: {' -> '.join(result.sample_steps)}",
            f"order checker: {result.verdict}",
        )
    )
