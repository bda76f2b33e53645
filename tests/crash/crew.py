"""What runs with consumers that are killed have in common: the processes, the figures, the command.

`consuming.py`, `resizing.py` and `storm.py` are such runs; each says itself what is done to whom,
and by what it is judged.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from inorder.checker import Event, Handled, Report
from inorder.checker.events import read_history
from inorder.clock import SystemClock
from inorder.config import NameServerConfig
from inorder.disk import OsFiles
from inorder.nameserver.server import NameServer
from inorder.wire.ids import show_address
from tests.crash.producing import ROOT, OurBroker, Worker, end_child, python_path
from tests.crash.producing import Plan as Producing

GROUP = "workers"
STOP_S = 60


class Member:
    """A consumer process that writes its runs down."""

    def __init__(self, folder: Path, name: str, words: Sequence[str], events: Path) -> None:
        self.name = name
        self._events = events
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, env=python_path()
            )

    async def stop(self) -> None:
        """Let it stop as one should."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await asyncio.to_thread(self._process.wait, STOP_S)
        assert code == 0, f"{self.name} ended with {code}: {self.log()}"

    def kill(self) -> None:
        """SIGKILL."""
        end_child(self._process)

    def log(self) -> str:
        """Return the end of what it logged."""
        return self._log.read_text()[-3000:]

    def handled(self) -> list[Handled]:
        """Return its runs; of one that was killed the last may have no end."""
        runs: dict[tuple[str, int, int], Handled] = {}
        for run in read_events(self._events):
            assert isinstance(run, Handled)
            runs[run.queue, run.offset, run.start_ns] = run
        return list(runs.values())


def read_events(path: Path) -> list[Event]:
    """Return the events of a file whose last line may be cut."""
    if not path.exists():
        return []
    with path.open() as lines:
        return list(read_history(line for line in lines if line.endswith("\n")))


M = TypeVar("M", bound=Member)


class Crew(Generic[M]):
    """The consumers of a run."""

    def __init__(self, start: Callable[[str], M]) -> None:
        """`start` starts one under a name."""
        self._start = start
        self.running: list[M] = []
        self.all: list[M] = []

    def add(self) -> None:
        """Start one more, under a new name."""
        member = self._start(f"c{len(self.all)}")
        self.running.append(member)
        self.all.append(member)

    async def stop(self) -> None:
        """Stop all as one should."""
        await asyncio.gather(*(member.stop() for member in self.running))
        self.running.clear()

    def kill(self) -> None:
        """End all, whatever they do."""
        for member in self.all:
            member.kill()

    def handled(self) -> list[Handled]:
        """Return what all have done."""
        return [run for member in self.all for run in member.handled()]

    async def wait_done(self, left: Callable[[], Awaitable[str]], seconds: float) -> None:
        """Wait until nothing is left to do; AssertionError if that stays the same for so long.

        Queues of a killed member come free after a while, and on a busy machine much may be left.
        """
        until, before = time.monotonic() + seconds, ""
        while what := await left():
            if what != before:
                until, before = time.monotonic() + seconds, what
            if time.monotonic() > until:
                logs = "\n".join(f"--- {member.name}\n{member.log()}" for member in self.running)
                raise AssertionError(f"the group does not get done: {what}\n{logs}")
            await asyncio.sleep(0.2)


@dataclass
class Figures:
    """What a run amounted to."""

    events: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        events = " ".join(f"{name}={count}" for name, count in sorted(self.events.items()))
        counted = " ".join(f"{name}={count}" for name, count in sorted(self.counted.items()))
        return f"{events} {counted} seconds={self.seconds:.0f}"

    def count(self, report: Report, *names: str) -> None:
        """Take over what the checker has counted."""
        for name in names:
            self.counted[name] = report.counts.get(name, 0)


@dataclass(frozen=True, slots=True)
class Torment:
    """Brokers and consumers that are killed, stopped and started again, for a while."""

    seconds: float
    pause_s: tuple[float, float]
    kill_consumers: bool
    """Off: consumers are stopped as one should, which hands their queues over at once."""

    async def run(
        self,
        draw: random.Random,
        brokers: Sequence[OurBroker],
        crew: Crew[M],
        figures: Figures,
        *,
        show: bool,
    ) -> None:
        """Do something to somebody, again and again."""
        until = time.monotonic() + self.seconds
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, draw.uniform(*self.pause_s)))
            what = draw.choice(("broker killed", "consumer killed", "consumer stopped"))
            if what == "broker killed":
                broker = draw.choice(brokers)
                broker.kill()
                await asyncio.sleep(draw.uniform(0, 0.5))
                await broker.start()
            else:
                member = crew.running.pop(draw.randrange(len(crew.running)))
                if what == "consumer killed" and self.kill_consumers:
                    member.kill()
                else:
                    what = "consumer stopped"
                    await member.stop()
                crew.add()
            figures.events[what.replace(" ", "_")] += 1
            if show:
                print(f"{time.monotonic() - until + self.seconds:.0f} s: {what}", flush=True)


async def start_name_server(folder: Path) -> tuple[NameServer, str]:
    """Start a name server in this process; return it and its address."""
    config = NameServerConfig(port=0, data=str(folder / "names"))
    names = NameServer(config, SystemClock(), OsFiles())
    return names, show_address(*await names.start())


def start_producers(
    folder: Path, namesrv: str, *, producers: int, seed: int, rate: float
) -> list[Worker]:
    """Start the processes that send."""
    plan = Producing(producers=producers, seed=seed, rate=rate)
    return [Worker(folder, plan, number, namesrv) for number in range(plan.processes)]


def command(
    run: Callable[..., Any], make_plan: Callable[..., Any], *, about: str, minutes: float,
    rate: float,
) -> None:  # fmt: skip
    """Play one plan for some minutes, say what came of it, and exit."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--rate", type=float, default=rate, help="messages/s of each producer")
    options = parser.parse_args()
    plan = make_plan(seconds=options.minutes * 60, seed=options.seed, rate=options.rate)
    print(f"seed {plan.seed}: {plan}", flush=True)
    with tempfile.TemporaryDirectory(prefix="inorder-crew-") as folder:
        report, figures = asyncio.run(run(plan, Path(folder), show=True))
    print(f"seed={plan.seed} {figures}")
    print(report)
    sys.exit(not report.ok)
