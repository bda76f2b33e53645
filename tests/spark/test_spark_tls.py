"""Spark and servers that ask for TLS, with an authority made by the test: source, sink, jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import inorder
from inorder.errors import ConfigError, ConnectFailed, TransportError
from inorder.model import Message
from inorder.spark import cluster
from inorder.spark.cluster import Cluster, Servers, Tls
from inorder.spark.sink.options import LINEAGE
from tests.spark.barequery import BareQuery
from tests.spark.jobkit import command, environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Run servers that speak nothing but TLS; who signed their certificate is in a file."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(folder / "server.pem")
    )
    settings = {"tls_mode": "enforcing", "tls_certificate": str(folder / "server.pem"),
                "tls_key": str(folder / "server.pem")}  # fmt: skip
    words = [sys.executable, "-m", "inorder.cli.main", "up", "--namesrv-port", "0",
             "--broker-port", "0", "--data", str(folder / "data")]  # fmt: skip
    words += [word for name, value in settings.items() for word in ("--set", f"net.{name}={value}")]
    process: Any = subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        ready = process.stdout.readline().split()
        assert ready[:1] == ["ready"], process.stderr.read()
        yield Servers(ready[1].removeprefix("namesrv="), Tls(ca=str(folder / "ca.pem")))
    finally:
        cluster.close_all()
        process.terminate()
        process.communicate(timeout=30)


def fill(secure: Servers, topic: str, count: int) -> None:
    with inorder.Producer(secure.namesrv, tls=secure.context()) as producer:
        producer.send_batch(
            [Message(topic, b"%d" % at, key=f"order-{at % 7}") for at in range(count)]
        )


def stored(secure: Servers, topic: str) -> list[int]:
    with inorder.PullConsumer(secure.namesrv, group="look", tls=secure.context()) as consumer:
        return sorted(
            int(message.body)
            for queue in consumer.queues(topic, wait=5)
            for message in consumer.pull_all(queue, 0)
        )


def test_source_and_sink_encrypt(spark: Any, secure: Servers) -> None:
    """A topic is copied by Spark, exactly once: driver and workers speak TLS."""
    from inorder.spark import lineage

    fill(secure, "orders", 100)
    frame = spark.read.format("inorder").options(**secure.options(), topic="orders").load()
    rows = lineage(frame).select("body", "key", *LINEAGE)
    for _ in range(2):
        rows.write.format("inorder").mode("append").options(
            **secure.options(), topic="copy", sinkId="copy"
        ).save()
    assert stored(secure, "copy") == list(range(100))


@pytest.mark.parametrize("parks", [False, True])
def test_ordered_processing_encrypts(
    secure: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parks: bool
) -> None:
    """Messages, key maps, dead letters and parked keys."""

    def handler(message: Any, state: Any) -> Any:
        if int(message.body) == 30:
            raise ValueError("declined")
        return state, [(message.key, message.body.decode())]

    policy = inorder.Park(attempts=0) if parks else inorder.DeadLetter(attempts=0)
    topic, group = f"steps-{parks}", f"billing-{parks}"
    fill(secure, topic, 100)
    query = BareQuery(
        monkeypatch, secure.namesrv, tmp_path, handler, on_failure=policy, group=group,
        parks=parks, tls=secure.tls, topic=topic,
    )  # fmt: skip
    query.run(times=2)
    with inorder.Admin(secure.namesrv, tls=secure.context()) as admin:
        parked = sum(one.messages for one in admin.parked.list(group))
    if parks:
        assert (len(query.rows), parked) == (90, 10)
    else:
        assert (len(query.rows), parked) == (99, 0)
        assert stored(secure, f"%DLQ%{group}") == [30]


def test_jobs_encrypt(spark: Any, secure: Servers, tmp_path: Path) -> None:
    """An archive; what the tasks of a replay get; a command with the options that all have."""
    from inorder.spark.jobs import archive
    from inorder.spark.jobs.replays import ReplayOptions, ReplaySource, _words

    fill(secure, "paid", 50)
    done = archive(spark, namesrv=secure.namesrv, tls=secure.tls, topic="paid",
                   path=str(tmp_path), group="archive", merge=False)  # fmt: skip
    assert done.archived == 50
    options = ReplayOptions(str(tmp_path), secure.namesrv, "again", "paid", "r1", tls=secure.tls)
    words = {name: str(value) for name, value in _words(options).items() if value is not None}
    source: Any = ReplaySource(options=words)
    assert source.streamReader(None)._wanted == options
    assert secure.tls is not None
    shown = subprocess.run(
        command("lag", "archive", "--count", "1", "--namesrv", secure.namesrv,
                "--tls-ca", secure.tls.ca, "-o", "json"),
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert '"lag_last": 0' in shown.stdout


def test_who_cannot_be_trusted_is_refused(secure: Servers) -> None:
    """Another authority, none at all, no TLS: an error that says what to do."""
    assert secure.tls is not None
    other = secure.tls.ca.replace("ca.pem", "other.pem")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "PAUSE_S", 0)
        for tls in (Tls(ca=other), Tls()):
            with pytest.raises(ConnectFailed, match=r"CERTIFICATE_VERIFY_FAILED.*does tls_ca name"):
                Cluster(Servers(secure.namesrv, tls), group="g").topics()
        with pytest.raises(TransportError):
            Cluster(secure.namesrv, group="g").topics()
    assert Cluster(Servers(secure.namesrv, Tls(insecure=True)), group="g").topics() is not None
    with pytest.raises(ConfigError, match=r"there is no file /none\.pem here"):
        Cluster(Servers(secure.namesrv, Tls(ca="/none.pem")), group="g").topics()
