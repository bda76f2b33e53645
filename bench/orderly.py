"""Consumers working off a backlog: ours on our broker, Java's on Apache RocketMQ, units in turn.

200-byte messages in four queues that our own producer sent (Java's: stock sends), handlers that
read key and body and handlers of 2 ms, one queue at a time in order, and concurrently with 20
threads. Each unit is a new consumer process (a cell that ends
with `-warm`: one that has worked off as much before) and a new group that begins at the beginning;
it is timed from its first message to its last. CPU is that of the consumer and of the broker. What
handlers of 2 ms allow is measured in the same unit: the same sleep in as many threads of the same
process, and nothing else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import loadgen
from bench.cells import CPU, Target, cost, rate
from bench.clients import CPU as CLIENT_CPU
from bench.clients import Driver, Lacking, java_program, make_topic, python_program
from bench.compare import CellResult, Plan, Say, Unit, wait_quiet
from bench.drivers.consuming import THREADS, TOPIC
from bench.drivers.traffic import BODY_BYTES
from bench.loadgen import Load
from bench.process import StartFailed
from bench.systems import Ours, Theirs

QUEUES = 4
HANDLER_MS = 2
BROKER_CPU = "broker_cpu_us_per_message"
BOUND = "percent_of_bound"
NOOP_COUNT = 100_000
BACKLOG = NOOP_COUNT


@dataclass(frozen=True, slots=True)
class OrderlyCell:
    """One way to consume."""

    name: str
    mode: str
    handler_ms: float
    count: int
    targets: tuple[Target, ...]

    @property
    def lanes(self) -> int:
        """Return how many handlers run at a time."""
        return THREADS if self.mode == "concurrent" else QUEUES

    @property
    def warm(self) -> bool:
        """Tell whether one consumer process makes all units."""
        return self.name.endswith("-warm")


_NOOP = (rate(1.0), cost(CPU, 1.0), cost(CLIENT_CPU), cost(BROKER_CPU))
_WARM = (rate(), cost(CPU), cost(CLIENT_CPU), cost(BROKER_CPU))
_TIMED = (Target(BOUND, None, None, at_least=True), rate(), cost(CPU))

ORDERLY_CELLS = {
    cell.name: cell
    for cell in (
        OrderlyCell("orderly-noop", "orderly", 0, NOOP_COUNT, _NOOP),
        OrderlyCell("orderly-noop-async", "orderly-async", 0, NOOP_COUNT, _NOOP),
        OrderlyCell("orderly-noop-warm", "orderly", 0, NOOP_COUNT, _WARM),
        OrderlyCell("orderly-2ms", "orderly", HANDLER_MS, 6_000, _TIMED),
        OrderlyCell("orderly-2ms-async", "orderly-async", HANDLER_MS, 6_000, _TIMED),
        OrderlyCell("concurrent-noop", "concurrent", 0, NOOP_COUNT, _NOOP),
        OrderlyCell("concurrent-noop-warm", "concurrent", 0, NOOP_COUNT, _WARM),
        OrderlyCell("concurrent-2ms", "concurrent", HANDLER_MS, 30_000, _TIMED),
    )
}
ORDERLY_NAMES = tuple(ORDERLY_CELLS)


class Side:
    """A broker with a backlog, and the consumer that works on it."""

    def __init__(
        self, system: Ours | Theirs, command: list[str], directory: Path, stack: ExitStack
    ) -> None:
        self.system = system
        stack.enter_context(system)
        self._runs = 0
        make_topic(system, TOPIC, QUEUES)
        host, port = system.namesrv
        self._words = [*command, f"{host}:{port}"]
        self._directory = directory
        self._fill()
        self._warm = stack.enter_context(self._start())

    def _fill(self) -> None:
        """Store the backlog as users of each side do: by our producer, or by stock sends."""
        if self.system.name == Theirs.name:
            load = Load("send", 8, 32, topic=TOPIC, queues=QUEUES)
            loadgen.run(self.system.address, load, seconds=600, warmup_s=0, count=BACKLOG)
            return
        words = [*python_program("bench.drivers.pyours"), self._words[-1]]
        with Driver("filler", words, self._directory) as filler:
            filler.tell(f"produce nowait {BACKLOG} {TOPIC}")
            said = [filler.answer() for _ in range(3)]
        if wrong := json.loads(said[-1])["wrong"]:
            raise StartFailed(f"the backlog: {wrong}")

    def _start(self) -> Driver:
        return Driver(f"consumer-{self.system.name}", self._words, self._directory)

    def run(self, cell: OrderlyCell, count: int) -> Unit:
        """Let a new group work off some of the backlog."""
        if cell.warm:
            return self._run(self._warm, cell, count)
        with self._start() as driver:
            return self._run(driver, cell, count)

    def _run(self, driver: Driver, cell: OrderlyCell, count: int) -> Unit:
        self._runs += 1
        group = f"bench-{cell.name}-{self._runs}"
        driver.tell(f"run {cell.mode} {cell.handler_ms} {count} {group}")
        if (said := driver.answer()) != "began":
            raise AssertionError(f"{self.system.name} said {said!r} before its first message")
        before = self.system.broker.cpu_seconds()
        unit: Unit = json.loads(driver.answer())
        if unit["body_bytes"] < count * BODY_BYTES:  # of messages with a key
            raise AssertionError(f"handlers read {unit['body_bytes']} bytes of {count} messages")
        used_s = self.system.broker.cpu_seconds() - before
        unit[BROKER_CPU] = used_s / count * 1e6
        unit[CPU] = unit[CLIENT_CPU] + unit[BROKER_CPU]
        if cell.handler_ms:
            driver.tell(f"bare {cell.mode} {cell.handler_ms} {count} {cell.lanes}")
            allowed: Unit = json.loads(driver.answer())
            unit[BOUND] = 100 * unit["messages_per_s"] / allowed["messages_per_s"]
        return unit


def run_orderly(names: Sequence[str], plan: Plan, say: Say) -> list[CellResult]:
    """Measure the named cells."""
    cells = [ORDERLY_CELLS[name] for name in names]
    results = {cell.name: CellResult(cell.name, cell.targets) for cell in cells}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inorder-bench-")))
        sides = [Side(Ours(), python_program("bench.drivers.consuming"), directory, stack)]
        if plan.against:
            try:
                java = java_program("BenchConsumer")
            except Lacking as lacking:
                say(f"the Java consumer cannot run here, nothing is compared: {lacking}")
            else:
                sides.append(Side(Theirs(), java, directory, stack))
        for cell in cells:
            count = cell.count if plan.seconds >= 3 else cell.count // 10
            for number in range(plan.units + 1):  # the first is for warmth
                for side in sides:
                    wait_quiet([one.system for one in sides])
                    unit = side.run(cell, count)
                    if number == 0:
                        continue
                    results[cell.name].units.setdefault(side.system.name, []).append(unit)
                    say(
                        f"  {cell.name} {number}/{plan.units} {side.system.name:9}"
                        f" {unit['messages_per_s']:>9,.0f}/s"
                        f" {unit[CLIENT_CPU]:6.1f} + {unit[BROKER_CPU]:.1f} us"
                    )
    return list(results.values())
