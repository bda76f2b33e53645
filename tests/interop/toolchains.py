"""Stock clients, fetched and built on demand into `.cache/interop` with pinned versions.

Each function returns the command that starts a driver (see clients/README.md), or raises `Lacking`
with what this machine does not have: the tests then skip and say so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench import rocketmq
from bench.once import once

CLIENTS = Path(__file__).resolve().parent / "clients"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "interop"
FETCH_TIMEOUT_S = 600

CPP_VERSION = "0.4.4"
JAVA_4 = "4.9.8"
JAVA_5 = rocketmq.VERSION
NODE_MAJOR_MIN = 18

# Drivers live for seconds: a small heap, the quick compiler only, no concurrent collector.
JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
CLIENT_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>inorder.interop</groupId><artifactId>client</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client</artifactId>
      <version>{JAVA_4}</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-acl</artifactId>
      <version>{JAVA_4}</version></dependency>
  </dependencies>
</project>
"""


class Lacking(Exception):
    """This machine cannot run a client; the text says why."""


def ours() -> list[str]:
    """Our own client, driven like the others."""
    return [sys.executable, str(CLIENTS / "ours" / "ourclient.py")]


def cpp() -> list[str]:
    """PyPI `rocketmq`, the C++ client: a wheel with its own library, for x86-64 Linux."""
    home = CACHE / f"cpp-{CPP_VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = home / "bin" / "python"

    def install() -> None:
        try:
            venv.create(home, with_pip=True, clear=True)
        except subprocess.CalledProcessError as error:
            raise Lacking(f"no virtual environment can be made: {error}") from error
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _fetch([*pip, "--only-binary=:all:", f"rocketmq=={CPP_VERSION}"], "install the wheel")
        _run([str(python), "-c", "import rocketmq.client"], "load its library")

    once(home / "complete", install)
    return [str(python), str(CLIENTS / "cpp" / "stockclient.py")]


def node() -> list[str]:
    """Npm `ali-ons`."""
    _need("node", "npm")
    version = _run(["node", "--version"], "run node").strip()
    if int(version.lstrip("v").split(".")[0]) < NODE_MAJOR_MIN:
        raise Lacking(f"node {version} is older than {NODE_MAJOR_MIN}")
    source = CLIENTS / "node"
    home = CACHE / f"node-{_digest(source.glob('*'))}"

    def install() -> None:
        home.mkdir(parents=True, exist_ok=True)
        for path in source.glob("*"):  # modules are looked for beside the script
            shutil.copy(path, home)
        _fetch(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], "install", folder=home)

    once(home / "complete", install)
    return ["node", str(home / "stockclient.js")]


def golang() -> list[str]:
    """The Go client v2."""
    _need("go")
    source = CLIENTS / "go"
    home = CACHE / f"go-{_digest(source.glob('*'))}"

    def build() -> None:
        home.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", str(home / "stock")]
        _fetch([*command, "."], "build", folder=source)

    once(home / "complete", build)
    return [str(home / "stock")]


def java(version: str, *options: str) -> Callable[[], list[str]]:
    """The Java client of a version, with system properties."""

    def command() -> list[str]:
        if (lacking := rocketmq.missing()) is not None:
            raise Lacking(lacking)
        _need("javac")
        jars = rocketmq.fetch() if version == JAVA_5 else _fetch_java_client()
        source = CLIENTS / "java" / "StockClient.java"
        home = CACHE / f"java-{version}-{_digest([source])}"
        javac = ["javac", "-nowarn", "-d", str(home), "-cp", f"{jars}/*", str(source)]
        once(home / "complete", lambda: _run(javac, "compile the driver"))
        return ["java", *JVM, "-Duser.home=.", *options, "-cp", f"{home}:{jars}/*", "StockClient"]

    return command


def _fetch_java_client() -> Path:
    home = CACHE / f"java-client-{JAVA_4}-acl"
    jars = home / "lib"

    def fetch() -> None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(CLIENT_POM)
        copy = ["mvn", "-q", "-B", rocketmq.COPY_DEPENDENCIES, f"-DoutputDirectory={jars}"]
        _fetch([*copy, "-DincludeScope=runtime"], "fetch jars", folder=home)

    once(home / "complete", fetch)
    return jars


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Lacking(f"{program} is not installed")


def _digest(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def _fetch(command: Sequence[str], what: str, *, folder: Path | None = None) -> None:
    """Run a tool that fetches something; networks fail now and then."""
    for _ in range(rocketmq.FETCH_TRIES - 1):
        try:
            _run(command, what, folder=folder)
        except Lacking:
            time.sleep(rocketmq.FETCH_PAUSE_S)
        else:
            return
    _run(command, what, folder=folder)


def _run(command: Sequence[str], what: str, *, folder: Path | None = None) -> str:
    """Run a tool to its end; what it cannot do here is a reason to skip, in its own words."""
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"CI": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Lacking(f"{Path(command[0]).name} could not {what}: {error}") from error
    if result.returncode != 0:
        words = (result.stderr or result.stdout).strip()[-500:]
        raise Lacking(f"{Path(command[0]).name} could not {what}: {words}")
    return result.stdout
