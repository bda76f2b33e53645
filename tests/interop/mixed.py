"""Stories of mixed groups, short for `make interop`, at random and long for `make proof-mixed`.

python -m tests.interop.mixed --system inorder --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.systems import Ours, System, Theirs
from tests.interop.crowd import Crowd, Verdict
from tests.interop.stage import BUSY_S

JAVA_4, JAVA_5, CPP, GO, OURS = (
    "java-4.9.8-json",
    "java-5.3.3-json",
    "cpp-0.4.4",
    "go-2.1.2",
    "inorder",
)
FROZEN_S = 6.0
# Our broker frees the locks of a killed client 30 s after the last renewal, Apache RocketMQ after
# 60 s, and then members look every 20 s; Go gives up a queue with its next renewal, in 20 s.
SETTLED_S = 60.0 + BUSY_S
SETTLED_ON_ROCKETMQ_S = 120.0 + BUSY_S
MEMBERS_MAX = 8
FROZEN_CHOICES_S = (2.0, 10.0, 40.0, 75.0, 150.0)
"""Shorter and longer than a lock is trusted (30 s), held (60 s) and a member known (120 s)."""


@dataclass(frozen=True, slots=True)
class Story:
    """A system and what happens to the members of a group there."""

    name: str
    start: Callable[[], System]
    happens: Callable[[Crowd], None]
    members: frozenset[str]
    producer: str

    def play(self, folder: Path) -> Verdict:
        """Tell it from the beginning to the verdict."""
        system = self.start()
        try:
            crowd = Crowd(system, folder)
            try:
                with crowd.producing(self.producer):
                    self.happens(crowd)
                return crowd.finish(within_s=60)
            finally:
                crowd.end()
        finally:
            system.stop()


def among_all(crowd: Crowd) -> None:
    """Five libraries on our broker; one is frozen, one killed, two come, one goes."""
    crowd.join(ours1=OURS, java4=JAVA_4, java5=JAVA_5, cpp=CPP, go=GO)
    crowd.settle("five joined", within_s=SETTLED_S)
    for name in ("cpp", "java4"):
        crowd.freeze(name, FROZEN_S)
    crowd.settle("two frozen for a while", within_s=SETTLED_S)
    crowd.kill("java5")
    crowd.join(java5b=JAVA_5, ours2=OURS)
    crowd.settle("Java killed, Java and ours joined", within_s=SETTLED_S)
    crowd.leave("ours1")
    crowd.settle("ours left", within_s=SETTLED_S)


def as_a_guest(crowd: Crowd) -> None:
    """Our consumer among Java's on Apache RocketMQ: frozen, killed, and back."""
    crowd.join(java4=JAVA_4, java5=JAVA_5, ours1=OURS)
    crowd.settle("three joined", within_s=SETTLED_ON_ROCKETMQ_S)
    crowd.freeze("ours1", FROZEN_S)
    crowd.settle("ours frozen for a while", within_s=SETTLED_ON_ROCKETMQ_S)
    crowd.kill("ours1")
    crowd.join(ours2=OURS)
    crowd.settle("ours killed, another joined", within_s=SETTLED_ON_ROCKETMQ_S)
    crowd.leave("java4")
    crowd.settle("Java left", within_s=SETTLED_ON_ROCKETMQ_S)


def rocketmq() -> System:
    """Start Apache RocketMQ with a small heap."""
    return Theirs(heap="512m")


STORIES = [
    Story(
        "five-libraries-on-inorder", Ours, among_all,
        frozenset(("ours1", "java4", "java5", "cpp", "go", "java5b", "ours2")), GO,
    ),
    Story(
        "guest-on-rocketmq", rocketmq, as_a_guest,
        frozenset(("java4", "java5", "ours1", "ours2")), JAVA_5,
    ),
]  # fmt: skip


class Chance:
    """Things that happen to a group at random, one after the other, until the time is up."""

    def __init__(self, seed: int, minutes: float, kinds: Sequence[str]) -> None:
        self._draw = random.Random(seed)
        self._seconds = minutes * 60
        self._kinds = list(kinds)
        self._numbers = itertools.count()
        self.names: dict[str, str] = {}
        self.ever: set[str] = set()

    def __call__(self, crowd: Crowd) -> None:
        """Begin with one member of each kind; let the group settle after everything."""
        deadline = time.monotonic() + self._seconds
        self._join(crowd, *self._kinds)
        crowd.settle("all joined", within_s=SETTLED_ON_ROCKETMQ_S)
        while time.monotonic() < deadline:
            what = self._happen(crowd)
            took = crowd.settle(what, within_s=SETTLED_ON_ROCKETMQ_S)
            print(f"{what}: settled in {took:.1f} s", flush=True)

    def _happen(self, crowd: Crowd) -> str:
        name = self._draw.choice(sorted(self.names))
        kind = self.names[name]
        match self._draw.choice(("kill", "kill", "freeze", "leave", "join")):
            case "freeze":
                seconds = self._draw.choice(FROZEN_CHOICES_S)
                crowd.freeze(name, seconds)
                return f"{name} frozen for {seconds:.0f} s"
            case "join" if len(self.names) < MEMBERS_MAX:
                return f"{self._join(crowd, self._draw.choice(self._kinds))} joined"
            case "leave" if len(self.names) > 2:
                del self.names[name]
                crowd.leave(name)
                return f"{name} left"
        del self.names[name]
        crowd.kill(name)
        return f"{name} killed, {self._join(crowd, kind)} joined"

    def _join(self, crowd: Crowd, *kinds: str) -> str:
        new = {f"{kind.split('-')[0]}{next(self._numbers)}": kind for kind in kinds}
        crowd.join(**new)
        self.names |= new
        self.ever |= new.keys()
        return ", ".join(new)


def main() -> int:
    """Play one system at random; print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=("inorder", "rocketmq"), default="inorder")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ours = options.system == "inorder"
    kinds = (OURS, JAVA_4, JAVA_5, CPP, GO) if ours else (OURS, JAVA_4, JAVA_5)
    chance = Chance(options.seed, options.minutes, kinds)
    story = Story(
        "at-random", Ours if ours else rocketmq, chance, frozenset(), GO if ours else JAVA_5
    )
    with tempfile.TemporaryDirectory(prefix="mixed-") as folder:
        verdict = story.play(Path(folder))
    print(f"{options.system} seed={options.seed}\n{verdict}\n{dict(verdict.report.counts)}")
    return 1 if verdict.wrong or verdict.report.vacuous else 0


if __name__ == "__main__":
    sys.exit(main())
