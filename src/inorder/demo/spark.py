"""The last part of the demo: the orders go through Spark, whose driver is killed half-way.

Producers write the life cycles of many orders, interleaved and keyed by account. The pipeline keeps
each account's orders and balance as it goes, retries payments whose gateway is busy, and writes
rows to Parquet and to a result topic. Half-way its processes are killed with SIGKILL and started
again. The audit compares the stored messages with the handled ones; a picture shows the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from inorder.cli.output import Output, table
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, NameServerConfig
from inorder.demo.driver import CODE, RESULTS, TOPIC
from inorder.demo.playing import Say, play, until
from inorder.embedded import Embedded
from inorder.errors import InorderError, RequestTimeout
from inorder.model import TopicConfig, TopicQueue

QUEUES: Final = 4
PRODUCERS: Final = 4
BATCHES: Final = 14
SAMPLE_SECONDS: Final = 0.2
SEND_SECONDS: Final = 8.0
AFTER_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True)
class SparkResult:
    """The result of this part."""

    messages: int
    accounts: int
    killed_at: int
    """Results that were written when the driver was killed."""
    resumed_seconds: float
    """From the kill to the first result of the new driver; most of it is the start of Spark."""
    results: int
    late_payments: int
    balance: int
    verdict: str
    parquet: str
    picture: str
    in_order: bool
    seconds: float


@dataclass(slots=True)
class Samples:
    """Counts of stored and handled messages over time."""

    at_s: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    killed_s: float = 0.0
    resumed_s: float = 0.0


def run_spark_demo(orders: int, picture: str, output: Output = Output.TABLE) -> None:
    """Play this part and print it; exit with 1 if the audit found anything."""
    from inorder.spark.jobs.picture import check_picture
    from inorder.spark.sessions import check_packages

    check_packages()
    check_picture(picture)
    play(lambda folder, say: _play(folder, orders, picture, say), _story, output)


async def _play(folder: Path, orders: int, picture: str, say: Say) -> SparkResult:
    cluster = Embedded(
        NameServerConfig(port=0, data=str(folder / "namesrv")),
        BrokerConfig(port=0, data=str(folder / "broker")),
    )
    begin_s = time.monotonic()
    async with cluster, Session(cluster.namesrv_address) as session:
        api = await session.broker_at(cluster.broker_address)
        for topic in (TOPIC, RESULTS):
            await api.create_topic(TopicConfig(topic, QUEUES, QUEUES, order=True))
        accounts = max(1, orders // 10)
        steps = list(life_cycles(Random(7), accounts, orders))
        samples = Samples()
        sampling = asyncio.create_task(_sample(api, samples, begin_s))
        batch = max(1, len(steps) // BATCHES)
        drivers: list[Driver] = []
        try:
            say("\norders through Spark: starting it (without Java here, with the one of PyPI) ...")
            drivers.append(await Driver.start(cluster.namesrv_address, folder, batch, last=False))
            say(f"{PRODUCERS} producers send {len(steps):,} steps of {orders:,} orders ...")
            await _send(session, steps)
            killed_at = await _run_and_kill(drivers[0], samples, len(steps), begin_s, say)
            drivers.append(await Driver.start(cluster.namesrv_address, folder, batch, last=True))
            told = await _finish(drivers[1], samples, killed_at, begin_s, say)
        finally:
            sampling.cancel()
            for driver in drivers:
                await driver.kill()
        done, in_order = told["done"], told["audit"]["ok"] and told["parquet_ok"]
        draw(samples, picture, killed_at, told["verdict"], in_order=in_order)
        return SparkResult(
            len(steps), accounts, killed_at, round(samples.resumed_s - samples.killed_s, 1),
            done["rows"], done["late_payments"], done["balance"], told["verdict"], told["parquet"],
            picture, in_order,
            round(time.monotonic() - begin_s, 1),
        )  # fmt: skip


async def _run_and_kill(
    driver: Driver, samples: Samples, total: int, begin_s: float, say: Say
) -> int:
    await driver.wait("ready")
    say("Spark is there: accounts, orders and balances, by key ...")
    driver.go()
    await until(
        lambda: bool(samples.done) and samples.done[-1] >= total / 2,
        "half is processed",
        seconds=_WAIT_SECONDS,
    )
    await driver.kill()
    samples.killed_s = time.monotonic() - begin_s
    say(f"half is processed: kill -9 of the driver, process {driver.process.pid}, and its JVM")
    return samples.done[-1]


async def _finish(
    driver: Driver, samples: Samples, killed_at: int, begin_s: float, say: Say
) -> dict[str, Any]:
    await driver.wait("ready")
    driver.go()
    say(f"a new driver, process {driver.process.pid}, goes on where the last one was ...")
    await until(
        lambda: samples.done[-1] > killed_at, "the new driver goes on", seconds=_WAIT_SECONDS
    )
    samples.resumed_s = time.monotonic() - begin_s
    await driver.wait("done")
    say("all is processed; the audit reads both topics and the Parquet files ...")
    await driver.wait("audit")
    return driver.told


class Driver:
    """The Spark driver as the demo sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.told: dict[str, Any] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, namesrv: str, folder: Path, batch: int, *, last: bool) -> Driver:
        """Start the driver in a process group of its own."""
        words = (sys.executable, "-c", CODE, namesrv, str(folder), str(batch))
        log = (folder / "driver.log").open("ab")
        with log:
            process = await asyncio.create_subprocess_exec(
                *words, "yes" if last else "no", stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
                limit=1 << 24,
            )  # fmt: skip
        driver = cls(process)
        driver.log = folder / "driver.log"
        return driver

    log: Path = Path()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.startswith(b"{") and line.endswith(b"}\n"):
                self.told |= json.loads(line)

    def go(self) -> None:
        """Tell the driver to begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")

    async def wait(self, what: str) -> None:
        """Return the driver's next line. Raises InorderError if it ends instead."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while what not in self.told:
                    if self._listening.done():
                        text = self.log.read_text(errors="replace")[-2000:]
                        raise InorderError(f"the Spark driver ended before it was {what}:\n{text}")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise RequestTimeout(f"the demo waits in vain: the driver is not {what}") from None

    async def kill(self) -> None:
        """Kill the driver and its JVM with SIGKILL."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        await self._listening


def life_cycles(chance: Random, accounts: int, orders: int) -> Iterator[tuple[str, bytes]]:
    """Return (account, step) of orders that live at the same time, in the order they happen."""
    waiting = list(range(orders))
    alive: list[tuple[str, list[dict[str, Any]]]] = []
    while waiting or alive:
        if waiting and len(alive) < accounts * 2:
            number = waiting.pop()
            account = f"account-{chance.randrange(accounts)}"
            alive.append((account, _life(chance, number)))
        at = chance.randrange(len(alive))
        account, steps = alive[at]
        yield account, json.dumps(steps.pop(0)).encode()
        if not steps:
            alive[at] = alive[-1]
            alive.pop()


def _life(chance: Random, number: int) -> list[dict[str, Any]]:
    order, amount = f"order-{number}", chance.randrange(100, 50_000)
    steps: list[dict[str, Any]] = [{"order": order, "step": "created", "amount": amount}]
    fate = chance.random()
    if fate < 0.1:
        steps.append({"order": order, "step": "overdue"})
    if fate > 0.95:
        return [*steps, *({"order": order, "step": "declined"} for _ in range(3))]
    busy = chance.choice((1, 2)) if chance.random() < 0.002 else 0
    steps.append({"order": order, "step": "paid", **({"busy": busy} if busy else {})})
    return [*steps, *({"order": order, "step": step} for step in ("shipped", "delivered"))]


async def _send(session: Session, steps: list[tuple[str, bytes]]) -> None:
    """Let each producer send the steps of its accounts, all at the same time."""
    crew = [Producer(session, group=f"demo-{number}") for number in range(PRODUCERS)]

    async def walk(producer: Producer, number: int) -> None:
        its = [(a, b) for a, b in steps if int(a.rpartition("-")[2]) % PRODUCERS == number]
        begin_s = time.monotonic()
        for at in range(0, len(its), 50):
            futures = [
                producer.send_nowait(TOPIC, body, key=account)
                for account, body in its[at : at + 50]
            ]
            await asyncio.gather(*futures)
            due_s = begin_s + SEND_SECONDS * at / len(its)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    await asyncio.gather(*(walk(producer, number) for number, producer in enumerate(crew)))
    for producer in crew:
        await producer.close()


async def _sample(api: Any, samples: Samples, begin_s: float) -> None:
    """Sample the number of messages in both topics, until cancelled."""
    while True:
        ends = [
            [await api.max_offset(TopicQueue(topic, "broker-a", at)) for at in range(QUEUES)]
            for topic in (TOPIC, RESULTS)
        ]
        samples.at_s.append(time.monotonic() - begin_s)
        samples.sent.append(sum(ends[0]))
        samples.done.append(sum(ends[1]))
        await asyncio.sleep(SAMPLE_SECONDS)


def draw(samples: Samples, path: str, killed_at: int, verdict: str, *, in_order: bool) -> None:
    """Draw what was sent and what was processed over time, and the kill between."""
    from inorder.spark.jobs.picture import Curve, Mark, Panel, Stretch, save_picture

    shown = shown_of(samples)
    at_s = samples.at_s[:shown]
    outcome = "every message is still processed once" if in_order else "the audit finds faults"
    curves = [
        Curve("sent", at_s, samples.sent[:shown]),
        Curve("processed by Spark", at_s, samples.done[:shown], filled=True),
    ]
    save_picture(
        path,
        f"The Spark driver is killed half-way, and {outcome}",
        [Panel("Steps of orders", "messages so far", curves)],
        subtitle=f"Audit of the results: {verdict}",
        marks=[
            Mark(f"kill -9 at {killed_at:,}", samples.killed_s),
            Mark("the new driver goes on", samples.resumed_s),
        ],
        stretches=[Stretch("no driver: Spark starts again", samples.killed_s, samples.resumed_s)],
    )


def shown_of(samples: Samples) -> int:
    """Return how many samples to draw: the audit comes after the last message and moves nothing."""
    both = zip(samples.at_s, samples.done, strict=True)
    last_s = next((at_s for at_s, done in both if done == samples.done[-1]), 0.0)
    return sum(1 for at_s in samples.at_s if at_s <= last_s + AFTER_SECONDS)


def _story(result: SparkResult) -> str:
    rows: list[tuple[Any, ...]] = [
        ("steps of orders sent", f"{result.messages:,}"),
        ("results when the driver was killed", f"{result.killed_at:,}"),
        ("results in all", f"{result.results:,}"),
        ("seconds from the kill to the next result", f"{result.resumed_seconds:.1f}"),
        ("payments that came late", f"{result.late_payments:,}"),
        (f"balance of {result.accounts:,} accounts", f"{result.balance / 100:,.2f}"),
    ]
    return "\n".join(
        (
            "",
            table(("", ""), rows),
            "",
            f"audit of the result topic: {result.verdict}",
            f"audit of the Parquet files: {result.parquet}",
            f"picture: {result.picture}",
            f"{result.seconds:.0f} s",
        )
    )
