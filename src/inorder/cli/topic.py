"""`inorder topic list | create | describe | update | resize | delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli import resize as resizing
from inorder.cli.asking import YesOption, confirm
from inorder.cli.completing import TopicArgument
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.render import Output, as_json, put_line, put_page, say, table
from inorder.cli.values import parse_pairs, parse_perm, show_perm, show_time
from inorder.ordering import keymap

if TYPE_CHECKING:
    from inorder.client.admin import Admin, TopicResize, TopicView
    from inorder.client.session import Session
    from inorder.model import TopicConfig

app = typer.Typer(no_args_is_help=True, help="Topics and their queues.", rich_markup_mode=None)

QUEUES_MIN = 1


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    *,
    system: Annotated[bool, typer.Option("--system", help="Also those of the system.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the topics."""

    async def work(_: Session, admin: Admin) -> dict[str, dict[str, TopicConfig]]:
        return await admin.topics.table(system=system)

    found = target.run(work)
    if output is Output.JSON:
        put_page(as_json([{"topic": name, "brokers": _configs(found[name])} for name in found]))
        return
    rows = [
        (name, broker, config.read_queues, config.write_queues, show_perm(config.perm))
        for name, configs in found.items()
        for broker, config in configs.items()
    ]
    put_page(table(("topic", "broker", "read queues", "write queues", "perm"), rows))


@app.command()
@on_cluster
def create(
    target: Cluster,
    topic: TopicArgument,
    *,
    queues: Annotated[int, typer.Option("--queues", min=QUEUES_MIN, help="Per broker.")] = 8,
    perm: Annotated[str, typer.Option("--perm", help="rw, r, w or -.")] = "rw",
    order: Annotated[
        bool, typer.Option("--order", help="Keep its queues in routes while a broker is down.")
    ] = False,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", help="Such as message.type=FIFO; repeatable.", metavar="K=V"),
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only on this one.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic on every broker, or set it so if it is there."""
    bits, attributes = parse_perm(perm), parse_pairs(attribute, "--attribute")

    async def work(_: Session, admin: Admin) -> None:
        await admin.topics.create(
            topic, queues=queues, perm=bits, order=order, attributes=attributes, cluster=cluster
        )

    target.run(work)
    text = f"topic {topic} has {queues} queues on each broker"
    say(output, text, topic=topic, queues=queues, perm=show_perm(bits), order=order)


@app.command()
@on_cluster
def describe(
    target: Cluster,
    topic: TopicArgument,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show settings, queues and groups of a topic."""

    async def work(_: Session, admin: Admin) -> tuple[TopicView, TopicResize | None]:
        view = await admin.topics.describe(topic)
        mapped = any(keymap.ATTRIBUTE in config.attributes for config in view.configs.values())
        return view, await admin.topics.resize_status(topic) if mapped else None

    view, versions = target.run(work)
    if output is Output.JSON:
        resize_ = None if versions is None else resizing.shown(versions)
        put_page(as_json({**_view(view), "resize": resize_}))
        return
    configs = [
        (broker, config.read_queues, config.write_queues, show_perm(config.perm), config.order)
        for broker, config in view.configs.items()
    ]
    put_page(table(("broker", "read queues", "write queues", "perm", "order"), configs), end="\n\n")
    queues = [
        (one.queue.broker, one.queue.index, one.min_offset, one.max_offset, one.messages,
         show_time(one.updated_at_ms))
        for one in view.queues
    ]  # fmt: skip
    put_page(
        table(("broker", "queue", "min", "max", "messages", "last stored"), queues), end="\n\n"
    )
    put_line(f"messages {view.messages}, {view.put_rate:.1f}/s in the last minute")
    put_line(f"groups {', '.join(view.groups) or 'none'}")
    if versions is not None:
        put_page(resizing.describe(versions))


@app.command()
@on_cluster
def update(
    target: Cluster,
    topic: TopicArgument,
    *,
    queues: Annotated[
        int | None,
        typer.Option("--queues", min=QUEUES_MIN, help="Per broker; only without a key map."),
    ] = None,
    perm: Annotated[str | None, typer.Option("--perm", help="rw, r, w or -.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", help="Repeatable.", metavar="K=V")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also to fewer queues, whose messages hide.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change what is given of a topic and leave the rest."""
    bits = None if perm is None else parse_perm(perm)
    attributes = parse_pairs(attribute, "--attribute")

    async def work(_: Session, admin: Admin) -> None:
        await admin.topics.update(
            topic, queues=queues, perm=bits, attributes=attributes, shrink=force
        )

    target.run(work)
    text = f"topic {topic} updated"
    say(output, text, topic=topic, queues=queues, perm=perm, attributes=attributes)


app.command("resize")(resizing.resize)
app.command("repair")(resizing.repair)


@app.command()
@on_cluster
def delete(
    target: Cluster,
    topic: TopicArgument,
    *,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a topic with its messages and offsets."""
    confirm(f"Delete topic {topic} with all its messages?", yes)

    async def work(_: Session, admin: Admin) -> None:
        await admin.topics.delete(topic)

    target.run(work)
    say(output, f"topic {topic} deleted", topic=topic, deleted=True)


def _configs(configs: dict[str, TopicConfig]) -> dict[str, dict[str, object]]:
    return {
        broker: {
            "read_queues": config.read_queues,
            "write_queues": config.write_queues,
            "perm": show_perm(config.perm),
            "order": config.order,
            "attributes": config.attributes,
        }
        for broker, config in configs.items()
    }


def _view(view: TopicView) -> dict[str, object]:
    return {
        "topic": view.name,
        "brokers": _configs(view.configs),
        "queues": [
            {
                "broker": one.queue.broker,
                "queue": one.queue.index,
                "min_offset": one.min_offset,
                "max_offset": one.max_offset,
                "messages": one.messages,
                "updated_at_ms": one.updated_at_ms,
            }
            for one in view.queues
        ],
        "groups": list(view.groups),
        "messages": view.messages,
        "put_rate": view.put_rate,
    }
