"""Producers over a bad network and a broker that is killed: is all stored once, and in order?

Processes with some producers each send to 200 keys, 64 messages at a time without waiting, through
a proxy that delays, cuts and swallows (`proxy.py`), while the broker is killed with SIGKILL and
started again on its directory and port. Beside them a named producer in each process runs its
chunks again until they are through (`pipelines.py`). Then the log is read without our code
(`verify.py`) and the order checker compares it with what the producers were told. A send of unknown
outcome may be stored or not, but not twice, and not behind a later message of its key.

    python -m tests.crash.producing --kills 20 --seed 7
    python -m tests.crash.producing --kills 20 --rocketmq    # Apache RocketMQ: copies are allowed
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from bench.process import free_ports
from inorder.checker import Event, Report, Rules, Sent, SentResult, Stored, check
from inorder.checker.events import read_history
from inorder.client.session import Session
from inorder.model import TopicConfig
from tests.crash.frontdoor import BROKER, FrontDoor
from tests.crash.producers import TOPIC, WINDOW, Orders
from tests.crash.proxy import Proxy
from tests.crash.verify import Contents, read_log, verify
from tests.kit.simcluster import stream

ROOT = Path(__file__).parents[2]
QUEUES = 8
KEYS = 200
PROCESSES = 2
PRODUCERS = 8
SIZES = {
    "segment_bytes": 4 << 20,
    "queue_file_bytes": 20 * 2000,
    "index_slots": 5000,
    "index_entries": 20_000,
}
SETTINGS = {
    "mappedFileSizeCommitLog": SIZES["segment_bytes"],
    "mappedFileSizeConsumeQueue": SIZES["queue_file_bytes"],
    "maxHashSlotNum": SIZES["index_slots"],
    "maxIndexNum": SIZES["index_entries"],
    "maxMessageSize": 131072,
}
# So little may wait for a sync that bursts are refused as busy in their middle, which is what makes
# gaps in the numbers.
OUR_SETTINGS = {**SETTINGS, "store.pending_bytes_max": 9000}
READY_S = 60
DRAIN_S = 90


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, on what."""

    kills: int = 20
    seed: int = 1
    life_s: tuple[float, float] = (0.5, 2.5)
    producers: int = PRODUCERS
    processes: int = PROCESSES
    rate: float = 400.0
    """Messages a second that each producer tries to send."""
    rocketmq: bool = False
    plant: str = ""
    """A bug to plant (`planted.py`), to see it found."""
    faults: tuple[str, ...] = ()
    """The faults of the network; empty: all that there are."""
    pause_s: float = 0.15
    """Between two faults, on average."""
    flush: tuple[str, ...] = ("ASYNC", "SYNC")
    """How the lives of the broker flush, in turn."""
    pipelines: bool = False
    """A named producer in each process, beside the others."""


@dataclass
class Figures:
    """What a run amounted to."""

    kills: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    unknown_stored: int = 0
    stored: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"kills={self.kills} acknowledged={self.outcomes['ok']} "
            f"unknown={self.outcomes['unknown']} (stored {self.unknown_stored}) "
            f"refused={self.outcomes['failed']} stored={self.stored} "
            f"seconds={self.seconds:.0f} faults: {faults}"
        )


class BrokerProcess(Protocol):
    """A broker on a directory and a port that can be killed and started again."""

    port: int

    async def start(self) -> None:
        """Start it and wait until it accepts."""

    def kill(self) -> None:
        """SIGKILL."""

    def read(self) -> Contents:
        """Read what is stored, without its code."""


