"""Minutes at half load: anonymous memory, file descriptors and latency must stay flat.

Half load is found, not assumed: the rate of publish-and-deliver at which the broker uses half a
core. Then that rate is held in slices; after each the process is looked at. The first quarter of
the slices is left out (caches fill), and the rest must show no trend.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import loadgen
from bench.compare import Say
from bench.loadgen import Load
from bench.systems import Ours

HALF_CORE = 0.5
SLICE_S = 10.0
RATE_FIRST = 2000.0
RATE_MAX = 100_000.0
LOAD = Load("e2e", 8, 1, topic="SoakTopic")
# Growth over the whole run that is still called flat; latency of a busy machine is never quite so.
MEMORY_GROWTH_MAX = 0.05
MEMORY_SLACK_BYTES = 2_000_000
P50_GROWTH_MAX = 0.5
P99_GROWTH_MAX = 2.0
P99_SLACK_US = 2000.0
SKIPPED_PART_MAX = 0.01
SLICES_MIN = 8
CLOSING_S = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    """The process after one slice."""

    at_s: float
    anonymous_bytes: int
    open_files: int
    segments: int
    p50_us: float
    p99_us: float
    messages: int
    skipped: int
    broker_cores: float
    bad: int


def half_load(system: Ours, say: Say) -> float:
    """Return the rate at which the broker uses half a core."""
    rate = RATE_FIRST
    while True:
        outcome = _slice(system, rate, 2.0)
        cores = outcome.broker_cpu_s / outcome.seconds
        say(f"  {rate:,.0f}/s uses {cores:.2f} core, skipped {outcome.skipped}")
        if outcome.skipped:
            return rate / 2
        if cores >= 0.9 * HALF_CORE or rate >= RATE_MAX:
            return min(rate, rate * HALF_CORE / cores)
        rate = min(RATE_MAX, rate * min(2.0, max(1.2, HALF_CORE / cores)))


def run_soak(minutes: float, say: Say, *, rate: float | None = None) -> list[Sample]:
    """Hold half load for some minutes; return what was seen."""
    samples: list[Sample] = []
    with Ours() as system:
        loadgen.fill(system.address, LOAD.topic, 64, batched=False)
        rate = rate or half_load(system, say)
        say(f"holding {rate:,.0f} messages/s for {minutes:g} minutes")
        began = time.monotonic()
        slice_s = min(SLICE_S, minutes * 60 / SLICES_MIN)
        while (elapsed := time.monotonic() - began) < minutes * 60:
            outcome = _slice(system, rate, slice_s)
            time.sleep(CLOSING_S)  # until the broker has seen that the generator is gone
            if outcome.bad:
                say(f"BAD {outcome.bad_samples}")
            samples.append(
                Sample(
                    at_s=elapsed,
                    anonymous_bytes=system.broker.anonymous_bytes(),
                    open_files=system.broker.open_files(),
                    segments=_segments(system.directory / "data"),
                    p50_us=outcome.p50_us,
                    p99_us=outcome.p99_us,
                    messages=outcome.messages,
                    skipped=outcome.skipped,
                    broker_cores=outcome.broker_cpu_s / outcome.seconds,
                    bad=outcome.bad,
                )
            )
            say(_line(samples[-1]))
    return samples


def verdicts(samples: list[Sample]) -> list[str]:
    """Return what is not flat; nothing means passed."""
    kept = samples[len(samples) // 4 :]
    if len(kept) < 4:
        return [f"only {len(samples)} samples: too few to see a trend"]
    problems = []
    memory = [float(sample.anonymous_bytes) for sample in kept]
    allowed = max(MEMORY_SLACK_BYTES, MEMORY_GROWTH_MAX * statistics.median(memory))
    if (grown := growth(kept, memory)) > allowed:
        problems.append(f"RssAnon grew by {grown / 1e6:.1f} MB, allowed {allowed / 1e6:.1f}")
    # A segment more is a file more, and rightly so.
    files = [float(sample.open_files - sample.segments) for sample in kept]
    if max(files) - files[0] > 2 and growth(kept, files) >= 1:
        problems.append(f"file descriptors went from {files[0]:.0f} to {max(files):.0f}")
    p50 = [sample.p50_us for sample in kept]
    if growth(kept, p50) > P50_GROWTH_MAX * statistics.median(p50):
        problems.append(f"p50 grew by {growth(kept, p50):.0f} us from {p50[0]:.0f}")
    p99 = [sample.p99_us for sample in kept]
    if growth(kept, p99) > max(P99_SLACK_US, P99_GROWTH_MAX * statistics.median(p99)):
        problems.append(f"p99 grew by {growth(kept, p99):.0f} us from {p99[0]:.0f}")
    if bad := sum(sample.bad for sample in samples):
        problems.append(f"{bad} bad answers")
    skipped = sum(sample.skipped for sample in samples)
    if skipped > SKIPPED_PART_MAX * sum(sample.messages for sample in samples):
        problems.append(f"{skipped} messages could not be published in time")
    return problems


def growth(samples: list[Sample], values: list[float]) -> float:
    """Return the trend over the run: the median slope between all pairs, times the duration."""
    slopes = [
        (values[later] - values[earlier]) / (samples[later].at_s - samples[earlier].at_s)
        for earlier in range(len(samples))
        for later in range(earlier + 1, len(samples))
    ]
    return statistics.median(slopes) * (samples[-1].at_s - samples[0].at_s)


def table(samples: list[Sample]) -> str:
    """Return at most a dozen of the samples as lines."""
    return "\n".join(_line(sample) for sample in samples[:: max(1, -(-len(samples) // 12))])


def _line(sample: Sample) -> str:
    return (
        f"  {sample.at_s:6.0f} s  RssAnon {sample.anonymous_bytes / 1e6:7.1f} MB"
        f"  fds {sample.open_files:4}  p50 {sample.p50_us:6.0f} us  p99 {sample.p99_us:7.0f} us"
        f"  {sample.broker_cores:.2f} core  {sample.messages:,} messages"
    )


def as_json(samples: list[Sample]) -> list[dict[str, float]]:
    """Return the samples for a result file."""
    return [asdict(sample) for sample in samples]


def _slice(system: Ours, rate: float, seconds: float) -> loadgen.Result:
    load = replace(LOAD, rate=rate)
    return loadgen.run(system.address, load, seconds=seconds, pids=system.broker.pids())


def _segments(data: Path) -> int:
    """Count the files that the store may hold open because there is more stored."""
    return sum(1 for pattern in ("commitlog/*", "consumequeue/*/*/*") for _ in data.glob(pattern))
