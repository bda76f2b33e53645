"""Turns results into a table for people and JSON for the next run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import installs
from bench.cells import IDLE_CPU_PERCENT_MAX, IDLE_MB_MAX, READY_MS_MAX, Target
from bench.compare import CellResult
from bench.systems import Ours

LABELS = {
    "messages_per_s": "messages/s",
    "cpu_us_per_message": "CPU us/message",
    "p50_us": "p50 us",
    "p99_us": "p99 us",
    "client_cpu_us_per_message": "client CPU us/message",
    "broker_cpu_us_per_message": "broker CPU us/message",
    "decode_us_per_message": "CPU us/message",
    "percent_of_bound": "% of what handlers allow",
    "ready_ms": "ready ms",
    "idle_anonymous_mb": "RssAnon MB",
    "loaded_anonymous_mb": "RssAnon MB",
    "idle_cpu_percent": "CPU % of a core",
}
ABSOLUTE = {
    "ready_ms": READY_MS_MAX,
    "idle_anonymous_mb": IDLE_MB_MAX,
    "idle_cpu_percent": IDLE_CPU_PERCENT_MAX,
}
AT_LEAST = {"percent_of_bound": 95.0}
HEAD = ("cell", "metric", "ours", "theirs", "ratio", "spread", "target", "")


def table(results: Sequence[CellResult], *, accelerated: bool) -> str:
    """Return one line a metric: medians, median of the pair ratios, spread, target, met or not."""
    rows: list[tuple[str, ...]] = [HEAD]
    for result in results:
        rows += [_row(result, target, accelerated) for target in result.targets]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for row in rows:
        cells = [
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _row(result: CellResult, target: Target, accelerated: bool) -> tuple[str, ...]:
    metric = target.metric
    ours, theirs = result.median(Ours.name, metric), result.median(result.other, metric)
    ratios = result.ratios(metric)
    bound = target.bound(accelerated)
    ratio = spread = wanted = verdict = ""
    if ratios:
        ratio = _ratio(statistics.median(ratios))
        spread = f"{_ratio(min(ratios))} .. {_ratio(max(ratios))}"
    if bound is not None:
        wanted = (">= " if target.at_least else "<= ") + _ratio(bound)
    verdicts = []
    if ratios and (met := target.met(statistics.median(ratios), accelerated)) is not None:
        verdicts.append(met)
    if metric in ABSOLUTE and ours is not None:
        wanted = f"{wanted} and < {ABSOLUTE[metric]:g}" if wanted else f"< {ABSOLUTE[metric]:g}"
        verdicts.append(ours < ABSOLUTE[metric])
    if metric in AT_LEAST and ours is not None:
        wanted = f">= {AT_LEAST[metric]:g}"
        verdicts.append(ours >= AT_LEAST[metric])
    if verdicts:
        verdict = "met" if all(verdicts) else "NOT MET"
    label = LABELS.get(metric, metric)
    return (result.name, label, _number(ours), _number(theirs), ratio, spread, wanted, verdict)


def _ratio(value: float) -> str:
    """Write a ratio as people say it: 2.5 : 1 or 1 : 2.5."""
    if value <= 0:
        return "0 : 1"
    return f"{value:.2f} : 1" if value >= 1 else f"1 : {1 / value:.2f}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def bad_lines(results: Sequence[CellResult]) -> list[str]:
    """Return what the generator complained about, cell by cell."""
    return [f"{result.name}: {sample}" for result in results for sample in result.bad]


def machine() -> dict[str, Any]:
    """Describe where this was measured."""
    return {
        "python": sys.version.split()[0],
        "compiler_flags": "PGO" if _is_optimized() else "plain",
        "install": installs.current().name,
        "compiled_module": installs.current().compiled(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _is_optimized() -> bool:
    import sysconfig

    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")


def as_json(results: Sequence[CellResult]) -> list[dict[str, Any]]:
    """Return the results with every unit, medians and pair ratios."""
    return [
        {
            "cell": result.name,
            "units": result.units,
            "bad": result.bad,
            "metrics": {
                target.metric: {
                    "ours": result.median(Ours.name, target.metric),
                    "theirs": result.median(result.other, target.metric),
                    "ratios": result.ratios(target.metric),
                    "target_pure": target.pure,
                    "target_accelerated": target.accelerated,
                }
                for target in result.targets
            },
        }
        for result in results
    ]


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def put_in_page(page: Path, mark: str, text: str) -> None:
    """Replace what stands between `<!-- mark -->` and `<!-- /mark -->` in a page."""
    head, opening, rest = page.read_text().partition(f"<!-- {mark} -->")
    _, closing, tail = rest.partition(f"<!-- /{mark} -->")
    if not opening or not closing:
        raise ValueError(f"{page} has no place marked {mark}")
    where = machine()
    taken = (
        f"Taken {where['time'][:10]}: {where['cores']} cores, kernel {where['kernel']},"
        f" Python {where['python']} ({where['compiler_flags']}), {where['install']}, compiled"
        f" module: {where['compiled_module']}."
    )
    shown = text if text.startswith("|") else f"```\n{text}\n```"
    block = f"\n{taken}\n\n{shown}\n"
    page.write_text(f"{head}{opening}{block}{closing}{tail}")
