"""`inorder topic list | create | describe | update | delete`, and `inorder topic resize`.

`resize` gives a topic another number of queues while it is in use; it also resumes, aborts and
shows a resize.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder.cli.oncluster import (
    Cluster,
    OnlyClusterOption,
    OutputOption,
    SystemOption,
    TopicArgument,
    YesOption,
    confirm,
    on_cluster,
)
from inorder.cli.output import (
    Output,
    as_json,
    parse_pairs,
    parse_perm,
    progress,
    put_line,
    put_page,
    say,
    show_perm,
    show_time,
    table,
)
from inorder.errors import UsageError
from inorder.escaping import escaped
from inorder.ordering import keymap

if TYPE_CHECKING:
    from inorder.client.admin import Admin, TopicResize, TopicView
    from inorder.model import TopicConfig

LOOK_SECONDS: Final = 0.2


@on_cluster
def resize(
    target: Cluster,
    topic: TopicArgument,
    *,
    queues: Annotated[
        int | None, typer.Option("--queues", min=1, help="In all, over the topic's brokers.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish a resize that was interrupted.")
    ] = False,
    abort: Annotated[
        bool,
        typer.Option(
            "--abort", help="Take a resize back that waits for a broker which is gone for good."
        ),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show where it stands, and which groups wait.")
    ] = False,
    release: Annotated[
        str | None,
        typer.Option(
            "--release", metavar="GROUP",
            help="Wait no more for a group: what it has not handled may come late, or never.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without", metavar="BROKER",
            help="Gone for good, with what it holds; repeatable, with --queues or --resume.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="For the groups that consume just now.")
    ] = True,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:  # fmt: skip
    """Give a topic another number of queues while it is in use; keys stay in order."""
    if sum((queues is not None, resume, abort, status, release is not None)) != 1:
        raise UsageError("give one of --queues, --resume, --abort, --status and --release")
    if without and (abort or status or release is not None):
        raise UsageError("--without goes with --queues or --resume")
    if without:
        names = ", ".join(sorted(without))
        confirm(f"Share topic {topic} among the others, and lose what only {names} holds?", yes)
    if release is not None:
        _release(target, topic, release, yes=yes, output=output)
        return

    async def work(admin: Admin) -> TopicResize:
        if status:
            return await admin.topics.resize_status(topic)
        if abort:
            return await admin.topics.abort_resize(topic)
        found = await admin.topics.resize(topic, queues=queues, without=without or ())
        return await _until_read(admin, found) if wait else found

    found = target.run(work)
    if output is Output.JSON:
        put_page(as_json(shown(found)))
    else:
        put_page(describe_resize(found, aborted=abort))


@on_cluster
def repair(
    target: Cluster,
    topic: TopicArgument,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a topic one key map whose brokers use different ones of one version."""
    found = target.run(lambda admin: admin.topics.repair(topic))
    if output is Output.JSON:
        put_page(as_json(shown(found)))
    else:
        put_page(describe_resize(found))


def _release(target: Cluster, topic: str, group: str, *, yes: bool, output: Output) -> None:
    confirm(f"Let group {group} read on in topic {topic} before it has handled what is older?", yes)

    version = target.run(lambda admin: admin.topics.release_group(topic, group))
    text = f"group {group} reads version {version} of topic {topic}"
    say(output, text, topic=topic, group=group, version=version)


async def _until_read(admin: Admin, found: TopicResize) -> TopicResize:
    """Wait until the online groups have read the messages of the former version."""
    import asyncio

    behind = _behind(found)
    with progress("messages of the old queues read", behind or None) as advance:
        while any(group.online for group in found.waiting):
            await asyncio.sleep(LOOK_SECONDS)
            found = await admin.topics.resize_status(found.topic)
            advance(max(0, behind - _behind(found)))
            behind = min(behind, _behind(found))
    return found


def _behind(found: TopicResize) -> int:
    return sum(group.behind for group in found.waiting if group.online)


