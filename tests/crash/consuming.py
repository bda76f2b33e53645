"""Consumers and a broker that are killed, with producers running: is all handled, in order?

Processes of one group consume queue by queue, others produce; at random a consumer or the broker
gets SIGKILL (or a consumer is stopped as one should), and is started again, the consumer under
another name. Meanwhile the committed offsets are looked at. In the end the log is read without our
code and the order checker judges: every acknowledged message was handled; no offset passed one that
was not; first deliveries of a queue came in order. What was handled again is counted.

    python -m tests.crash.consuming --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from inorder.checker import Committed, Event, Handled, Kind, Report, Rules, Stored, check
from inorder.client.session import Session
from inorder.clock import SystemClock
from inorder.config import NameServerConfig
from inorder.disk import OsFiles
from inorder.errors import InorderError
from inorder.model import TopicConfig, TopicQueue
from inorder.nameserver.server import NameServer
from inorder.testing.history import read_history
from inorder.testing.seeds import stream
from inorder.wire.hosts import show_address
from tests.crash.consumers import Orders, start_words
from tests.crash.frontdoor import BROKER
from tests.crash.producers import TOPIC
from tests.crash.producing import QUEUES, ROOT, OurBroker, Worker, python_path
from tests.crash.producing import Plan as Producing
from tests.crash.verify import Contents

GROUP = "workers"
MEMBERS = 3
LOOK_S = 0.2
DRAIN_S = 150
STOP_S = 60
# What is counted and not judged: nothing. Leases and the journals of the broker leave no room for
# overlaps of handlers that take milliseconds, nor for commits that go back.
COUNTED: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, on what."""

    seconds: float = 600.0
    seed: int = 1
    members: int = MEMBERS
    pause_s: tuple[float, float] = (1.0, 10.0)
    kill_consumers: bool = True
    """Off: consumers are stopped as one should, which hands their queues over at once."""
    rate: float = 60.0
    producers: int = 4
    forgetful: bool = False
    """A bug planted in the consumers, to see it found."""


@dataclass
class Figures:
    """What a run amounted to."""

    events: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    seconds: float = 0.0
    counted: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        events = " ".join(f"{name}={count}" for name, count in sorted(self.events.items()))
        counted = " ".join(f"{name}={count}" for name, count in sorted(self.counted.items()))
        return f"{events} offsets_seen={self.looks} {counted} seconds={self.seconds:.0f}"


class Member:
    """A consumer process."""

    def __init__(self, folder: Path, namesrv: str, name: str, plan: Plan) -> None:
        self.name = name
        self.events = folder / f"handled-{name}.jsonl"
        self._log = folder / f"{name}.log"
        events = str(self.events)
        words = start_words(Orders(namesrv, name, GROUP, TOPIC, plan.seed, events, plan.forgetful))
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
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()

    def log(self) -> str:
        """Return the end of what it logged."""
        return self._log.read_text()[-3000:]

    def handled(self) -> list[Handled]:
        """Return its runs; of one that was killed the last may have no end."""
        if not self.events.exists():
            return []
        runs: dict[tuple[str, int, int], Handled] = {}
        with self.events.open() as lines:
            whole = (line for line in lines if line.endswith("\n"))
            for run in read_history(whole):
                assert isinstance(run, Handled)
                runs[run.queue, run.offset, run.start_ns] = run
        return list(runs.values())


class Group:
    """The processes of a run."""

    def __init__(self, plan: Plan, folder: Path, namesrv: str) -> None:
        self._plan = plan
        self._folder = folder
        self._namesrv = namesrv
        self.running: list[Member] = []
        self.all: list[Member] = []

    def add(self) -> None:
        """Start one more, under a new name."""
        member = Member(self._folder, self._namesrv, f"c{len(self.all)}", self._plan)
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


class Watch:
    """Looks at the committed offsets again and again."""

    def __init__(self, namesrv: str) -> None:
        self.seen: list[Event] = []
        self._session = Session(namesrv)
        self._queues = [TopicQueue(TOPIC, BROKER, index) for index in range(QUEUES)]
        self._last: dict[TopicQueue, int] = {}

    async def run(self) -> None:
        """Look until cancelled; while the broker is away there is nothing to see."""
        async with self._session:
            while True:
                try:
                    await self._look()
                except InorderError:
                    pass
                await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        for queue in self._queues:
            api = await self._session.reader_of(queue)
            offset = await api.query_offset(GROUP, queue)
            at_ns = time.monotonic_ns()
            if self._last.get(queue) != offset:
                self._last[queue] = offset
                name = f"{queue.topic}/{queue.broker}/{queue.index}"
                self.seen.append(Committed("the group", name, offset, at_ns))

    async def drained(self) -> bool:
        """Tell whether the group is done with everything."""
        try:
            for queue in self._queues:
                api = await self._session.reader_of(queue)
                end = await api.max_offset(queue)
                if end and await api.query_offset(GROUP, queue) < end:
                    return False
        except InorderError:
            return False
        return True


