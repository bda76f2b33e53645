"""Dead letters of a group: why they died, and sending them again in order.

A dead letter lies in `%DLQ%group` and names its original topic in a property. Its cause is the
property INORDER_DEAD_ERROR where it has one, else the number of its attempts. A redrive sends dead
letters to their own topics in the order in which they died, each key in its order. A redriven
message carries its place among the dead letters (`inorder_source`), so a later run finds it in its
topic and leaves it out. On an inorder broker a run that is killed and repeated stores nothing
twice, because the places are sequence numbers too. On Apache RocketMQ the messages that the killed
run sent last may come twice.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from inorder.errors import ConfigError, TopicNotRouted
from inorder.spark.cluster import Cluster, Servers, Tls
from inorder.spark.jobs.progress import Step, Watch, as_ours, unwatched
from inorder.spark.sink.options import AT_LEAST_ONCE, EXACTLY_ONCE, LINEAGE
from inorder.wire.extensions import DEAD_ERROR, SOURCE
from inorder.wire.names import dead_letter_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ORIGINS: Final = ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC")
_SAMPLE_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Cause:
    """The dead letters of one cause."""

    cause: str
    topic: str
    tag: str | None
    letters: int
    keys: int
    first_at: str
    last_at: str
    sample: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a group by cause, and the number of redriven ones."""

    group: str
    letters: int
    redriven: int | None
    delivery: str | None
    causes: list[Cause] = field(default_factory=list)


def dead_letters(
    spark: SparkSession,
    *,
    namesrv: str | None = None,
    group: str,
    cause: str | None = None,
    topic: str | None = None,
    key: str | None = None,
    redrive: bool = False,
    delivery: str = EXACTLY_ONCE,
    causes: int = 50,
    watch: Watch = unwatched,
    tls: Tls | None = None,
    credentials_file: str | None = None,
) -> DeadLetters:
    """Group the dead letters of a group by cause; with `redrive` send them again, in order.

    `cause`, `topic` (the one that a letter came from) and `key` choose some of them.
    """
    if delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise ConfigError(f"delivery: {delivery!r} is neither {EXACTLY_ONCE} nor {AT_LEAST_ONCE}")
    servers = Servers.of(namesrv, tls, credentials_file)
    if not _is_there(servers, dead_letter_topic(group)):
        return DeadLetters(group, 0, 0 if redrive else None, delivery if redrive else None)
    frame = _chosen(letters(spark, servers, group), cause, topic, key).persist()
    try:
        found = _grouped(frame, causes)
        count = frame.count()
        watch(Step(0, count))
        sent = None
        if redrive:
            sink_id = _sink_id(group, (cause, topic, key))
            sent = _redrive(frame, servers, group, sink_id, delivery) if count else 0
        watch(Step(count, count))
    except Exception as error:  # Spark wraps errors of tasks in its own
        raise as_ours(error) from error
    finally:
        frame.unpersist()
    return DeadLetters(group, count, sent, delivery if redrive else None, found)


def letters(spark: SparkSession, servers: Servers, group: str) -> DataFrame:
    """Return the dead letters of a group, with the columns `origin` and `cause`."""
    from pyspark.sql import functions as f

    options = {**servers.options(), "topic": dead_letter_topic(group)}
    frame = spark.read.format("inorder").options(**options).load()
    properties = f.col("properties")
    tried = f.concat(f.lit("failed "), f.col("redeliveries"), f.lit(" times"))
    return frame.withColumn(
        "origin", f.coalesce(*(properties[name] for name in _ORIGINS))
    ).withColumn("cause", f.coalesce(properties[DEAD_ERROR], tried))


def _chosen(frame: DataFrame, cause: str | None, topic: str | None, key: str | None) -> DataFrame:
    for column, wanted in (("cause", cause), ("origin", topic), ("key", key)):
        if wanted is not None:
            frame = frame.where(frame[column] == wanted)
    return frame


def _grouped(frame: DataFrame, count: int) -> list[Cause]:
    from pyspark.sql import functions as f

    rows = (
        frame.groupBy("cause", "origin", "tag")
        .agg(
            f.count("*").alias("letters"),
            f.count_distinct("key").alias("keys"),
            f.min("stored_at").cast("string").alias("first_at"),
            f.max("stored_at").cast("string").alias("last_at"),
            f.min_by("body", "offset").alias("body"),
        )
        .orderBy(f.desc("letters"), "cause", "origin", "tag")
        .limit(count)
        .collect()
    )
    return [
        Cause(
            row.cause, row.origin or "", row.tag, row.letters, row["keys"], row.first_at,
            row.last_at, bytes(row.body or b"").decode("utf-8", "replace")[:_SAMPLE_CHARS],
        )
        for row in rows
    ]  # fmt: skip


def _redrive(chosen: DataFrame, servers: Servers, group: str, sink_id: str, delivery: str) -> int:
    """Send the dead letters that were not redriven yet to their topics; return how many."""
    from pyspark.sql import functions as f

    from inorder.spark.sink.service import lineage

    if chosen.where("origin is null").limit(1).count():
        raise ConfigError(
            f"a dead letter of {group} does not say which topic it came from; choose the others "
            "with --topic"
        )
    places = lineage(_unsent(chosen, servers, group))
    source = f.create_map(f.lit(SOURCE), f.concat_ws("|", *LINEAGE))
    own = f.map_filter("properties", lambda name, _: name != SOURCE)
    rows = places.withColumn("properties", f.map_concat(own, source)).selectExpr(
        "origin as topic", "key", "tag", "keys", "body", "properties", *LINEAGE
    )
    count = int(rows.count())
    if count:
        rows.write.format("inorder").mode("append").options(
            **servers.options(), sinkId=sink_id, delivery=delivery
        ).save()
    return count


def _unsent(chosen: DataFrame, servers: Servers, group: str) -> DataFrame:
    """Leave out messages that an earlier redrive sent; they are found in their topic."""
    from pyspark.sql import functions as f

    first = chosen.agg(f.min("stored_at")).first()
    origins = [
        row.origin
        for row in chosen.select("origin").distinct().collect()
        if _is_there(servers, row.origin)
    ]
    if not origins:
        return chosen
    assert first is not None, "an aggregate without groups has one row"
    sent = chosen.sparkSession.read.format("inorder").options(
        **servers.options(), topic=",".join(origins), columns="properties",
        startingTimestamp=first[0].isoformat(),
    ).load()  # fmt: skip
    place = f.split(f.col("properties")[SOURCE], r"\|")
    from_letters = f.col("place")[0] == dead_letter_topic(group)
    places = sent.select(place.alias("place")).where(from_letters).select(
        f.col("place")[1].alias("broker"),
        f.col("place")[2].cast("int").alias("queue"),
        f.col("place")[3].cast("bigint").alias("offset"),
    )  # fmt: skip
    # Broadcast, so that the dead letters stay in their partitions and in order.
    return chosen.join(f.broadcast(places), ["broker", "queue", "offset"], "left_anti")


def _is_there(servers: Servers, topic: str) -> bool:
    try:
        return bool(Cluster(servers, group="inorder_spark").queues(topic))
    except TopicNotRouted:
        return False


def _sink_id(group: str, choice: tuple[str | None, ...]) -> str:
    """Return the producer name of a redrive. Numbers ascend per name, so choices differ in it."""
    if choice == (None, None, None):
        return f"redrive-{group}"
    digest = hashlib.sha256(json.dumps(choice).encode()).hexdigest()[:8]
    return f"redrive-{group}-{digest}"
