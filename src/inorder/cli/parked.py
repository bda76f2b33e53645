"""`inorder parked [GROUP] | parked show | parked drop | redrive`: parked keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder.cli.oncluster import (
    AnyGroupArgument,
    Cluster,
    GroupArgument,
    ListByDefault,
    OnlyTopicOption,
    OutputOption,
    YesOption,
    confirm,
    on_cluster,
)
from inorder.cli.output import (
    Output,
    as_json,
    as_line,
    as_object,
    progress,
    put_line,
    put_page,
    say,
    show_time,
    table,
)
from inorder.clock import SystemClock

if TYPE_CHECKING:
    from inorder.client.admin import Admin, ParkedKey
    from inorder.model import ReceivedMessage

WAIT_SECONDS: Final = 0.25
_CELL_CHARS: Final = 60


app = typer.Typer(
    cls=ListByDefault,
    help="Keys that were set aside: list them (`inorder parked [GROUP]`), look into them, drop "
    "them. `inorder redrive` handles them again. Brokers of ours only.",
    rich_markup_mode=None,
)


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    group: AnyGroupArgument = None,
    *,
    topic: OnlyTopicOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List parked keys: since when, how much, and the error that parked them."""

    async def work(admin: Admin) -> tuple[list[ParkedKey], dict[tuple[str, str], str]]:
        return await admin.parked.list(group, topic=topic), await admin.parked.full(group)

    keys, full = target.run(work)
    now_ms = SystemClock().now_ms()
    if output is Output.JSON:
        blocked = [
            {"group": name, "broker": broker, "why": why} for (name, broker), why in full.items()
        ]
        put_page(as_json({"keys": [_row(one, now_ms) for one in keys], "full": blocked}))
        return
    put_page(
        table(
            ("group", "topic", "broker", "queue", "key", "messages", "bytes", "age", "state",
             "error"),
            [
                (one.group, one.topic, one.queue.broker, one.queue.index, one.key, one.messages,
                 one.size_bytes, _age(now_ms - one.since_ms), _state(one), _short(_error(one)))
                for one in keys
            ],
        )
    )  # fmt: skip
    for (name, broker), why in sorted(full.items()):
        put_page()
        put_line(f"group {name} parks nothing more at {broker}, its failing keys block: {why}")


