"""Apache RocketMQ itself: fetched from Maven Central, started on loopback with its own defaults.

What is changed from its defaults: addresses and ports, store paths, heap size, and what the caller
asks for (flush mode, segment sizes). Its replication port listens on all addresses whatever one
sets; nothing here connects to it.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from bench.once import once
from bench.process import Child, StartFailed, free_ports
from bench.remoting import Connection, RemotingError

VERSION = "5.3.3"
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "rocketmq" / VERSION
FETCH_TIMEOUT_S = 900
FETCH_TRIES = 3
FETCH_PAUSE_S = 5
READY_TIMEOUT_S = 90
GET_MAX_OFFSET = 30
GET_ROUTE = 105
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>inorder.bench</groupId><artifactId>rocketmq</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-namesrv</artifactId>
      <version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId>
      <version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""


def missing() -> str | None:
    """Say what this machine lacks to run RocketMQ, or None."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None


def fetch() -> Path:
    """Return the folder of jars, filled from Maven Central the first time."""
    jars = CACHE / "lib"

    def copy_jars() -> None:
        (CACHE / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", COPY_DEPENDENCIES, f"-DoutputDirectory={jars}"]
        for tries_left in reversed(range(FETCH_TRIES)):  # what came is kept: the next goes on
            result = subprocess.run(
                [*command, "-DincludeScope=runtime"],
                cwd=CACHE,
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
            if result.returncode == 0:
                return
            if tries_left:
                time.sleep(FETCH_PAUSE_S)
        raise StartFailed(f"mvn could not fetch RocketMQ {VERSION}: {result.stdout[-2000:]}")

    once(CACHE / "complete", copy_jars)
    return jars


class RocketMQNameServer:
    """A real name server in a directory of its own."""

    def __init__(self, directory: Path, *, heap: str = "256m") -> None:
        home = _make_home(directory / "namesrv")
        port = free_ports(1)[0]
        self.address = ("127.0.0.1", port)
        config = _write_config(
            home / "namesrv.properties", {"listenPort": port, "bindAddress": "127.0.0.1"}
        )
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self.child = _java("rocketmq-namesrv", main, home=home, heap=heap, config=config)

    def wait_ready(self) -> float:
        """Wait until it answers; return the milliseconds this took."""
        try:
            return self.child.wait_until(
                lambda: answers(self.address, GET_ROUTE, {"topic": "TBW102"}),
                timeout_s=READY_TIMEOUT_S,
            )
        except StartFailed:
            self.child.kill()
            raise


class RocketMQBroker:
    """A real broker on a store directory, which may have been written by someone else."""

    def __init__(
        self,
        directory: Path,
        *,
        namesrv: tuple[str, int] | None,
        store: Path | None = None,
        heap: str = "1g",
        port: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        home = _make_home(directory / "broker")
        self.store = store if store is not None else directory / "store"
        # The fast port is two below, replication one above.
        self.port = port if port is not None else free_ports(1, apart=(-2, 0, 1))[0]
        self.address = ("127.0.0.1", self.port)
        self.name = "broker-a"
        config: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.name,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
        }
        if namesrv is not None:
            config["namesrvAddr"] = f"{namesrv[0]}:{namesrv[1]}"
        path = _write_config(home / "broker.conf", {**config, **(settings or {})})
        main = "org.apache.rocketmq.broker.BrokerStartup"
        self.child = _java("rocketmq-broker", main, home=home, heap=heap, config=path)

    def wait_ready(self) -> float:
        """Wait until it answers; return the milliseconds this took."""
        try:
            return self.child.wait_until(
                lambda: (
                    "boot success" in self.child.output()
                    and answers(self.address, GET_MAX_OFFSET, {"topic": "TBW102", "queueId": 0})
                ),
                timeout_s=READY_TIMEOUT_S,
            )
        except StartFailed as error:
            self.child.kill()
            raise StartFailed(f"{error}\n{self.log_tail()}") from error

    def log_tail(self) -> str:
        """Return the end of its own logs: why it refused to start is only said there."""
        logs = self.child.output_path.parent.glob("logs/rocketmqlogs/*.log")
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(logs)
            if path.name in {"broker.log", "store.log", "storeerror.log"}
        )


def answers(address: tuple[str, int], code: int, fields: dict[str, object]) -> bool:
    """Tell whether a server on this address answers a request, with whatever result."""
    try:
        with Connection(address, timeout_s=2) as connection:
            connection.request(code, fields)
    except (OSError, RemotingError):
        return False
    return True


def _make_home(directory: Path) -> Path:
    (directory / "conf").mkdir(parents=True, exist_ok=True)
    return directory


def _write_config(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def _java(name: str, main: str, *, home: Path, heap: str, config: Path) -> Child:
    """Start a main class the way RocketMQ's own scripts do, with `home` as its user's home."""
    options = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-XX:-OmitStackTraceInFastThrow"]
    return Child(
        name,
        ["java", *options, f"-Duser.home={home}", "-cp", f"{fetch()}/*", main, "-c", config],
        directory=home,
        environment={"ROCKETMQ_HOME": str(home)},
    )
