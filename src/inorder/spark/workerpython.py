"""The Python of Spark's workers, started in half the time.

A local Spark puts `pyspark.zip` and a jar before everything else on the search path of every Python
that it starts, though the same pyspark is installed beside it. What comes out of a zip is compiled
anew in each process, and the directories of both are read again and again: 0.7 s of CPU a process,
and a stream starts several. So workers are called through a wrapper that leaves both out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from inorder.spark.java import cache_folder, digest

_WRAPPER: Final = """#!/bin/sh
# Made by inorder: Python with the pyspark that is installed, not with that of Spark's zip file.
kept=
IFS=:
for part in $PYTHONPATH; do
  case "$part" in "$SPARK_HOME"/*) ;; *) kept="$kept${kept:+:}$part";; esac
done
unset IFS
PYTHONPATH=$kept exec '{python}' "$@"
"""


def worker_python(executable: str, spark_home: Path, environment: Mapping[str, str]) -> str:
    """Return the Python for workers: a wrapper of `executable` where Spark is the installed one.

    `spark_home` is where pyspark was imported from. Another Spark has a pyspark of its own, and
    its zip is the only one that fits it.
    """
    given = environment.get("SPARK_HOME")
    if given and Path(given).resolve() != spark_home.resolve():
        return executable
    if not (spark_home / "python" / "lib" / "pyspark.zip").exists():
        return executable
    text = _WRAPPER.replace("{python}", executable.replace("'", "'\\''"))
    return str(_script(text, cache_folder(environment)))


def _script(text: str, cache: Path) -> Path:
    """Return the file of a script, made if it is not there, moved into place whole."""
    wanted = cache / f"python-{digest(text)}"
    if not wanted.exists():
        cache.mkdir(parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(dir=cache)
        with os.fdopen(number, "w") as file:
            file.write(text)
        Path(draft).chmod(0o755)
        Path(draft).replace(wanted)
    return wanted
