"""The Python of Spark's workers: what the wrapper leaves out, and where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from inorder.spark.sessions import worker_python

TELL = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.argv[1:])"


def fake_spark(folder: Path) -> Path:
    """Make the folder of an installed pyspark."""
    (folder / "python" / "lib").mkdir(parents=True)
    (folder / "python" / "lib" / "pyspark.zip").write_bytes(b"")
    return folder


def test_the_search_path_is_that_of_the_user(tmp_path: Path) -> None:
    """Without what lies in Spark's folder; other entries and all arguments stay as they are."""
    home = fake_spark(tmp_path / "it's spark")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_HOME": str(home)}
    python = worker_python(sys.executable, home, environment)
    path = f"{home}/python/lib/pyspark.zip:{home}/jars/core.jar:/my code:/other"
    done = subprocess.run(
        [python, "-c", TELL, "a b", "", "it's"], env={**environment, "PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["/my code:/other", "['a b', '', \"it's\"]"]


def test_a_python_in_a_folder_with_a_quote(tmp_path: Path) -> None:
    """It is called by its name."""
    home = fake_spark(tmp_path / "spark")
    link = tmp_path / "it's here" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    python = worker_python(str(link), home, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    done = subprocess.run([python, "-c", "print(1)"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_the_wrapper_of_a_python_is_made_once(tmp_path: Path) -> None:
    """A second call finds it; nothing else is left in the cache."""
    home = fake_spark(tmp_path / "spark")
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    first = worker_python(sys.executable, home, environment)
    assert worker_python(sys.executable, home, environment) == first
    assert os.listdir(tmp_path / "inorder") == [Path(first).name]


def test_another_spark_keeps_its_own_pyspark(tmp_path: Path) -> None:
    """SPARK_HOME is elsewhere, or there is no zip: the plain Python."""
    home, other = fake_spark(tmp_path / "spark"), fake_spark(tmp_path / "other")
    assert worker_python("py", home, {"SPARK_HOME": str(other)}) == "py"
    assert worker_python("py", tmp_path, {}) == "py"
    environment = {"SPARK_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path)}
    assert worker_python("py", home, environment) != "py"
