"""Client libraries on the same work against the same broker of ours, their units in turn.

Our producer, asynchronous with a window and blocking, beside the Java client and PyPI's C++ client;
a blocking send beside a bare socket; the decoding of a pull beside a bare loop. A program per
library (`drivers/`) sends for a while and reports messages, seconds and its own CPU. What this
machine cannot run is said, and compared with nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench import installs, rocketmq
from bench.cells import Target, cost, rate
from bench.compare import CellResult, Plan, Say, Unit, wait_quiet
from bench.drivers.work import TOPIC
from bench.process import StartFailed
from bench.remoting import Connection
from bench.systems import GET_ROUTE, ROOT, Ours, Theirs

WINDOW = 256
QUEUES = 8
CREATE_TOPIC = 17
READY_S = 60
ROUTE_S = 15
DRIVERS = Path(__file__).resolve().parent / "drivers"
CACHE = ROOT / ".cache" / "bench"
CPU = "client_cpu_us_per_message"
DECODE = "decode_us_per_message"


class Lacking(Exception):
    """This machine cannot run a client; the text says why."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A client library in one of its ways to send."""

    driver: str
    mode: str


@dataclass(frozen=True, slots=True)
class ClientCell:
    """Two arms, and what their ratio must be."""

    name: str
    ours: Arm
    theirs: Arm
    targets: tuple[Target, ...]


_ASYNC, _SYNC = Arm("ours-uvloop", "async"), Arm("ours-uvloop", "sync")
_SOCKET = Arm("socket", "sync")
_RATES = (rate(), cost(CPU))
_LATENCY = (rate(), cost("p50_us"), cost("p99_us"), cost(CPU))

CLIENT_CELLS = {
    cell.name: cell
    for cell in (
        ClientCell("client-async-cpp", _ASYNC, Arm("cpp", "async"), (rate(1.0), cost(CPU))),
        ClientCell("client-async-java", _ASYNC, Arm("java", "async"), _RATES),
        ClientCell(
            "client-async-asyncio", Arm("ours-asyncio", "async"), Arm("cpp", "async"), _RATES
        ),
        ClientCell("client-sync-cpp", _SYNC, Arm("cpp", "sync"), _LATENCY),
        ClientCell("client-sync-java", _SYNC, Arm("java", "sync"), _LATENCY),
        ClientCell("client-sync-uvloop", _SYNC, _SOCKET, (cost("p50_us", 1.5), cost("p99_us"))),
        ClientCell(
            "client-sync-asyncio",
            Arm("ours-asyncio", "sync"),
            _SOCKET,
            (cost("p50_us", 1.8), cost("p99_us")),
        ),
    )
}
DECODE_CELL = "client-decode"
DECODE_TARGETS = (cost(DECODE, 2.0),)
CLIENT_NAMES = (*CLIENT_CELLS, DECODE_CELL)


class Driver:
    """One client program. It ends when its input does."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, "HOME": str(directory), **installs.current().environment()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if self.answer() != "ready":
            raise StartFailed(f"{name} did not get ready: {self._log.read_text()[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:  # waits for it, and closes the pipes
            pass

    def run(self, mode: str, seconds: float) -> Unit:
        """Let it send for a while; return its numbers."""
        self.tell(f"run {mode} {WINDOW} {seconds}")
        unit: Unit = json.loads(self.answer())
        return unit

    def tell(self, line: str) -> None:
        """Give it an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Return the next line that it means for us."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@ "):
                return line[2:].strip()
        raise StartFailed(f"{self.name} ended: {self._log.read_text()[-2000:]}")


def run_clients(names: Sequence[str], plan: Plan, say: Say) -> list[CellResult]:
    """Measure the named cells; only our own arms unless the plan compares."""
    results = []
    wanted = [CLIENT_CELLS[name] for name in names if name in CLIENT_CELLS]
    if wanted:
        results += _run_cells(wanted, plan, say)
    if DECODE_CELL in names:
        results.append(_decode(plan, say))
    return results


def _run_cells(cells: list[ClientCell], plan: Plan, say: Say) -> list[CellResult]:
    arms = list(dict.fromkeys(arm for cell in cells for arm in (cell.ours, cell.theirs)))
    units: dict[Arm, list[Unit]] = {}
    with ExitStack() as stack:
        system = stack.enter_context(Ours())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inorder-bench-")))
        make_topic(system, TOPIC, QUEUES)
        drivers = {
            name: stack.enter_context(Driver(name, command, directory))
            for name, command in _commands(arms, system, plan, say).items()
        }
        arms = [arm for arm in arms if arm.driver in drivers]
        for arm in arms:
            drivers[arm.driver].run(arm.mode, _warm_s(arm, plan))
        for number in range(plan.units):
            for arm in arms:
                wait_quiet([system])
                unit = drivers[arm.driver].run(arm.mode, plan.seconds)
                units.setdefault(arm, []).append(unit)
                say(
                    f"  {arm.mode:5} {number + 1}/{plan.units} {arm.driver:12}"
                    f" {unit['messages_per_s']:>10,.0f}/s {unit[CPU]:7.2f} us"
                    f" p50 {unit.get('p50_us', 0):.0f} us"
                )
    return [_result(cell, units) for cell in cells]


