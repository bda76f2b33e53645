"""The cells of the comparison, each a load with the ratios it must reach.

A ratio is ours divided by theirs. With a compiled hot path higher bounds hold (`accelerated`).
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.loadgen import Load

E2E_RATE = 2000


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio of one metric."""

    metric: str
    pure: float | None
    accelerated: float | None
    at_least: bool

    def bound(self, accelerated: bool) -> float | None:
        """Return the bound that holds for this build of ours."""
        return self.accelerated if accelerated else self.pure

    def met(self, ratio: float, accelerated: bool) -> bool | None:
        """Tell whether a ratio reaches the target; None if there is none."""
        bound = self.bound(accelerated)
        if bound is None:
            return None
        return ratio >= bound if self.at_least else ratio <= bound


def rate(pure: float | None = None, accelerated: float | None = None) -> Target:
    """Bound messages per second from below."""
    return Target("messages_per_s", pure, accelerated or pure, at_least=True)


def cost(metric: str, pure: float | None = None, accelerated: float | None = None) -> Target:
    """Bound a cost (CPU, latency, memory) from above."""
    return Target(metric, pure, accelerated or pure, at_least=False)


@dataclass(frozen=True, slots=True)
class Cell:
    """One load, measured on both systems in turn."""

    name: str
    load: Load
    targets: tuple[Target, ...]
    sync_flush: bool = False
    filled: int = 0
    """Messages that must be stored before the first unit (pull cells)."""
    fill_batched: bool = False


CPU = "cpu_us_per_message"
SEND = (rate(2.0, 3.0), cost(CPU, 1 / 3, 1 / 6))
MANY_SEND = (rate(1.5, 2.0), cost(CPU))
"""Few requests of many connections: the kernel's part of each read and write is the largest."""
BATCH = (rate(1.0, 2.5), cost(CPU, 1 / 2, 1 / 5))
PULL = (rate(1.5), cost(CPU, 1 / 3))
PULL_FILL = 200_000

CELLS = {
    cell.name: cell
    for cell in (
        Cell("send-8x32", Load("send", 8, 32), SEND),
        Cell("send-1x256", Load("send", 1, 256), SEND),
        Cell("send-64x4", Load("send", 64, 4), MANY_SEND),
        Cell("send-1x1", Load("send", 1, 1), (rate(), cost("p50_us"), cost("p99_us"), cost(CPU))),
        Cell("batch-8x4", Load("batch", 8, 4, topic="BenchBatch"), BATCH),
        Cell("pull-8x4", Load("pull", 8, 4, topic="BenchPull"), PULL, filled=PULL_FILL),
        Cell(
            "pull-8x4-batched",
            Load("pull", 8, 4, topic="BenchPullBatched"),
            PULL,
            filled=PULL_FILL,
            fill_batched=True,
        ),
        Cell(
            "e2e-2k",
            Load("e2e", 1, 1, topic="BenchEnd", rate=E2E_RATE),
            (cost("p50_us", 1 / 3, 1 / 5), cost("p99_us", 1 / 3), cost(CPU)),
        ),
        Cell("sync-8x32", Load("send", 8, 32), (rate(2.0), cost(CPU)), sync_flush=True),
    )
}

# Cells that are not a load: start, rest and memory.
IDLE_TARGETS = (
    cost("ready_ms", 1 / 8),
    cost("idle_anonymous_mb", 1 / 8),
    cost("idle_cpu_percent"),
)
IDLE_CPU_PERCENT_MAX = 1.0
IDLE_MB_MAX = 60.0
READY_MS_MAX = 500.0
MEMORY_TARGETS = (cost("loaded_anonymous_mb", 1 / 8),)
MEMORY_MESSAGES = 10_000_000

DEFAULT_NAMES = (*CELLS, "idle")
ALL_NAMES = (*CELLS, "idle", "memory-10m")
