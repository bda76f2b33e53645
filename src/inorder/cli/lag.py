"""`inorder lag`: how far groups are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.completing import complete_groups
from inorder.cli.failures import fail
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.render import Output, as_json, table
from inorder.clock import SystemClock

if TYPE_CHECKING:
    from inorder.client.admin import Admin, QueueLag
    from inorder.client.session import Session


@on_cluster
def lag(
    target: Cluster,
    group: Annotated[
        str | None,
        typer.Argument(
            help="Group; without, all in sum.", metavar="[GROUP]", autocompletion=complete_groups
        ),
    ] = None,
    *,
    topic: Annotated[str | None, typer.Option("--topic", help="Only on this one.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how far groups are behind: messages to do, and how old what they did last is."""

    async def work(_: Session, admin: Admin) -> dict[str, list[QueueLag]]:
        if group is not None:
            await admin.groups.configs(group)
        names = [group] if group is not None else await admin.groups.names()
        return {name: await admin.groups.lag(name, topic) for name in names}

    found = target.run(work)
    now_ms = SystemClock().now_ms()
    if group is None:
        _print_sums(found, output)
        return
    queues = found[group]
    if output is Output.JSON:
        rows = [_row(one) for one in queues]
        print(as_json({"group": group, "lag": sum(one.lag for one in queues), "queues": rows}))
        return
    if not queues:
        fail(f"group {group} has committed nothing yet" + (f" on {topic}" if topic else ""))
    headings = ("topic", "broker", "queue", "committed", "pulled", "end", "lag", "behind")
    print(
        table(
            headings,
            [
                (one.queue.topic, one.queue.broker, one.queue.index, one.committed_offset,
                 one.pulled_offset, one.end_offset, one.lag, _behind(one, now_ms))
                for one in queues
            ],
        )
    )  # fmt: skip
    print(f"\nlag {sum(one.lag for one in queues)}")


def _print_sums(found: dict[str, list[QueueLag]], output: Output) -> None:
    sums: dict[tuple[str, str], int] = {}
    for name, queues in found.items():
        for one in queues:
            sums[name, one.queue.topic] = sums.get((name, one.queue.topic), 0) + one.lag
    if output is Output.JSON:
        rows = [{"group": name, "topic": topic, "lag": sums[name, topic]} for name, topic in sums]
        print(as_json(rows))
    else:
        print(table(("group", "topic", "lag"), [(*names, count) for names, count in sums.items()]))


def _row(one: QueueLag) -> dict[str, object]:
    return {
        "topic": one.queue.topic,
        "broker": one.queue.broker,
        "queue": one.queue.index,
        "committed_offset": one.committed_offset,
        "pulled_offset": one.pulled_offset,
        "end_offset": one.end_offset,
        "lag": one.lag,
        "committed_at_ms": one.committed_at_ms,
    }


def _behind(one: QueueLag, now_ms: int) -> str:
    """Say how long ago the last message that was done came, while there are more."""
    if not one.lag or not one.committed_at_ms:
        return ""
    return f"{max(0, now_ms - one.committed_at_ms) / 1000:.1f}s"
