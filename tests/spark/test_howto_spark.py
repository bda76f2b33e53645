"""What the page about Spark shows is what happens: its examples run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import inorder

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "spark.md"


def test_the_examples_of_the_page(
    spark: Any, namesrv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading, copying exactly once and following a topic, in the order of the page."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M))
    # The tests have their one session already.
    code = code.replace('spark = session("local[2]")\n', "")
    code = code.replace('"127.0.0.1:9876", "."', f"{namesrv!r}, {str(tmp_path)!r}")
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
