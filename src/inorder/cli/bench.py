"""`inorder bench send | pull | roundtrip`: how fast a cluster is, as this client sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.output import Output, as_json, put_page, table

if TYPE_CHECKING:
    from inorder.cli.benching import Measured, Plan
    from inorder.client.admin import Admin
    from inorder.client.session import Session

app = typer.Typer(
    no_args_is_help=True,
    help="Measure a cluster: messages/s, latency, CPU of the client.",
    rich_markup_mode=None,
)

TopicOption = Annotated[
    str | None,
    typer.Option("--topic", help="Use this one.  [default: a temporary one, deleted at the end]"),
]
SizeOption = Annotated[int, typer.Option("--size", min=0, help="Bytes of a body.")]
CountOption = Annotated[int, typer.Option("--count", "-n", min=1, help="Messages to measure.")]
KeysOption = Annotated[
    int, typer.Option("--keys", min=0, help="Different keys; 0 = none, queues take turns.")
]
QueuesOption = Annotated[int, typer.Option("--queues", min=1, help="Of the temporary topic.")]


@app.command()
@on_cluster
def send(
    target: Cluster,
    *,
    topic: TopicOption = None,
    size: SizeOption = 1024,
    count: CountOption = 50_000,
    window: Annotated[
        int, typer.Option("--window", min=1, max=10_000, help="Unanswered sends of a producer.")
    ] = 256,
    producers: Annotated[
        int, typer.Option("--producers", min=1, max=1000, help="Each with its connection.")
    ] = 1,
    keys: KeysOption = 1000,
    queues: QueuesOption = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send messages and measure how long each takes to be stored."""
    from inorder.cli.benching import Plan, measure_send

    plan = Plan(topic, size, count, keys, queues, window, producers)
    _measure(target, "send", measure_send, plan, output)


@app.command()
@on_cluster
def pull(
    target: Cluster,
    *,
    topic: TopicOption = None,
    size: SizeOption = 1024,
    count: CountOption = 50_000,
    queues: QueuesOption = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read messages from the beginning of all queues; latency is that of a poll.

    A temporary topic is filled first, which is not measured. Of a topic that is given, what it
    holds is read, and nothing is committed.
    """
    from inorder.cli.benching import Plan, measure_pull

    plan = Plan(topic, size, count, 1000, queues)
    _measure(target, "pull", measure_pull, plan, output)


@app.command()
@on_cluster
def roundtrip(
    target: Cluster,
    *,
    topic: TopicOption = None,
    size: SizeOption = 1024,
    count: CountOption = 2000,
    window: Annotated[
        int, typer.Option("--window", min=1, max=10_000, help="Messages on their way at a time.")
    ] = 1,
    keys: KeysOption = 1000,
    queues: QueuesOption = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send messages to a consumer that waits; latency is from the send call to its hands."""
    from inorder.cli.benching import Plan, measure_roundtrip

    plan = Plan(topic, size, count, keys, queues, window)
    _measure(target, "roundtrip", measure_roundtrip, plan, output)


def _measure(
    target: Cluster,
    verb: str,
    measure: Callable[[Session, Admin, Plan, Callable[[], Session]], Awaitable[Measured]],
    plan: Plan,
    output: Output,
) -> None:
    measured = target.run_session(
        lambda session, admin: measure(session, admin, plan, target.session), fast=True
    )
    _print(verb, plan, measured, output)


def _print(verb: str, plan: Plan, measured: Measured, output: Output) -> None:
    rate, size = measured.messages / measured.seconds, measured.size_bytes / measured.messages
    cpu = measured.cpu_seconds
    values = {
        "bench": verb,
        "messages": measured.messages,
        "mean_bytes": round(size),
        "seconds": round(measured.seconds, 3),
        "messages_per_second": round(rate, 1),
        "mib_per_second": round(rate * size / 2**20, 2),
        "latency_ms": measured.latency_ms(),
        "client_cpu_percent": round(100 * cpu / measured.seconds),
        "client_cpu_us_per_message": round(1e6 * cpu / measured.messages, 1),
    }
    load = {"producers": plan.producers, "window": plan.window, "keys": plan.keys}
    if verb != "pull":
        values |= load
    if output is Output.JSON:
        put_page(as_json(values))
        return
    rows = [
        ("messages", f"{measured.messages:,} of {size:.0f} bytes"),
        ("load", ", ".join(f"{name} {value}" for name, value in load.items())),
        ("time", f"{measured.seconds:.2f} s"),
        ("rate", f"{rate:,.0f} messages/s, {rate * size / 2**20:.1f} MiB/s"),
        ("latency ms", "  ".join(f"{at} {ms:.2f}" for at, ms in measured.latency_ms().items())),
        ("client cpu", f"{100 * cpu / measured.seconds:.0f} % of a core, "
                       f"{1e6 * cpu / measured.messages:.1f} µs a message"),
    ]  # fmt: skip
    if verb == "pull":
        del rows[1]
    put_page(table((f"bench {verb}", ""), rows))
