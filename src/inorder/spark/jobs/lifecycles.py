"""Order life cycles: accounts with their orders, late and failing payments, balances.

    topic of steps  ->  process_in_order, by account  ->  Parquet below `path`, and a result topic

Each micro-batch writes its rows to a folder of its own and replaces whatever a killed try left
there. Then it writes them to the result topic, whose broker drops rows that it has, by their
sequence numbers. The checkpoint and the states lie beside the results: they belong together. The
rules of orders are in `spark/jobs/rules.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from inorder.client.consume.rules.outcomes import DeadLetter
from inorder.spark.cluster import Servers, Tls
from inorder.spark.jobs.progress import Watch, follow, unwatched
from inorder.spark.jobs.rules import COLUMNS, Account, handle
from inorder.spark.ordered.outputs import MADE
from inorder.spark.ordered.service import process_in_order, waiting
from inorder.wire.names import dead_letter_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_MESSAGES: Final = 20_000
ATTEMPTS: Final = 3
GROUP: Final = "orders-pipeline"


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of the job, and the present state of the accounts."""

    topic: str
    path: str
    results_topic: str | None
    processed: int
    batches: int
    rows: int
    accounts: int
    balance: int
    steps: dict[str, int]
    late_payments: int
    waiting: int
    """Accounts that wait for a payment to be tried again; the next run goes on with them."""
    dead_letters: str


def orders(
    spark: SparkSession,
    *,
    namesrv: str | None = None,
    topic: str,
    path: str,
    results: str | None = None,
    group: str = GROUP,
    attempts: int = ATTEMPTS,
    patience_s: float = 5.0,
    batch: int = BATCH_MESSAGES,
    every_s: float | None = None,
    watch: Watch = unwatched,
    tls: Tls | None = None,
    credentials_file: str | None = None,
) -> Processed:
    """Take the steps of orders to rows below `path`, and to the topic `results` if one is given.

    A payment that fails is tried again `attempts` times, then it is a dead letter of `group`; only
    its account waits meanwhile. `every_s` goes on for ever, with a batch every so many seconds. It
    may be killed at any time: started again with the same `path` it goes on, each effect once.
    """
    where, servers = path.rstrip("/"), Servers.of(namesrv, tls, credentials_file)
    stream = (
        spark.readStream.format("inorder")
        .options(
            **servers.options(), topic=topic, group=group, startingOffsets="earliest",
            maxOffsetsPerTrigger=str(batch),
            columns="topic,broker,queue,offset,key,body,tag,properties,message_id",
        )
        .load()
    )  # fmt: skip
    rows = process_in_order(
        stream, handle, schema=COLUMNS, state=f"{where}/_state", state_type=Account,
        namesrv=namesrv, group=group, on_failure=DeadLetter(attempts=attempts), pause=0.2,
        patience=patience_s, tls=tls, credentials_file=credentials_file,
    )  # fmt: skip
    writer = (
        rows.writeStream.foreachBatch(Writing(where, servers, results))
        .option("checkpointLocation", f"{where}/_checkpoint")
        .queryName(f"orders of {topic}")
    )
    writer = (
        writer.trigger(availableNow=True)
        if every_s is None
        else writer.trigger(processingTime=f"{every_s} seconds")
    )
    followed = follow(writer.start(), watch)
    return _summary(
        spark, where, topic=topic, results=results, group=group, processed=followed.done,
        batches=followed.batches,
    )  # fmt: skip


class Writing:
    """Writes a micro-batch to both places."""

    def __init__(self, path: str, servers: Servers, topic: str | None) -> None:
        self._path = path
        self._servers = servers
        self._topic = topic

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write the rows of a batch; again, if it is repeated."""
        frame.persist()
        try:
            frame.write.mode("overwrite").parquet(f"{self._path}/results/batch={batch}")
            if self._topic is not None:
                as_messages(frame).write.format("inorder").mode("append").options(
                    **self._servers.options(), topic=self._topic
                ).save()
        finally:
            frame.unpersist()


def as_messages(rows: DataFrame) -> DataFrame:
    """Return result rows as the sink wants them: keyed by account, the status as tag."""
    from pyspark.sql import functions as f

    body = f.to_json(
        f.struct("account", "number", "order", "step", "status", "late", "amount", "balance")
    )
    return rows.select(
        f.col("account").alias("key"), f.col("status").alias("tag"), body.alias("body"), *MADE,
    )  # fmt: skip


def balances(spark: SparkSession, path: str) -> DataFrame:
    """Return the accounts with their last balance."""
    from pyspark.sql import functions as f

    found = spark.read.parquet(f"{path.rstrip('/')}/results")
    return found.groupBy("account").agg(
        f.max_by("balance", "number").alias("balance"), f.max("number").alias("steps")
    )


def _summary(
    spark: SparkSession,
    path: str,
    *,
    topic: str,
    results: str | None,
    group: str,
    processed: int,
    batches: int,
) -> Processed:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    steps: dict[str, int] = {}
    late = accounts = balance = 0
    try:
        found: Any = spark.read.parquet(f"{path}/results")
    except AnalysisException:  # nothing was read yet
        found = None
    if found is not None:
        for row in found.groupBy("step").agg(f.count("*"), f.count_if("late")).collect():
            steps[row[0]] = row[1]
            late += row[2] if row[0] == "paid" else 0
        accounts, balance = (
            balances(spark, path).agg(f.count("*"), f.coalesce(f.sum("balance"), f.lit(0))).first()
        )
    return Processed(
        topic, path, results, processed, batches, sum(steps.values()), accounts, balance,
        dict(sorted(steps.items())), late, len(waiting(f"{path}/_state")), dead_letter_topic(group),
    )  # fmt: skip
