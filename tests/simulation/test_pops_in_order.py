"""POP over kills, frozen consumers and restarts: in order where that is asked for, never lost.

A sample of the seeds; `make sim SEEDS=5000 ARGS="--kind pops"` plays many, `make sim SEED=n` one.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.simpoprun import play_pops
from tests.simulation.simpops import PopPlan, story

SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, 13)


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_popped_in_order_is_in_order(seed: int):
    """Nothing is lost or skipped; nothing stale is taken; nobody has what another one holds."""
    world = play_pops(PopPlan.of(seed, order=True))
    print(seed, dict(world.figures))
    if world.problems:
        pytest.fail(story(world))


@pytest.mark.sample
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_popped_is_handled_and_what_is_acknowledged_never_comes_again(seed: int):
    """What is not comes again from the retry topic, when it is visible again, counted up."""
    world = play_pops(PopPlan.of(seed, order=False))
    print(seed, dict(world.figures))
    if world.problems:
        pytest.fail(story(world))


@pytest.mark.slow
def test_the_runs_reach_what_they_are_there_for():
    """Stale acknowledgements, outlived handlers, changes, repeated attempts and retries occur."""
    found = play_pops(PopPlan.of(1, order=True)).figures
    for seed in range(2, 10):
        found += play_pops(PopPlan.of(seed, order=True)).figures
    assert min(found[name] for name in ("stale", "outlived", "changes", "same attempts")) > 0
    plain = play_pops(PopPlan.of(1, order=False)).figures
    for seed in range(2, 5):
        plain += play_pops(PopPlan.of(seed, order=False)).figures
    assert plain["retried"] > 0


def test_the_same_seed_is_the_same_run():
    """A failing seed can be played again."""
    timelines = [play_pops(PopPlan.of(3)).timeline for _ in range(2)]
    assert timelines[0] == timelines[1]


def test_plans_have_every_kind_of_fault():
    """A kind that is never drawn proves nothing."""
    plans = [PopPlan.of(seed) for seed in range(1, 200)]
    assert {kind for plan in plans for _, kind in plan.faults} == {
        "kill", "freeze", "broker killed", "broker stopped", "reset", "resize", "takeover", "clock",
        "drop", "cut off",
    }  # fmt: skip
    assert {plan.order for plan in plans} == {False, True}
