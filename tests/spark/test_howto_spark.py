"""What the page about Spark shows is what happens: its examples run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inorder
from tests.spark.jobkit import examples, program

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "spark.md"


def test_the_examples_of_the_page(
    spark: Any, namesrv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading, copying exactly once and following a topic, in the order of the page."""
    code = program(examples(PAGE), namesrv, tmp_path)
    exec(compile(code, str(PAGE), "exec"), {"spark": spark})
    assert "order-42|    3" in capsys.readouterr().out
    with inorder.PullConsumer(namesrv, group="look") as consumer:
        found = [
            message.body
            for queue in consumer.queues("results", wait=5)
            for message in consumer.pull_all(queue, 0)
        ]
    assert found == [b"CREATED", b"PAID", b"SHIPPED"]
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 3
