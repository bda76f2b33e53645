"""Hand-over: of two consumers one stops, dies or freezes; when has the other taken over?

    python -m bench handover [--against rocketmq] [--rounds 100] [--smoke]

Every queue gets a message every few milliseconds. A round begins with both members handling their
half; then one of them is stopped as one should (its input ends), killed (SIGKILL), or stopped for
longer than its lease (SIGSTOP, then SIGCONT). Timed is the longest of its queues: from that moment
to the first message that the other one begins. In the end everything was handled, first deliveries
came in order, and after a clean stop nothing came twice. Of one that goes on after SIGCONT, the
handlers are counted that it begins on queues that are another's by then (the one whose look at the
lease came before the stop), and the committed offset must not have moved back.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.clients import make_topic, python_program
from bench.compare import Say
from bench.systems import Ours
from inorder.aio import Producer, TopicQueue
from inorder.client.session import Session

ROOT = Path(__file__).resolve().parent.parent
TOPIC: Final = "BenchHandover"
QUEUES: Final = 4
GAP_S: Final = 0.004
"""Between two messages; each goes to the next queue."""
LEASE_S: Final = 5.0
FROZEN_S: Final = 6.5
WAIT_S: Final = 60.0
JUST_NOW_NS: Final = 300_000_000
GOALS_MS: Final = {"stop": 200.0, "kill": 1500.0, "freeze": (LEASE_S + 0.5) * 1000}
ACTS: Final = tuple(GOALS_MS)


@dataclass(frozen=True, slots=True)
class Seen:
    """One handler, as a member wrote it down; without an end it never came back."""

    name: str
    start_ns: int
    end_ns: int
    queue: int
    offset: int
    epoch: int


@dataclass
class Outcome:
    """What the rounds of one kind amounted to."""

    act: str
    times_ms: list[float] = field(default_factory=list)
    late_starts: list[int] = field(default_factory=list)
    """Handlers begun after SIGCONT on another's queue, in each round."""
    repeated: int = 0
    problems: list[str] = field(default_factory=list)

    def percentile_ms(self, ratio: float) -> float:
        """Return a percentile of the times."""
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * ratio))]


