"""Fuzz the decoders, guided by coverage.

    python -m tests.fuzz.run [--seconds 100] [--each S] [--target NAME ...] [--seed N]

Each target runs in a process of its own under atheris (libFuzzer): `--seconds` is shared among
all of them, `--each` is for each. A finding ends with exit code 1; its input is printed and kept.

Without atheris the same targets are run by a plain mutation fuzzer that sees no coverage; every
line of its output says so. `--blind` asks for it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz import seeds, targets

ROOT = Path(__file__).resolve().parents[2]
RSS_LIMIT_MB = 512
TIMEOUT_S = 20
"""Of the clock on the wall, for one input: a machine that stands still for a moment is no hang."""
INPUT_BYTES_MAX = 4096


def guided(name: str, found: list[bytes], seconds: float, *, seed: int, folder: Path) -> str | None:
    """Run one target under atheris; return None, or what it found. Prints one line."""
    corpus = folder / name
    seeds.write_corpus(name, found, corpus)
    words = [
        sys.executable, "-m", "tests.fuzz.one", name, f"-max_total_time={max(1, round(seconds))}",
        f"-rss_limit_mb={RSS_LIMIT_MB}", f"-timeout={TIMEOUT_S}", f"-max_len={INPUT_BYTES_MAX}",
        f"-seed={seed}", f"-artifact_prefix={folder}/{name}-", "-print_final_stats=1", str(corpus),
    ]  # fmt: skip
    done = subprocess.run(
        words, cwd=ROOT, env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, errors="replace", timeout=seconds + 120, check=False,
    )  # fmt: skip
    said = done.stderr + done.stdout
    executed = re.search(r"number_of_executed_units:\s+(\d+)", said)
    rss = re.search(r"peak_rss_mb:\s+(\d+)", said)
    covered = re.findall(r"cov: (\d+)", said)
    print(
        f"{name:20} {len(found):4} seeds {int(executed.group(1)) if executed else 0:9} runs  "
        f"cov {covered[-1] if covered else '?':>5}  rss {rss.group(1) if rss else '?'} MB"
        f"{'' if done.returncode == 0 else '  FOUND'}",
        flush=True,
    )
    if done.returncode == 0:
        return None
    artifacts = [path for path in folder.glob(f"{name}-*") if path.is_file()]
    inputs = "\n".join(f"input: {path.read_bytes()[:2000]!r}" for path in artifacts)
    _keep(artifacts)
    return f"{name} ended with {done.returncode}\n{said[-3000:]}\n{inputs}"


def blind(name: str, found: list[bytes], seconds: float, *, seed: int) -> str | None:
    """Mutate seeds without looking at coverage; return None, or what was found."""
    dice = random.Random(seed)
    pool = found or [b""]
    deadline = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < deadline:
        data = mutate(dice, dice.choice(pool), dice.choice(pool))
        runs += 1
        try:
            targets.TARGETS[name](data)
        except Exception as error:
            return f"{name}: {error!r}\ninput: {data!r}"
    print(f"{name:20} {len(found):4} seeds {runs:9} runs  WITHOUT COVERAGE", flush=True)
    return None


def mutate(dice: random.Random, seed: bytes, other: bytes) -> bytes:
    """Change a few bytes, cut, repeat, or splice."""
    data = bytearray(seed)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(6):
            case 0 if at < len(data):
                data[at] = dice.randrange(256)
            case 1 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 2:
                del data[at : at + dice.randrange(8)]
            case 3:
                data[at:at] = data[at : at + dice.randrange(16)]
            case 4:
                data[at:at] = dice.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"{", b"["))
            case _:
                data[at:] = other[dice.randrange(len(other) + 1) :]
    return bytes(data[:INPUT_BYTES_MAX])


def _keep(artifacts: list[Path]) -> None:
    kept = ROOT / "build" / "fuzz"
    kept.mkdir(parents=True, exist_ok=True)
    for path in artifacts:
        (kept / path.name).write_bytes(path.read_bytes())
        print(f"kept {kept / path.name}")


def main() -> int:
    """Read the arguments, fuzz, and return the exit code."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--seconds", type=float, default=100.0, help="time for all targets together")
    words.add_argument("--each", type=float, help="time for each target, instead")
    words.add_argument("--target", nargs="*", choices=targets.TARGETS)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    words.add_argument("--blind", action="store_true", help="mutate without looking at coverage")
    chosen = words.parse_args()
    names = chosen.target or list(targets.TARGETS)
    without = chosen.blind or importlib.util.find_spec("atheris") is None
    jobs = 1 if without else max(1, chosen.jobs)
    # Each process takes some seconds to instrument what it imports; they are not counted.
    share = chosen.each or max(1.0, chosen.seconds * jobs / len(names))
    if without:
        print("atheris is not used: plain mutations, WITHOUT COVERAGE")
    found = seeds.all_seeds()
    with (
        tempfile.TemporaryDirectory(prefix="inorder-fuzz-") as folder,
        ThreadPoolExecutor(jobs) as runners,
    ):

        def fuzz(name: str) -> str | None:
            if without:
                return blind(name, found[name], share, seed=chosen.seed)
            place = Path(folder)
            return guided(name, found[name], share, seed=chosen.seed, folder=place)

        findings = [finding for finding in runners.map(fuzz, names) if finding is not None]
    for finding in findings:
        print(finding)
    print(f"{len(names)} targets, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
