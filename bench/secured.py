"""What users and rules cost a cluster: our client on an open broker and on one that checks it.

    python -m bench secured [--units 5] [--smoke]

Ordered sends of 1 KiB, with a window and one after the other, and pulls. On the second broker each
request is signed in a session of its connection, by a user who is no super user. Units alternate.
The processor's time is that of broker and client, for each message.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import installs
from bench.clients import CPU, Driver, python_program
from bench.compare import Say, Unit, wait_quiet
from bench.drivers.securing import TOPIC
from bench.systems import Ours, Secured

QUEUES = 4
WINDOW = 256
PULL_COUNT = 60_000
FILL_S = 6.0
RATE_GOAL = 0.95
RATE = "messages_per_s"
BROKER_CPU = "broker_cpu_us_per_message"
OPEN, CHECKED = "open", "checked"
WHAT = {
    "send": f"ordered sends of 1 KiB, window {WINDOW}",
    "sync": "ordered sends of 1 KiB, one after the other",
    "pull": "pulls of 1 KiB",
}


@dataclass
class Figures:
    """The units of each load on each broker, in the order in which they ran."""

    units: dict[tuple[str, str], list[Unit]] = field(default_factory=dict)

    def values(self, mode: str, system: str, metric: str) -> list[float]:
        """Return one number of all units."""
        return [unit[metric] for unit in self.units[mode, system]]


class Side:
    """A broker and the client that works on it."""

    def __init__(self, name: str, system: Ours, directory: Path, stack: ExitStack) -> None:
        self.name = name
        self.system = stack.enter_context(system)
        host, port = system.namesrv
        words = [*python_program("bench.drivers.securing"), f"{host}:{port}"]
        if isinstance(system, Secured):
            keys = directory / "bench.keys"
            keys.touch(mode=0o600)
            secret = "not-a-secret-of-anybody"  # noqa: S105 - it lives for a benchmark
            keys.write_text(f"access_key = bench\nsecret_key = {secret}\n")
            self._tool("user", "create", "bench", "--secret-stdin", given=secret + "\n")
            self._tool("acl", "set", "bench", "Topic:*", "Group:*", "--actions", "Pub,Sub")
            words.append(str(keys))
        self._tool("topic", "create", TOPIC, "--queues", str(QUEUES))
        self._driver = stack.enter_context(Driver(name, words, directory))

    def run(self, mode: str, number: int, seconds: float) -> Unit:
        """Measure one unit."""
        wait_quiet([self.system])
        before = self.system.broker.cpu_seconds()
        self._driver.tell(f"run {mode} {number} {seconds}")
        unit: Unit = json.loads(self._driver.answer())
        used = self.system.broker.cpu_seconds() - before
        unit[BROKER_CPU] = used / max(1.0, unit["messages"]) * 1e6
        return unit

    def _tool(self, *words: str, given: str = "") -> None:
        """Run a command of the command line on this broker, as its super user if it has one."""
        host, port = self.system.namesrv
        command = [installs.current().python, "-m", "inorder.cli.main", *words]
        command += ["--namesrv", f"{host}:{port}"]
        if isinstance(self.system, Secured):
            command += ["--credentials-file", str(self.system.root_keys)]
        environment = installs.current().environment()
        subprocess.run(
            command, input=given, text=True, check=True, stdout=subprocess.DEVNULL, env=environment
        )


def run_secured(units: int, say: Say, *, smoke: bool = False) -> tuple[str, list[str], Figures]:
    """Measure; return the table, what missed its goal, and the numbers."""
    seconds, count, pairs = (0.5, 2000, 1) if smoke else (2.0, PULL_COUNT, units)
    figures = Figures()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inorder-bench-")))
        sides = [
            Side(OPEN, Ours(), directory, stack),
            Side(CHECKED, Secured(), directory, stack),
        ]
        for side in sides:  # what is pulled later
            filled = 0.0
            while filled < count:
                filled += side.run("send", WINDOW, 0.5 if smoke else FILL_S)["messages"]
        for mode, number in (("send", WINDOW), ("sync", 1), ("pull", count)):
            for pair in range(pairs):
                for side in sides if pair % 2 else reversed(sides):
                    unit = side.run(mode, number, seconds)
                    figures.units.setdefault((mode, side.name), []).append(unit)
                    say(
                        f"  {mode:5} {side.name:8} {unit[RATE]:>10,.0f}/s "
                        f"{unit[BROKER_CPU]:6.2f} + {unit[CPU]:6.2f} us CPU"
                    )
    return *summary(figures), figures


def summary(figures: Figures) -> tuple[str, list[str]]:
    """Return the table and what missed its goal."""
    lines = [
        "| what | open: messages/s | checked | ratio | spread | open: µs of CPU, broker + client "
        "| checked |",
        "|---|---|---|---|---|---|---|",
    ]
    missed = []
    for mode, what in WHAT.items():
        rates = {name: figures.values(mode, name, RATE) for name in (OPEN, CHECKED)}
        ratios = [one / other for one, other in zip(rates[CHECKED], rates[OPEN], strict=True)]
        costs = [
            f"{median(figures.values(mode, name, BROKER_CPU)):.2f} + "
            f"{median(figures.values(mode, name, CPU)):.2f}"
            for name in (OPEN, CHECKED)
        ]
        lines.append(
            f"| {what} | {median(rates[OPEN]):,.0f} | {median(rates[CHECKED]):,.0f} "
            f"| {median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} "
            f"| {costs[0]} | {costs[1]} |"
        )
        if median(ratios) < RATE_GOAL:
            missed.append(f"{what}: {median(ratios):.2f} of the rate, not {RATE_GOAL}")
    return "\n".join(lines), missed


def as_json(figures: Figures) -> dict[str, list[Unit]]:
    """Return the numbers for a file."""
    return {f"{mode} {name}": units for (mode, name), units in figures.units.items()}
