"""Consumers and broker that are killed while producers run: a sample of `tests.crash.consuming`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from inorder.checker import Kind
from tests.crash.consuming import Plan, run

SEED = int(os.environ.get("INORDER_SEED", "1"))


@pytest.mark.sample
def test_all_is_handled_in_order_over_kills_of_the_broker(tmp_path: Path) -> None:
    """And members that come and go; `make proof-consumer` kills members too, for ten minutes."""
    plan = Plan(seconds=5, seed=SEED, pause_s=(0.5, 1.5), kill_consumers=False)
    report, figures = asyncio.run(run(plan, tmp_path))
    print(f"seed={SEED} {figures}")
    assert report.ok, f"seed={SEED}: {report}"
    assert sum(figures.events.values()) > 0


@pytest.mark.sample
def test_a_consumer_that_commits_what_it_did_not_do_is_caught(tmp_path: Path) -> None:
    """The judge can fail: a planted handler returns and has done nothing."""
    plan = Plan(seconds=3, seed=SEED, pause_s=(5, 5), forgetful=True)
    report, _ = asyncio.run(run(plan, tmp_path))
    assert Kind.COMMIT_SKIP in report.by_kind, report  # and lost, unless a kill brings it again
