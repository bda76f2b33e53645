"""Python clients: ours on our broker beside `confluent-kafka` and `aiokafka` on Apache Kafka 4.

One process for each library, 200-byte bodies, 1,000 keys, four queues, producers idempotent on both
sides. A unit of producing lasts from the first call until every message has its receipt; a unit of
consuming is a new group on a backlog that a producer of the same side sent, and lasts from the
first message to the last. Handlers read key and body. After a unit its driver reads the topic and
compares it with the receipts, or looks at what its handlers saw (`drivers/traffic.py`): a message
that is lost, repeated or out of order makes the run fail. The libraries take turns in each round;
a round for warmth comes first.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import venv
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import kafka
from bench.clients import Driver, make_topic, python_program
from bench.compare import Plan, Say, wait_quiet
from bench.installs import CACHE, pip_install
from bench.kafka import Kafka
from bench.once import once
from bench.process import StartFailed
from bench.systems import Ours

NAME = "client-kafka"
QUEUES = 4
COUNT = 200_000
SMOKE_COUNT = 5_000
BACKLOG = "backlog"
PACKAGES = ("confluent-kafka==2.16.1", "aiokafka==0.14.0")
RATE = "messages_per_s"
CLIENT_CPU = "client_cpu_us_per_message"
BROKER_CPU = "broker_cpu_us_per_message"
OURS, CONFLUENT, AIOKAFKA = "ours", "confluent", "aiokafka"

Unit = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """A library in one of its ways to produce or to consume."""

    verb: str
    driver: str
    mode: str
    label: str


ARMS = (
    Arm("produce", CONFLUENT, "callback", "confluent-kafka, on_delivery"),
    Arm("produce", AIOKAFKA, "send", "aiokafka"),
    Arm("produce", OURS, "nowait", "inorder send_nowait"),
    Arm("produce", OURS, "aio", "inorder aio"),
    Arm("produce", OURS, "batch", "inorder send_batch(1000)"),
    Arm("consume", CONFLUENT, "consume", "confluent-kafka consume(500)"),
    Arm("consume", CONFLUENT, "poll", "confluent-kafka poll()"),
    Arm("consume", AIOKAFKA, "getmany", "aiokafka getmany(500)"),
    Arm("consume", OURS, "queue", 'inorder order="queue"'),
    Arm("consume", OURS, "none", "inorder order=None"),
    Arm("consume", OURS, "key", 'inorder order="key"'),
    Arm("consume", OURS, "aio", 'inorder aio, order="queue"'),
    Arm("consume", OURS, "lists", 'inorder order="queue", batch=500'),
    Arm("consume", OURS, "key-lists", 'inorder order="key", batch=500'),
)
_BY_MODE = {(arm.verb, arm.mode): arm for arm in ARMS}


@dataclass(frozen=True, slots=True)
class Goal:
    """What the rate of one of our arms must be, in rates of another library."""

    ours: Arm
    theirs: Arm
    least: float


def _goal(verb: str, ours: str, theirs: str, least: float) -> Goal:
    return Goal(_BY_MODE[verb, ours], _BY_MODE[verb, theirs], least)


GOALS = (
    _goal("produce", "nowait", "callback", 1.0),
    _goal("produce", "nowait", "send", 3.0),
    _goal("consume", "queue", "poll", 1.0),
    _goal("consume", "none", "poll", 1.0),
    _goal("consume", "key", "poll", 0.5),
    _goal("consume", "lists", "consume", 0.5),
    _goal("consume", "key-lists", "consume", 0.5),
)


@dataclass(slots=True)
class Figures:
    """Every unit of every arm, round by round, and what was wrong in them."""

    units: dict[Arm, list[Unit]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def values(self, arm: Arm, metric: str) -> list[float]:
        """Return one number of all units of an arm."""
        return [unit[metric] for unit in self.units.get(arm, [])]

    def ratios(self, goal: Goal) -> list[float]:
        """Return the ratio of the rates in each round."""
        pairs = zip(self.values(goal.ours, RATE), self.values(goal.theirs, RATE), strict=True)
        return [ours / theirs for ours, theirs in pairs]


class Bench:
    """The brokers and the client processes."""

    def __init__(self, stack: ExitStack, say: Say, *, against: bool) -> None:
        self._say = say
        self._numbers: dict[str, int] = {}
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inorder-bench-")))
        self._ours = stack.enter_context(Ours())
        host, port = self._ours.namesrv
        command = [*python_program("bench.drivers.pyours"), f"{host}:{port}"]
        self.drivers = {OURS: stack.enter_context(Driver(OURS, command, directory))}
        self._kafka: Kafka | None = None
        if against:
            python = str(clients_python())
            self._kafka = stack.enter_context(Kafka())
            for name in (CONFLUENT, AIOKAFKA):
                command = [python, "-m", f"bench.drivers.py{name}", self._kafka.address]
                self.drivers[name] = stack.enter_context(Driver(name, command, directory))

    def fill(self, count: int) -> None:
        """Give each broker a backlog that a producer of its own side sends."""
        for driver, mode in ((OURS, "nowait"), (CONFLUENT, "callback")):
            if driver in self.drivers:
                self._make_topic(driver, BACKLOG)
                wrong = self._tell(driver, f"produce {mode} {count} {BACKLOG}")["wrong"]
                if wrong:
                    raise StartFailed(f"the backlog of {driver}: {'; '.join(wrong)}")

    def run(self, arm: Arm, count: int) -> Unit:
        """Let a library produce into a new topic, or a new group of it consume the backlog."""
        systems: list[Any] = [self._ours, *([self._kafka] if self._kafka else [])]
        number = self._numbers[arm.driver] = self._numbers.get(arm.driver, 0) + 1
        name = f"unit-{arm.driver}-{number}"
        words = f"{arm.verb} {arm.mode} {count} {BACKLOG} {name}"
        if arm.verb == "produce":
            self._make_topic(arm.driver, name)
            words = f"{arm.verb} {arm.mode} {count} {name}"
        wait_quiet(systems)
        unit = self._tell(arm.driver, words)
        unit[BROKER_CPU] = unit.pop("broker_cpu_s") / count * 1e6
        return unit

    def _make_topic(self, driver: str, name: str) -> None:
        if driver == OURS:
            make_topic(self._ours, name, QUEUES)
        else:
            maker = self.drivers[CONFLUENT]
            maker.tell(f"topic {QUEUES} {name}")
            maker.answer()

    def _tell(self, name: str, words: str) -> Unit:
        driver = self.drivers[name]
        broker = self._ours.broker
        if name != OURS:
            assert self._kafka is not None
            broker = self._kafka.broker
        driver.tell(words)
        ends: list[float] = []
        for wanted in ("began", "ended"):
            if (said := driver.answer()) != wanted:
                raise AssertionError(f"{name} said {said!r} instead of {wanted!r}")
            ends.append(broker.cpu_seconds())
        unit: Unit = json.loads(driver.answer())
        unit["broker_cpu_s"] = ends[1] - ends[0]
        return unit


def missing() -> str | None:
    """Say what this machine lacks to run Kafka and its clients, or None."""
    if (lacking := kafka.missing()) is not None:
        return lacking
    try:
        clients_python()
    except (StartFailed, OSError) as error:
        return str(error)
    return None


def clients_python() -> Path:
    """Return a Python with the clients of Kafka, installed from PyPI the first time."""
    versions = "-".join(package.partition("==")[2] for package in PACKAGES)
    home = CACHE / f"kafka-clients-{versions}-py{sys.version_info[0]}.{sys.version_info[1]}"
    python = home / "bin" / "python"

    def install() -> None:
        venv.create(home, with_pip=True, clear=True)
        pip_install(python, "--only-binary=:all:", *PACKAGES)

    once(home / "complete", install)
    return python


def run_pythons(plan: Plan, say: Say, *, count: int = COUNT) -> Figures:
    """Measure every arm in turn; only ours unless the plan compares."""
    against = plan.against
    if against and (lacking := missing()) is not None:
        say(f"{lacking}: clients of Kafka cannot run, measuring ours alone")
        against = False
    figures = Figures()
    with ExitStack() as stack:
        bench = Bench(stack, say, against=against)
        bench.fill(count)
        arms = [arm for arm in ARMS if arm.driver in bench.drivers]
        first = 0 if plan.against else 1  # a round for warmth, which is checked all the same
        for number in range(first, plan.units + 1):
            for arm in arms:
                unit = bench.run(arm, count)
                figures.wrong += [f"{arm.verb} {arm.label}: {line}" for line in unit.pop("wrong")]
                if number == 0:
                    continue
                figures.units.setdefault(arm, []).append(unit)
                say(
                    f"  {arm.verb} {number}/{plan.units} {arm.label:34}"
                    f" {unit[RATE]:>11,.0f}/s {unit[CLIENT_CPU]:6.1f} us client"
                    f" {unit[BROKER_CPU]:6.2f} us broker"
                )
    return figures


def table(figures: Figures) -> str:
    """Return the medians of every arm, and what became of the goals."""
    lines = [
        "| | messages/s | spread | client CPU, us a message | broker CPU, us a message |",
        "|---|---:|---:|---:|---:|",
    ]
    for arm in ARMS:
        rates = figures.values(arm, RATE)
        if rates:
            client, broker = figures.values(arm, CLIENT_CPU), figures.values(arm, BROKER_CPU)
            lines.append(
                f"| {arm.verb}: {arm.label} | {statistics.median(rates):,.0f} "
                f"| {min(rates):,.0f} to {max(rates):,.0f} "
                f"| {statistics.median(client):.1f} | {statistics.median(broker):.2f} |"
            )
    rows = [_goal_row(figures, goal) for goal in GOALS if figures.units.get(goal.theirs)]
    if rows:
        head = [
            "",
            "| rate of | in rates of | ratio | spread | goal | |",
            "|---|---|---:|---:|---|---|",
        ]
        lines += [*head, *rows]
    return "\n".join(lines)


def _goal_row(figures: Figures, goal: Goal) -> str:
    ratios = figures.ratios(goal)
    middle = statistics.median(ratios)
    return (
        f"| {goal.ours.verb}: {goal.ours.label} | {goal.theirs.label} | {middle:.2f} "
        f"| {min(ratios):.2f} to {max(ratios):.2f} | >= {goal.least:g} "
        f"| {'met' if middle >= goal.least else 'NOT MET'} |"
    )


def as_json(figures: Figures) -> Sequence[dict[str, object]]:
    """Return the numbers for a file."""
    return [
        {"verb": arm.verb, "driver": arm.driver, "mode": arm.mode, "units": units}
        for arm, units in figures.units.items()
    ]
