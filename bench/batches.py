"""What a batch costs a broker: ours, filled by the load generator, beside Apache Kafka's.

Both store batches of 32 messages of 200 bytes in eight queues. Kafka's come from its own
`ProducerPerformance`, idempotent as it is by default, with a batch size that 32 such messages fill.
CPU is that of the broker process alone. The tool says its own rate and how large its batches were;
a run in which they were not full is bad.
"""

from __future__ import annotations

import re
from contextlib import ExitStack

from bench import kafka, loadgen
from bench.cells import CPU, cost, rate
from bench.compare import CellResult, Plan, Say, Unit, measure, wait_quiet
from bench.kafka import Kafka
from bench.loadgen import Load
from bench.systems import Ours, Theirs

NAME = "batch-kafka"
BATCH = 32
QUEUES = 8
TOPIC = "BenchBatch"
BODY_BYTES = 200
BATCH_BYTES = 61 + BATCH * (BODY_BYTES + 10)
"""Kafka's head of a batch, and 8 to 10 bytes a record beside its body: a 33rd does not fit."""
FULL = 0.9
TARGETS = (rate(), cost(CPU, 1.0))
LOAD = Load("batch", 8, 4, topic=TOPIC)
_RATE = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
_BATCH_SIZE = re.compile(r"batch-size-avg\S*\s*: ([\d.]+)")


def run_batches(plan: Plan, say: Say) -> list[CellResult]:
    """Measure both brokers in turn; ours alone where Kafka cannot run."""
    result = CellResult(NAME, TARGETS)
    with ExitStack() as stack:
        ours = stack.enter_context(Ours())
        loadgen.run(ours.address, LOAD, seconds=min(2, plan.warm_s), warmup_s=0)
        theirs: Kafka | None = None
        if (lacking := kafka.missing()) is not None:
            say(f"{lacking}: Kafka cannot run, measuring ours alone")
        else:
            theirs = stack.enter_context(Kafka())
            theirs.make_topic(TOPIC, QUEUES)
            _send(theirs, int(20_000 * plan.warm_s))
        count = 0
        for number in range(plan.units):
            wait_quiet([ours])
            unit, bad = measure(ours, LOAD, plan.seconds)
            count = count or int(unit["messages"])
            _keep(result, Ours.name, unit, bad, say, number)
            if theirs is not None:
                unit, bad = _send(theirs, count)
                _keep(result, Theirs.name, unit, bad, say, number)
    return [result]


def _keep(  # noqa: PLR0917 - one line a unit
    result: CellResult, name: str, unit: Unit, bad: list[str], say: Say, number: int
) -> None:
    result.units.setdefault(name, []).append(unit)
    shown = "kafka" if name == Theirs.name else name
    result.bad += [f"{shown}: {line}" for line in bad]
    say(
        f"  {NAME} {number + 1} {shown:9} {unit['messages_per_s']:>12,.0f}/s"
        f" {unit[CPU]:8.2f} us of the broker"
    )


def _send(system: Kafka, count: int) -> tuple[Unit, list[str]]:
    """Let Kafka's tool send; return the numbers of its broker."""
    wait_quiet([system])  # type: ignore[list-item]  # it has children, as all systems
    before = system.broker.cpu_seconds()
    said = system.perform(
        TOPIC, count, BODY_BYTES, {"batch.size": BATCH_BYTES, "linger.ms": 50, "acks": "all"}
    )
    used_s = system.broker.cpu_seconds() - before
    return _read(said, count, used_s)


def _read(said: str, count: int, used_s: float) -> tuple[Unit, list[str]]:
    """Return the numbers that the tool printed, and what is wrong with them."""
    rates, size = _RATE.findall(said), _BATCH_SIZE.search(said)
    bad = []
    if not rates or int(rates[-1][0]) != count:
        bad.append(f"not {count} records sent: {said[-300:]}")
    if size is None or not FULL * BATCH_BYTES <= float(size[1]) <= BATCH_BYTES:
        bad.append(f"batches of {size[1] if size else '?'} bytes, not {BATCH_BYTES}")
    unit: Unit = {
        "messages_per_s": float(rates[-1][1]) if rates else 0.0,
        CPU: used_s / count * 1e6,
        "messages": float(count),
    }
    return unit, bad
