"""Was everything handled, once and in order? Stored messages against results.

*Stored* is a topic, or an archive of it. *Handled* is whatever names the message that it was made
from:

    a topic     results that the inorder sink wrote. The name and number of their producer say it,
                or the property `inorder_source`. Their order is that of the result topic's queues
    an archive  of such a topic
    Parquet     with the columns source_broker, source_queue, source_offset (and source_topic where
                it holds several). It has no order of its own; `order_by` names the column that has

For every key the audit counts messages that are lost (stored, without a result), doubled (the same
result again), inverted (a result after one of a later message of its key) or unknown (a result of
no stored message). A message that retention removed does not count. Why: decision 36.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from inorder.errors import ConfigError
from inorder.spark.cluster import Servers, Tls
from inorder.spark.jobs.archives import read_archive
from inorder.spark.jobs.files import Folder
from inorder.spark.jobs.picture import Curve, Panel, check_picture, save_picture
from inorder.spark.jobs.progress import Step, Watch, unwatched
from inorder.spark.sink.options import LINEAGE
from inorder.spark.sink.service import ROWS_PER_MESSAGE_BITS
from inorder.wire.extensions import PRODUCER_ID, SEQUENCE, SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE: Final = ["broker", "queue", "offset"]
BUCKETS: Final = 60
_NUMBERED: Final = r"^spark:.*:([^:]+):([^:]+):(\d+)(:-)?(@\d+)?$"
_SUMS: Final = ("stored", "handled", "lost", "doubled", "inverted", "unknown")


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """The faults among the messages of one key."""

    key: str
    stored: int
    handled: int
    lost: int
    doubled: int
    inverted: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Audited:
    """The verdict, and the worst keys."""

    topic: str
    handled_in: str
    ok: bool
    order_judged: bool
    keys: int
    bad_keys: int
    stored: int
    handled: int
    lost: int
    doubled: int
    inverted: int
    unknown: int
    worst: list[KeyVerdict] = field(default_factory=list)
    plot: str | None = None

    def __str__(self) -> str:
        order = f"{self.inverted:,} inverted" if self.order_judged else "order not judged"
        return (
            f"{self.lost:,} lost, {self.doubled:,} doubled, {order}, {self.unknown:,} unknown; "
            f"{self.stored:,} stored, {self.handled:,} handled, {self.keys:,} keys"
        )


def audit(
    spark: SparkSession,
    *,
    topic: str,
    namesrv: str | None = None,
    archive: str | None = None,
    results: str | None = None,
    parquet: str | None = None,
    order_by: str | None = None,
    group: str | None = None,
    several: bool = False,
    filtered: bool = False,
    worst: int = 20,
    plot: str | None = None,
    watch: Watch = unwatched,
    tls: Tls | None = None,
    credentials_file: str | None = None,
) -> Audited:
    """Compare the stored messages of a topic with the handled ones.

    `archive` takes the stored messages from there. `results` is the topic that was written,
    `parquet` the folder. `group` leaves out what that group has not done yet. `several` allows more
    than one result of a message, `filtered` messages without one. `plot` is a file for a picture.
    """
    if (results is None) == (parquet is None):
        raise ConfigError("say what was handled: results (a topic) or parquet (a folder)")
    if plot is not None:
        check_picture(plot)
    servers = None if namesrv is None else Servers.of(namesrv, tls, credentials_file)
    handled, is_ordered = (
        _of_topic(spark, topic, servers, results)
        if results is not None
        else _of_parquet(spark, topic, parquet or "", order_by)
    )
    stored = _stored(spark, topic, servers, archive, group)
    messages = _per_message(stored, handled, is_ordered, several, filtered).persist()
    try:
        per_key = _per_key(messages).persist()
        sums = _sums(per_key)
        watch(Step(sums["stored"], sums["stored"]))
        bad = _worst(per_key, worst)
        if plot is not None:
            _draw(messages, topic, plot)
        per_key.unpersist()
    finally:
        messages.unpersist()
    counts = {name: sums[name] for name in _SUMS}
    faults = sum(counts[name] for name in ("lost", "doubled", "inverted", "unknown"))
    return Audited(
        topic, results or parquet or "", ok=faults == 0 and counts["stored"] > 0,
        order_judged=is_ordered, keys=sums["keys"], bad_keys=sums["bad_keys"], **counts,
        worst=bad, plot=plot,
    )  # fmt: skip


def _stored(
    spark: SparkSession,
    topic: str,
    servers: Servers | None,
    archive: str | None,
    group: str | None,
) -> DataFrame:
    """Return broker, queue, offset, key and time of the stored messages."""
    columns = ["broker", "queue", "offset", "key", "stored_at"]
    if archive is not None:
        return read_archive(spark, archive, topic).select(*columns)
    if servers is None:
        raise ConfigError("say where the topic is: namesrv, or archive")
    options = {**servers.options(), "topic": topic, "columns": ",".join(columns)}
    if group is not None:
        options |= {"group": group, "endingOffsets": "group"}
    return spark.read.format("inorder").options(**options).load()


def _of_topic(
    spark: SparkSession, topic: str, servers: Servers | None, results: str
) -> tuple[DataFrame, bool]:
    """Return broker, queue, offset, sub, lane and place of results, and if they have an order."""
    if servers is None:
        raise ConfigError("say where the results are: namesrv")
    options = {**servers.options(), "topic": results, "columns": "broker,queue,offset,properties"}
    return _of_results(spark.read.format("inorder").options(**options).load(), topic), True


def _of_parquet(
    spark: SparkSession, topic: str, parquet: str, order_by: str | None
) -> tuple[DataFrame, bool]:
    """Return the same of a folder: an archive of results, or any Parquet with lineage columns."""
    parquet = Folder(parquet).path
    if Folder(parquet).files():
        return _of_results(read_archive(spark, parquet), topic), True
    frame = spark.read.parquet(parquet)
    wanted = [*LINEAGE[1:], *([] if order_by is None else [order_by])]
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"{parquet} has no column {missing[0]!r}; inorder.spark.lineage makes "
            "source_broker, source_queue and source_offset"
        )
    if "source_topic" in frame.columns:
        frame = frame.where(frame["source_topic"] == topic)
    place = "cast(null as bigint)" if order_by is None else f"`{order_by}`"
    chosen = frame.selectExpr(
        *(f"{LINEAGE[at + 1]} as {name}" for at, name in enumerate(PLACE)),
        "cast(0 as bigint) as sub", "'' as lane", f"{place} as place",
    )  # fmt: skip
    return chosen, order_by is not None


def _of_results(frame: DataFrame, topic: str) -> DataFrame:
    """Return where results come from, by the number of their producer or by their property."""
    from pyspark.sql import functions as f

    own = f.split(f.col("properties")[SOURCE], r"\|")
    name, number = f.col("properties")[PRODUCER_ID], f.col("properties")[SEQUENCE].cast("bigint")
    shifted = f.shiftright(number, ROWS_PER_MESSAGE_BITS)
    below = number.bitwiseAND(f.lit((1 << ROWS_PER_MESSAGE_BITS) - 1))

    def either(of_property: Any, of_number: Any) -> Any:
        return f.when(own.isNotNull(), of_property).otherwise(of_number)

    return frame.select(
        either(own[0], f.regexp_extract(name, _NUMBERED, 1)).alias("of"),
        either(own[1], f.regexp_extract(name, _NUMBERED, 2)).alias("broker"),
        either(own[2], f.regexp_extract(name, _NUMBERED, 3)).cast("int").alias("queue"),
        either(own[3].cast("bigint"), shifted).alias("offset"),
        either(f.lit(0), below).cast("bigint").alias("sub"),
        f.concat_ws("/", "broker", "queue").alias("lane"),
        f.col("offset").alias("place"),
    ).where(f.col("of") == topic).drop("of")  # fmt: skip


def _per_message(
    stored: DataFrame, handled: DataFrame, is_ordered: bool, several: bool, filtered: bool
) -> DataFrame:
    """Return a row for each message: its key, and how often each fault happened to it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    nobody = f.concat(f.lit("(no key) "), f.concat_ws("/", "broker", "queue"))
    stored = stored.withColumn("key", f.coalesce("key", nobody)).withColumn("is_stored", f.lit(1))
    known = handled.join(stored.select(*PLACE, "key"), PLACE, "left")
    if is_ordered:
        lane = Window.partitionBy("lane", "broker", "queue", "key").orderBy("place")
        earlier = f.max("offset").over(lane.rowsBetween(Window.unboundedPreceding, -1))
        known = known.withColumn("is_late", (f.col("offset") < earlier).cast("int"))
    else:
        known = known.withColumn("is_late", f.lit(0))
    places = known.groupBy(*PLACE).agg(
        f.count("*").alias("rows"),
        f.count_distinct("sub").alias("subs"),
        f.coalesce(f.sum("is_late"), f.lit(0)).alias("inverted"),
    )
    oldest = stored.groupBy("broker", "queue").agg(f.min("offset").alias("oldest"))
    both = stored.join(places, PLACE, "full").join(oldest, ["broker", "queue"], "left")
    found, rows = f.col("is_stored").isNotNull(), f.coalesce("rows", f.lit(0))
    is_known = found | (f.col("offset") >= f.coalesce("oldest", f.lit(0)))
    again = f.lit(0) if several else rows - f.coalesce("subs", f.lit(0))
    return both.where(is_known).select(
        f.coalesce("key", f.lit("(unknown)")).alias("key"),
        "stored_at",
        f.coalesce("is_stored", f.lit(0)).alias("stored"),
        rows.alias("handled"),
        (found & (rows == 0) & f.lit(not filtered)).cast("int").alias("lost"),
        f.greatest(again, f.lit(0)).alias("doubled"),
        f.coalesce("inverted", f.lit(0)).alias("inverted"),
        f.when(found, 0).otherwise(rows).alias("unknown"),
    )


