"""`inorder group list | create | describe | delete`, and `inorder lag`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.failures import fail
from inorder.cli.oncluster import (
    Cluster,
    GroupArgument,
    OnlyClusterOption,
    OutputOption,
    SystemOption,
    YesOption,
    complete_groups,
    confirm,
    on_cluster,
)
from inorder.cli.output import Output, as_json, put_line, put_page, say, table
from inorder.clock import SystemClock

if TYPE_CHECKING:
    from inorder.client.admin import Admin, GroupView, QueueLag
    from inorder.model import GroupConfig

app = typer.Typer(no_args_is_help=True, help="Consumer groups.", rich_markup_mode=None)


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    *,
    system: SystemOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the groups."""
    found = target.run(lambda admin: admin.groups.table(system=system))
    if output is Output.JSON:
        put_page(as_json([{"group": name, "brokers": _configs(found[name])} for name in found]))
        return
    rows = [
        (name, broker, config.consume_enable, config.consume_message_orderly,
         config.retry_max_times)
        for name, configs in found.items()
        for broker, config in configs.items()
    ]  # fmt: skip
    put_page(table(("group", "broker", "enabled", "orderly", "retries"), rows))


@app.command()
@on_cluster
def create(
    target: Cluster,
    group: GroupArgument,
    *,
    orderly: Annotated[bool, typer.Option("--orderly", help="Consumes in order.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="May not consume.")] = False,
    retries: Annotated[int, typer.Option("--retries", help="Per message.")] = 16,
    cluster: OnlyClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a group on every broker, or set it so if it is there."""
    from inorder.model import GroupConfig

    config = GroupConfig(
        group,
        consume_enable=not disabled,
        consume_message_orderly=orderly,
        retry_max_times=retries,
    )

    target.run(lambda admin: admin.groups.create(config, cluster=cluster))
    say(output, f"group {group} created", group=group, orderly=orderly, enabled=not disabled,
        retries=retries)  # fmt: skip


@app.command()
@on_cluster
def describe(
    target: Cluster,
    group: GroupArgument,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show settings, members, subscriptions and progress of a group."""
    view = target.run(lambda admin: admin.groups.describe(group))
    if output is Output.JSON:
        put_page(as_json(_view(view)))
        return
    configs = [
        (broker, config.consume_enable, config.consume_message_orderly, config.retry_max_times)
        for broker, config in view.configs.items()
    ]
    put_page(table(("broker", "enabled", "orderly", "retries"), configs), end="\n\n")
    if view.members:
        rows = [(one.client_id, one.address, one.language, one.version) for one in view.members]
        put_page(table(("client", "address", "language", "version"), rows), end="\n\n")
        wanted = [(topic, item.expression) for topic, item in sorted(view.subscriptions.items())]
        put_page(table(("topic", "subscription"), wanted), end="\n\n")
        if view.differences:
            put_line("members have different subscriptions: messages are skipped or stand still")
            differing = [
                (one.topic, "(not subscribed)" if wish is None else wish, ", ".join(clients))
                for one in view.differences
                for wish, clients in one.views
            ]
            put_page(table(("topic", "subscription", "members"), differing), end="\n\n")
    else:
        put_page("nobody is online", end="\n\n")
    queues = [
        (one.queue.topic, one.queue.broker, one.queue.index, one.committed_offset, one.end_offset,
         one.lag)
        for one in view.queues
    ]  # fmt: skip
    put_page(table(("topic", "broker", "queue", "committed", "end", "lag"), queues), end="\n\n")
    put_line(f"lag {view.lag}")


@app.command()
@on_cluster
def delete(
    target: Cluster,
    group: GroupArgument,
    *,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="A new group of that name goes on from there.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a group with its offsets, retries and dead letters."""
    confirm(f"Delete group {group} with its retries and dead letters?", yes)

    target.run(lambda admin: admin.groups.delete(group, offsets=not keep_offsets))
    say(output, f"group {group} deleted", group=group, deleted=True)


def _configs(configs: dict[str, GroupConfig]) -> dict[str, dict[str, object]]:
    return {
        broker: {
            "enabled": config.consume_enable,
            "orderly": config.consume_message_orderly,
            "retries": config.retry_max_times,
            "attributes": config.attributes,
        }
        for broker, config in configs.items()
    }


def _view(view: GroupView) -> dict[str, object]:
    return {
        "group": view.name,
        "brokers": _configs(view.configs),
        "members": [
            {
                "client_id": one.client_id,
                "address": one.address,
                "language": one.language,
                "version": one.version,
            }
            for one in view.members
        ],
        "message_model": view.message_model,
        "subscriptions": {topic: one.expression for topic, one in view.subscriptions.items()},
        "differences": [
            {
                "topic": one.topic,
                "views": [
                    {"subscription": wish, "members": list(clients)} for wish, clients in one.views
                ],
            }
            for one in view.differences
        ],
        "lag": view.lag,
        "queues": [
            {
                "topic": one.queue.topic,
                "broker": one.queue.broker,
                "queue": one.queue.index,
                "committed_offset": one.committed_offset,
                "end_offset": one.end_offset,
                "lag": one.lag,
            }
            for one in view.queues
        ],
    }


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

    async def work(admin: Admin) -> dict[str, list[QueueLag]]:
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
    """Return when the oldest waiting message was stored; 0: none waits."""
    return min((one.waiting_since_ms for one in queues if one.waiting_since_ms), default=0)


def _age(since_ms: int, now_ms: int) -> str:
    return "" if not since_ms else f"{max(0, now_ms - since_ms) / 1000:.1f}s"
