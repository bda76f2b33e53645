"""Apache Kafka 4 and Spark's own source for it, from Maven Central, for the runs beside ours.

One node (KRaft), its default settings but for addresses, folders and ports.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bench.process import Child, StartFailed, free_ports
from bench.rocketmq import COPY_DEPENDENCIES

VERSION = "4.1.0"
SCALA = "2.13"
# Spark's source for Kafka, and the part of it that is for Kerberos, which nothing here uses.
SPARK_SOURCE = "4.2.0"
SPARK_TOKENS = "4.0.0"
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "kafka"
FETCH_TIMEOUT_S = 900
READY_TIMEOUT_S = 180
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>inorder.bench</groupId><artifactId>kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>
      <version>{version}</version>{exclusions}</dependency>"""
_NO_SPARK = """
      <exclusions>
        <exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>"""


def missing() -> str | None:
    """Say what this machine lacks to run Kafka, or None."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None


def broker_jars() -> Path:
    """Return the folder of the jars of Kafka, filled from Maven Central the first time."""
    return _fetch(
        f"broker-{VERSION}",
        [
            ("org.apache.kafka", f"kafka_{SCALA}", VERSION, ""),
            ("org.apache.kafka", "kafka-tools", VERSION, ""),
        ],
    )


def spark_jars() -> list[Path]:
    """Return the jars that Spark needs to read from Kafka: the newest that Maven Central has."""
    tokens = f"spark-token-provider-kafka-0-10_{SCALA}"
    folder = _fetch(
        f"spark-{SPARK_SOURCE}",
        [
            ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", SPARK_SOURCE, _NO_SPARK),
            ("org.apache.spark", tokens, SPARK_TOKENS, _NO_SPARK),
        ],
    )
    wanted = ("kafka-clients-", "commons-pool2-", "spark-")  # the rest comes with Spark
    return sorted(jar for jar in folder.glob("*.jar") if jar.name.startswith(wanted))


def _fetch(name: str, artifacts: list[tuple[str, str, str, str]]) -> Path:
    home = CACHE / name
    jars, done = home / "lib", home / "complete"
    if done.exists():
        return jars
    home.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(
        _DEPENDENCY.format(group=group, artifact=artifact, version=version, exclusions=exclusions)
        for group, artifact, version, exclusions in artifacts
    )
    (home / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    result = subprocess.run(
        ["mvn", "-q", "-B", COPY_DEPENDENCIES, f"-DoutputDirectory={jars}",
         "-DincludeScope=runtime"],
        cwd=home, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise StartFailed(f"mvn could not fetch {name}: {result.stdout[-2000:]}")
    done.touch()
    return jars


def _listens(port: int) -> bool:
    """Tell whether somebody accepts there: Kafka does when it is ready."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Kafka:
    """One node in a temporary directory."""

    name = "kafka"

    def __init__(self, *, heap: str = "1g") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="inorder-bench-kafka-"))
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._classes = f"{broker_jars()}/*"
        config = self.directory / "server.properties"
        config.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={self.directory / 'data'}\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
        )
        try:
            self.tool(
                "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c",
                str(config),
            )  # fmt: skip
            self.broker = Child(
                "kafka",
                ["java", f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-cp", self._classes,
                 "kafka.Kafka", str(config)],
                directory=self.directory,
            )  # fmt: skip
            self.broker.wait_until(lambda: _listens(port), timeout_s=READY_TIMEOUT_S)
        except (StartFailed, subprocess.SubprocessError):
            self.stop()
            raise

    def make_topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        self.tool(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, "--create",
            "--topic", name, "--partitions", str(partitions),
        )  # fmt: skip

    def feed(self, topic: str, count: int, per_s: int, body_bytes: int) -> Child:
        """Send messages at a rate, by Kafka's own tool; each has its time of sending."""
        return Child(
            f"feed-{topic}",
            ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", self._classes,
             "org.apache.kafka.tools.ProducerPerformance", "--topic", topic,
             "--num-records", str(count), "--throughput", str(per_s),
             "--record-size", str(body_bytes),
             "--producer-props", f"bootstrap.servers={self.address}"],
            directory=self.directory,
        )  # fmt: skip

    def perform(
        self, topic: str, count: int, body_bytes: int, settings: Mapping[str, object]
    ) -> str:
        """Send messages as fast as Kafka's own tool can; return what it says about it."""
        return self.tool(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records",
            str(count), "--throughput", "-1", "--record-size", str(body_bytes),
            "--print-metrics", "--producer-props", f"bootstrap.servers={self.address}",
            *(f"{name}={value}" for name, value in settings.items()),
        )  # fmt: skip

    def tool(self, main: str, *words: str) -> str:
        """Run one of Kafka's tools; return what it prints."""
        done = subprocess.run(
            ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp",
             self._classes, main, *words],
            cwd=self.directory, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise StartFailed(f"{main}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return done.stdout

    def children(self) -> list[Child]:
        """Return all processes."""
        return [self.broker] if hasattr(self, "broker") else []

    def stop(self) -> None:
        """End all processes and delete the data."""
        for child in self.children():
            child.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
