"""The Spark driver of the demo, in a process of its own, so that the demo can kill it.

It starts Spark, reports that, waits for a line, and runs the job `orders` over the messages of the
topic. On request it audits the results afterwards. It writes a line of JSON for each step.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from inorder.spark.jobs.progress import Step

TOPIC: Final = "orders"
RESULTS: Final = "order-results"
GROUP: Final = "orders-pipeline"
CODE: Final = "import sys; from inorder.demo.driver import main; main(*sys.argv[1:])"


def main(namesrv: str, folder: str, batch: str, audited: str) -> None:
    """Run as the driver process."""
    from inorder.spark import session
    from inorder.spark.jobs import audit, orders

    spark = session("local[2]", name="inorder demo", conf={"spark.driver.memory": "768m"})
    _tell(ready=True)
    sys.stdin.readline()
    done = orders(
        spark, namesrv=namesrv, topic=TOPIC, results=RESULTS, path=f"{folder}/orders", group=GROUP,
        batch=int(batch), watch=_step,
    )  # fmt: skip
    _tell(done=asdict(done))
    if audited == "yes":
        found = audit(spark, topic=TOPIC, namesrv=namesrv, results=RESULTS)
        parquet = audit(
            spark, topic=TOPIC, namesrv=namesrv, parquet=f"{folder}/orders/results",
            order_by="sequence",
        )  # fmt: skip
        _tell(audit=asdict(found), verdict=str(found), parquet=str(parquet), parquet_ok=parquet.ok)
    spark.stop()


def _step(step: Step) -> None:
    _tell(step=step.done)


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)
