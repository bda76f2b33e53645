"""Spark on Apache RocketMQ: batch, stream, sink and jobs unchanged; at least once, and said so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'inorder[spark]'")

import inorder
from inorder.errors import InorderError
from tests.interop.rocketmq import is_routed, real_cluster
from tests.interop.test_our_consumer_on_rocketmq import make_topic
from tests.spark.jobkit import SOURCES, check_in_order, fill, stored

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run Apache RocketMQ's name server and broker, with a topic that is filled."""
    with real_cluster(tmp_path_factory.mktemp("rocketmq")) as (host, port):
        address = f"{host}:{port}"
        for topic in ("orders", "results", "again"):
            make_topic(address, topic)
        assert is_routed((host, port), "orders")
        fill(address, 3000)
        yield address


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Return a local session."""
    from inorder.spark.sessions import session

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCES), before)))
    made = session("local[2]", conf={"spark.driver.memory": "768m"})
    yield made
    made.stop()


def test_a_batch_is_read_in_order(spark: Any, namesrv: str) -> None:
    """Every message once, offsets without a gap, tags compared by the broker."""
    frame = spark.read.format("inorder").options(namesrv=namesrv, topic="orders").load()
    rows = frame.select("queue", "offset", "key", "body", "keys", "properties").collect()
    assert sorted(int(row.body) for row in rows) == list(range(3000))
    last: dict[int, int] = {}
    for row in rows:
        assert row.offset == last.get(row.queue, -1) + 1
        last[row.queue] = row.offset
    assert rows[0].properties["shop"] == f"s{int(rows[0].body) % 5}"
    new = spark.read.format("inorder").options(namesrv=namesrv, topic="orders", tag="new").load()
    assert new.count() == 1000


def test_a_stream_goes_to_a_topic_at_least_once(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """Keys keep their order, the group's offsets are mirrored; exactly once is refused."""
    from inorder.spark import lineage

    def start(delivery: str) -> Any:
        frame = (
            spark.readStream.format("inorder")
            .options(namesrv=namesrv, topic="orders", startingOffsets="earliest", group="copier",
                     maxOffsetsPerTrigger="1500")
            .load()
        )  # fmt: skip
        columns = ["body", "key", "tag", "source_topic", "source_broker", "source_queue",
                   "source_offset"]  # fmt: skip
        query = (
            lineage(frame).select(*columns).writeStream.format("inorder")
            .options(namesrv=namesrv, topic="results", sinkId="copy", delivery=delivery)
            .option("checkpointLocation", str(tmp_path / delivery))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()

    with pytest.raises(Exception, match="say delivery=at-least-once"):
        start("exactly-once")
    start("at-least-once")
    check_in_order(stored(namesrv, "results"), 3000)
    with inorder.PullConsumer(namesrv, group="copier") as consumer:
        done = [consumer.committed(queue) or 0 for queue in consumer.queues("orders")]
    assert sum(done) == 3000


def test_jobs_run_there_too(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """Archive, replay and audit; what needs numbers is refused with a way out."""
    from inorder.spark.jobs import archive, audit, lag_over_time, replay

    path = str(tmp_path / "archive")
    kept = archive(spark, namesrv=namesrv, topic="orders", path=path, group="keeper")
    assert (kept.archived, kept.holes) == (3000, 0)
    with pytest.raises(InorderError, match="say delivery=at-least-once"):
        replay(spark, path=path, namesrv=namesrv, topic="again")
    sent = replay(spark, path=path, namesrv=namesrv, topic="again", delivery="at-least-once",
                  replay_id="second")  # fmt: skip
    assert sent.replayed == 3000
    check_in_order(stored(namesrv, "again"), 3000)
    verdict = audit(spark, topic="orders", namesrv=namesrv, results="results")
    assert verdict.ok, str(verdict)
    assert lag_over_time(namesrv, group="keeper", count=1).lag_last == 0
