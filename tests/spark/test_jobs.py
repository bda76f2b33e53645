"""The jobs in a real Spark: what they do, that they go on, and what they say about trouble."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.errors import ConfigError, InorderError
from inorder.model import Message
from inorder.spark.jobs.files import Folder
from inorder.spark.jobs.progress import Step
from inorder.spark.jobs.rules import holes, sift
from tests.spark.jobkit import check_in_order, fill, forget_last_commit, stored

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def copy(spark: Any, namesrv: str, *, sink_id: str = "copy", **options: str) -> None:
    """Copy the topic to `results` through the sink."""
    from inorder.spark import lineage

    frame = spark.read.format("inorder").options(namesrv=namesrv, topic="orders", **options).load()
    rows = lineage(frame).select(
        "body", "key", "source_topic", "source_broker", "source_queue", "source_offset"
    )
    rows.write.format("inorder").mode("append").options(
        namesrv=namesrv, topic="results", sinkId=sink_id
    ).save()


def test_an_archive_holds_every_message_once_and_goes_on(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """Two runs, one without its checkpoint: each message once, all columns, small files merged."""
    from inorder.spark.jobs import archive, read_archive

    path = str(tmp_path / "archive")
    fill(namesrv, 3000)
    steps: list[Step] = []
    first = archive(spark, namesrv=namesrv, topic="orders", path=path, group="keeper", batch=1000,
                    watch=steps.append)  # fmt: skip
    assert (first.archived, first.batches, first.holes) == (3000, 3, 0)
    assert first.merged > 0, "the files of three batches became one a queue"
    assert [step.done for step in steps] == [1000, 2000, 3000]
    assert steps[-1].lag == 0
    fill(namesrv, 500, first=3000)
    assert archive(spark, namesrv=namesrv, topic="orders", path=path).archived == 500
    fill(namesrv, 500, first=3500)
    again = archive(spark, namesrv=namesrv, topic="orders", path=path,
                    checkpoint=str(tmp_path / "another"))  # fmt: skip
    assert again.archived == 500, "without its checkpoint it goes on behind its files"
    live = spark.read.format("inorder").options(namesrv=namesrv, topic="orders").load()
    kept = read_archive(spark, path)
    assert kept.schema == live.schema
    as_text = "to_json(struct(*)) as row"
    assert kept.count() == 4000
    assert kept.selectExpr(as_text).exceptAll(live.selectExpr(as_text)).count() == 0
    with inorder.PullConsumer(namesrv, group="keeper") as consumer:
        done = [consumer.committed(queue) or 0 for queue in consumer.queues("orders")]
    assert sum(done) == 3000, "the group's progress is shown to every tool"


def test_a_repeated_batch_writes_the_same_files(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """The checkpoint is set back by a batch, as a kill before Spark's commit leaves it."""
    from inorder.spark.jobs import archive

    path, checkpoint = str(tmp_path / "archive"), tmp_path / "checkpoint"
    fill(namesrv, 1000)

    def run() -> Any:
        return archive(spark, namesrv=namesrv, topic="orders", path=path, batch=400, merge=False,
                       checkpoint=str(checkpoint))  # fmt: skip

    first = run()
    forget_last_commit(checkpoint)
    (tmp_path / "archive" / "topic=orders" / ".part-killed").write_bytes(b"half")
    again = run()
    assert again.archived > 0, "the last batch was done again"
    assert (again.files, again.holds) == (first.files, first.holds)
    assert spark.read.parquet(path).count() == 1000
    assert not list((tmp_path / "archive").rglob(".part-*"))