class OurBroker:
    """`inorder broker`, perhaps with a planted bug; each life flushes as the next one in turn."""

    def __init__(
        self,
        folder: Path,
        plant: str = "",
        namesrv: str = "",
        *,
        flush: tuple[str, ...] = ("ASYNC", "SYNC"),
    ) -> None:
        self.port = free_ports(1)[0]
        self._data, self._log = folder / "data", folder / "broker.log"
        module = ["tests.crash.planted", plant] if plant else ["inorder.cli.main"]
        self._words = [*module, "broker", "--port", str(self.port), "--data", str(self._data)]
        self._words += ["--log-level", "warning"]
        self._words += ["--namesrv", namesrv] if namesrv else []
        for name, value in OUR_SETTINGS.items():
            self._words += ["--set", f"{name}={value}"]
        self._flush = itertools.cycle(flush)
        self._process: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        """Start it and wait until it accepts."""
        process = self._process = self._spawn()
        assert process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), READY_S)
        assert line.startswith("ready"), f"the broker did not start: {self.log_tail()}"

    def _spawn(self) -> subprocess.Popen[str]:
        flush = ["--set", f"flushDiskType={next(self._flush)}_FLUSH"]
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *self._words, *flush], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True, env=python_path(),
            )  # fmt: skip

    def log_tail(self) -> str:
        """Return the end of what it logged."""
        return self._log.read_text()[-2000:]

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(READY_S)
            assert process.stdout is not None
            process.stdout.close()

    def read(self) -> Contents:
        """Read everything: after a last recovery all files must agree."""
        return verify(self._data, **SIZES)


class RocketMQ:
    """Apache RocketMQ's broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_ports(1, apart=(-2, 0, 1))[0]
        self._broker: object | None = None

    async def start(self) -> None:
        """Start it and wait until it accepts."""
        from bench.rocketmq import RocketMQBroker

        broker = RocketMQBroker(
            self._folder, namesrv=None, store=self._folder / "store", heap="512m", port=self.port,
            settings=SETTINGS,
        )  # fmt: skip
        self._broker = broker
        await asyncio.to_thread(broker.wait_ready)

    def kill(self) -> None:
        """SIGKILL."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.child.kill()  # type: ignore[attr-defined]

    def read(self) -> Contents:
        """Read the log; its queues and index are its own business."""
        return read_log(self._folder / "store", segment_bytes=SIZES["segment_bytes"])


class Worker:
    """A process with some producers."""

    def __init__(self, folder: Path, plan: Plan, number: int, namesrv: str) -> None:
        self._events = folder / f"events-{number}.jsonl"
        self._log = folder / f"producers-{number}.log"
        orders = Orders(
            namesrv=namesrv,
            names=tuple(f"p{n}" for n in range(number, plan.producers, plan.processes)),
            seed=plan.seed,
            keys=KEYS,
            rate=plan.rate,
            own_sessions=number % 2 == 1,
            events=str(self._events),
            plant=plan.plant,
            pipeline=f"pipeline-{number}" if plan.pipelines else "",
            queues=QUEUES,
        )
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.producers", json.dumps(asdict(orders))],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, env=python_path(),
            )  # fmt: skip

    async def stop(self) -> list[Event]:
        """Let it finish what it has begun; return what its producers were told."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await asyncio.to_thread(self._process.wait, DRAIN_S)
        log = self._log.read_text()
        assert code == 0, f"producers ended with {code}: {log[-3000:]}"
        with self._events.open() as lines:
            return list(read_history(lines))

    def kill(self) -> None:
        """End it, whatever it does."""
        end_child(self._process)


def end_child(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process that reads its standard input."""
    assert process.stdin is not None
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdin.close()


async def stop_all(workers: Iterable[Worker]) -> list[Event]:
    """Let the producers finish; return what they were told."""
    told = await asyncio.gather(*(worker.stop() for worker in workers))
    return [event for events in told for event in events]


