"""A Spark session that is quiet and fit for ordered streams, on a laptop or on a cluster.

A local master gets what short jobs on few cores need: a quick-starting JVM and workers, few shuffle
partitions, task retries (plain `local[N]` has none), and checkpoints that do not fork a process per
file. A session that somebody else made is never touched.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.errors import ConfigError
from inorder.spark.java import java_home
from inorder.spark.workerpython import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    # What plans reads and writes for the driver is started with this one.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
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
    """Return what a session of ours sets."""
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
    """Raise ConfigError naming the first package that is missing or has a version we cannot use."""
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
