"""The page about jobs: its commands and its Python run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inorder.cli import pipeline
from inorder.cli.contents import app
from tests.kit.commands import CliRunner
from tests.spark.jobkit import examples, program

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "pipeline-jobs.md"


def test_the_commands_of_the_page(
    spark: Any, namesrv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of shell, in the order of the page, in the session of the tests."""
    from contextlib import nullcontext

    monkeypatch.setattr(pipeline, "spark_session", lambda *_: nullcontext(spark))
    monkeypatch.setenv("INORDER_NAMESRV", namesrv)
    monkeypatch.chdir(tmp_path)
    first, *others = examples(PAGE, "python")
    letters = next(one for one in others if "inorder.DeadLetter" in one)
    exec(compile(program([first, letters], namesrv, tmp_path), str(PAGE), "exec"), {})
    said = {}
    for line in "".join(examples(PAGE, "bash")).splitlines():
        words = line.split()
        assert words[0] == "inorder"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (line, done.output, done.stderr)
        said[line] = done.stdout
    (verdict,) = [text for line, text in said.items() if "audit" in line]
    assert verdict == examples(PAGE, "text")[1]
    assert (tmp_path / "audit.png").exists()
    assert list((tmp_path / "lag").glob("*.parquet"))


def test_the_python_of_the_page(
    spark: Any, namesrv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The functions behind the verbs, in the order of the page."""
    code = program(examples(PAGE, "python"), namesrv, tmp_path)
    exec(compile(code, str(PAGE), "exec"), {"spark": spark})
    out = capsys.readouterr().out
    assert "3 messages, 0 holes" in out
    assert "3 of 3" in out
    assert "1 dead letters, 1 sent again" in out