async def run(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Figures]:
    """Play a plan; return the verdict, and what is counted only."""
    began, figures = time.monotonic(), Figures()
    names = NameServer(
        NameServerConfig(port=0, data=str(folder / "names")), SystemClock(), OsFiles()
    )
    namesrv = show_address(*await names.start())
    broker = OurBroker(folder, "", namesrv)
    group, workers = Group(plan, folder, namesrv), list[Worker]()
    try:
        await broker.start()
        await make_topic(namesrv, broker.port)
        producing = Producing(producers=plan.producers, seed=plan.seed, rate=plan.rate)
        workers += [Worker(folder, producing, n, namesrv) for n in range(producing.processes)]
        for _ in range(plan.members):
            group.add()
        watch = Watch(namesrv)
        watching = asyncio.create_task(watch.run())
        await torment(plan, broker, group, figures, show=show)
        told = [event for worker in workers for event in await worker.stop()]
        await wait_drained(watch, group)
        await group.stop()
        watching.cancel()
        await asyncio.wait((watching,))
        broker.kill()
        await broker.start()
        broker.kill()
    finally:
        for worker in workers:
            worker.kill()
        group.kill()
        broker.kill()
        await names.stop()
    contents = broker.read()
    assert not contents.problems, "\n".join(contents.problems)
    figures.looks, figures.seconds = len(watch.seen), time.monotonic() - began
    handled = [run for member in group.all for run in member.handled()]
    return judge([*told, *handled, *watch.seen], contents, figures), figures


async def make_topic(namesrv: str, port: int) -> None:
    """Make the topic and wait until the name server knows it."""
    async with Session(namesrv) as session:
        api = await session.broker_at(f"127.0.0.1:{port}")
        await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
        await session.refresh_route(TOPIC)


async def torment(
    plan: Plan, broker: OurBroker, group: Group, figures: Figures, *, show: bool
) -> None:
    """Kill, stop and add for the time that the plan gives."""
    draw = stream(plan.seed, "torment")
    until = time.monotonic() + plan.seconds
    while (left_s := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, draw.uniform(*plan.pause_s)))
        what = draw.choice(("broker killed", "consumer killed", "consumer stopped"))
        if what == "broker killed":
            broker.kill()
            await asyncio.sleep(draw.uniform(0, 0.5))
            await broker.start()
        else:
            member = group.running.pop(draw.randrange(len(group.running)))
            if what == "consumer killed" and plan.kill_consumers:
                member.kill()
            else:
                what = "consumer stopped"
                await member.stop()
            group.add()
        figures.events[what.replace(" ", "_")] += 1
        if show:
            print(f"{time.monotonic() - until + plan.seconds:.0f} s: {what}", flush=True)


async def wait_drained(watch: Watch, group: Group) -> None:
    """Wait until the group is done; queues of a killed member come free after a while."""
    until = time.monotonic() + DRAIN_S
    while not await watch.drained():
        logs = "\n".join(f"--- {member.name}\n{member.log()}" for member in group.running)
        assert time.monotonic() < until, f"the group does not get done:\n{logs}"
        await asyncio.sleep(0.2)
    await asyncio.sleep(2 * LOOK_S)


def judge(told: Iterable[Event], contents: Contents, figures: Figures) -> Report:
    """Hold what was handled and committed against what is stored."""
    records = [
        Stored(
            f"{TOPIC}/{BROKER}/{record.queue_id}",
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
        stored_once=False, handled_once=False, complete_handled=True, acknowledged_min=100
    )
    report = check([*told, *records], rules=rules)
    for kind in COUNTED & report.by_kind.keys():
        figures.counted[str(kind)] = report.by_kind[kind]
    for name in ("acknowledged", "stored", "handled", "repeated_effects"):
        figures.counted[name] = report.counts.get(name, 0)
    return Report(
        tuple(one for one in report.findings if one.kind not in COUNTED),
        {kind: count for kind, count in report.by_kind.items() if kind not in COUNTED},
        report.counts,
        report.vacuous,
    )


def main() -> None:
    """Play one plan and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--rate", type=float, default=60.0, help="messages/s of each producer")
    options = parser.parse_args()
    plan = Plan(seconds=options.minutes * 60, seed=options.seed, rate=options.rate)
    print(f"seed {plan.seed}: {plan}", flush=True)
    with tempfile.TemporaryDirectory(prefix="inorder-consuming-") as folder:
        report, figures = asyncio.run(run(plan, Path(folder), show=True))
    print(f"seed={plan.seed} {figures}")
    print(report)
    sys.exit(not report.ok)


if __name__ == "__main__":
    main()
