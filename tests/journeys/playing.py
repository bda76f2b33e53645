"""One journey: a program against a broker, and what happens to both, from a seed."""

from __future__ import annotations

import random
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from inorder.checker import Committed, Handling
from tests.journeys.judging import Journey, Life, judge, key_of, read_ledger
from tests.journeys.stage import GROUP, OUTPUT, PROGRAMS, TOPIC, Broker, End, Program, wait_until

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
ALL_DONE_S = 90
PROGRESS_S = 20
KEYS = 20


class Action(Enum):
    """What happens to a program or its broker."""

    TERM = "SIGTERM"
    INT = "SIGINT"
    KILL = "SIGKILL"
    BROKER_TERM = "broker restarts"
    BROKER_KILL = "broker is killed"
    DARK = "SIGTERM while the broker is away"


STOPPED = End(frozenset({0}), clean=True)
KILLED = End(frozenset({-KILL}), clean=False)


def _ends(term: End = STOPPED, interrupt: End = STOPPED) -> Mapping[int, End]:
    return {TERM: term, INT: interrupt, KILL: KILLED}


@dataclass(frozen=True, slots=True)
class Kind:
    """A program, and what its users may expect."""

    name: str
    ends: Mapping[int, End] = field(default_factory=_ends)
    """How it ends after a signal."""
    handling: Handling | None = Handling.QUEUE
    service: bool = True
    """It runs until it is told to end; else it ends by itself."""
    fed: bool = True
    """It handles what others have sent."""
    transforms: bool = False
    returns: bool = False
    parks: bool = False
    forks: bool = False
    pipe: bool = False
    command: bool = False
    members_max: int = 2
    count: tuple[int, int] = (200, 1500)

    def words(self) -> list[str]:
        """Return the command that starts it."""
        python = sys.executable
        if self.command:
            return [python, "-m", "inorder.cli.main", "consume", "shop:consumer", "--app-dir",
                    str(PROGRAMS), "--log-level", "error"]  # fmt: skip
        if self.pipe:
            line = (
                f"{shlex.quote(python)} {shlex.quote(str(PROGRAMS / 'lines.py'))} | "
                f"{shlex.quote(python)} -m inorder.cli.main send {TOPIC} --key-separator :"
            )
            return ["bash", "-c", f"set -o pipefail; {line}"]
        return [python, str(PROGRAMS / f"{self.name}.py")]


def _by_default(number: int, *, clean: bool = False) -> End:
    return End(frozenset({-number}), clean=clean)


KINDS = [
    Kind("service"),
    Kind("transform", transforms=True),
    Kind("block", _ends(interrupt=_by_default(INT, clean=True))),
    Kind("webapp", fed=False),
    Kind("job", _ends(_by_default(TERM), _by_default(INT)), None, service=False, fed=False,
         members_max=1, count=(50_000, 50_001)),
    Kind("notebook", {TERM: _by_default(TERM), KILL: KILLED}, service=False, fed=False,
         members_max=1),
    Kind("forkserver", forks=True, members_max=1),
    Kind("keyed", handling=Handling.KEY, parks=True),
    Kind("anyorder", handling=Handling.CONCURRENT, returns=True, count=(100, 600)),
    Kind("puller", _ends(interrupt=_by_default(INT)), members_max=1),
    Kind("command", handling=Handling.KEY, transforms=True, command=True),
    Kind("pipe", _ends(_by_default(TERM), End(frozenset(), clean=False)), None, service=False,
         fed=False, pipe=True, members_max=1, count=(2000, 8000)),
    Kind("threads", _ends(_by_default(TERM), _by_default(INT)), None, service=False, fed=False,
         members_max=1, count=(1000, 5000)),
]  # fmt: skip
SWEEPER = KINDS[0]


@dataclass(slots=True)
class Told:
    """What a journey was, and what is wrong with it."""

    kind: str
    plan: list[str]
    counts: dict[str, int]
    findings: list[str]
    seconds: float


