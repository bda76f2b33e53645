"""Plays a plan of POP and judges it."""

from __future__ import annotations

import traceback
from collections import Counter

from tests.kit.simloop import SimLoop, run
from tests.simulation.simpops import PopPlan, PopWorld, story
from tests.simulation.simpopsordered import OrderedWorld
from tests.simulation.simpopsplain import PlainWorld

STEPS_MAX = 1_500_000


def play_pops(plan: PopPlan) -> PopWorld:
    """Play a plan; whatever a run raises is a problem of it."""
    worlds: list[PopWorld] = []

    async def main(loop: SimLoop) -> None:
        loop.note = _quietly  # type: ignore[method-assign]  # the timeline says enough
        world = (OrderedWorld if plan.order else PlainWorld)(loop, plan)
        worlds.append(world)
        await world.play()

    try:
        run(main, plan.seed, steps_max=STEPS_MAX)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        worlds[0].problems.append("".join(traceback.format_exception(error)))
    return worlds[0]


def judge_pops(seed: int) -> Counter[str]:
    """Play what a seed draws; return its figures. Raises AssertionError with its story."""
    world = play_pops(PopPlan.of(seed))
    assert not world.problems, story(world)
    return world.figures


def _quietly(*_: object) -> None:
    """Keep no digest of every packet."""
