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

from tests.mutants.mutants import BY_NAME, MUTANTS, SIM, Mutant

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


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    caught: bool
    by: str
    seconds: float
    output: str


def words_of(mutant: Mutant) -> list[str]:
    """Return the command that catches it."""
    if mutant.caught_by == SIM:
        return [sys.executable, "-c", _SIMULATION, str(mutant.seeds)]
    tests = [name for name in mutant.caught_by.split() if (ROOT / name.split("::")[0]).exists()]
    return [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.mutants.planting",
        "-p", "no:cacheprovider", *tests,
    ]  # fmt: skip


def try_mutant(mutant: Mutant) -> Verdict:
    """Plant one, run what should catch it."""
    began = time.monotonic()
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    try:
        done = subprocess.run(
            words_of(mutant), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
            check=False, env={**os.environ, "INORDER_MUTANT": mutant.name, "PYTHONPATH": paths},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Verdict(mutant, False, "", LIMIT_S, f"not done after {LIMIT_S} s")
    output = done.stdout + done.stderr
    if mutant.caught_by == SIM:
        lines = [line for line in output.splitlines() if line.startswith("caught: ")]
        by = lines[0].removeprefix("caught: ") if lines else ""
    else:
        # A run that could not even begin has caught nothing.
        failed = [line for line in output.splitlines() if line.startswith("FAILED ")]
        by = failed[0].removeprefix("FAILED ").split(" - ")[0] if failed else ""
    return Verdict(mutant, bool(by), by, time.monotonic() - began, output)


def table(verdicts: list[Verdict]) -> str:
    """Return which rule was switched off and what found it."""
    lines = ["| rule | planted | caught by |", "|---|---|---|"]
    for one in verdicts:
        by = one.by.partition(":")[0] if one.mutant.caught_by == SIM else f"`{one.by}`"
        if one.mutant.caught_by == SIM and one.caught:
            by = f"simulation, {by}"
        lines.append(f"| {one.mutant.rule} | {one.mutant.what} | {by or 'NOT CAUGHT'} |")
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
            by = (verdict.by.splitlines() or [""])[0][:110]
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
