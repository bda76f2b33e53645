"""`inorder producer list | drop`."""

from __future__ import annotations

from typing import Annotated

import typer

from inorder.cli.oncluster import Cluster, OutputOption, YesOption, confirm, on_cluster
from inorder.cli.output import Output, as_json, put_page, say, table

app = typer.Typer(
    no_args_is_help=True,
    help="Named producers: how far each is. Brokers of ours only.",
    rich_markup_mode=None,
)


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    prefix: Annotated[str, typer.Argument(help="Only those whose names begin so.")] = "",
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the named producers and their last numbers."""
    rows = [
        {
            "producer": one.name,
            "connected": one.connected,
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.index,
            "last": number,
        }
        for one in target.run(lambda admin: admin.producers.list(prefix))
        for queue, number in sorted(one.last.items())
    ]
    columns = ("producer", "connected", "topic", "broker", "queue", "last")
    if output is Output.JSON:
        put_page(as_json(rows))
    else:
        put_page(table(columns, [[row[column] for column in columns] for row in rows]))


@app.command()
@on_cluster
def drop(
    target: Cluster,
    name: Annotated[str, typer.Argument(help="The producer's name.")],
    *,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Forget a named producer; numbers that it repeats are stored again from then on."""
    confirm(f"Forget producer {name}? What it repeats will be stored again.", yes)

    queues = target.run(lambda admin: admin.producers.drop(name))
    say(output, f"producer {name} forgotten on {queues} queues", producer=name, queues=queues)
