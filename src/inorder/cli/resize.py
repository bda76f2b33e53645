"""`inorder topic resize`: another number of queues while a topic is in use; resume, abort, look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder.cli.asking import YesOption, confirm
from inorder.cli.completing import TopicArgument
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.progress import progress
from inorder.cli.render import Output, as_json, put_page, say, table
from inorder.errors import UsageError
from inorder.escaping import escaped

if TYPE_CHECKING:
    from inorder.client.admin import Admin, TopicResize
    from inorder.client.session import Session

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

    async def work(_: Session, admin: Admin) -> TopicResize:
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
        put_page(describe(found, taken_back=abort))


@on_cluster
def repair(
    target: Cluster,
    topic: TopicArgument,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a topic one key map whose brokers use different ones of one version."""

    async def work(_: Session, admin: Admin) -> TopicResize:
        return await admin.topics.repair(topic)

    found = target.run(work)
    if output is Output.JSON:
        put_page(as_json(shown(found)))
    else:
        put_page(describe(found))


def _release(target: Cluster, topic: str, group: str, *, yes: bool, output: Output) -> None:
    confirm(f"Let group {group} read on in topic {topic} before it has handled what is older?", yes)

    async def work(_: Session, admin: Admin) -> int:
        return await admin.topics.release_group(topic, group)

    version = target.run(work)
    text = f"group {group} reads version {version} of topic {topic}"
    say(output, text, topic=topic, group=group, version=version)


async def _until_read(admin: Admin, found: TopicResize) -> TopicResize:
    """Wait until the groups that are there have read what was sent before."""
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


def describe(found: TopicResize, *, taken_back: bool = False) -> str:
    """Return where a topic stands, for people."""
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
            f"no answer from {', '.join(found.away)}: when it is back, take the resize back there, "
            f"too: inorder topic resize {found.topic} --abort"
            if taken_back
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
        f"group {one.group} was set back; it gets nothing until every broker of the topic knows "
        f"and what is handled has ended (by whom: inorder locks {one.group})"
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
        lines.append(f"{found.closing} queues were taken away and can be read until all are done")
    return "\n".join(escaped(line, None) for line in lines)


def shown(found: TopicResize) -> dict[str, object]:
    """Return where a topic stands, for programs."""
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