def _result(cell: ClientCell, units: dict[Arm, list[Unit]]) -> CellResult:
    result = CellResult(cell.name, cell.targets)
    for system, arm in ((Ours.name, cell.ours), (Theirs.name, cell.theirs)):
        for unit in units.get(arm, []):
            result.units.setdefault(system, []).append(unit)
            if unit.get("failed"):
                result.bad.append(f"{arm.driver}: {unit['failed']:.0f} sends failed")
    return result


def _warm_s(arm: Arm, plan: Plan) -> float:
    """Compilers of the other languages want longer."""
    return min(plan.warm_s, 8.0 if arm.driver == "java" else 1.0)


def _commands(arms: Sequence[Arm], system: Ours, plan: Plan, say: Say) -> dict[str, list[str]]:
    """Return how each program is started; those that cannot run here are named and left out."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(arm.driver for arm in arms):
        if name in _FOREIGN and not plan.against:
            continue
        try:
            command = COMMANDS[name]()
        except Lacking as lacking:
            say(f"{name} cannot run here and is compared with nothing: {lacking}")
            continue
        host, port = system.address if name == "socket" else system.namesrv
        words = [f"{host}:{port}", *(["asyncio"] if name == "ours-asyncio" else [])]
        found[name] = [*command, *words]
    return found


def make_topic(system: Ours | Theirs, topic: str, queues: int) -> None:
    """Make a topic and wait until clients can find it."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    with Connection(system.address) as connection:
        connection.call(CREATE_TOPIC, fields)
    deadline = time.monotonic() + ROUTE_S
    with Connection(system.namesrv) as connection:
        while connection.request(GET_ROUTE, {"topic": topic}).code != 0:
            if time.monotonic() > deadline:
                raise StartFailed(f"no route of {topic}")
            time.sleep(0.02)


def _decode(plan: Plan, say: Say) -> CellResult:
    from bench import decoding  # the only part that runs code of inorder in this process

    ours, floor = decoding.measure(plan.units)
    say(f"  decode: {ours[0]:.2f} us/message, a bare loop {floor[0]:.2f}")
    units = {
        Ours.name: [{DECODE: value} for value in ours],
        Theirs.name: [{DECODE: value} for value in floor],
    }
    return CellResult(DECODE_CELL, DECODE_TARGETS, units)


# How each program is started.


def python_program(module: str) -> list[str]:
    """Return how to start a module of `drivers/` with the inorder that is measured."""
    return [installs.current().python, "-m", module]


def _cpp() -> list[str]:
    from tests.interop import toolchains

    try:
        python = toolchains.cpp()[0]
    except toolchains.Lacking as lacking:
        raise Lacking(str(lacking)) from lacking
    return [python, str(DRIVERS / "cpp.py")]


def java_program(name: str) -> list[str]:
    """Compile a program of `drivers/` against RocketMQ's jars; return how to start it."""
    if (lacking := rocketmq.missing()) is not None:
        raise Lacking(lacking)
    if shutil.which("javac") is None:
        raise Lacking("javac is not installed")
    jars, source = rocketmq.fetch(), DRIVERS / f"{name}.java"
    home = CACHE / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not (home / "complete").exists():
        home.mkdir(parents=True, exist_ok=True)
        javac = ["javac", "-nowarn", "-d", str(home), "-cp", f"{jars}/*", str(source)]
        done = subprocess.run(javac, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Lacking(f"javac: {done.stderr[-500:]}")
        (home / "complete").touch()
    options = ["-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-Duser.home=."]
    return ["java", *options, "-cp", f"{home}:{jars}/*", name]


COMMANDS: dict[str, Callable[[], list[str]]] = {
    "ours-uvloop": lambda: python_program("bench.drivers.ours"),
    "ours-asyncio": lambda: python_program("bench.drivers.ours"),
    "socket": lambda: python_program("bench.drivers.baresocket"),
    "cpp": _cpp,
    "java": lambda: java_program("BenchClient"),
}
_FOREIGN = ("cpp", "java")
