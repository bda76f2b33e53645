"""Consumers that come, go, are stopped and killed, and a broker that is killed: a sample."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.crash.storm import Plan, run

SEED = int(os.environ.get("INORDER_SEED", "1"))


@pytest.mark.sample
def test_every_effect_is_there_once_after_a_storm(tmp_path: Path) -> None:
    """Nobody starts a handler on another's queue; the fence lets each effect pass once, in order.

    `make proof-storm` does it with 16 consumers for ten minutes."""
    plan = Plan(seconds=8, seed=SEED, members=4, rate=15, pause_s=(0.3, 1.0))
    report, events = asyncio.run(run(plan, tmp_path))
    print(f"seed={SEED} {dict(events)}")
    assert report.ok, f"seed={SEED}: {report}"
    assert events["applied"] >= 30
