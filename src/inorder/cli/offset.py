"""`inorder offset get | set | reset`: how far a group is, and putting it elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.failures import says_errors
from inorder.cli.render import Output, as_json, table
from inorder.cli.target import NamesrvOption, OutputOption, ProfileOption, run
from inorder.cli.values import TIME_HELP, parse_time
from inorder.clock import SystemClock
from inorder.errors import UsageError

if TYPE_CHECKING:
    from inorder.client.admin import Admin, QueueOffsets
    from inorder.client.session import Session
    from inorder.model import TopicQueue

app = typer.Typer(no_args_is_help=True, help="Offsets of consumer groups.", rich_markup_mode=None)

GroupArgument = Annotated[str, typer.Argument(help="Group.", metavar="GROUP")]
TopicArgument = Annotated[str, typer.Argument(help="Topic.", metavar="TOPIC")]
BrokerOption = Annotated[
    str | None, typer.Option("--broker", help="Broker of the queue, if there are several.")
]


@app.command()
@says_errors
def get(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    namesrv: NamesrvOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a group has committed on each queue of a topic."""

    async def work(_: Session, admin: Admin) -> list[QueueOffsets]:
        return await admin.offsets.get(group, topic)

    rows = [
        {
            "broker": one.queue.broker,
            "queue": one.queue.index,
            "min_offset": one.min_offset,
            "max_offset": one.max_offset,
            "committed_offset": one.committed_offset,
        }
        for one in run(namesrv, profile, work)
    ]
    if output is Output.JSON:
        print(as_json(rows))
        return
    headings = ("broker", "queue", "min", "max", "committed")
    print(table(headings, [list(row.values()) for row in rows]))


@app.command("set")
@says_errors
def set_(
    group: GroupArgument,
    topic: TopicArgument,
    queue: Annotated[int, typer.Argument(help="Queue.", metavar="QUEUE", min=0)],
    offset: Annotated[int, typer.Argument(help="Next to consume.", metavar="OFFSET", min=0)],
    *,
    broker: BrokerOption = None,
    namesrv: NamesrvOption = None,
    profile: ProfileOption = None,
) -> None:
    """Store an offset of a group that is not online."""

    async def work(_: Session, admin: Admin) -> TopicQueue:
        found = await admin.topics.find_queue(topic, queue, broker)
        await admin.offsets.set(group, found, offset)
        return found

    found = run(namesrv, profile, work)
    print(f"group {group} goes on at {offset} of queue {queue} of {topic} on {found.broker}")


@app.command()
@says_errors
def reset(
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
    namesrv: NamesrvOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set a group, online or not, to a time on all queues or to an offset on one."""

    async def work(_: Session, admin: Admin) -> dict[TopicQueue, int]:
        if queue is None:
            return await admin.offsets.reset(group, topic, _target_ms(to))
        if not to.isdecimal():
            raise UsageError(f"--to {to!r} is no offset; with --queue give a number")
        found = await admin.topics.find_queue(topic, queue, broker)
        return {found: await admin.offsets.reset_queue(group, found, int(to))}

    done = run(namesrv, profile, work)
    if output is Output.JSON:
        rows = [
            {"broker": one.broker, "queue": one.index, "offset": offset}
            for one, offset in done.items()
        ]
        print(as_json(rows))
        return
    print(
        table(
            ("broker", "queue", "offset"),
            [(one.broker, one.index, offset) for one, offset in done.items()],
        )
    )


def _target_ms(to: str) -> int:
    from inorder.client.admin.offsets import BEGINNING_MS, END_MS

    words = {"beginning": BEGINNING_MS, "end": END_MS}
    return words[to] if to in words else parse_time(to, SystemClock().now_ms())
