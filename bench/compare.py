"""Runs cells on one system or on two in turn (A B A B ...), and keeps every unit.

A unit begins when both brokers have gone quiet. What other processes of the machine used meanwhile
is kept with the unit as `others_cores`, so that a noisy run can be seen to be one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench import loadgen
from bench.cells import (
    CELLS,
    IDLE_TARGETS,
    MEMORY_MESSAGES,
    MEMORY_TARGETS,
    Cell,
    Target,
)
from bench.loadgen import Load
from bench.systems import Earlier, Ours, System, Theirs

QUIET_CORES = 0.3
QUIET_TIMEOUT_S = 5.0
SETTLE_S = 3.0
IDLE_SECONDS = 20.0
CLOCK_TICKS_PER_S = 100

Say = Callable[[str], None]
Unit = dict[str, float]


@dataclass(slots=True)
class CellResult:
    """Every unit of a cell, per system, and what was bad in them."""

    name: str
    targets: tuple[Target, ...]
    units: dict[str, list[Unit]] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def values(self, system: str, metric: str) -> list[float]:
        """Return one metric of all units of a system."""
        return [unit[metric] for unit in self.units.get(system, []) if metric in unit]

    def median(self, system: str, metric: str) -> float | None:
        """Return the median over the units, None if it was not measured."""
        values = self.values(system, metric)
        return statistics.median(values) if values else None

    @property
    def other(self) -> str:
        """Return the name of the system that ours is compared with."""
        return next((name for name in self.units if name != Ours.name), Theirs.name)

    def ratios(self, metric: str) -> list[float]:
        """Return ours : theirs of each pair of units."""
        pairs = zip(self.values(Ours.name, metric), self.values(self.other, metric), strict=False)
        return [ours / theirs for ours, theirs in pairs if theirs]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often."""

    units: int = 5
    seconds: float = 3.0
    warm_s: float = 30.0
    against: bool = False
    """Beside Apache RocketMQ, or beside `earlier` if that is given."""
    earlier: str = ""
    """A commit of inorder."""


def run_cells(names: Sequence[str], plan: Plan, say: Say) -> list[CellResult]:
    """Measure the named cells; the systems are started once for each flush mode."""
    results: list[CellResult] = []
    for sync_flush in (False, True):
        cells = [CELLS[name] for name in names if name in CELLS]
        cells = [cell for cell in cells if cell.sync_flush == sync_flush]
        if cells:
            results += _run_group(cells, plan, say, sync_flush=sync_flush)
    if "idle" in names:
        results.append(_idle(plan, say))
    if "memory-10m" in names:
        results.append(_memory(plan, say))
    for result in results if plan.earlier else ():  # the goals are against RocketMQ
        result.targets = tuple(
            replace(target, pure=None, accelerated=None) for target in result.targets
        )
    return sorted(results, key=lambda result: names.index(result.name))


def _run_group(cells: list[Cell], plan: Plan, say: Say, *, sync_flush: bool) -> list[CellResult]:
    systems = _start(plan, say, sync_flush=sync_flush)
    try:
        for system in systems:
            _warm(system, plan.warm_s if system.name == Theirs.name else min(2, plan.warm_s), say)
        results = []
        for cell in cells:
            for system in systems:
                if cell.filled:
                    loadgen.fill(
                        system.address, cell.load.topic, cell.filled, batched=cell.fill_batched
                    )
                elif cell.load.mode == "e2e":  # the topic must exist before anyone waits on it
                    loadgen.fill(system.address, cell.load.topic, 64, batched=False)
            results.append(_run_cell(cell, systems, plan, say))
        return results
    finally:
        for system in systems:
            system.stop()


def _run_cell(cell: Cell, systems: list[System], plan: Plan, say: Say) -> CellResult:
    result = CellResult(cell.name, cell.targets)
    for number in range(plan.units):
        for system in systems:
            wait_quiet(systems)
            unit, bad = measure(system, cell.load, plan.seconds)
            result.units.setdefault(system.name, []).append(unit)
            result.bad += [f"{system.name}: {sample}" for sample in bad]
            say(
                f"  {cell.name} {number + 1}/{plan.units} {system.name:9}"
                f" {unit['messages_per_s']:>12,.0f}/s {unit['cpu_us_per_message']:8.2f} us"
                f" p50 {unit['p50_us']:.0f} p99 {unit['p99_us']:.0f} us"
            )
    return result


