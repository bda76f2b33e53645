"""Writing to a topic: exactly once over repetitions, in order, or a clear refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.model import Message
from tests.spark.jobkit import forget_last_commit, stored

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def fill(namesrv: str, count: int) -> None:
    with inorder.Producer(namesrv) as producer:
        producer.send_batch(
            [Message("orders", f"{at}".encode(), key=f"order-{at % 20}") for at in range(count)]
        )


def source(spark: Any, namesrv: str) -> Any:
    from inorder.spark import lineage

    frame = spark.read.format("inorder").options(namesrv=namesrv, topic="orders").load()
    return lineage(frame).select(
        "body", "key", "source_topic", "source_broker", "source_queue", "source_offset"
    )


def test_a_repeated_job_stores_every_row_once(spark: Any, namesrv: str) -> None:
    """Run three times: each row is there once, and keys are in order."""
    fill(namesrv, 1000)
    for _ in range(3):
        (source(spark, namesrv).write.format("inorder").mode("append")
         .options(namesrv=namesrv, topic="results", sinkId="copy").save())  # fmt: skip
    found = stored(namesrv, "results")
    assert sorted(int(message.body) for message in found) == list(range(1000))
    last: dict[str, int] = {}
    for message in found:
        assert int(message.body) > last.get(message.key, -1)
        last[message.key] = int(message.body)


def test_a_replayed_micro_batch_stores_nothing_twice(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """The checkpoint is set back by a batch, as a kill before Spark's commit leaves it.

    Meanwhile the topic of the results is resized: its keys lie in other queues.
    """
    fill(namesrv, 600)
    with inorder.Admin(namesrv) as admin:
        admin.topics.create("results", queues=3)
    from inorder.spark import lineage

    def run() -> None:
        frame = (
            spark.readStream.format("inorder")
            .options(namesrv=namesrv, topic="orders", startingOffsets="earliest",
                     maxOffsetsPerTrigger="200")
            .load()
        )  # fmt: skip
        query = (
            lineage(frame)
            .select("body", "key", "source_topic", "source_broker", "source_queue", "source_offset")
            .writeStream.format("inorder")
            .options(namesrv=namesrv, topic="results", sinkId="copy")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    forget_last_commit(tmp_path / "checkpoint")
    with inorder.Admin(namesrv) as admin:
        admin.topics.resize("results", queues=5)
    run()
    assert sorted(int(m.body) for m in stored(namesrv, "results")) == list(range(600))


def test_rows_out_of_order_fail_the_task(spark: Any, namesrv: str) -> None:
    """A shuffle that loses the order is an error, not a loss."""
    fill(namesrv, 500)
    shuffled = source(spark, namesrv).orderBy("source_queue", "source_offset", ascending=False)
    with pytest.raises(Exception, match="not in the order of their source"):
        (shuffled.coalesce(1).write.format("inorder").mode("append")
         .options(namesrv=namesrv, topic="results", sinkId="copy").save())  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["body"], {"topic": "t"}, "where each row comes from"),
        (["body", "source_topic", "source_broker", "source_queue", "source_offset"],
         {"topic": "t"}, "sinkId"),
        (["body"], {"delivery": "at-least-once"}, "say where to"),
        (["key"], {"topic": "t"}, "column body"),
        (["body"], {"topic": "t", "delivery": "maybe"}, "neither exactly-once"),
        (["body"], {"topic": "t", "sinkid": "x", "colour": "red"}, "no option 'colour'"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(
    columns: list[str], options: dict[str, str], says: str
) -> None:
    """Before anything runs, with the way out."""
    from inorder.errors import ConfigError
    from inorder.spark.sink.options import parse

    with pytest.raises(ConfigError, match=says):
        parse({"namesrv": "h:1", **options}, columns)
