"""`inorder lag`: how far groups are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.completing import complete_groups
from inorder.cli.failures import fail
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.render import Output, as_json, put_line, put_page, table
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
    """Show how far groups are behind: messages to do, and how long the oldest of them waits."""

    async def work(_: Session, admin: Admin) -> dict[str, list[QueueLag]]:
        if group is not None:
            await admin.groups.configs(group)
        names = [group] if group is not None else await admin.groups.names()
        return {name: await admin.groups.lag(name, topic, ages=True) for name in names}

    found = target.run(work)
    now_ms = SystemClock().now_ms()
    if group is None:
        _print_sums(found, output, now_ms)
        return
    queues = found[group]
    if output is Output.JSON:
        rows = [_row(one) for one in queues]
        put_page(as_json({"group": group, "lag": sum(one.lag for one in queues), "queues": rows}))
        return
    if not queues:
        fail(f"group {group} has committed nothing yet" + (f" on {topic}" if topic else ""))
    headings = ("topic", "broker", "queue", "committed", "pulled", "end", "lag", "behind")
    put_page(
        table(
            headings,
            [
                (one.queue.topic, one.queue.broker, one.queue.index, one.committed_offset,
                 one.pulled_offset, one.end_offset, one.lag,
                 _age(one.waiting_since_ms, now_ms))
                for one in queues
            ],
        )
    )  # fmt: skip
    put_page()
    age = _age(_since_ms(queues), now_ms)
    put_line(f"lag {sum(one.lag for one in queues)}" + (f", the oldest waits {age}" if age else ""))


def _print_sums(found: dict[str, list[QueueLag]], output: Output, now_ms: int) -> None:
    sums: dict[tuple[str, str], list[QueueLag]] = {}
    for name, queues in found.items():
        for one in queues:
            sums.setdefault((name, one.queue.topic), []).append(one)
    rows = [
        {"group": name, "topic": topic, "lag": sum(one.lag for one in queues),
         "waiting_since_ms": _since_ms(queues)}
        for (name, topic), queues in sums.items()
    ]  # fmt: skip
    if output is Output.JSON:
        put_page(as_json(rows))
        return
    cells = [
        (name, topic, sum(one.lag for one in queues), _age(_since_ms(queues), now_ms))
        for (name, topic), queues in sums.items()
    ]
    put_page(table(("group", "topic", "lag", "behind"), cells))


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
        "waiting_since_ms": one.waiting_since_ms,
    }


def _since_ms(queues: list[QueueLag]) -> int:
    """Return when the oldest message that waits was stored; 0 if none does."""
    return min((one.waiting_since_ms for one in queues if one.waiting_since_ms), default=0)


def _age(since_ms: int, now_ms: int) -> str:
    return "" if not since_ms else f"{max(0, now_ms - since_ms) / 1000:.1f}s"
