"""`inorder offset get | set | reset`: how far a group is, and moving it elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.oncluster import (
    Cluster,
    GroupArgument,
    OutputOption,
    TopicArgument,
    YesOption,
    confirm,
    on_cluster,
)
from inorder.cli.output import TIME_HELP, Output, as_json, parse_time, put_page, say, table
from inorder.clock import SystemClock
from inorder.errors import UsageError

if TYPE_CHECKING:
    from inorder.client.admin import Admin, ResetTarget
    from inorder.model import TopicQueue

app = typer.Typer(no_args_is_help=True, help="Offsets of consumer groups.", rich_markup_mode=None)

BrokerOption = Annotated[
    str | None, typer.Option("--broker", help="Broker of the queue, if there are several.")
]


@app.command()
@on_cluster
def get(
    target: Cluster,
    group: GroupArgument,
    topic: TopicArgument,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a group has committed on each queue of a topic."""
    rows = [
        {
            "broker": one.queue.broker,
            "queue": one.queue.index,
            "min_offset": one.min_offset,
            "max_offset": one.max_offset,
            "committed_offset": one.committed_offset,
        }
        for one in target.run(lambda admin: admin.offsets.get(group, topic))
    ]
    if output is Output.JSON:
        put_page(as_json(rows))
        return
    headings = ("broker", "queue", "min", "max", "committed")
    put_page(table(headings, [list(row.values()) for row in rows]))


@app.command("set")
@on_cluster
def set_(
    target: Cluster,
    group: GroupArgument,
    topic: TopicArgument,
    queue: Annotated[int, typer.Argument(help="Queue.", metavar="QUEUE", min=0)],
    offset: Annotated[int, typer.Argument(help="Next to consume.", metavar="OFFSET", min=0)],
    *,
    broker: BrokerOption = None,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Store an offset of a group that is not online."""
    confirm(f"Let group {group} go on at {offset} of queue {queue} of {topic}?", yes)

    async def work(admin: Admin) -> TopicQueue:
        found = await admin.topics.find_queue(topic, queue, broker)
        await admin.offsets.set(group, found, offset)
        return found

    found = target.run(work)
    text = f"group {group} goes on at {offset} of queue {queue} of {topic} on {found.broker}"
    say(output, text, group=group, topic=topic, broker=found.broker, queue=queue, offset=offset)


@app.command()
@on_cluster
def reset(
    target: Cluster,
    group: GroupArgument,
    topic: TopicArgument,
    *,
    to: Annotated[
        str, typer.Option("--to", help=f"beginning, end, {TIME_HELP}; with --queue an offset.")
    ],
    queue: Annotated[
        int | None, typer.Option("--queue", help="Only this one, to an offset.", min=0)
    ] = None,
    broker: BrokerOption = None,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set a group, online or not, to a time on all queues or to an offset on one."""
    where = "all queues" if queue is None else f"queue {queue}"
    _target(to) if queue is None else _offset(to)  # a bad word is told before anyone is asked
    confirm(f"Reset group {group} to {to} on {where} of {topic}?", yes)

    async def work(admin: Admin) -> dict[TopicQueue, int]:
        await admin.groups.configs(group)  # so that a typo is told
        if queue is None:
            return await admin.offsets.reset(group, topic, _target(to))
        found = await admin.topics.find_queue(topic, queue, broker)
        return {found: await admin.offsets.reset_queue(group, found, _offset(to))}

    done = target.run(work)
    if output is Output.JSON:
        rows = [
            {"broker": one.broker, "queue": one.index, "offset": offset}
            for one, offset in done.items()
        ]
        put_page(as_json(rows))
        return
    put_page(
        table(
            ("broker", "queue", "offset"),
            [(one.broker, one.index, offset) for one, offset in done.items()],
        )
    )


def _target(to: str) -> ResetTarget:
    if to == "beginning":
        return "beginning"
    return "end" if to == "end" else parse_time(to, SystemClock().now_ms())


def _offset(to: str) -> int:
    if not to.isdecimal():
        raise UsageError(f"--to {to!r} is no offset; with --queue give a number")
    return int(to)
