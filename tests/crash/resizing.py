"""A topic on two brokers that is resized again and again, under load, while everything is killed.

Producers send by key, processes of one group consume by key. The number of queues goes 4, 16, 5,
16, 5, … by `inorder topic resize`, which is itself killed now and then and resumed; so are brokers
and consumers. In the end the logs are read without our code and the order checker judges: every
acknowledged message is stored once, handled, and the first deliveries of a producer's messages of a
key came in the order in which they were sent, whatever queues they lie in.

    python -m tests.crash.resizing --minutes 5 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from inorder.checker import Event, Handled, HandledResult, Handling, Report, Rules, Stored, check
from inorder.client.admin import Admin
from inorder.clock import SystemClock
from inorder.config import NameServerConfig
from inorder.disk import OsFiles
from inorder.errors import InorderError
from inorder.nameserver.server import NameServer
from inorder.testing.seeds import stream
from inorder.wire.hosts import show_address
from tests.crash.consumers import Orders, start_words
from tests.crash.consuming import Member
from tests.crash.producers import TOPIC
from tests.crash.producing import ROOT, OurBroker, Worker, python_path
from tests.crash.producing import Plan as Producing

GROUP = "workers"
BROKERS = ("broker-a", "broker-b")
SIZES = (16, 5)
FIRST_QUEUES = 4
DRAIN_S = 180
RESUMES_MAX = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, on what."""

    seconds: float = 300.0
    seed: int = 1
    members: int = 3
    pause_s: tuple[float, float] = (1.0, 6.0)
    kill_consumers: bool = True
    rate: float = 40.0
    producers: int = 4


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


class KeyMember(Member):
    """A consumer process that keeps the order of keys."""

    def __init__(self, folder: Path, namesrv: str, name: str, seed: int) -> None:
        self.name = name
        self.events = folder / f"handled-{name}.jsonl"
        self._log = folder / f"{name}.log"
        orders = Orders(namesrv, name, GROUP, TOPIC, seed, str(self.events), order="key")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                start_words(orders), cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log,
                env=python_path(),
            )  # fmt: skip


class World:
    """The processes of a run."""

    def __init__(self, plan: Plan, folder: Path, namesrv: str, figures: Figures) -> None:
        self.plan = plan
        self.folder = folder
        self.namesrv = namesrv
        self.figures = figures
        self.running: list[KeyMember] = []
        self.all: list[KeyMember] = []
        self.workers: list[Worker] = []
        self.brokers: list[OurBroker] = []
        self.busy = asyncio.Lock()
        for name in BROKERS:
            (folder / name).mkdir()
            broker = OurBroker(folder / name, "", namesrv)
            broker._words += ["--name", name]
            self.brokers.append(broker)

    def add_member(self) -> None:
        """Start one more consumer, under a new name."""
        name = f"c{len(self.all)}"
        member = KeyMember(self.folder, self.namesrv, name, self.plan.seed)
        self.running.append(member)
        self.all.append(member)

    def kill(self) -> None:
        """End all, whatever they do."""
        for process in (*self.workers, *self.all, *self.brokers):
            process.kill()

    # -- resizing --------------------------------------------------------------------------------

    async def resize_for_ever(self, draw: random.Random, done: asyncio.Event) -> None:
        """Resize up and down, until told that it is enough and both sizes were there."""
        turn = 0
        while not done.is_set() or turn < len(SIZES):
            await self.resize(SIZES[turn % len(SIZES)], draw)
            turn += 1
            await asyncio.sleep(draw.uniform(0.2, 1.5))

    async def resize(self, queues: int, draw: random.Random) -> None:
        """Run the command, kill it now and then, and have it resumed."""
        words = ["--queues", str(queues)]
        for _ in range(RESUMES_MAX):
            patience = draw.uniform(0.3, 2.0) if draw.random() < 0.4 else 60.0
            code = await self._command([*words, "--no-wait"], patience)
            if code == 0:
                self.figures.events["resized"] += 1
                return
            self.figures.events["coordinator_killed" if code is None else "resumed"] += 1
            if await self._is_decided():
                words = ["--resume"]
        raise AssertionError(f"topic {TOPIC} is not resized to {queues} queues")

    async def _is_decided(self) -> bool:
        try:
            async with Admin(self.namesrv) as admin:
                return (await admin.topics.resize_status(TOPIC)).plan is not None
        except InorderError:
            return False

    async def _command(self, words: list[str], patience_s: float) -> int | None:
        process = self._start(words)
        try:
            return await asyncio.wait_for(asyncio.to_thread(process.wait), patience_s)
        except TimeoutError:
            process.kill()
            process.wait()
            return None

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        command = ["-m", "inorder.cli.main", "topic", "resize", TOPIC, "--namesrv", self.namesrv]
        with (self.folder / "resize.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, *command, *words], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=python_path(),
            )  # fmt: skip

    # -- killing ---------------------------------------------------------------------------------

    async def torment(self, draw: random.Random, *, show: bool) -> None:
        """Kill, stop and add for the time that the plan gives."""
        plan, until = self.plan, time.monotonic() + self.plan.seconds
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, draw.uniform(*plan.pause_s)))
            what = draw.choice(("broker killed", "consumer killed", "consumer stopped"))
            if what == "broker killed":
                broker = draw.choice(self.brokers)
                broker.kill()
                await asyncio.sleep(draw.uniform(0, 0.5))
                await broker.start()
            else:
                member = self.running.pop(draw.randrange(len(self.running)))
                if what == "consumer killed" and plan.kill_consumers:
                    member.kill()
                else:
                    what = "consumer stopped"
                    await member.stop()
                self.add_member()
            self.figures.events[what.replace(" ", "_")] += 1
            if show:
                print(f"{time.monotonic() - until + plan.seconds:.0f} s: {what}", flush=True)

    async def wait_drained(self) -> None:
        """Wait until the group is done with everything, and released into the last version."""
        until = time.monotonic() + DRAIN_S
        async with Admin(self.namesrv) as admin:
            while True:
                status, left = "", -1
                try:
                    left = sum(one.lag for one in await admin.groups.lag(GROUP))
                    found = await admin.topics.resize_status(TOPIC)
                    status = str(found)
                    if not left and found.is_done:
                        return
                except InorderError as error:
                    status = str(error)
                if time.monotonic() > until:
                    logs = "\n".join(f"--- {one.name}\n{one.log()}" for one in self.running)
                    raise AssertionError(f"not done: {left} left, {status}\n{logs}")
                await asyncio.sleep(0.3)


