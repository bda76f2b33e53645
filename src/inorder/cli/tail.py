"""`inorder tail`: the messages of a topic, from anywhere, and new ones as they arrive."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.oncluster import Cluster, OutputOption, TopicArgument, on_cluster
from inorder.cli.output import (
    RAW_AND_JSON,
    TIME_HELP,
    Output,
    RawOption,
    as_json_line,
    as_line,
    body_text,
    by_template,
    put_page,
    write_raw,
)
from inorder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from inorder.client.admin import Admin
    from inorder.model import ReceivedMessage


@on_cluster
def tail(
    target: Cluster,
    topic: TopicArgument,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they come.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help=f"beginning, end, an offset, {TIME_HELP}.  [default: the last 10]"
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="End before this time; with --from.")
    ] = None,
    tag: Annotated[str, typer.Option("--tag", help='A tag, or "a || b".')] = "*",
    sql: Annotated[
        str | None, typer.Option("--sql", help="An SQL92 expression over the properties.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Ordering or index key.")] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", help="At most; without --from the last.", min=1)
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", help="Only this one.", min=0)] = None,
    body: Annotated[bool, typer.Option("--body", help="Print bodies only.")] = False,
    raw: RawOption = False,
    template: Annotated[
        str | None,
        typer.Option("--format", help="Such as '{offset} {key} {body}'; fields as in -o json."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print messages of a topic. Nothing is committed, and no consumer notices."""
    if until is not None and (start is None or follow):
        raise UsageError("--to ends a range: give --from with it, and not -f")
    show = _shower(output, template, body=body, raw=raw, flush=follow)

    async def work(admin: Admin) -> None:
        from inorder.cli.stream import Wanted, tail_topic

        wanted = Wanted(start, tag, key, count, queue, until, sql)
        await tail_topic(admin, topic, wanted, follow, show)

    with contextlib.suppress(KeyboardInterrupt):
        target.run(work)


def _shower(
    output: Output, template: str | None, *, body: bool, raw: bool, flush: bool
) -> Callable[[ReceivedMessage], None]:
    """Return the function that prints a message in the chosen form."""
    if raw and output is Output.JSON:
        raise UsageError(RAW_AND_JSON)
    if template is not None:
        form = by_template(template, raw=raw)
        if raw:
            return lambda one: print(form(one), flush=flush)
        return lambda one: put_page(form(one), flush=flush)
    if raw:
        return lambda one: write_raw(one, flush=flush)
    if output is Output.JSON:
        return lambda one: put_page(as_json_line(one), flush=flush)
    return lambda one: put_page((body_text if body else as_line)(one), flush=flush)
