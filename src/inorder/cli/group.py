"""`inorder group list | create | describe | delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.asking import YesOption, confirm
from inorder.cli.completing import GroupArgument
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.render import Output, as_json, put_line, put_page, say, table

if TYPE_CHECKING:
    from inorder.client.admin import Admin, GroupView
    from inorder.client.session import Session
    from inorder.model import GroupConfig

app = typer.Typer(no_args_is_help=True, help="Consumer groups.", rich_markup_mode=None)


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    *,
    system: Annotated[bool, typer.Option("--system", help="Also those of the system.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the groups."""

    async def work(_: Session, admin: Admin) -> dict[str, dict[str, GroupConfig]]:
        return await admin.groups.table(system=system)

    found = target.run(work)
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
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only on this one.")] = None,
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

    async def work(_: Session, admin: Admin) -> None:
        await admin.groups.create(config, cluster=cluster)

    target.run(work)
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

    async def work(_: Session, admin: Admin) -> GroupView:
        return await admin.groups.describe(group)

    view = target.run(work)
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

    async def work(_: Session, admin: Admin) -> None:
        await admin.groups.delete(group, offsets=not keep_offsets)

    target.run(work)
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