async def run(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Figures]:
    """Play a plan; return the verdict."""
    began, figures = time.monotonic(), Figures()
    names = NameServer(
        NameServerConfig(port=0, data=str(folder / "names")), SystemClock(), OsFiles()
    )
    namesrv = show_address(*await names.start())
    world = World(plan, folder, namesrv, figures)
    try:
        for broker in world.brokers:
            await broker.start()
        async with Admin(namesrv) as admin:
            await admin.topics.create(TOPIC, queues=FIRST_QUEUES // len(BROKERS))
        producing = Producing(producers=plan.producers, seed=plan.seed, rate=plan.rate)
        world.workers += [Worker(folder, producing, n, namesrv) for n in range(producing.processes)]
        for _ in range(plan.members):
            world.add_member()
        done = asyncio.Event()
        resizing = asyncio.create_task(world.resize_for_ever(stream(plan.seed, "sizes"), done))
        await world.torment(stream(plan.seed, "torment"), show=show)
        done.set()
        await resizing
        told = [event for worker in world.workers for event in await worker.stop()]
        await world.wait_drained()
        await asyncio.gather(*(member.stop() for member in world.running))
        for broker in world.brokers:
            broker.kill()
            await broker.start()
            broker.kill()
    finally:
        world.kill()
        await names.stop()
    figures.seconds = time.monotonic() - began
    handled = [one for member in world.all for one in member.handled()]
    return judge(told, handled, world.brokers, figures), figures


def judge(
    told: Iterable[Event], handled: list[Handled], brokers: list[OurBroker], figures: Figures
) -> Report:
    """Hold what was sent and handled against what is stored."""
    records = []
    for name, broker in zip(BROKERS, brokers, strict=True):
        contents = broker.read()
        assert not contents.problems, "\n".join(contents.problems)
        records += [
            Stored(
                f"{TOPIC}/{name}/{record.queue_id}",
                record.queue_offset,
                record.properties["id"],
                record.properties["__SHARDINGKEY"],
                int(record.properties["sequence"]),
                f"{zlib.crc32(record.body):08x}",
            )
            for record in contents.records
            if record.topic == TOPIC
        ]
    rules = Rules(
        handled_once=False, one_queue_per_key=False, handling=Handling.KEY, complete_handled=True,
        acknowledged_min=100,
    )  # fmt: skip
    report = check([*told, *handled, *records], rules=rules)
    for name in ("acknowledged", "stored", "handled", "repeated_effects"):
        figures.counted[name] = report.counts.get(name, 0)
    late = overtaken(handled)
    assert not late, f"handled after a newer one of its key: {late[:10]}"
    return report


def overtaken(handled: Iterable[Handled]) -> list[str]:
    """Return the messages whose first success came after that of a newer one of their key."""
    first: dict[str, int] = {}
    for one in handled:
        if one.result is HandledResult.DONE:
            first[one.id] = min(one.start_ns, first.get(one.id, one.start_ns))
    highest: dict[str, int] = {}
    found = []
    for id_, _ in sorted(first.items(), key=lambda item: item[1]):
        line, _, number = id_.rpartition("/")
        if int(number) < highest.get(line, -1):
            found.append(id_)
        highest[line] = max(int(number), highest.get(line, -1))
    return found


def main() -> None:
    """Play one plan and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--rate", type=float, default=40.0, help="messages/s of each producer")
    options = parser.parse_args()
    plan = Plan(seconds=options.minutes * 60, seed=options.seed, rate=options.rate)
    print(f"seed {plan.seed}: {plan}", flush=True)
    with tempfile.TemporaryDirectory(prefix="inorder-resizing-") as folder:
        report, figures = asyncio.run(run(plan, Path(folder), show=True))
    print(f"seed={plan.seed} {figures}")
    print(report)
    sys.exit(not report.ok)


if __name__ == "__main__":
    main()