def test_an_archive_is_replayed_in_order_and_once(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """A replay whose last batch is repeated stores nothing twice; properties and tags are kept."""
    from inorder.spark.jobs import archive, replay

    path, checkpoint = str(tmp_path / "archive"), tmp_path / "checkpoint"
    fill(namesrv, 2000)
    archive(spark, namesrv=namesrv, topic="orders", path=path)

    def run(**more: Any) -> Any:
        return replay(spark, path=path, namesrv=namesrv, topic="again", batch=600,
                      checkpoint=str(checkpoint), **more)  # fmt: skip

    first = run()
    assert (first.replayed, first.total, first.delivery) == (2000, 2000, "exactly-once")
    forget_last_commit(checkpoint)
    assert run().replayed > 0
    assert run().replayed == 0
    found = stored(namesrv, "again")
    check_in_order(found, 2000)
    assert {m.tag for m in found} == {"new", "paid"}
    assert all(m.properties["shop"].startswith("s") for m in found)


def test_a_replay_keeps_to_its_rate(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """At 500 messages/s, 600 take a second at least; without a key the queue's order is kept."""
    import time

    from inorder.spark.jobs import archive, replay

    path = str(tmp_path / "archive")
    with inorder.Producer(namesrv) as producer:
        for at in range(600):
            producer.send_oneway("orders", f"{at}".encode())
    archive(spark, namesrv=namesrv, topic="orders", path=path)
    began = time.monotonic()
    replay(spark, path=path, namesrv=namesrv, topic="again", messages_per_s=500)
    assert time.monotonic() - began > 1.0
    by_queue = {}
    for topic in ("orders", "again"):
        by_queue[topic] = sorted(
            [
                [m.body for m in stored(namesrv, topic) if m.queue.index == index]
                for index in range(8)
            ]
        )
    assert by_queue["orders"] == by_queue["again"]


def test_an_audit_finds_what_is_wrong(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """A copy is whole; with a hole, a copy too many and two results swapped, each is found."""
    from inorder.spark.jobs import audit

    fill(namesrv, 400)
    copy(spark, namesrv)
    good = audit(spark, topic="orders", namesrv=namesrv, results="results")
    assert (good.ok, good.stored, good.handled, good.keys) == (True, 400, 400, 20)
    rows = [
        {"source_broker": m.queue.broker, "source_queue": m.queue.index, "source_offset": m.offset,
         "number": at}
        for at, m in enumerate(stored(namesrv, "orders"))
    ]  # fmt: skip
    lost, doubled = rows.pop(5), rows[50]
    by_place = {(m.queue.index, m.offset): m.key for m in stored(namesrv, "orders")}
    pair = [row for row in rows
            if by_place[row["source_queue"], row["source_offset"]] == "order-7"][:2]  # fmt: skip
    pair[0]["number"], pair[1]["number"] = pair[1]["number"], pair[0]["number"]
    stranger = {**rows[0], "source_offset": 10_000, "number": 9_999}
    path, plot = str(tmp_path / "handled"), tmp_path / "audit.png"
    spark.createDataFrame([*rows, {**doubled, "number": 5000}, stranger]).write.parquet(path)
    bad = audit(spark, topic="orders", namesrv=namesrv, parquet=path, order_by="number",
                plot=str(plot))  # fmt: skip
    assert not bad.ok
    assert (bad.lost, bad.doubled, bad.unknown) == (1, 1, 1)
    assert bad.inverted >= 1
    worst = {one.key: one for one in bad.worst}
    assert worst[by_place[lost["source_queue"], lost["source_offset"]]].lost == 1
    assert worst["order-7"].inverted == 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    unjudged = audit(spark, topic="orders", namesrv=namesrv, parquet=path)
    assert (unjudged.order_judged, unjudged.inverted) == (False, 0)


def test_dead_letters_are_grouped_and_redriven_once(spark: Any, namesrv: str) -> None:
    """Letters are grouped by cause; sent again twice, each is stored once, in order."""
    from inorder.spark.jobs import dead_letters

    assert dead_letters(spark, namesrv=namesrv, group="billing").letters == 0
    with inorder.Producer(namesrv) as producer:
        for at in range(30):
            producer.send_batch(
                [Message("%DLQ%billing", f"{at}".encode(), key=f"order-{at % 20}",
                         properties={"RETRY_TOPIC": "orders", "shop": "s1",
                                     "INORDER_DEAD_ERROR": "no money" if at % 3 else "no stock"})]
            )  # fmt: skip
    found = dead_letters(spark, namesrv=namesrv, group="billing")
    assert [(one.cause, one.letters, one.keys) for one in found.causes] == [
        ("no money", 20, 17), ("no stock", 10, 10)]  # fmt: skip
    some = dead_letters(spark, namesrv=namesrv, group="billing", cause="no stock", redrive=True)
    assert (some.letters, some.redriven) == (10, 10)
    again = dead_letters(spark, namesrv=namesrv, group="billing", redrive=True)
    assert (again.letters, again.redriven) == (30, 20), "ten were sent before, by another choice"
    assert dead_letters(spark, namesrv=namesrv, group="billing", redrive=True).redriven == 0
    found = stored(namesrv, "orders")
    assert sorted(int(m.body) for m in found) == list(range(30))
    assert all(m.properties["shop"] == "s1" for m in found)


def test_trouble_is_told_in_one_sentence(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """What is wrong and what to do, without the layers of Spark."""
    from inorder.spark.jobs import archive, audit, replay

    with pytest.raises(InorderError, match="knows topic nothing; create it"):
        archive(spark, namesrv=namesrv, topic="nothing", path=str(tmp_path))
    with pytest.raises(ConfigError, match="holds no topic at all"):
        replay(spark, path=str(tmp_path), namesrv=namesrv, topic="again")
    with pytest.raises(ConfigError, match="say what was handled"):
        audit(spark, topic="orders", namesrv=namesrv)
    spark.range(3).write.parquet(str(tmp_path / "plain"))
    with pytest.raises(ConfigError, match="no column 'source_broker'"):
        audit(spark, topic="orders", namesrv=namesrv, parquet=str(tmp_path / "plain"))


def test_small_files_are_merged_and_a_killed_merge_is_harmless(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """A file beside the one that it was merged into counts once, and is swept away."""
    import shutil

    from inorder.spark.jobs import archive, merge, read_archive

    path = tmp_path / "archive"
    fill(namesrv, 1000)
    archive(spark, namesrv=namesrv, topic="orders", path=str(path), batch=300, merge=False)
    small = list(path.rglob("*.parquet"))
    shutil.copytree(path, tmp_path / "before")
    assert merge(spark, path=str(path)) > 0
    for one in small[:3]:
        if not one.exists():
            shutil.copy(tmp_path / "before" / one.relative_to(path), one)
    assert read_archive(spark, str(path)).count() == 1000
    assert merge(spark, path=str(path)) == 0
    kept, superseded = sift(Folder(str(path)).files())
    assert superseded == []
    assert holes(kept) == []
    assert len(kept) == len({file.queue for file in kept})
    assert read_archive(spark, str(path)).count() == 1000


def test_samples_come_from_progress_too(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """The progress of a query holds how far it was behind."""
    from inorder.spark.jobs import samples_of

    fill(namesrv, 300)
    query = (
        spark.readStream.format("inorder")
        .options(namesrv=namesrv, topic="orders", startingOffsets="earliest",
                 maxOffsetsPerTrigger="100")
        .load().writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    found = samples_of([json.loads(p.json) for p in query.recentProgress], "g")
    times = sorted({one.at_ms for one in found})
    lags = [sum(one.lag for one in found if one.at_ms == at) for at in times]
    assert lags[0] > 0
    assert lags == sorted(lags, reverse=True)
