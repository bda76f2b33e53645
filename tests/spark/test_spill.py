"""A sort that spills loses the order of a key's messages; the ordered operators keep it.

The session of these tests spills every 5,000 rows (`conftest.py`), as a large batch does by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

import inorder
from inorder.model import Message

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

MESSAGES = 40_000
KEYS = 50


def fill(namesrv: str) -> None:
    """Send the numbered messages of 50 keys."""
    with inorder.Producer(namesrv) as producer:
        for start in range(0, MESSAGES, 2000):
            producer.send_batch(
                [Message("orders", b"%d" % at, key=f"order-{at % KEYS}")
                 for at in range(start, start + 2000)]
            )  # fmt: skip


def inversions(rows: list[Any]) -> int:
    """Count the rows that stand behind a later one of their key."""
    last: dict[str, int] = {}
    found = 0
    for key, number in rows:
        found += number < last.get(key, -1)
        last[key] = max(number, last.get(key, -1))
    return found


def written(frame: Any, folder: Path, *, timers: bool = False) -> list[tuple[str, int]]:
    """Run a stream over all that is there; return (key, number) in the order of the files."""
    writer = (
        frame.writeStream.format("parquet").option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )  # fmt: skip
    if timers:  # such a query never says that it has nothing to do
        query = writer.trigger(processingTime="100 milliseconds").start()
        while sum(progress["numInputRows"] for progress in query.recentProgress) < MESSAGES:
            query.awaitTermination(0.5)
        query.stop()
    else:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    import pyarrow.parquet as pq

    # Only what was committed: the batch that a stop cuts short takes its own files away again.
    committed = frame.sparkSession.read.parquet(str(folder / "out")).inputFiles()
    rows = []
    for path in sorted(url2pathname(urlsplit(file).path) for file in committed):
        table = pq.ParquetFile(path).read(["key", "number"])
        rows += zip(table["key"].to_pylist(), table["number"].to_pylist(), strict=True)
    return rows


def test_a_spill_loses_order_but_not_where_messages_are_processed_in_order(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """The same messages, keys and spills: plain operators invert thousands, ordered ones none."""
    from pyspark.sql.streaming import StatefulProcessor

    from inorder.spark import process_in_order

    class Plain(StatefulProcessor):  # type: ignore[misc]
        """Gives the rows of a key as they come."""

        def init(self, handle: Any) -> None:
            """No state."""

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            """Pass them on."""
            import pandas as pd

            for frame in rows:
                yield pd.DataFrame(
                    {"key": [key[0]] * len(frame), "number": frame["number"].astype("int64")}
                )

        def close(self) -> None:
            """Nothing."""

    def passing(message: Any, state: Any) -> Any:
        return None if message.key is None else (0, [(message.key, int(message.body))])

    fill(namesrv)
    options = {"namesrv": namesrv, "topic": "orders", "startingOffsets": "earliest",
               "columns": "topic,broker,queue,offset,key,body"}  # fmt: skip
    number = "cast(string(body) as bigint) as number"

    batch = spark.read.format("inorder").options(**options).load().selectExpr("key", number)
    by_key = batch.repartition(1, "key").sortWithinPartitions("key").collect()

    stream = spark.readStream.format("inorder").options(**options).load()
    plain = stream.selectExpr("key", number).groupBy("key").transformWithStateInPandas(
        statefulProcessor=Plain(), outputStructType="key string, number bigint",
        outputMode="Append", timeMode="None",
    )  # fmt: skip
    schema = "key string, number bigint"
    local = process_in_order(
        stream, passing, schema=schema, namesrv=namesrv, state=str(tmp_path / "state")
    )
    buckets = process_in_order(stream, passing, schema=schema, namesrv=namesrv, timers=True)

    found = {
        "sort by key": [(row.key, row.number) for row in by_key],
        "transformWithState": written(plain, tmp_path / "plain"),
        "process_in_order": written(local, tmp_path / "local"),
        "process_in_order, timers": written(buckets, tmp_path / "buckets", timers=True),
    }
    assert {len(rows) for rows in found.values()} == {MESSAGES}
    lost = {name: inversions(rows) for name, rows in found.items()}
    print(lost)
    assert lost["sort by key"] > 1000
    assert lost["transformWithState"] > 1000
    assert lost["process_in_order"] == lost["process_in_order, timers"] == 0