class Player:
    """Plays one journey."""

    def __init__(self, kind: Kind, rng: random.Random, folder: Path) -> None:
        self._kind = kind
        self._rng = rng
        self._folder = folder
        self._broker = Broker(folder)
        self._ledger = folder / "ledger"
        self._lives: list[Life] = []
        self._commits: list[Committed] = []
        self._running: list[Program] = []
        self._started = 0
        self._disturbed = False
        self._findings: list[str] = []
        self._count = rng.randrange(*kind.count)
        self._plan = self._make_plan()
        self._inputs: list[str] = []
        self._wanted: set[str] | None = None

    def play(self) -> Told:
        """Play it; whatever happens, nothing is left running."""
        began = time.monotonic()
        try:
            self._broker.start()
            self._prepare()
            for action in self._plan:
                self._wait_for_progress()
                self._do(action)
            self._finish()
            journey = self._gather()
        finally:
            for program in self._running:
                program.kill()
            self._broker.stop(KILL)
        runs = len(journey.ledger.runs)
        counts = {"stored": len(journey.records), "runs": runs, "lives": len(self._lives)}
        plan = [action.value for action in self._plan]
        return Told(self._kind.name, plan, counts, judge(journey), time.monotonic() - began)

    def _make_plan(self) -> list[Action]:
        wanted = [Action.KILL, Action.BROKER_TERM, Action.BROKER_KILL]
        for number, action in ((TERM, Action.TERM), (INT, Action.INT)):
            if number in self._kind.ends:
                wanted += [action, action]
        if self._kind.service and not self._kind.forks and self._kind.name != "puller":
            wanted.append(Action.DARK)
        return self._rng.choices(wanted, k=self._rng.choice((0, 1, 1, 2, 2, 3)))

    def _prepare(self) -> None:
        self._broker.prepare(self._rng.choice((1, 2, 4, 4)))
        if self._kind.fed:
            self._inputs = [f"k{n % KEYS}-{n // KEYS}" for n in range(self._count)]
            self._broker.send(self._inputs)
        for _ in range(self._rng.choice((1, 1, self._kind.members_max))):
            self._start()

    def _start(self, kind: Kind | None = None) -> Program:
        kind = kind or self._kind
        self._started += 1
        program = Program(
            self._folder, kind.words(), f"{kind.name}-{self._started}", self._broker.namesrv,
            self._count, forks=kind.forks, finishes=kind.handling is None,
        )  # fmt: skip
        self._running.append(program)
        return program

    # What happens.

    def _lines(self) -> int:
        return self._ledger.read_bytes().count(b"\n") if self._ledger.exists() else 0

    def _wait_for_progress(self) -> None:
        """Wait until some more was done, or nothing more is to come, and a moment.

        Once in a while a program is met at its start, before it has done anything.
        """
        wanted = self._lines() + self._rng.randrange(1, max(2, self._count))
        early, moment = self._rng.random() < 0.15, self._rng.uniform(0.2, 2)
        if not early and self._lines() < 2 * self._count:  # else all may be done
            self._wait_for_lines(self._lines() + 1, PROGRESS_S)
        self._wait_for_lines(wanted, moment)
        time.sleep(self._rng.uniform(0, 0.1))

    def _wait_for_lines(self, wanted: int, seconds: float) -> None:
        wait_until(
            lambda: self._lines() >= wanted or not any(one.running for one in self._running),
            seconds,
        )

    def _do(self, action: Action) -> None:
        match action:
            case Action.BROKER_TERM | Action.BROKER_KILL:
                self._disturbed = True
                self._broker.stop(TERM if action is Action.BROKER_TERM else KILL)
                time.sleep(self._rng.uniform(0, 0.3))
                self._broker.start()
            case Action.DARK:
                self._disturbed = True
                self._broker.stop(KILL)
                time.sleep(self._rng.uniform(0, 0.3))
                end = self._kind.ends[TERM]
                self._end(TERM, End(end.codes, clean=False))
                self._broker.start()
                self._start()
            case _:
                number = signal.Signals[action.value]
                self._end(number, self._kind.ends[number])
                self._commits += self._broker.committed(action.value)
                self._start()

    def _end(self, number: int, end: End) -> None:
        """Send a signal to a program and wait for its end."""
        program = self._running.pop(self._rng.randrange(len(self._running)))
        if not program.running:
            life = program.ended(self._own_end())
            self._lives.append(life)
            if self._kind.service:
                self._findings.append(f"{life.name} ended by itself: {life.said[-800:]}")
            return
        if number != KILL and program.running and not self._has_begun(program):
            # It has not set up what it does with signals; then they kill it, as they always do.
            early = {-number, number, 128 + number, 1} if end.codes else set()
            if early and self._kind.forks:
                early.add(TERM)  # the server forwards that to its workers, and ends with their code
            end = End(end.codes | early, clean=False)
        began = time.monotonic()
        program.signal(number, whole_group=self._kind.pipe)
        life = program.ended(end, since=began)
        if not self._kind.service and life.code == 0:
            life = replace(life, wanted=frozenset({0}))  # it was faster than the signal
        self._lives.append(life)

    def _has_begun(self, program: Program) -> bool:
        """Tell whether a program has written something down."""
        if not self._ledger.exists():
            return False
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        since = {
            int(words[1])
            for words in lines
            if len(words) > 3 and int(words[2]) > program.started_ns
        }
        return len(since) >= 2 if self._kind.forks else program.pid in since

    def _own_end(self) -> End:
        """Return how a program that ends by itself may end."""
        codes = frozenset({0, 1}) if self._disturbed else frozenset({0})
        return End(codes, clean=not self._disturbed)

    # The end.

    def _finish(self) -> None:
        kind = self._kind
        if not kind.service:
            for program in self._running:
                self._lives.append(program.ended(self._own_end()))
            self._running.clear()
        if kind.handling is None:
            return
        if not kind.fed:  # it goes on sending; when it has ended another one handles the rest
            if kind.service:
                self._wait_for_progress()
            while self._running:
                self._end(TERM, kind.ends[TERM])
            kind = SWEEPER
        if not self._running:
            self._start(kind)
        wait_until(
            lambda: self._is_over(kind) or not any(one.running for one in self._running),
            ALL_DONE_S,
        )
        if not self._all_done():
            self._findings.append("not everything was handled in time")
        elif not self._is_over(kind):
            self._findings.append("all is done, and not all of it is committed")
        for program in list(self._running):
            began = time.monotonic()
            if not program.running:
                life = program.ended(STOPPED)
                self._findings.append(f"{life.name} ended by itself: {life.said[-800:]}")
                continue
            program.signal(TERM)
            end = kind.ends[TERM] if self._has_begun(program) else End(frozenset(), clean=False)
            self._lives.append(program.ended(end, since=began))
        self._running.clear()
        self._commits += self._broker.committed("the end")

    def _is_over(self, kind: Kind) -> bool:
        """Tell whether all that is stored took effect and is committed."""
        if not self._all_done():
            return False
        if kind.returns:
            return True  # what was sent back lies in another topic
        ends = {queue: end for queue, end in self._broker.ends().items() if end}
        return {each.queue: each.offset for each in self._broker.committed("")} == ends

    def _all_done(self) -> bool:
        """Tell whether all that is stored took effect; nobody sends any more."""
        if self._wanted is None:
            self._wanted = {record.id for record in self._broker.records(TOPIC)}
        time.sleep(0.2)
        if not self._ledger.exists():
            return not self._wanted
        ledger = read_ledger(self._ledger.read_text())
        left = self._wanted - {run.id for run in ledger.runs if run.result == "done"}
        if left and self._kind.parks and len({key_of(body) for body in left}) == 1:
            left -= self._broker.parked()
        return not left

    def _gather(self) -> Journey:
        kind = self._kind
        return Journey(
            read_ledger(self._ledger.read_text() if self._ledger.exists() else ""),
            tuple(self._lives),
            tuple(self._inputs),
            self._broker.records(TOPIC),
            tuple(self._commits),
            kind.handling,
            self._disturbed,
            parked=self._broker.parked() if kind.parks else frozenset(),
            outputs=self._broker.records(OUTPUT) if kind.transforms else None,
            returns=kind.returns,
            extra=tuple(self._findings),
        )


def play(seed: int, number: int, folder: Path, only: str | None = None) -> Told:
    """Play round `number` of a seed; the programs take turns."""
    rng = random.Random(f"{seed}/{number}")
    kinds = [kind for kind in KINDS if only is None or kind.name == only]
    assert kinds, f"no program is called {only}; there are {', '.join(k.name for k in KINDS)}"
    folder.mkdir(parents=True)
    return Player(kinds[number % len(kinds)], rng, folder).play()


__all__ = ["GROUP", "KINDS", "Action", "Kind", "Told", "play"]