def _per_key(messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    faults = f.col("lost") + f.col("doubled") + f.col("inverted") + f.col("unknown")
    summed = messages.groupBy("key").agg(*(f.sum(name).alias(name) for name in _SUMS))
    return summed.withColumn("faults", faults)


def _sums(per_key: DataFrame) -> dict[str, int]:
    from pyspark.sql import functions as f

    row = per_key.agg(
        f.count("*").alias("keys"),
        f.sum((f.col("faults") > 0).cast("int")).alias("bad_keys"),
        *(f.sum(name).alias(name) for name in _SUMS),
    ).first()
    assert row is not None, "an aggregate without groups has one row"
    return {name: int(value or 0) for name, value in row.asDict().items()}


def _worst(per_key: DataFrame, count: int) -> list[KeyVerdict]:
    from pyspark.sql import functions as f

    rows = per_key.where("faults > 0").orderBy(f.desc("faults"), "key").limit(count).collect()
    return [KeyVerdict(row.key, *(int(row[name]) for name in _SUMS)) for row in rows]


def _draw(messages: DataFrame, topic: str, path: str) -> None:
    """Draw the stored messages over time, and the faults at the time of their messages."""
    from pyspark.sql import functions as f

    times = messages.where("stored_at is not null").withColumn(
        "ms", (f.unix_millis("stored_at")).cast("bigint")
    )
    bounds = times.agg(f.min("ms").alias("first"), f.max("ms").alias("last")).first()
    if bounds is None or bounds["first"] is None:
        return
    width_ms = max(1, (bounds["last"] - bounds["first"]) // BUCKETS + 1)
    bucket = f.floor((f.col("ms") - f.lit(bounds["first"])) / width_ms).alias("bucket")
    rows = (
        times.groupBy(bucket)
        .agg(*(f.sum(name).alias(name) for name in ("stored", "lost", "doubled", "inverted")))
        .collect()
    )
    found = {int(row["bucket"]): row for row in rows}
    at_s = [at * width_ms / 1000 for at in range(BUCKETS)]

    def curve(name: str) -> Curve:
        return Curve(
            name, at_s, [float(found[at][name]) if at in found else 0.0 for at in range(BUCKETS)]
        )

    panels = [
        Panel("Stored messages, by the time of storing", "messages", [curve("stored")]),
        Panel(
            "Faults of these messages",
            "messages",
            [curve(name) for name in ("lost", "doubled", "inverted")],
        ),
    ]
    save_picture(path, f"Audit of {topic}", panels)
