"""`python -m tests.journeys.run --rounds 500`: journeys from a seed, each printed as it ends.

A round that failed is repeated by `--seed S --first N --rounds 1`: the same program, counts and
plan. In which line a signal meets the program is up to the machine. The files of a failed round are
kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.journeys.playing import Told, play
from tests.signals import hear_ctrl_c

FINDINGS_SHOWN = 6


def main() -> int:
    """Play rounds until their number or the time is up; return the exit code."""
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    words.add_argument("--rounds", type=int, default=500)
    words.add_argument("--seconds", type=float, default=7200, help="begin no round after that")
    words.add_argument("--seed", type=int, default=None, help="by default a random one")
    words.add_argument("--first", type=int, default=0, help="number of the first round")
    words.add_argument("--only", default=None, help="one program")
    options = words.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    hear_ctrl_c()
    began, played, failed = time.monotonic(), 0, 0
    kinds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for number in range(options.first, options.first + options.rounds):
        if time.monotonic() - began > options.seconds:
            break
        folder = Path(tempfile.mkdtemp(prefix="inorder-journey."))
        told = _play(seed, number, folder / "round", options.only)
        played += 1
        kinds[told.kind] += 1
        counts.update(told.counts)
        good = not told.findings
        failed += not good
        plan = ", ".join(told.plan) or "left alone"
        figures = " ".join(f"{name}={count}" for name, count in told.counts.items())
        print(
            f"round {number} {told.kind}: {plan}; {figures}; {told.seconds:.1f} s; "
            f"{'ok' if good else 'FAILED'}",
            flush=True,
        )
        if good:
            shutil.rmtree(folder)
            continue
        for finding in told.findings[:FINDINGS_SHOWN]:
            print(f"    {finding}", flush=True)
        if len(told.findings) > FINDINGS_SHOWN:
            print(f"    and {len(told.findings) - FINDINGS_SHOWN} more", flush=True)
        print(f"    files: {folder}; again: --seed {seed} --first {number} --rounds 1"
              + (f" --only {options.only}" if options.only else ""), flush=True)  # fmt: skip
    figures = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(
        f"{played} journeys of {len(kinds)} programs in {time.monotonic() - began:.0f} s: "
        f"{figures}; {failed} failed (seed {seed})"
    )
    return 1 if failed or not played else 0


def _play(seed: int, number: int, folder: Path, only: str | None) -> Told:
    try:
        return play(seed, number, folder, only)
    except Exception:
        # The stage itself broke: that is a finding too, and the other rounds go on.
        return Told("the stage", [], {}, [traceback.format_exc()], 0.0)


if __name__ == "__main__":
    sys.exit(main())
