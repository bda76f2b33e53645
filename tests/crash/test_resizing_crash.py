"""A topic resized under load while brokers are killed: a sample of `tests.crash.resizing`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from inorder.checker import Handled, HandledResult
from tests.crash.resizing import Plan, overtaken, run

SEED = int(os.environ.get("INORDER_SEED", "1"))


@pytest.mark.sample
def test_a_topic_is_resized_in_order_over_kills(tmp_path: Path) -> None:
    """4 queues, 16, 5, with kills; `make proof-resize` does so for five minutes."""
    plan = Plan(seconds=4, seed=SEED, pause_s=(0.5, 1.5), members=2, producers=2, rate=60)
    report, figures = asyncio.run(run(plan, tmp_path))
    print(f"seed={SEED} {figures}")
    assert report.ok, f"seed={SEED}: {report}"
    assert figures.events["resized"] >= 2


def test_the_judge_sees_what_was_overtaken() -> None:
    """By the first success of each message of a producer's key, in whatever queue."""

    def handled(number: int, at: int, result: HandledResult = HandledResult.DONE) -> Handled:
        return Handled("c", "t/a/0", number, f"p0/k/{number}", "k", at, at + 1, result)

    assert overtaken([handled(0, 10), handled(1, 20), handled(0, 30)]) == []
    failed = HandledResult.FAILED
    assert overtaken([handled(0, 10, failed), handled(1, 20), handled(0, 30)]) == ["p0/k/0"]
