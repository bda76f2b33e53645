"""What the page about processing in order shows is what happens: its examples run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inorder
from tests.spark.jobkit import examples, program

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "ordered-processing.md"


def test_the_examples_of_the_ordered_page(
    spark: Any, namesrv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Balances by key with a busy gateway and a broken payment; nobody waits; the job `orders`."""
    code = program(examples(PAGE), namesrv, tmp_path)
    exec(compile(code, str(PAGE), "exec"), {"spark": spark})
    assert capsys.readouterr().out.splitlines()[-1] == "1 0 1"
    found: dict[str, list[bytes]] = {}
    with inorder.PullConsumer(namesrv, group="look") as consumer:
        for topic in ("balances", "%DLQ%billing", "order-results"):
            for queue in consumer.queues(topic, wait=5):
                for message in consumer.pull_all(queue, 0):
                    found.setdefault(f"{topic} {message.key}", []).append(message.body)
    assert found["balances anna"] == [b"5", b"12", b"20"]
    assert found["balances bert"] == [b"1", b"2", b"3", b"4"]
    assert found["%DLQ%billing anna"] == [b"x"]
    assert len(found["order-results carl"]) == 4
