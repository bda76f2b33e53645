"""A Spark pipeline: the balance of every account, kept in order, each payment counted once.

    pip install 'inorder[spark]'                 # brings pyspark, and a Java if there is none
    inorder up                                   # in another terminal
    printf 'anna:10\nbert:7\nanna:-3\n' | inorder send account-payments --key-separator :
    python examples/spark_balances.py ./balances # what is there; again for what came later
    python examples/spark_balances.py ./balances --follow

The folder has the checkpoint, the state of each account and the result as Parquet. Kill it at any
time: the next start continues, and no row is there twice.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import inorder
from inorder.spark import process_in_order, session

NAMESRV = os.environ.get("INORDER_NAMESRV", "127.0.0.1:9876")
GROUP = "balances"


def add(message: Any, balance: int | None) -> tuple[int, list[dict[str, Any]]]:
    """Return the new balance of an account, and a row of it: one call a message, in order."""
    amount = int(message.body)
    after = (balance or 0) + amount
    return after, [{"account": message.key, "amount": amount, "balance": after}]


def main(folder: str, *, follow: bool) -> None:
    """Work off the topic, or follow it."""
    spark = session("local[2]")
    payments = (
        spark.readStream.format("inorder")
        .options(namesrv=NAMESRV, topic="account-payments", startingOffsets="earliest", group=GROUP)
        .load()
    )
    rows = process_in_order(
        payments,
        add,
        schema="account string, amount bigint, balance bigint",
        namesrv=NAMESRV,
        group=GROUP,
        state=f"{folder}/state",
        on_failure=inorder.DeadLetter(attempts=2),  # what is no number goes to %DLQ%balances
    )
    writer = (
        rows.writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    trigger = {"processingTime": "1 second"} if follow else {"availableNow": True}
    writer.trigger(**trigger).start().awaitTermination()
    result = spark.read.schema(rows.schema).parquet(f"{folder}/rows")
    result.orderBy("source_queue", "source_offset").select("account", "amount", "balance").show()
    spark.stop()


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), follow="--follow" in sys.argv[2:])