@app.command()
@on_cluster
def show(
    target: Cluster,
    group: GroupArgument,
    key: Annotated[str, typer.Argument(help="Parked key.")],
    *,
    topic: OnlyTopicOption = None,
    count: Annotated[int, typer.Option("-n", "--count", help="At most.", min=1)] = 64,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the messages of a parked key, in order, and why it is parked."""

    async def work(admin: Admin) -> tuple[list[ReceivedMessage], list[ParkedKey]]:
        messages = await admin.parked.show(group, key, topic=topic, count=count)
        known = await admin.parked.list(group, topic=topic)
        return messages, [one for one in known if one.key == key]

    messages, known = target.run(work)
    now_ms = SystemClock().now_ms()
    if output is Output.JSON:
        keys = [_row(one, now_ms) for one in known]
        put_page(as_json({"keys": keys, "messages": [as_object(one) for one in messages]}))
        return
    for one in known:
        where = f"{one.topic} {one.queue.broker}/{one.queue.index}"
        put_line(f"{where}: {one.messages} messages, {_state(one)} since {show_time(one.since_ms)}")
        put_line(f"first error: {one.first_error} (tried {one.tries} times)")
        if one.last_error:
            put_line(f"last error:  {one.last_error}")
    put_page("\n".join(as_line(message) for message in messages))


@app.command()
@on_cluster
def drop(
    target: Cluster,
    group: GroupArgument,
    keys: Annotated[list[str], typer.Argument(help="Parked keys.", metavar="KEY...")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    topic: OnlyTopicOption = None,
    first: Annotated[bool, typer.Option("--first", help="Only the first message of each.")] = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Throw the messages of parked keys away; a key without messages goes live."""
    what = "the first message" if first else "all messages"
    confirm(f"Drop {what} of {len(keys)} parked keys of group {group} for good?", yes)

    count = target.run(
        lambda admin: admin.parked.drop(group, keys, reason=reason, topic=topic, first=first)
    )
    say(output, f"{count} messages of group {group} dropped: {reason}", group=group, keys=keys,
        messages=count, reason=reason)  # fmt: skip


@on_cluster
def redrive(
    target: Cluster,
    group: GroupArgument,
    keys: Annotated[
        list[str] | None, typer.Argument(help="Parked keys; without, all.", metavar="[KEY...]")
    ] = None,
    *,
    topic: OnlyTopicOption = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="At most so many messages a second in all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be redriven.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take redrives back.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until all are live or failed; 1 if any failed.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let the group's consumers handle parked keys again, each in order; then they go live."""

    async def work(admin: Admin) -> tuple[list[ParkedKey], list[ParkedKey]]:
        parked = admin.parked
        if cancel:
            return await parked.cancel(group, keys or (), topic=topic), []
        asked = await parked.redrive(group, keys or (), topic=topic, rate=rate, dry_run=dry_run)
        if not wait or dry_run or not asked:
            return asked, asked
        return asked, await _until_over(admin, group, asked)

    asked, left = target.run(work)
    waited = wait and not dry_run and not cancel
    if output is Output.JSON:
        now_ms = SystemClock().now_ms()
        rows = [_row(one, now_ms) for one in asked]
        still = [_row(one, now_ms) for one in left] if waited else []
        put_page(as_json({"group": group, "dry_run": dry_run, "keys": rows, "failed": still}))
    else:
        count = sum(one.messages for one in asked)
        verb = "would be redriven" if dry_run else "not redriven" if cancel else "redriven"
        for one in asked if dry_run else ():
            put_line(f"{one.topic} {one.queue.broker}/{one.queue.index}  {one.key}  {one.messages}")
        put_line(f"{len(asked)} keys with {count} messages of group {group}: {verb}")
        for one in left if waited else ():
            put_line(f"still parked: {one.key}, {one.messages} messages: {_error(one)}")
    if waited and left:
        raise typer.Exit(1)


async def _until_over(admin: Admin, group: str, asked: list[ParkedKey]) -> list[ParkedKey]:
    """Wait until no key is being redriven; return the keys that are still parked."""
    import asyncio

    places = {(one.queue, one.key) for one in asked}
    total = sum(one.messages for one in asked)
    seen = 0
    with progress("messages", total) as advance:
        while True:
            found = [
                one for one in await admin.parked.list(group) if (one.queue, one.key) in places
            ]
            handled = max(seen, total - sum(one.messages for one in found))
            advance(handled - seen)
            seen = handled
            if not any(one.redriving for one in found):
                return found
            await asyncio.sleep(WAIT_SECONDS)


def _row(one: ParkedKey, now_ms: int) -> dict[str, object]:
    moved = one.moved_to
    return {
        "group": one.group,
        "topic": one.topic,
        "broker": one.queue.broker,
        "queue": one.queue.index,
        "key": one.key,
        "messages": one.messages,
        "size_bytes": one.size_bytes,
        "since_ms": one.since_ms,
        "age_ms": max(0, now_ms - one.since_ms),
        "first_offset": one.first_offset,
        "tries": one.tries,
        "first_error": one.first_error,
        "last_error": one.last_error,
        "redriving": one.redriving,
        "older": [{"broker": queue.broker, "queue": queue.index} for queue in one.older],
        "moved_to": None if moved is None else {"broker": moved.broker, "queue": moved.index},
    }


def _state(one: ParkedKey) -> str:
    if one.moved_to is not None:
        return f"moved to {one.moved_to.broker}/{one.moved_to.index}"
    return "redriving" if one.redriving else "parked"


def _error(one: ParkedKey) -> str:
    return one.last_error or one.first_error


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _CELL_CHARS else flat[: _CELL_CHARS - 1] + "…"


def _age(age_ms: int) -> str:
    seconds = max(0, age_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
