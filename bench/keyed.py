"""Order by key: how much more it handles, what parking and leases cost. Ours alone.

    python -m bench keyed [--units 15] [--smoke]

rate     4 queues, a handler of 10 ms, 1,000 keys: order="key" with 64 workers beside order="queue"
parked   the same with one key of a hundred failing and parked: the others' rate
leases   order="queue" with a handler that does nothing: CPU of client and broker for each message,
         under leases and under RocketMQ's locks (switched off in the driver), in interleaved pairs
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.clients import Driver, make_topic, python_program
from bench.compare import Say, Unit, wait_quiet
from bench.drivers.keying import FAILING, KEYS, TOPIC, WORKERS
from bench.systems import Ours
from inorder.aio import Message, Producer

QUEUES = 4
HANDLER_MS = 10
BACKLOG = 40_000
QUEUE_COUNT = 2_000
KEY_COUNT = 28_000
NOOP_COUNT = 40_000
RATE_GOAL = 14.0
PARKED_GOAL = 0.9
LEASE_GOAL = 1.10
BATCH = 200
CPU = "cpu_us_per_message"


@dataclass
class Figures:
    """The units of each mode, in the order in which they ran."""

    units: dict[str, list[Unit]] = field(default_factory=dict)

    def values(self, mode: str, metric: str) -> list[float]:
        """Return one number of all units of a mode."""
        return [float(unit[metric]) for unit in self.units[mode]]

    def ratios(self, upper: str, lower: str, metric: str) -> list[float]:
        """Return the ratio of each interleaved pair."""
        return [
            one / other
            for one, other in zip(
                self.values(upper, metric), self.values(lower, metric), strict=True
            )
        ]


class Bench:
    """A broker with a backlog, and the consumer that works on it."""

    def __init__(self, stack: ExitStack, say: Say) -> None:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inorder-bench-")))
        self._system = stack.enter_context(Ours())
        self._say = say
        self._runs = 0
        host, port = self._system.namesrv
        self.namesrv = f"{host}:{port}"
        make_topic(self._system, TOPIC, QUEUES)
        asyncio.run(fill(self.namesrv))
        words = [*python_program("bench.drivers.keying"), self.namesrv]
        self._driver = stack.enter_context(Driver("keying", words, directory))
        self.figures = Figures()

    def run(self, mode: str, handler_ms: float, count: int, *, warm: bool = False) -> None:
        """Let a new group work off some of the backlog."""
        self._runs += 1
        wait_quiet([self._system])
        self._driver.tell(f"run {mode} {handler_ms} {count} keyed-{self._runs}")
        if (said := self._driver.answer()) != "began":
            raise AssertionError(f"the driver said {said!r} before its first message")
        before = self._system.broker.cpu_seconds()
        unit: Unit = json.loads(self._driver.answer())
        used_us = (self._system.broker.cpu_seconds() - before) / count * 1e6
        unit[CPU] = unit["client_cpu_us_per_message"] + used_us
        if warm:
            return
        self.figures.units.setdefault(mode, []).append(unit)
        self._say(f"  {mode:11} {unit['messages_per_s']:>9,.0f}/s {unit[CPU]:7.1f} us CPU")


async def fill(namesrv: str) -> None:
    """Store the backlog: all keys in turn."""
    async with Producer(namesrv) as producer:
        for start in range(0, BACKLOG, BATCH):
            await producer.send_batch(
                [
                    Message(TOPIC, b"x" * 200, f"k{number % KEYS}")
                    for number in range(start, start + BATCH)
                ]
            )


def run_keyed(units: int, say: Say, *, smoke: bool = False) -> tuple[str, list[str], Figures]:
    """Measure; return the table, what missed its goal, and the numbers."""
    scale = 10 if smoke else 1
    pairs = 1 if smoke else max(15, units)
    rounds = 1 if smoke else max(5, units // 3)
    with ExitStack() as stack:
        bench = Bench(stack, say)
        good = KEY_COUNT * (FAILING - 1) // FAILING
        bench.run("key", 1, 1000, warm=True)
        for _ in range(rounds):
            bench.run("queue", HANDLER_MS, QUEUE_COUNT // scale)
            bench.run("key", HANDLER_MS, KEY_COUNT // scale)
            bench.run("key-parked", HANDLER_MS, good // scale)
        for mode in ("leased", "classic"):
            bench.run(mode, 0, NOOP_COUNT // 10, warm=True)
        for number in range(pairs):
            for mode in ("leased", "classic") if number % 2 else ("classic", "leased"):
                bench.run(mode, 0, NOOP_COUNT // scale)
    return *summary(bench.figures), bench.figures


def summary(figures: Figures) -> tuple[str, list[str]]:
    """Return the table and what missed its goal."""
    rate = figures.ratios("key", "queue", "messages_per_s")
    parked = figures.ratios("key-parked", "key", "messages_per_s")
    leases = figures.ratios("leased", "classic", CPU)
    rows = [
        (f"order='key' with {WORKERS} workers over order='queue'", rate, ">=", RATE_GOAL),
        ("the others' rate with 1 % of keys failing and parked", parked, ">=", PARKED_GOAL),
        ("CPU a message, leases over RocketMQ's locks", leases, "<=", LEASE_GOAL),
    ]
    lines = ["| what | median | spread | pairs | goal |", "|---|---|---|---|---|"]
    missed = []
    for what, ratios, sign, goal in rows:
        middle = median(ratios)
        lines.append(
            f"| {what} | {middle:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {len(ratios)} "
            f"| {sign} {goal:g} |"
        )
        if middle < goal if sign == ">=" else middle > goal:
            missed.append(f"{what}: {middle:.2f}, not {sign} {goal:g}")
    rates = ", ".join(
        f"{mode} {median(figures.values(mode, 'messages_per_s')):,.0f}/s" for mode in figures.units
    )
    return "\n".join([*lines, "", f"Medians: {rates}."]), missed


def as_json(figures: Figures) -> dict[str, Sequence[Unit]]:
    """Return the numbers for a file."""
    return dict(figures.units)
