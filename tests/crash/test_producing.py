"""Producers over a bad network and a killed broker: a sample of `tests.crash.producing`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.checker import Kind
from tests.crash.planted import PLANTS
from tests.crash.producing import Plan, run

SEED = int(os.environ.get("INORDER_SEED", "1"))
TRIES = 4

# What each bug breaks, and the kind of trouble in which that mostly shows soon.
SHOWN = {
    "no duplicate check": (Plan(kills=0, seed=SEED, life_s=(2.0, 2.0)), Kind.DOUBLED),
    "no gap check": (
        Plan(kills=0, seed=SEED, life_s=(2.0, 2.0), flush=("SYNC",)), Kind.INVERTED
    ),
    "no fence": (Plan(kills=0, seed=SEED, life_s=(8.0, 8.0), rate=60, pause_s=0.05,
                      faults=("stall requests",)), Kind.LOST),
    "half a replay": (Plan(kills=2, seed=SEED, life_s=(0.8, 0.8), pause_s=0.05), Kind.DOUBLED),
    "renumber at once": (Plan(kills=0, seed=SEED, life_s=(2.0, 2.0), pause_s=0.05,
                              faults=("lose answers", "hold answers")), Kind.DOUBLED),
    "go on behind a failure": (Plan(kills=0, seed=SEED, life_s=(6.0, 6.0), producers=2, rate=60,
                                    pause_s=0.1, pipelines=True), Kind.LOST),
}  # fmt: skip
# One for each kind of finding; `make proof-producer` plants all of them.
SAMPLE = ("no duplicate check", "no gap check", "go on behind a failure")
BUGS = tuple(PLANTS) if os.environ.get("INORDER_PLANTED") == "all" else SAMPLE


@pytest.mark.sample
def test_what_is_sent_is_stored_once_and_in_order(tmp_path: Path) -> None:
    """Over cut, stalled and lying connections and kill -9; `make proof-producer` kills 20 times."""
    plan = Plan(kills=2, seed=SEED, rate=250, pipelines=True)
    report, figures = asyncio.run(run(plan, tmp_path))
    print(f"seed={SEED} {figures}")
    assert report.ok, f"seed={SEED}: {report}"


def test_every_bug_is_shown_somewhere() -> None:
    """Each has its plan, and the sample has every kind of finding."""
    assert SHOWN.keys() == PLANTS.keys()
    assert {SHOWN[bug][1] for bug in SAMPLE} == {kind for _, kind in SHOWN.values()}


@pytest.mark.sample
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    """The proof can fail: with one rule broken the judge names what follows, if not in a short
    run then in a longer one."""
    plan, kind = SHOWN[bug]
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        shortest_s, longest_s = plan.life_s
        lives = (shortest_s * (1 + attempt), longest_s * (1 + attempt))
        planted = replace(plan, plant=bug, seed=plan.seed + attempt, life_s=lives)
        report, figures = asyncio.run(run(planted, folder))
        if kind in report.by_kind:
            return
        print(f"not seen with seed {planted.seed}: {figures}")
    pytest.fail(f"{bug} was not found in {TRIES} tries; the last: {report}")
