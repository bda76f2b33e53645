"""The job `orders`: life cycles by account to Parquet and a topic, killed and repeated."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import inorder
from inorder.demo.spark import life_cycles
from inorder.model import Message

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_orders_go_to_both_places_once(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """Late, busy and broken payments; the last batch repeated; audited; balances add up."""
    from inorder.spark.jobs import audit, orders

    steps = list(life_cycles(Random(3), 20, 200))
    broken = {"order": "never", "step": "paid", "broken": True}
    with inorder.Producer(namesrv) as producer:
        producer.send_batch([Message("steps", body, key) for key, body in steps])
        producer.send("steps", json.dumps(broken).encode(), key="account-1")
    path = tmp_path / "orders"
    options: Any = {
        "namesrv": namesrv, "topic": "steps", "results": "done", "path": str(path),
        "group": "shop", "attempts": 1, "batch": 300,
    }  # fmt: skip
    seen: list[int] = []
    first = orders(spark, **options, watch=lambda step: seen.append(step.done))
    assert first.processed == len(steps) + 1 == seen[-1]
    assert first.batches == len(seen) > 1
    newest = max((path / "_checkpoint" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
    newest.unlink()
    again = orders(spark, **options)
    assert (again.rows, again.accounts, again.balance, again.steps, again.waiting) == (
        len(steps), first.accounts, first.balance, first.steps, 0,
    )  # fmt: skip
    assert first.steps["paid"] > first.late_payments > 0
    assert first.balance == 0, "every order was paid or cancelled"
    verdict = audit(spark, topic="steps", namesrv=namesrv, results="done")
    assert (verdict.lost, verdict.doubled, verdict.inverted) == (1, 0, 0), "one is a dead letter"
    files = audit(
        spark, topic="steps", namesrv=namesrv, parquet=str(path / "results"), order_by="sequence"
    )
    assert (files.lost, files.doubled, files.inverted) == (1, 0, 0)
    with inorder.PullConsumer(namesrv, group="look") as consumer:
        letters = [m for q in consumer.queues("%DLQ%shop") for m in consumer.pull_all(q, 0)]
    assert [letter.key for letter in letters] == ["account-1"]
