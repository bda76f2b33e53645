"""Play a plan and judge it; make a failing one smaller; print what happened.

python -m tests.simulation.simrun --seed 7                     one seed; if it fails its timeline
python -m tests.simulation.simrun --seeds 20000                many, on two processes
python -m tests.simulation.simrun --seeds 5000 --kind pops     many of one kind of run

A seed of many plays the contract's plan, and in turn a run of transactions, of timers or of POP.
The timeline of a failing plan of the contract is shrunk.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from unittest.mock import patch

from inorder.checker import (
    Handled,
    HandledResult,
    Handling,
    Rules,
    Stored,
    check,
)
from inorder.client.consume.rules import outcomes
from inorder.client.consume.rules.outcomes import CallPace
from tests.kit.simloop import SimLoop, run
from tests.model.traces import follow_trace
from tests.simulation import test_timers_in_time, test_transactions_in_order
from tests.simulation.simfaults import Faults
from tests.simulation.simlosses import without_lost
from tests.simulation.simplan import KINDS, LATER_KINDS, MORE_KINDS, Plan
from tests.simulation.simpoprun import judge_pops
from tests.simulation.simworld import PATIENCE_S, World

STEPS_MAX = 400_000
SHRINK_MAX = 60
"""How often a failing plan is played again to find a smaller one."""
CONTRACT = "contract"
BESIDE = {
    "transactions": test_transactions_in_order.judge,
    "timers": test_timers_in_time.judge,
    "pops": judge_pops,
}
"""Runs of other kinds: each plays a seed and raises AssertionError if something is wrong."""


@dataclass
class Outcome:
    """What became of a plan."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    timeline: list[tuple[float, str]] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    kinds: frozenset[str] = frozenset()
    """What is wrong, in a word each."""

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"seed {self.plan.seed}: {'ok' if self.ok else 'FAILED'} {self.plan}"]
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines)


def play(plan: Plan) -> Outcome:
    """Play a plan."""
    outcome = Outcome(plan)
    worlds: list[World] = []

    async def main(loop: SimLoop) -> None:
        loop.note = _quietly  # type: ignore[method-assign]  # the timeline says enough
        world = World(loop, plan)
        worlds.append(world)
        await world.start()
        feeding = asyncio.ensure_future(world.feed())
        await Faults(world).run()
        async with asyncio.timeout(2 * PATIENCE_S):
            await feeding
        await world.finish()

    def calls_of_run(pace: CallPace, *, waiting: int, workers: int) -> int:
        return plan.calls or _calls_of_run(pace, waiting=waiting, workers=workers)

    try:
        with patch.object(outcomes, "calls_of_run", calls_of_run):
            run(main, plan.seed, steps_max=STEPS_MAX)
    except BaseException as error:  # whatever a run raises is what is wrong with it
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome.problems.append("".join(traceback.format_exception(error)))
        outcome.kinds |= {type(error).__name__}
    world = worlds[0]
    outcome.timeline = world.timeline
    outcome.problems += world.problems
    outcome.kinds |= {problem[:12] for problem in world.problems}
    if not outcome.problems:
        judge(world, outcome)
    outcome.figures.update(
        handled=len(world.runs), effects=len(world.store.effects), refused=world.store.refused,
        late_commits=world.late_commits, sent=len(world.acked), virtual_s=int(world.loop.time()),
    )  # fmt: skip
    return outcome


_calls_of_run = outcomes.calls_of_run


def _quietly(*_: object) -> None:
    """Keep no digest of every packet: it costs a tenth of a run."""


def judge(world: World, outcome: Outcome) -> None:
    """Hold the history against the contract."""
    plan = world.plan
    aside = {(queue, offset) for queue, offset, _, _ in world.aside}
    runs = [one.event(aside) for one in world.runs]
    events = [*world.events, *runs, *world.store.effects]
    ids = {(event.queue, event.offset): event.id for event in events if isinstance(event, Stored)}
    for queue, offset, key, at_ns in world.aside:
        if (queue, offset) in ids:
            id_, result = ids[queue, offset], HandledResult.PARKED
            events.append(Handled("broker", queue, offset, id_, key, at_ns, at_ns, result))
    if world.cuts:
        events = without_lost(events, world.acked, world.cuts)
    rules = Rules(
        handled_once=plan.is_calm,
        handling=Handling.KEY if plan.order == "key" else Handling.QUEUE,
        one_queue_per_key=all(fault.kind not in ("resize", "abort") for fault in plan.faults),
        acknowledged_min=0 if world.cuts else 1,
    )
    for queue, trace in world.traces.items():
        problem = follow_trace(trace)
        if problem:
            outcome.problems.append(f"{queue}: {problem}")
            outcome.kinds |= {"trace"}
    report = check(events, rules=rules)
    outcome.figures.update(
        {name: report.counts.get(name, 0) for name in ("outlived", "late_effects", "grants")}
    )
    outcome.figures.update({"repeated": report.counts.get("repeated_effects", 0)})
    if not report.ok:
        outcome.problems.append(str(report))
        outcome.kinds |= frozenset(map(str, report.by_kind)) or frozenset(("vacuous",))


