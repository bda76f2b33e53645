"""`inorder cluster list | brokers | runtime | losses | transactions | resume | config | clean`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from inorder.cli.failures import EXIT_FAILED
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.output import (
    Output,
    as_json,
    parse_pairs,
    put_line,
    put_page,
    say,
    show_time,
    table,
)

if TYPE_CHECKING:
    from inorder.client.admin import Admin

app = typer.Typer(no_args_is_help=True, help="Clusters and brokers.", rich_markup_mode=None)

BrokerArgument = Annotated[
    str, typer.Argument(help="Name (its master) or address of a broker.", metavar="BROKER")
]


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the clusters and their brokers."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [
            {
                "cluster": node.cluster,
                "broker": node.name,
                "broker_id": node.broker_id,
                "address": node.address,
            }
            for node in await admin.cluster.brokers()
        ]

    _print(target.run(work), output, ("cluster", "broker", "broker_id", "address"))


@app.command()
@on_cluster
def brokers(
    target: Cluster,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how every broker does: version, rates, disk."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = []
        for node in await admin.cluster.brokers():
            numbers = await (await admin.cluster.api(node.address)).runtime_info()
            found.append(
                {
                    "broker": node.name,
                    "broker_id": node.broker_id,
                    "address": node.address,
                    "version": numbers.get("brokerVersionDesc", ""),
                    "put_rate": _rate(numbers.get("putTps")),
                    "get_rate": _rate(numbers.get("getTransferredTps")),
                    "messages_today": _today(numbers),
                    "disk_used": numbers.get("commitLogDiskRatio", ""),
                    "oldest_ms": int(numbers.get("earliestMessageTimeStamp") or -1),
                }
            )
        return found

    rows = target.run(work)
    if output is Output.TABLE:
        for row in rows:
            row["oldest"] = show_time(row.pop("oldest_ms"))
            row["put_rate"], row["get_rate"] = f"{row['put_rate']:.1f}", f"{row['get_rate']:.1f}"
    headings = (
        "broker", "broker_id", "address", "version", "put_rate", "get_rate", "messages_today",
        "disk_used", "oldest",
    )  # fmt: skip
    _print(rows, output, headings)


@app.command()
@on_cluster
def runtime(
    target: Cluster,
    broker: BrokerArgument,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the numbers of a broker under RocketMQ's names."""
    _print_map(target.run(lambda admin: admin.cluster.runtime(broker)), output)


@app.command()
@on_cluster
def losses(
    target: Cluster,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what brokers found to be gone: messages, and what damaged files said.

    Exit code 1 if there is any. A broker forgets them when `inorder/losses.json` is removed from
    its data directory while it is stopped.
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = []
        for node in await admin.cluster.brokers():
            numbers = await (await admin.cluster.api(node.address)).runtime_info()
            count = int(numbers.get("inorderLosses") or 0)
            shown = [numbers.get(f"inorderLoss_{number}", "") for number in range(count)]
            found += [{"broker": node.name, "loss": text} for text in shown if text]
            if more := count - sum(map(bool, shown)):
                found.append({"broker": node.name, "loss": f"{more} more, in the broker's log"})
        return found

    rows = target.run(work)
    _print(rows, output, ("broker", "loss"))
    if rows:
        raise typer.Exit(EXIT_FAILED)


@app.command()
@on_cluster
def transactions(
    target: Cluster,
    *,
    topic: Annotated[str, typer.Option(help="Only of this topic.")] = "",
    count: Annotated[int, typer.Option(min=1, max=1000, help="At most so many a broker.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """List transactions without an outcome, oldest first: the halves that brokers keep.

    A broker asks the producers of the group about each, and gives it up after
    `transactionCheckMax` questions: then its message lies in TRANS_CHECK_MAX_TIME_TOPIC.
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = []
        for node, pending in (await admin.cluster.transactions(topic, count=count)).items():
            found += [
                {
                    "broker": node.name,
                    "topic": one.topic,
                    "queue": one.queue_id,
                    "key": one.key,
                    "producer_group": one.group,
                    "transaction_id": one.transaction_id,
                    "began_ms": one.born_at_ms,
                    "questions": one.checks,
                }
                for one in pending.oldest
            ]
            if more := pending.total - len(pending.oldest):
                left.append(f"{node.name} has {more} more")
        return found

    left: list[str] = []
    rows = target.run(work)
    if output is Output.TABLE:
        for row in rows:
            row["began"] = show_time(row.pop("began_ms"))
    headings = (
        "broker", "topic", "queue", "key", "producer_group", "transaction_id", "began", "questions",
    )  # fmt: skip
    _print(rows, output, headings)
    for line in left:
        put_line(line, err=True)


@app.command()
@on_cluster
def resume(
    target: Cluster,
    message_id: Annotated[
        str,
        typer.Argument(
            help="Offset id of a message in TRANS_CHECK_MAX_TIME_TOPIC.", metavar="MESSAGE-ID"
        ),
    ],
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a broker ask again about a transaction that it has given up."""
    target.run(lambda admin: admin.cluster.resume_transaction(message_id))
    say(output, "the producers of its group are asked again", message_id=message_id)


@app.command()
@on_cluster
def config(
    target: Cluster,
    broker: BrokerArgument,
    *,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting first; repeatable.", metavar="K=V"),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the settings of a broker under RocketMQ's names, or change some."""
    changes = parse_pairs(set_, "--set")

    async def work(admin: Admin) -> dict[str, str]:
        if changes:
            await admin.cluster.update_settings(broker, changes)
        return await admin.cluster.settings(broker)

    _print_map(target.run(work), output)


@app.command()
@on_cluster
def clean(
    target: Cluster,
    broker: BrokerArgument,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete what has expired on a broker now, and not in the hours of deleteWhen.

    Log files, queue files and queues of topics that do not exist. What has not expired stays, and
    so do all offsets.
    """
    target.run(lambda admin: admin.cluster.clean(broker))
    say(output, f"broker {broker} cleaned", broker=broker, cleaned=True)


def _print(rows: list[dict[str, Any]], output: Output, headings: tuple[str, ...]) -> None:
    if output is Output.JSON:
        put_page(as_json(rows))
    else:
        shown = [heading.replace("_", " ") for heading in headings]
        put_page(table(shown, [[row[heading] for heading in headings] for row in rows]))


def _print_map(values: dict[str, str], output: Output) -> None:
    ordered = dict(sorted(values.items()))
    put_page(
        as_json(ordered) if output is Output.JSON else table(("name", "value"), [*ordered.items()])
    )


def _rate(text: str | None) -> float:
    """Return the first of RocketMQ's three rates, of the last ten seconds; it begins empty."""
    rates = (text or "").split()
    return float(rates[0]) if rates else 0.0


def _today(numbers: dict[str, str]) -> int:
    now, morning = (numbers.get(f"msgPutTotalToday{when}") or "0" for when in ("Now", "Morning"))
    return int(now) - int(morning)