def python_path() -> dict[str, str]:
    """Return an environment in which children find this source tree."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


async def run(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Figures]:
    """Play a plan; return the verdict."""
    began = time.monotonic()
    broker: BrokerProcess = RocketMQ(folder)
    if not plan.rocketmq:
        broker = OurBroker(folder, plan.plant, flush=plan.flush)
    door, figures, workers = FrontDoor(folder), Figures(), list[Worker]()
    proxy = Proxy(("127.0.0.1", broker.port))
    try:
        await broker.start()
        topic = TopicConfig(TOPIC, QUEUES, QUEUES)
        await door.start(await proxy.start(), topic)
        await make_topic(door.namesrv, broker.port, topic)
        workers += [Worker(folder, plan, n, door.namesrv) for n in range(plan.processes)]
        await torment(plan, broker, proxy, figures, show=show)
        told = await stop_all(workers)
        broker.kill()
        if not plan.rocketmq:  # a last recovery, and no write after it: all files must agree
            await broker.start()
            broker.kill()
    finally:
        for worker in workers:
            worker.kill()
        broker.kill()
        await proxy.stop()
        await door.stop()
    contents = broker.read()
    figures.faults = proxy.faults
    figures.seconds = time.monotonic() - began
    problems = [] if plan.rocketmq else contents.problems
    assert not problems, "\n".join(problems)
    return judge(told, contents, figures, stored_once=not plan.rocketmq), figures


async def make_topic(namesrv: str, port: int, topic: TopicConfig) -> None:
    """Make the topic at the broker itself."""
    async with Session(namesrv) as session:
        await (await session.broker_at(f"127.0.0.1:{port}")).create_topic(topic)


async def torment(
    plan: Plan, broker: BrokerProcess, proxy: Proxy, figures: Figures, *, show: bool
) -> None:
    """Disturb the network all the time and kill the broker now and then; then let all be well."""
    draw = stream(plan.seed, "killing")
    async with asyncio.timeout(READY_S):
        while len(proxy.links) < plan.processes:  # noqa: ASYNC110 - the producers have begun
            await asyncio.sleep(0.02)
    network = asyncio.create_task(
        proxy.torment(stream(plan.seed, "network"), pause_s=plan.pause_s, only=plan.faults)
    )
    try:
        for _ in range(plan.kills):
            await asyncio.sleep(draw.uniform(*plan.life_s))
            broker.kill()
            figures.kills += 1
            await asyncio.sleep(draw.uniform(0, 0.5))
            await broker.start()
            if show:
                print(f"kill {figures.kills} of {plan.kills}", flush=True)
        await asyncio.sleep(draw.uniform(*plan.life_s))
    finally:
        network.cancel()
        await asyncio.wait((network,))
        proxy.heal()


def judge(
    told: Iterable[Event], contents: Contents, figures: Figures, *, stored_once: bool
) -> Report:
    """Hold the log against what the producers were told."""
    records = stored(contents)
    figures.stored = len(records)
    there = {record.id for record in records}
    sends: list[Event] = []
    for event in told:
        assert isinstance(event, Sent)
        figures.outcomes[event.result] += 1
        if event.result is SentResult.UNKNOWN and event.id in there:
            figures.unknown_stored += 1
            if stored_once:  # then it is held to the order like any other
                event = replace(event, result=SentResult.OK)  # noqa: PLW2901
        sends.append(event)
    rules = Rules(stored_once=stored_once, acknowledged_min=figures.kills * WINDOW)
    return check([*sends, *records], rules=rules)


def stored(contents: Contents, broker: str = BROKER) -> list[Stored]:
    """Return the messages of a log as the checker wants them."""
    return [
        Stored(
            f"{TOPIC}/{broker}/{record.queue_id}",
            record.queue_offset,
            record.properties["id"],
            record.properties["__SHARDINGKEY"],
            int(record.properties["sequence"]),
            f"{zlib.crc32(record.body):08x}",
        )
        for record in contents.records
        if record.topic == TOPIC
    ]


def main() -> None:
    """Play one plan and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--rocketmq", action="store_true", help="Apache RocketMQ, by the fallback")
    parser.add_argument("--plant", default="", help="a bug to plant: see planted.py")
    parser.add_argument("--rate", type=float, default=400.0, help="messages/s of each producer")
    options = parser.parse_args()
    plan = Plan(
        kills=options.kills, seed=options.seed, rocketmq=options.rocketmq, plant=options.plant,
        rate=options.rate, life_s=(2.0, 5.0) if options.rocketmq else (0.5, 2.5),
        pipelines=not options.rocketmq,
    )  # fmt: skip
    print(f"seed {plan.seed}: {plan}", flush=True)
    with tempfile.TemporaryDirectory(prefix="inorder-producing-") as folder:
        report, figures = asyncio.run(run(plan, Path(folder), show=True))
        if not report.ok:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-5000:]}")
    print(f"seed={plan.seed} {figures}")
    print(report)
    sys.exit(not report.ok)


if __name__ == "__main__":
    main()
