"""Spark with credentials in a file: driver and workers sign, and plans hold its path only.

The servers are in this process, and `tests/kit/signedrequests.py` checks each request that the
processes of Spark send.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import inorder
import inorder.testing
from inorder import Credentials, Message
from inorder.spark import cluster
from inorder.spark.sink.options import LINEAGE
from inorder.wire.codes import RequestCode as R
from tests.kit.signedrequests import Inspection, inspected
from tests.spark.jobkit import command, environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

ALICE = Credentials("alice", "tell-nobody-of-this")


@pytest.fixture
def seen() -> Iterator[tuple[Inspection, inorder.testing.RunningBroker]]:
    """Run servers whose requests are inspected; nothing wrong may come."""
    with inspected(ALICE) as inspection, inorder.testing.broker(credentials=ALICE) as broker:
        with broker.producer() as producer:
            producer.send_batch([Message("orders", b"%d" % at, key=f"k{at}") for at in range(100)])
        yield inspection, broker
        cluster.close_all()
    assert inspection.wrong == []


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file with credentials."""
    path = tmp_path / "who"
    path.write_text(f"access_key = {ALICE.access_key}\nsecret_key = {ALICE.secret_key}\n")
    path.chmod(0o600)
    return str(path)


def test_source_and_sink_sign(spark: Any, seen: Any, file: str) -> None:
    """A topic is copied, exactly once and at least once; no plan shows the secret."""
    from inorder.spark import lineage

    inspection, broker = seen
    options = {"namesrv": broker.namesrv, "credentials.file": file}
    frame = spark.read.format("inorder").options(**options, topic="orders").load()
    rows = lineage(frame).select("body", "key", *LINEAGE)
    for delivery in ("exactly-once", "at-least-once"):
        rows.write.format("inorder").mode("append").options(
            **options, topic=f"copy-{delivery}", sinkId="copy", delivery=delivery
        ).save()
        assert len(broker.messages(f"copy-{delivery}")) == 100
    plan = frame._jdf.queryExecution().toString()
    assert ALICE.secret_key not in plan
    assert {R.PULL_MESSAGE, R.SEND_BATCH_MESSAGE} <= inspection.codes.keys()
    # What came before the answer that gave the session asks for one.
    without = {c for c, count in inspection.codes.items() if inspection.in_sessions[c] < count}
    assert R.PULL_MESSAGE not in without
    assert R.SEND_BATCH_MESSAGE not in without


def test_jobs_sign(spark: Any, seen: Any, file: str, tmp_path: Path) -> None:
    """An archive, its replay, and a command with the option that all have."""
    from inorder.spark.jobs import archive, replay

    _, broker = seen
    where = {"namesrv": broker.namesrv, "credentials_file": file}
    done = archive(spark, **where, topic="orders", path=str(tmp_path / "a"), group="g", merge=False)
    assert done.archived == 100
    replay(spark, **where, path=str(tmp_path / "a"), topic="again")
    assert len(broker.messages("again")) == 100
    shown = subprocess.run(
        command("lag", "g", "--count", "1", "--namesrv", broker.namesrv,
                "--credentials-file", file, "-o", "json"),
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert ALICE.secret_key not in shown.stdout + shown.stderr


def test_a_file_that_others_may_read_stops_the_query(spark: Any, seen: Any, file: str) -> None:
    """Before a request is sent; the error says what to run."""
    _, broker = seen
    Path(file).chmod(0o644)
    frame = spark.read.format("inorder").options(
        namesrv=broker.namesrv, credentials_file=file, topic="orders"
    )
    with pytest.raises(Exception, match="chmod 600") as refused:
        frame.load().count()
    assert ALICE.secret_key not in str(refused.value)
