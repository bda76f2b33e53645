"""A topic on two brokers that is resized again and again, under load, while everything is killed.

Producers send by key, processes of one group consume by key. The number of queues goes 4, 16, 5,
16, 5, … by `inorder topic resize`, which is itself killed now and then and resumed; so are brokers
and consumers. In the end the logs are read without our code and the order checker judges: every
acknowledged message is stored once, handled, and the first deliveries of a producer's messages of a
key came in the order in which they were sent, whatever queues they lie in.

    python -m tests.crash.resizing --minutes 5 --seed 7
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inorder.checker import Event, Handled, HandledResult, Handling, Report, Rules, check
from inorder.client.admin import Admin
from inorder.errors import InorderError
from tests.crash.consumers import Orders, start_words
from tests.crash.crew import (
    GROUP,
    Crew,
    Figures,
    Member,
    Torment,
    command,
    start_name_server,
    start_producers,
)
from tests.crash.producers import TOPIC
from tests.crash.producing import ROOT, OurBroker, Worker, python_path, stop_all, stored
from tests.kit.simcluster import stream

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


def start_member(folder: Path, namesrv: str, name: str, plan: Plan) -> Member:
    """Start a consumer process that keeps the order of keys."""
    events = folder / f"handled-{name}.jsonl"
    orders = Orders(namesrv, name, GROUP, TOPIC, plan.seed, str(events), order="key")
    return Member(folder, name, start_words(orders), events)


class World:
    """The processes of a run."""

    def __init__(self, plan: Plan, folder: Path, namesrv: str, figures: Figures) -> None:
        self.folder = folder
        self.namesrv = namesrv
        self.figures = figures
        self.crew = Crew(lambda name: start_member(folder, namesrv, name, plan))
        self.workers: list[Worker] = []
        self.brokers: list[OurBroker] = []
        for name in BROKERS:
            (folder / name).mkdir()
            broker = OurBroker(folder / name, "", namesrv)
            broker._words += ["--name", name]
            self.brokers.append(broker)

    def kill(self) -> None:
        """End all, whatever they do."""
        for process in (*self.workers, self.crew, *self.brokers):
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

    # -- the end ---------------------------------------------------------------------------------

    async def wait_done(self) -> None:
        """Wait until the group is done with everything, and released into the last version."""
        async with Admin(self.namesrv) as admin:

            async def left() -> str:
                try:
                    lag = sum(one.lag for one in await admin.groups.lag(GROUP))
                    status = await admin.topics.resize_status(TOPIC)
                except InorderError as error:
                    return str(error)
                return "" if not lag and status.is_done else f"{lag} left, {status}"

            await self.crew.wait_done(left, DRAIN_S)


async def run(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Figures]:
    """Play a plan; return the verdict."""
    began, figures = time.monotonic(), Figures()
    names, namesrv = await start_name_server(folder)
    world = World(plan, folder, namesrv, figures)
    crew, torment = world.crew, Torment(plan.seconds, plan.pause_s, plan.kill_consumers)
    try:
        for broker in world.brokers:
            await broker.start()
        async with Admin(namesrv) as admin:
            await admin.topics.create(TOPIC, queues=FIRST_QUEUES // len(BROKERS))
        world.workers += start_producers(
            folder, namesrv, producers=plan.producers, seed=plan.seed, rate=plan.rate
        )
        for _ in range(plan.members):
            crew.add()
        done = asyncio.Event()
        resizing = asyncio.create_task(world.resize_for_ever(stream(plan.seed, "sizes"), done))
        await torment.run(stream(plan.seed, "torment"), world.brokers, crew, figures, show=show)
        done.set()
        await resizing
        told = await stop_all(world.workers)
        await world.wait_done()
        await crew.stop()
        for broker in world.brokers:
            broker.kill()
            await broker.start()
            broker.kill()
    finally:
        world.kill()
        await names.stop()
    figures.seconds = time.monotonic() - began
    return judge(told, crew.handled(), world.brokers, figures), figures


def judge(
    told: Iterable[Event], handled: list[Handled], brokers: list[OurBroker], figures: Figures
) -> Report:
    """Hold what was sent and handled against what is stored."""
    records = list[Event]()
    for name, broker in zip(BROKERS, brokers, strict=True):
        contents = broker.read()
        assert not contents.problems, "\n".join(contents.problems)
        records += stored(contents, name)
    rules = Rules(
        handled_once=False, one_queue_per_key=False, handling=Handling.KEY, complete_handled=True,
        acknowledged_min=100,
    )  # fmt: skip
    report = check([*told, *handled, *records], rules=rules)
    figures.count(report, "acknowledged", "stored", "handled", "repeated_effects")
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


if __name__ == "__main__":
    command(run, Plan, about=__doc__, minutes=5.0, rate=40.0)
