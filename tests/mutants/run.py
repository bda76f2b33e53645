"""Plant each bug and see it caught: `python -m tests.mutants.run [NAME ...]` (make mutants).

Each runs in a process of its own, two at a time. Prints a table; `--page FILE` puts it into a page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutants import BY_NAME, MUTANTS, POPS, SIM, Mutant

ROOT = Path(__file__).parents[2]
LIMIT_S = 900
_SIMULATION = """
import sys, logging
logging.disable(logging.CRITICAL)
import tests.mutants.planting
from tests.simulation.simplan import Plan
from tests.simulation.simrun import play
for seed in range(1, int(sys.argv[1]) + 1):
    outcome = play(Plan.of(seed))
    if not outcome.ok:
        print(f"caught: seed {seed}: {outcome.problems[0].strip()[:2000]}")
        sys.exit(1)
"""
_POPS = """
import sys, logging
logging.disable(logging.CRITICAL)
import tests.mutants.planting
from tests.simulation.simpops import PopPlan
from tests.simulation.simpoprun import play_pops
for seed in range(1, int(sys.argv[1]) + 1):
    problems = play_pops(PopPlan.of(seed)).problems
    if problems:
        print(f"caught: of POP, seed {seed}: {problems[0].strip()[:2000]}")
        sys.exit(1)
"""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    found_by: tuple[str, ...]
    missed_by: tuple[str, ...]
    """What should have found it and did not."""
    seconds: float
    output: str

    @property
    def caught(self) -> bool:
        """Tell whether all that should find it did."""
        return bool(self.found_by) and not self.missed_by


def try_mutant(mutant: Mutant) -> Verdict:
    """Plant one, run all that should find it."""
    began = time.monotonic()
    found: list[str] = []
    missed: list[str] = []
    output = ""
    for name, program in [(SIM, _SIMULATION)] * mutant.by_sim + [(POPS, _POPS)] * mutant.by_pops:
        output += (said := _run(mutant, "-c", program, str(mutant.seeds)))
        lines = [line for line in said.splitlines() if line.startswith("caught: ")]
        (found if lines else missed).append(lines[0].removeprefix("caught: ") if lines else name)
    if mutant.nodes:
        output += (said := _pytest(mutant, *mutant.nodes))
        failed = _failed(said)
        for node in mutant.nodes:
            (found if node in failed else missed).append(node)
    if mutant.files:
        output += (said := _pytest(mutant, "-x", *mutant.files))
        failed = _failed(said)
        found += failed[:1]
        missed += () if failed else mutant.files
    return Verdict(mutant, tuple(found), tuple(missed), time.monotonic() - began, output)


def _pytest(mutant: Mutant, *words: str) -> str:
    plugins = ("-p", "tests.mutants.planting", "-p", "no:cacheprovider")
    return _run(mutant, "-m", "pytest", "-q", "-m", "spark or not spark", *plugins, *words)


def _run(mutant: Mutant, *words: str) -> str:
    """Return what a Python says in which the bug is planted."""
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
            check=False, env={**os.environ, "INORDER_MUTANT": mutant.name, "PYTHONPATH": paths},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s\n"
    return done.stdout + done.stderr


def _failed(output: str) -> list[str]:
    """Return the tests that failed; a run that could not even begin has none."""
    lines = [line for line in output.splitlines() if line.startswith("FAILED ")]
    nodes = [line.removeprefix("FAILED ").split(" - ")[0].partition("[")[0] for line in lines]
    return list(dict.fromkeys(nodes))


def table(verdicts: list[Verdict]) -> str:
    """Return which rule was switched off and what found it."""
    lines = ["| rule | planted | caught by |", "|---|---|---|"]
    for one in verdicts:
        by = [
            f"`{name}`" if "::" in name else f"simulation, {name.partition(':')[0]}"
            for name in one.found_by
        ]
        by += [f"NOT CAUGHT by {name}" for name in one.missed_by]
        lines.append(f"| {one.mutant.rule} | {one.mutant.what} | {', '.join(by)} |")
    return "\n".join(lines)


def main() -> int:
    """Plant what the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BY_NAME, []], help="default: all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", type=Path, help="put the table behind its mark in this page")
    parser.add_argument("-v", action="store_true", help="show what found it, or the whole output")
    options = parser.parse_args()
    chosen = [BY_NAME[name] for name in options.names] or MUTANTS
    verdicts = []
    with ThreadPoolExecutor(options.processes) as pool:
        for verdict in pool.map(try_mutant, chosen):
            verdicts.append(verdict)
            state = "caught" if verdict.caught else "NOT CAUGHT"
            names = verdict.missed_by or verdict.found_by
            by = ", ".join(name.splitlines()[0].rpartition("::")[2][:90] for name in names)
            print(f"{verdict.mutant.name:32} {state:10} {verdict.seconds:6.1f} s  {by}", flush=True)
            if options.v or not verdict.caught:
                print(verdict.output[-1500:], flush=True)
    if options.page is not None:
        begin, end = "<!-- mutants -->\n", "<!-- end of mutants -->"
        text = options.page.read_text()
        head, _, rest = text.partition(begin)
        tail = rest.partition(end)[2]
        options.page.write_text(f"{head}{begin}{table(verdicts)}\n{end}{tail}")
    missed = [verdict.mutant.name for verdict in verdicts if not verdict.caught]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} planted bugs caught")
    if missed:
        print(f"NOT caught: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
