"""The page about jobs: its commands and its Python run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inorder.cli import pipeline
from inorder.cli.contents import app
from tests.kit.commands import CliRunner

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "pipeline-jobs.md"


def blocks(language: str) -> list[str]:
    """Return the examples of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)


def code_of(blocks: list[str], namesrv: str, folder: Path) -> str:
    """Return examples as one program, with servers and folder of a test and without a session."""
    code = "\n".join(blocks).replace('spark = session("local[2]")\n', "")
    return code.replace('"127.0.0.1:9876", "."', f"{namesrv!r}, {str(folder)!r}")


def test_the_commands_of_the_page(
    spark: Any, namesrv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of shell, in the order of the page, in the session of the tests."""
    from contextlib import nullcontext

    monkeypatch.setattr(pipeline, "spark_session", lambda *_: nullcontext(spark))
    monkeypatch.setenv("INORDER_NAMESRV", namesrv)
    monkeypatch.chdir(tmp_path)
    first, *others = blocks("python")
    letters = next(one for one in others if "inorder.DeadLetter" in one)
    exec(compile(code_of([first, letters], namesrv, tmp_path), str(PAGE), "exec"), {})
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
    spark: Any, namesrv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The functions behind the verbs, in the order of the page."""
    code = code_of(blocks("python"), namesrv, tmp_path)
    exec(compile(code, str(PAGE), "exec"), {"spark": spark})
    out = capsys.readouterr().out
    assert "3 messages, 0 holes" in out
    assert "3 of 3" in out
    assert "1 dead letters, 1 sent again" in out
