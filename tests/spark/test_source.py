"""`format("inorder")` in a real Spark: batches and streams, order, offsets, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.model import Message

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def fill(namesrv: str, count: int, *, topic: str = "orders", first: int = 0) -> None:
    """Send numbered messages of 20 keys, every third with the tag `new`."""
    with inorder.Producer(namesrv) as producer:
        for start in range(first, first + count, 500):
            producer.send_batch(
                [
                    Message(topic, f"{at}".encode(), key=f"order-{at % 20}",
                            tag="new" if at % 3 == 0 else "paid")
                    for at in range(start, min(start + 500, first + count))
                ]
            )  # fmt: skip


def reader(spark: Any, namesrv: str, **options: str) -> Any:
    return spark.read.format("inorder").options(namesrv=namesrv, topic="orders", **options)


def stream(spark: Any, namesrv: str, **options: str) -> Any:
    return spark.readStream.format("inorder").options(namesrv=namesrv, topic="orders", **options)


def drain(frame: Any, folder: Path, path: str = "out") -> Any:
    """Run a stream until it has read what there is; return the query."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / path))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_batch_reads_everything_in_order(spark: Any, namesrv: str) -> None:
    """Every message once; within a queue the offsets ascend in the order of the rows."""
    fill(namesrv, 3000)
    rows = reader(spark, namesrv).load().select("queue", "offset", "key", "body").collect()
    assert sorted(int(row.body) for row in rows) == list(range(3000))
    last: dict[int, int] = {}
    values: dict[str, int] = {}
    for row in rows:
        assert row.offset == last.get(row.queue, -1) + 1
        last[row.queue] = row.offset
        assert int(row.body) > values.get(row.key, -1), "a key is read in the order it was sent"
        values[row.key] = int(row.body)


def test_a_range_of_offsets_and_a_tag(spark: Any, namesrv: str) -> None:
    """Start and end by offset; the tag is compared by the broker, and then exactly."""
    fill(namesrv, 600)
    everything = reader(spark, namesrv).load()
    queue = everything.first().queue
    places = f'{{"orders": {{"broker-a": {{"{queue}": 2}}}}}}'
    ends = f'{{"orders": {{"broker-a": {{"{queue}": 12}}}}}}'
    some = reader(spark, namesrv, startingOffsets=places, endingOffsets=ends).load()
    assert [row.offset for row in some.filter(f"queue = {queue}").collect()] == list(range(2, 12))
    new = reader(spark, namesrv, tag="new").load()
    assert new.count() == everything.filter("tag = 'new'").count() == 200


def test_an_sql_expression_is_asked_of_the_broker(spark: Any, namesrv: str) -> None:
    """Also with pushdown, which then pushes no tag; offsets without a match are passed."""
    fill(namesrv, 600)
    for pushdown in ("false", "true"):
        new = reader(spark, namesrv, sql="TAGS IN ('new')", pushdown=pushdown).load()
        assert new.count() == new.filter("tag = 'new'").count() == 200
        assert new.filter("tag = 'paid'").count() == 0


def test_pushed_filters_read_less_and_change_nothing(spark: Any, namesrv: str) -> None:
    """With pushdown the rows are the same as without."""
    fill(namesrv, 600)
    for condition in ("tag = 'new'", "queue in (0, 1) and offset >= 5 and offset < 9",
                      "stored_at > timestamp'2020-01-01'", "tag = 'new' and queue = 0",
                      "stored_at < timestamp'2020-01-01'"):  # fmt: skip
        plain = reader(spark, namesrv).load().filter(condition).count()
        pushed = reader(spark, namesrv, pushdown="true").load().filter(condition).count()
        assert pushed == plain


def test_a_stream_goes_on_where_it_stopped(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """Two runs over one checkpoint read each message once, in bounded micro-batches."""
    fill(namesrv, 1000)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "300", "group": "archive"}
    first = drain(stream(spark, namesrv, **options).load(), tmp_path)
    assert [p["numInputRows"] for p in first.recentProgress] == [300, 300, 300, 100]
    fill(namesrv, 500, first=1000)
    drain(stream(spark, namesrv, **options).load(), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).select("body").collect()
    assert sorted(int(row.body) for row in rows) == list(range(1500))
    with inorder.PullConsumer(namesrv, group="archive") as consumer:
        done = [consumer.committed(queue) or 0 for queue in consumer.queues("orders")]
    assert sum(done) == 1500, "the group's progress is shown to every tool"


def test_lost_messages_fail_the_stream(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """A checkpoint that lies beyond what is stored is an error, not silence."""
    fill(namesrv, 100)
    options = {"startingOffsets": "earliest"}
    drain(stream(spark, namesrv, **options).load(), tmp_path)
    from inorder.testing import broker

    with broker() as other:
        fill(other.namesrv, 10)
        with pytest.raises(Exception, match="the topic was made again, or the log lost its end"):
            drain(stream(spark, other.namesrv, **options).load(), tmp_path)


def test_a_bad_option_is_an_error_that_names_it(spark: Any, namesrv: str) -> None:
    """What is wrong reaches the user through all layers of Spark."""
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        reader(spark, namesrv, startingOfset="earliest").load()
    with pytest.raises(Exception, match="knows topic nothing"):
        spark.read.format("inorder").options(namesrv=namesrv, topic="nothing").load().count()