def shrink(outcome: Outcome) -> Outcome:
    """Leave out faults, then members and sends, as long as it still fails in the same way."""
    best, tries = outcome, 0

    def smaller() -> Iterator[Plan]:
        faults = best.plan.faults
        size = len(faults) // 2
        while size:
            for start in range(0, len(faults), size):
                yield best.plan.without(*faults[start : start + size])
            size //= 2
        if best.plan.members > 1:
            yield replace(best.plan, members=best.plan.members - 1)
        if best.plan.sends > 4:
            yield replace(best.plan, sends=best.plan.sends // 2)

    found = True
    while found and tries < SHRINK_MAX:
        found = False
        for plan in smaller():
            tries += 1
            again = play(plan)
            if again.kinds & outcome.kinds:
                best, found = again, True
                break
            if tries >= SHRINK_MAX:
                break
    return best


def story(outcome: Outcome, *, lines_max: int = 400) -> str:
    """Return the timeline of a failing run."""
    lines = [str(outcome), "faults:", *(f"  {fault}" for fault in outcome.plan.faults), "timeline:"]
    told = outcome.timeline[-lines_max:]
    if len(told) < len(outcome.timeline):
        lines.append(f"  ({len(outcome.timeline) - len(told)} lines before)")
    lines += [f"  {at_s:9.3f}  {text}" for at_s, text in told]
    only = outcome.plan.only
    named = f"SEEDS=1 ARGS='--first {outcome.plan.seed} --kinds {','.join(only)}'"
    lines.append(f"again: make sim {named if only else f'SEED={outcome.plan.seed}'}")
    return "\n".join(lines)


def _short(text: str) -> str:
    """Leave out the middle of what is long."""
    return text if len(text) < 8000 else f"{text[:3000]}\n…\n{text[-4000:]}"


def kinds_of(seed: int, kind: str = "") -> tuple[str, ...]:
    """Return the kinds of runs that a seed plays: the contract's, and one of the others in turn."""
    return (kind,) if kind else (CONTRACT, list(BESIDE)[seed % len(BESIDE)])


def _play_seed(
    seed: int, only: tuple[str, ...] = (), kind: str = ""
) -> tuple[int, dict[str, str], Counter[str]]:
    """Play a seed in a process of its own; return what is wrong by kind of run, and figures."""
    logging.disable(logging.CRITICAL)
    wrong, figures = dict[str, str](), Counter[str]()
    for name in kinds_of(seed, kind):
        figures[f"runs_{name}"] += 1
        if name == CONTRACT:
            outcome = play(Plan.of(seed, only))
            figures.update(outcome.figures)
            if not outcome.ok:
                wrong[name] = str(outcome)
            continue
        try:
            figures.update({f"{name}_{key}": count for key, count in BESIDE[name](seed).items()})
        except Exception as error:  # whatever a run raises is what is wrong with it
            again = f"again: make sim SEEDS=1 ARGS='--first {seed} --kind {name}'"
            text = "".join(traceback.format_exception(error))
            wrong[name] = f"seed {seed}, {name}: FAILED\n{text}{again}"
    return seed, wrong, figures


def many(
    seeds: range,
    *,
    processes: int,
    seconds: float | None,
    only: tuple[str, ...] = (),
    kind: str = "",
) -> int:
    """Play many seeds; print each that fails, its shrunk timeline for the first few."""
    began, figures, played = time.monotonic(), Counter[str](), 0
    failed: list[tuple[int, str]] = []
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for seed, wrong, counts in pool.imap_unordered(
            partial(_play_seed, only=only, kind=kind), seeds, chunksize=4
        ):
            played += 1
            figures.update(counts)
            for name, problem in wrong.items():
                failed.append((seed, name))
                print(_short(problem), flush=True)
            took_s = time.monotonic() - began
            if played % 1000 == 0:
                print(f"{played} seeds, {len(failed)} failed, {played / took_s:.0f}/s", flush=True)
            if seconds is not None and took_s > seconds:
                pool.terminate()
                break
    took_s = time.monotonic() - began
    counts = " ".join(f"{name}={figures[name]}" for name in sorted(figures))
    print(f"{played} seeds from {seeds.start}, {len(failed)} failed, {took_s:.0f} s, "
          f"{played / took_s / processes:.1f} seeds/s a process: {counts}")  # fmt: skip
    for seed in sorted(seed for seed, name in failed if name == CONTRACT)[:2]:
        logging.disable(logging.CRITICAL)
        print(story(shrink(play(Plan.of(seed, only)))), flush=True)
    if failed:
        print(f"failed: {' '.join(f'{seed}/{name}' for seed, name in sorted(failed))}")
    return 1 if failed else 0


def _kinds(text: str) -> tuple[str, ...]:
    """Read kinds of faults."""
    found = tuple(text.split(","))
    known = (*KINDS, *LATER_KINDS, *MORE_KINDS)
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(f"no such kind: {unknown}; there are {', '.join(known)}")
    return found


def main() -> int:
    """Play what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its timeline if it fails")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument(
        "--kinds", type=_kinds, default=(), help="only these kinds of faults, as in resize,reset"
    )
    parser.add_argument(
        "--kind", choices=[CONTRACT, *BESIDE], default="", help="only this kind of run"
    )
    parser.add_argument("--timeline", action="store_true", help="show it in any case")
    options = parser.parse_args()
    kind = options.kind or (CONTRACT if options.kinds else "")
    if options.seed is None:
        seeds = range(options.first, options.first + options.seeds)
        return many(
            seeds, processes=options.processes, seconds=options.seconds, only=options.kinds,
            kind=kind,
        )  # fmt: skip
    outcome = play(Plan.of(options.seed, options.kinds))
    if options.timeline or not outcome.ok:
        print(story(outcome if outcome.ok or options.timeline else shrink(outcome)))
    else:
        print(outcome, dict(outcome.figures))
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
