"""`inorder pipeline orders`: order life cycles through Spark, as an example that does real work."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inorder.cli.completing import TopicArgument
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.onspark import ConfOption, MasterOption, run_job
from inorder.cli.render import Output, as_json, put_line, put_page

if TYPE_CHECKING:
    from inorder.spark.jobs.progress import Watch


@on_cluster
def orders(
    target: Cluster,
    topic: TopicArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder that executors see.")],
    *,
    results: Annotated[
        str | None, typer.Option("--results", metavar="TOPIC", help="Send the rows there as well.")
    ] = None,
    group: Annotated[
        str, typer.Option("--group", help="Whose progress, and whose dead letters.")
    ] = "orders-pipeline",
    attempts: Annotated[
        int, typer.Option("--attempts", min=0, help="Further tries of a payment that fails.")
    ] = 3,
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Messages of a micro-batch.")
    ] = 20_000,
    every: Annotated[
        float | None,
        typer.Option("--every", min=0.1, metavar="SECONDS", help="Go on for ever."),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow orders by account: late and failing payments, balances; goes on where it was."""

    def job(spark: Any, servers: dict[str, Any], watch: Watch) -> Any:
        from inorder.spark.jobs.orders import orders

        return orders(
            spark, **servers, topic=topic, path=path, results=results, group=group,
            attempts=attempts, batch=batch, every_s=every, watch=watch,
        )  # fmt: skip

    done = run_job(target, job, master=master, conf=conf, what="steps of orders")
    if output is Output.JSON:
        put_page(as_json(asdict(done)))
        return
    put_line(
        f"{done.processed:,} messages in {done.batches} batches; {done.path} holds {done.rows:,} "
        f"rows of {done.accounts:,} accounts, balance {done.balance / 100:,.2f}, "
        f"{done.late_payments:,} late payments; {done.waiting} accounts wait"
    )
