"""`inorder pipeline …` as people type it: answers, JSON, exit codes, and kill -9 half-way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.cli import pipeline
from inorder.cli.contents import app
from inorder.errors import InorderError
from inorder.model import Message
from inorder.spark.cluster import Cluster
from tests.kit.commands import CliRunner
from tests.spark.jobkit import (
    SOURCES,
    check_in_order,
    command,
    environment,
    files_of,
    fill,
    kill_when,
    stored,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

ROUNDS = int(os.environ.get("INORDER_ROUNDS", "1"))


@pytest.fixture
def run(spark: Any, namesrv: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a verb in the session of the tests and returns its JSON."""

    @contextmanager
    def the_session(master: str | None, conf: dict[str, str]) -> Any:
        assert master in (None, "local[2]")
        assert conf in ({}, {"spark.app.name": "x"})
        yield spark

    monkeypatch.setattr(pipeline, "spark_session", the_session)

    def invoke(*words: str, code: int = 0, text: bool = False) -> Any:
        form = [] if text else ["-o", "json"]
        done = CliRunner().invoke(app, ["pipeline", *words, "--namesrv", namesrv, *form])
        assert done.exit_code == code, done.output
        return done.output if text else json.loads(done.stdout) if done.stdout else done.stderr

    return invoke


def test_every_verb_does_its_work(run: Any, namesrv: str, tmp_path: Path) -> None:
    """Archive, replay, audit, dead letters and lag, one after the other, with their answers."""
    path = str(tmp_path / "archive")
    fill(namesrv, 1000)
    done = run("archive", "orders", path, "--group", "keeper", "--batch", "400",
               "--master", "local[2]", "--conf", "spark.app.name=x")  # fmt: skip
    assert (done["archived"], done["batches"], done["holes"]) == (1000, 3, 0)
    assert "0 messages archived" in run("archive", "orders", path, text=True)
    assert run("replay", path, "again")["replayed"] == 1000
    assert "another --id sends all again" in run("replay", path, "again", text=True)
    check_in_order(stored(namesrv, "again"), 1000)
    good = run("audit", "orders", "--results", "again", "--plot", str(tmp_path / "audit.png"))
    assert (good["ok"], good["lost"], good["doubled"], good["inverted"]) == (True, 0, 0, 0)
    archived = run("audit", "orders", "--archive", path, "--results", "again")
    assert (archived["ok"], archived["stored"]) == (True, 1000)
    fill(namesrv, 100, first=1000)
    late = run("audit", "orders", "--results", "again", code=1, text=True)
    assert late.startswith("100 lost, 0 doubled, 0 inverted")
    assert "order-" in late, "the worst keys are shown"
    assert run("audit", "orders", "--results", "again", "--filtered")["ok"]
    lag = run("lag", "keeper", "--count", "3", "--every", "0.05", "--path", str(tmp_path / "lag"),
              "--plot", str(tmp_path / "lag.png"))  # fmt: skip
    assert (lag["samples"], lag["lag_last"]) == (3, 100)
    assert (tmp_path / "lag.png").read_bytes().startswith(b"\x89PNG")
    with inorder.Producer(namesrv) as producer:
        producer.send_batch(
            [Message("%DLQ%billing", b"x", key="k", properties={"RETRY_TOPIC": "orders"})]
        )
    assert run("dead-letters", "billing")["causes"][0]["cause"] == "failed 0 times"
    assert run("dead-letters", "billing", "--redrive")["redriven"] == 1


def test_what_is_wrong_is_one_line(run: Any, tmp_path: Path) -> None:
    """Errors of a job are told like those of any command, with their exit codes."""
    said = run("archive", "nothing", str(tmp_path), code=1)
    assert said.startswith("inorder: ")
    assert "knows topic nothing" in said
    assert said.count("\n") == 1
    assert "holds no topic at all" in run("replay", str(tmp_path), "again", code=2)
    assert "say what was handled" in run("audit", "orders", code=2)


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_an_archive_survives_kill_9(namesrv: str, tmp_path: Path, round_number: int) -> None:
    """Driver and JVM killed while files are written; the next run ends with every message once."""
    import pyarrow.dataset as ds

    path = tmp_path / "archive"
    fill(namesrv, 20_000)
    words = command("archive", "orders", str(path), "--batch", "1000", "--master", "local[2]",
                    "--namesrv", namesrv, "--no-merge", "-o", "json")  # fmt: skip
    wanted = 8 + 13 * round_number % 60
    kill_when(words, lambda: len(files_of(path, ".parquet")) > wanted, tmp_path / "log")
    words[words.index("--no-merge")] = "--merge"
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["archived"] < 20_000, "it went on, it did not begin anew"
    files = [str(file) for file in path.rglob("*.parquet")]
    bodies = ds.dataset(files).to_table(columns=["body"])["body"].to_pylist()
    assert sorted(map(int, bodies)) == list(range(20_000))
    assert not list(path.rglob(".part-*"))


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_replay_survives_kill_9(
    spark: Any, namesrv: str, tmp_path: Path, round_number: int
) -> None:
    """Killed while it sends; the next run ends with every message once, each key in its order."""
    from inorder.spark.jobs import archive

    path = str(tmp_path / "archive")
    fill(namesrv, 6000)
    archive(spark, namesrv=namesrv, topic="orders", path=path)
    words = command("replay", path, "again", "--rate", "4000", "--master", "local[2]",
                    "--namesrv", namesrv, "-o", "json")  # fmt: skip
    wanted, cluster = 500 + 700 * round_number % 5000, Cluster(namesrv, group="look")

    def is_time() -> bool:
        try:
            return sum(cluster.ends(cluster.queues("again")).values()) > wanted
        except InorderError:
            return False

    kill_when(words, is_time, tmp_path / "log")
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_in_order(stored(namesrv, "again"), 6000)


def test_without_spark_the_way_out_is_said(namesrv: str, tmp_path: Path) -> None:
    """Where pyspark is not installed a job says what to install; help works all the same."""
    code = (
        "import sys, importlib.metadata as m; real = m.version\n"
        "def version(name):\n"
        "    if name == 'pyspark': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version; sys.modules['pyspark'] = None\n"
        "from inorder.cli.contents import app; app()\n"
    )
    for words, status, says in (
        (["pipeline", "--help"], 0, "archive"),
        (["pipeline", "archive", "orders", str(tmp_path), "--namesrv", namesrv], 2,
         "pyspark is not installed; pip install 'inorder[spark]'"),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": str(SOURCES)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert says in done.stdout + done.stderr
