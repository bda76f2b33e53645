"""The page about jobs: its commands and its Python run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import inorder
from inorder.cli import onspark
from inorder.cli.contents import app
from inorder.model import Message

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "pipeline-jobs.md"


def blocks(language: str) -> list[str]:
    """Return the examples of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)


@pytest.fixture
def filled(namesrv: str) -> str:
    """Return a name server with an order of three steps and a dead letter."""
    with inorder.Producer(namesrv) as producer:
        for step in ("created", "paid", "shipped"):
            producer.send("orders", step.encode(), key="order-42", tag=step)
        producer.send_batch(
            [Message("%DLQ%billing", b"paid", key="order-42", properties={"RETRY_TOPIC": "orders"})]
        )
    return namesrv


def test_the_commands_of_the_page(
    spark: Any, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of shell, in the order of the page, in the session of the tests."""
    from contextlib import nullcontext

    monkeypatch.setattr(onspark, "spark_session", lambda *_: nullcontext(spark))
    monkeypatch.setenv("INORDER_NAMESRV", filled)
    monkeypatch.chdir(tmp_path)
    said = {}
    for line in "".join(blocks("bash")).splitlines():
        words = line.split()
        assert words[0] == "inorder"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (line, done.output, done.stderr)
        said[line] = done.stdout
    (verdict,) = [text for line, text in said.items() if "audit" in line]
    assert verdict == blocks("text")[1]
    assert (tmp_path / "audit.png").exists()
    assert list((tmp_path / "lag").glob("*.parquet"))


def test_the_python_of_the_page(
    spark: Any, filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The functions behind the verbs, in the order of the page."""
    code = "\n".join(blocks("python"))
    names = {"NAMESRV": filled, "FOLDER": str(tmp_path), "spark": spark}
    exec(compile(code, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert "3 messages, 0 holes" in out
    assert "3 of 3" in out
    assert "1 dead letters, 1 sent again" in out
