"""Real clusters for tests, from the installed pyspark: a standalone one, and a Connect server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from bench.process import free_ports
from inorder.spark.sessions import java_home

HOME = Path(pyspark.__file__).parent
START_S = 150


def is_installed() -> bool:
    """Tell whether this Python finds the data source by itself, as that of an executor must."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import pyspark_inorder"], capture_output=True, check=False
    )
    return done.returncode == 0


def environment() -> dict[str, str]:
    """Return what executors get: a Java, a Python, and no search path of this test."""
    found = {**os.environ, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable,
             "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1"}  # fmt: skip
    found.pop("PYTHONPATH", None)
    home = java_home(os.environ)
    if home is not None:
        found["JAVA_HOME"] = str(home)
    return found


@contextmanager
def running(folder: Path, name: str, *words: str) -> Iterator[None]:
    """Run a part of Spark, its output in a file."""
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [str(HOME / "bin" / words[0]), *words[1:]], env=environment(), cwd=folder,
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(folder: Path, name: str, text: str) -> None:
    """Wait until a part has said something."""
    deadline = time.monotonic() + START_S
    log = folder / f"{name}.log"
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


@contextmanager
def standalone(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """Give the URL of a master with workers of one core each."""
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as held:
        held.enter_context(running(
            folder, "master", "spark-class", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0",
        ))  # fmt: skip
        wait_for(folder, "master", "I have been elected leader")
        for number in range(workers):
            held.enter_context(running(
                folder, f"worker{number}", "spark-class", "org.apache.spark.deploy.worker.Worker",
                "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                "--work-dir", str(folder / f"work{number}"), url,
            ))  # fmt: skip
        for number in range(workers):
            wait_for(folder, f"worker{number}", "Successfully registered with master")
        yield url


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Give the URL of a Spark Connect server on `local[2]`."""
    (port,) = free_ports(1)
    with running(
        folder, "connect", "spark-submit", "--master", "local[2,4]",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=768m",
        "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark-internal",
    ):  # fmt: skip
        deadline = time.monotonic() + START_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            log = folder / "connect.log"
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