class Process:
    """A consumer process."""

    def __init__(self, words: Sequence[str], name: str, folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end_input(self) -> None:
        """Let it stop as one should."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Wait until it has stopped."""
        code = self._process.wait(WAIT_S)
        if code not in (0, -signal.SIGKILL):
            raise AssertionError(f"{self.name} ended with {code}: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()


class Rounds:
    """One group and its rounds of one kind."""

    def __init__(self, system: Ours, act: str, folder: Path, say: Say) -> None:
        host, port = system.namesrv
        self._namesrv = f"{host}:{port}"
        self._folder = folder
        self._say = say
        self._group = f"handover-{act}-{time.monotonic_ns() % 10**9}"
        self._events = folder / f"{self._group}.events"
        self._events.touch()
        self._file = self._events.open()
        self._rest = ""
        self.seen: list[Seen] = []
        self.outcome = Outcome(act)
        self.members: list[Process] = []
        self._started = 0
        self.session: Session
        self.sent = 0

    # The processes.

    def join(self) -> Process:
        """Start a member."""
        self._started += 1
        name = f"m{self._started}"
        words = [
            *python_program("bench.drivers.handing"), self._namesrv, name, self._group, TOPIC,
            str(self._events),
        ]  # fmt: skip
        member = Process(words, name, self._folder)
        self.members.append(member)
        return member

    def read(self) -> None:
        """Take what was written since."""
        text = self._rest + self._file.read()
        *lines, self._rest = text.split("\n")
        for line in lines:
            name, *numbers = line.split(" ")
            self.seen.append(Seen(name, *map(int, numbers)))

    def owners(self) -> list[str]:
        """Return who handled each queue just now; empty if nobody or two did."""
        since_ns = time.monotonic_ns() - JUST_NOW_NS
        owners: list[set[str]] = [set() for _ in range(QUEUES)]
        for one in reversed(self.seen):
            if one.start_ns < since_ns - 1_000_000_000:
                break
            if one.start_ns >= since_ns:
                owners[one.queue].add(one.name)
        return [next(iter(names)) if len(names) == 1 else "" for names in owners]

    async def until(self, what: str, shares: Sequence[int]) -> list[str]:
        """Wait until the members handle so many queues each; return the owners."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self.read()
            owners = self.owners()
            if all(owners) and sorted(map(owners.count, set(owners))) == sorted(shares):
                return owners
            await asyncio.sleep(0.02)
        raise AssertionError(f"{self.outcome.act}: not {what} after {WAIT_S} s: {self.owners()}")

    # A round.

    async def play(self, rounds: int) -> Outcome:
        """Play all rounds under a trickle of messages, then check."""
        async with Session(self._namesrv) as self.session, Producer(self.session) as producer:
            trickle = asyncio.create_task(self._trickle(producer))
            try:
                self.join()
                await self.until("all are handled", [QUEUES])
                for number in range(rounds):
                    if len(self.members) < 2:
                        self.join()
                    await self.until("shared", [QUEUES // 2, QUEUES // 2])
                    await self._round(number)
            finally:
                trickle.cancel()
                await asyncio.wait((trickle,))
                for member in self.members:
                    member.signal(signal.SIGCONT)
            await self._drain()
            for member in self.members:
                member.end_input()
                await asyncio.to_thread(member.wait)
        self._check()
        return self.outcome

    async def _trickle(self, producer: Producer) -> None:
        await self.session.refresh_route(TOPIC)
        while True:
            queue = TopicQueue(TOPIC, "broker-a", self.sent % QUEUES)
            await producer.send(TOPIC, b"%d" % self.sent, queue=queue)
            self.sent += 1
            await asyncio.sleep(GAP_S)

    async def _round(self, number: int) -> None:
        act, owners = self.outcome.act, self.owners()
        victim = self.members[0]
        lost = [queue for queue, owner in enumerate(owners) if owner == victim.name]
        before = await self._committed()
        began_ns = time.monotonic_ns()
        if act == "stop":
            victim.end_input()
        else:
            victim.signal(signal.SIGKILL if act == "kill" else signal.SIGSTOP)
        heir_ns = await self._taken_over(victim.name, lost, began_ns)
        self.outcome.times_ms.append((max(heir_ns.values()) - began_ns) / 1e6)
        if act == "freeze":
            await asyncio.sleep(max(0.0, FROZEN_S - (time.monotonic_ns() - began_ns) / 1e9))
            await self._go_on(victim, lost, began_ns, before)
        else:
            self.members.remove(victim)
            await asyncio.to_thread(victim.wait)
            victim.kill()
        if (number + 1) % 10 == 0:
            p50 = self.outcome.percentile_ms(0.5)
            self._say(f"  {act} {number + 1}: p50 {p50:.0f} ms")

    async def _taken_over(self, victim: str, queues: list[int], began_ns: int) -> dict[int, int]:
        """Return when another one began each of the queues."""
        found: dict[int, int] = {}
        deadline = time.monotonic() + WAIT_S
        checked = len(self.seen)
        while len(found) < len(queues):
            self.read()
            for one in self.seen[checked:]:
                if one.name != victim and one.queue in queues and one.start_ns > began_ns:
                    found.setdefault(one.queue, one.start_ns)
            checked = len(self.seen)
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.outcome.act}: nobody takes over {queues}")
            await asyncio.sleep(0.005)
        return found

    async def _go_on(
        self, victim: Process, lost: list[int], began_ns: int, before: list[int]
    ) -> None:
        """Let the frozen one go on: what it thinks is its own is not."""
        heirs = {queue: max(one.epoch for one in self.seen if one.queue == queue) for queue in lost}
        thawed_ns = time.monotonic_ns()
        victim.signal(signal.SIGCONT)
        await asyncio.sleep(1.0)
        self.read()
        late = [
            one
            for one in self.seen
            if one.name == victim.name
            and one.start_ns >= thawed_ns
            and one.queue in lost
            and one.epoch < heirs[one.queue]
            and not one.end_ns
        ]
        self.outcome.late_starts.append(len(late))
        if len(late) > len(lost):
            self.outcome.problems.append(f"{len(late)} handlers began on queues of another one")
        after = await self._committed()
        for queue, (was, now) in enumerate(zip(before, after, strict=True)):
            if now < was:
                self.outcome.problems.append(f"queue {queue} went back from {was} to {now}")
        self.members.remove(victim)
        self.members.append(victim)  # the other one is next

    async def _committed(self) -> list[int]:
        found = []
        for index in range(QUEUES):
            queue = TopicQueue(TOPIC, "broker-a", index)
            api = await self.session.reader_of(queue)
            found.append(max(0, await api.query_offset(self._group, queue)))
        return found

    # The end.

    async def _drain(self) -> None:
        deadline = time.monotonic() + WAIT_S
        ends = []
        for index in range(QUEUES):
            queue = TopicQueue(TOPIC, "broker-a", index)
            ends.append(await (await self.session.reader_of(queue)).max_offset(queue))
        while await self._committed() != ends:
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.outcome.act}: {await self._committed()} of {ends}")
            await asyncio.sleep(0.1)
        self.read()
        self._ends = ends

    def _check(self) -> None:
        """Everything was handled, in order; after clean stops nothing twice."""
        self.read()
        done = [one for one in self.seen if one.end_ns]
        for queue, end in enumerate(self._ends):
            firsts = list(first_offsets(one for one in done if one.queue == queue))
            missing = set(range(end)) - set(firsts)
            if missing:
                self.outcome.problems.append(f"queue {queue}: {len(missing)} were not handled")
            begun = sorted(
                (one for one in self.seen if one.queue == queue and not one.end_ns),
                key=lambda one: one.start_ns,
            )
            order = list(first_offsets(begun))
            if order != sorted(order):
                self.outcome.problems.append(f"queue {queue}: first deliveries are not in order")
        self.outcome.repeated = len(done) - len({(one.queue, one.offset) for one in done})
        if self.outcome.act == "stop" and self.outcome.repeated:
            self.outcome.problems.append(f"{self.outcome.repeated} were handled twice")


def first_offsets(seen: Iterator[Seen] | Sequence[Seen]) -> Iterator[int]:
    """Return each offset when it comes for the first time."""
    known: set[int] = set()
    for one in seen:
        if one.offset not in known:
            known.add(one.offset)
            yield one.offset


def run_handover(
    rounds: int, say: Say, *, acts: Sequence[str] = ACTS, against: bool = False
) -> tuple[str, list[str], list[dict[str, object]]]:
    """Measure; return the table, what missed its goal, and the numbers."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="inorder-bench-") as folder:
        for act in acts:
            with Ours() as system:  # a new log for each
                make_topic(system, TOPIC, QUEUES)
                played = Rounds(system, act, Path(folder), say)
                try:
                    outcomes.append(asyncio.run(played.play(rounds)))
                finally:
                    for member in played.members:
                        member.kill()
    theirs = rocketmq_times(say) if against else {}
    missed = [f"{one.act}: {problem}" for one in outcomes for problem in one.problems]
    missed += [
        f"{one.act}: p99 {one.percentile_ms(0.99):.0f} ms, not {GOALS_MS[one.act]:.0f} ms"
        for one in outcomes
        if one.percentile_ms(0.99) > GOALS_MS[one.act]
    ]
    return table(outcomes, theirs), missed, [asdict(one) for one in outcomes]


def table(outcomes: Sequence[Outcome], theirs: dict[str, list[float]]) -> str:
    """Return what came out."""
    lines = [
        "| the owner | rounds | p50 | p99 | goal (p99) | handled twice | late starts, most in a "
        "round | Apache RocketMQ, Java client: median (rounds) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = {"stop": "stops cleanly", "kill": "kill -9", "freeze": f"SIGSTOP {FROZEN_S} s"}
    for one in outcomes:
        other = sorted(theirs.get(one.act, []))
        beside = f"{other[len(other) // 2]:.2f} s ({len(other)})" if other else "-"
        late = str(max(one.late_starts)) if one.late_starts else "-"
        lines.append(
            f"| {names[one.act]} | {len(one.times_ms)} | {one.percentile_ms(0.5):.0f} ms "
            f"| {one.percentile_ms(0.99):.0f} ms | {GOALS_MS[one.act]:.0f} ms | {one.repeated} "
            f"| {late} | {beside} |"
        )
    return "\n".join(lines)


def rocketmq_times(say: Say, rounds: int = 5) -> dict[str, list[float]]:
    """Let the Java client hand over on Apache RocketMQ, some rounds of each kind.

    A frozen client is one of which nothing is heard: its connections are silenced.
    """
    names = {"stop": "stop", "kill": "kill", "freeze": "silence"}
    times: dict[str, list[float]] = {act: [] for act in names}
    for number in range(rounds):
        say(f"  Apache RocketMQ with its Java client, round {number + 1} of {rounds}: minutes")
        with tempfile.TemporaryDirectory(prefix="inorder-bench-") as folder:
            path = Path(folder) / "times.json"
            subprocess.run(
                [
                    sys.executable, "-m", "tests.interop.handover", "--systems", "rocketmq",
                    "--only", "java-5.3.3-json", "--rounds", "1", "--json", str(path),
                ],
                cwd=ROOT, check=False, stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            )  # fmt: skip
            found = json.loads(path.read_text())
        for act, name in names.items():
            times[act] += found.get(f"java-5.3.3-json-{name}", [])
    return times