def describe_resize(found: TopicResize, *, aborted: bool = False) -> str:
    """Return the state of a resize, for people."""
    where = ", ".join(f"{name} {count}" for name, count in found.brokers.items())
    lines = [f"topic {found.topic} has {found.queues} queues ({where}), version {found.version}"]
    if found.plan is not None:
        done = found.opened or found.stopped
        lines += [
            f"a resize to {found.planned_queues} queues is not finished: "
            f"{'opened' if found.opened else 'stopped'} at {', '.join(done) or 'no broker yet'}; "
            f"keyed sends wait. Finish it with: inorder topic resize {found.topic} --resume"
        ]
    if found.away:
        lines.append(
            f"no answer from {', '.join(found.away)}: when it is back, abort the resize there, "
            f"too: inorder topic resize {found.topic} --abort"
            if aborted
            else f"no answer from {', '.join(found.away)}: what it knows is not in here"
        )
    if found.waiting:
        rows = [
            (one.group, one.version, one.behind, "yes" if one.online else "no",
             ", ".join(one.brokers) or "-")
            for one in found.waiting
        ]  # fmt: skip
        heads = ("group", "reads version", "messages left", "online", "at")
        lines += ["groups that have yet to handle what is older:", *table(heads, rows).split("\n")]
    lines += [
        f"group {one.group} was rewound; it gets nothing until every broker of the topic knows "
        f"and all running handlers have ended (whose: inorder locks {one.group})"
        for one in found.waiting
        if one.rests
    ]
    lines += [
        f"group {one.group} has handled all of its version: if it does not go on at once, a broker "
        f"does not answer, or parked keys have to be redriven first (inorder parked {one.group})"
        for one in found.waiting
        if not one.behind and not one.rests
    ]
    if found.closing:
        lines.append(f"{found.closing} queues were removed and can be read until all are done")
    return "\n".join(escaped(line, None) for line in lines)


def shown(found: TopicResize) -> dict[str, object]:
    """Return the state of a resize, for programs."""
    plan = None
    if found.plan is not None:
        plan = {
            "id": found.plan.id,
            "version": found.plan.version,
            "queues": found.planned_queues,
            "stopped": list(found.stopped),
            "opened": list(found.opened),
        }
    return {
        "topic": found.topic,
        "version": found.version,
        "queues": found.queues,
        "brokers": found.brokers,
        "plan": plan,
        "waiting": [
            {
                "group": one.group,
                "version": one.version,
                "messages_left": one.behind,
                "online": one.online,
                "brokers": list(one.brokers),
                "rests": one.rests,
            }
            for one in found.waiting
        ],
        "closing": found.closing,
        "away": list(found.away),
        "done": found.is_done,
    }


app = typer.Typer(no_args_is_help=True, help="Topics and their queues.", rich_markup_mode=None)

QUEUES_MIN = 1


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    *,
    system: SystemOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the topics."""
    found = target.run(lambda admin: admin.topics.table(system=system))
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
    cluster: OnlyClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic on every broker, or set it so if it is there."""
    bits, attributes = parse_perm(perm), parse_pairs(attribute, "--attribute")

    target.run(
        lambda admin: admin.topics.create(
            topic, queues=queues, perm=bits, order=order, attributes=attributes, cluster=cluster
        )
    )
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

    async def work(admin: Admin) -> tuple[TopicView, TopicResize | None]:
        view = await admin.topics.describe(topic)
        mapped = any(keymap.ATTRIBUTE in config.attributes for config in view.configs.values())
        return view, await admin.topics.resize_status(topic) if mapped else None

    view, versions = target.run(work)
    if output is Output.JSON:
        resize_ = None if versions is None else shown(versions)
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
        put_page(describe_resize(versions))


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

    target.run(
        lambda admin: admin.topics.update(
            topic, queues=queues, perm=bits, attributes=attributes, shrink=force
        )
    )
    text = f"topic {topic} updated"
    say(output, text, topic=topic, queues=queues, perm=perm, attributes=attributes)


app.command("resize")(resize)
app.command("repair")(repair)


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

    target.run(lambda admin: admin.topics.delete(topic))
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