def measure(
    system: System, load: Load, seconds: float, *, start_offsets: Sequence[int] | None = None
) -> tuple[Unit, list[str]]:
    """Run one unit; return its numbers and a description of what was bad."""
    busy, began = _machine_busy_s(), time.monotonic()
    outcome = loadgen.run(
        system.address,
        load,
        seconds=seconds,
        warmup_s=0.3,
        pids=system.broker.pids(),
        start_offsets=start_offsets,
    )
    elapsed = time.monotonic() - began
    share = outcome.broker_cpu_s / outcome.seconds * elapsed if outcome.seconds else 0
    others = (_machine_busy_s() - busy - share - outcome.generator_cpu_s) / elapsed
    unit: Unit = {
        key: value for key, value in asdict(outcome).items() if isinstance(value, int | float)
    }
    unit["others_cores"] = max(0.0, others)
    bad = outcome.bad_samples if outcome.bad else []
    if outcome.busy and system.name == Ours.name:
        bad = [*bad, f"{outcome.busy} sends refused as busy"]
    if not outcome.messages:
        bad = [*bad, "no message at all"]
    return unit, bad


def _start(plan: Plan, say: Say, *, sync_flush: bool = False) -> list[System]:
    systems: list[System] = [Ours(sync_flush=sync_flush)]
    try:
        if plan.against:
            systems.append(
                Earlier(plan.earlier, sync_flush=sync_flush)
                if plan.earlier
                else Theirs(sync_flush=sync_flush)
            )
    except BaseException:
        systems[0].stop()
        raise
    for system in systems:
        mode = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
        say(f"{system.name} {mode} ready after {system.ready_ms:.0f} ms on {system.address[1]}")
    return systems


def _warm(system: System, seconds: float, say: Say) -> None:
    """Warm up with every kind of request: caches of ours, the compiler of theirs."""
    say(f"warming {system.name} for {seconds:.0f} s")
    topic = "BenchWarm"
    loadgen.fill(system.address, topic, 20_000, batched=False)
    for load, part in (
        (Load("send", 8, 32, topic=topic), 0.6),
        (Load("batch", 8, 4, topic=topic), 0.15),
        (Load("pull", 8, 4, topic=topic), 0.15),
        (Load("e2e", 1, 1, topic=topic, rate=2000), 0.1),
    ):
        loadgen.run(system.address, load, seconds=max(0.1, seconds * part), warmup_s=0)


def _idle(plan: Plan, say: Say) -> CellResult:
    """Start fresh, look at the time and the memory; at last, leave alone and look at the CPU."""
    result = CellResult("idle", IDLE_TARGETS)
    for number in range(plan.units):
        systems = _start(plan, say)
        try:
            time.sleep(SETTLE_S)
            units: dict[str, Unit] = {
                system.name: {
                    "ready_ms": system.ready_ms,
                    "idle_anonymous_mb": _anonymous_mb(system),
                }
                for system in systems
            }
            if number == plan.units - 1:
                say(f"  idle: doing nothing for {IDLE_SECONDS:.0f} s")
                before = {system.name: _cpu_s(system) for system in systems}
                time.sleep(IDLE_SECONDS)
                for system in systems:
                    used = _cpu_s(system) - before[system.name]
                    units[system.name]["idle_cpu_percent"] = 100 * used / IDLE_SECONDS
            for name, unit in units.items():
                result.units.setdefault(name, []).append(unit)
        finally:
            for system in systems:
                system.stop()
    return result


def _memory(plan: Plan, say: Say) -> CellResult:
    """Store ten million messages, then look at the memory."""
    result = CellResult("memory-10m", MEMORY_TARGETS)
    systems = _start(plan, say)
    try:
        for system in systems:
            say(f"  memory-10m: sending {MEMORY_MESSAGES:,} to {system.name}")
            loadgen.fill(system.address, "BenchMemory", MEMORY_MESSAGES, batched=True)
            time.sleep(SETTLE_S)
            result.units[system.name] = [{"loaded_anonymous_mb": _anonymous_mb(system)}]
    finally:
        for system in systems:
            system.stop()
    return result


def _anonymous_mb(system: System) -> float:
    return sum(child.anonymous_bytes() for child in system.children()) / 1e6


def _cpu_s(system: System) -> float:
    return sum(child.cpu_seconds() for child in system.children())


def wait_quiet(systems: Sequence[System]) -> None:
    """Wait until the brokers have finished what the last unit left them."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    while time.monotonic() < deadline:
        before = sum(_cpu_s(system) for system in systems)
        time.sleep(0.25)
        if (sum(_cpu_s(system) for system in systems) - before) / 0.25 < QUIET_CORES:
            return


def _machine_busy_s() -> float:
    """Return the CPU seconds that all processes of the machine have used."""
    user, nice, system, _, _, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / CLOCK_TICKS_PER_S
