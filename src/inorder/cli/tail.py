"""`inorder tail`: the messages of a topic, from anywhere, and on as they come."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.failures import says_errors
from inorder.cli.render import Output
from inorder.cli.shown import as_json_line, as_line, body_text
from inorder.cli.target import NamesrvOption, OutputOption, ProfileOption, run
from inorder.cli.values import TIME_HELP

if TYPE_CHECKING:
    from inorder.client.admin import Admin
    from inorder.client.session import Session


@says_errors
def tail(
    topic: Annotated[str, typer.Argument(help="Topic.", metavar="TOPIC")],
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they come.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help=f"beginning, end, an offset, {TIME_HELP}.  [default: the last 10]"
        ),
    ] = None,
    tag: Annotated[str, typer.Option("--tag", help='A tag, or "a || b".')] = "*",
    key: Annotated[str | None, typer.Option("--key", help="Ordering or index key.")] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", help="At most; without --from the last.", min=1)
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", help="Only this one.", min=0)] = None,
    body: Annotated[bool, typer.Option("--body", help="Print bodies only.")] = False,
    namesrv: NamesrvOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print messages of a topic; nothing is committed, and no consumer notices."""
    form = as_json_line if output is Output.JSON else body_text if body else as_line

    async def work(_: Session, admin: Admin) -> None:
        from inorder.cli.stream import Wanted, tail_topic

        wanted = Wanted(start, tag, key, count, queue)
        await tail_topic(admin, topic, wanted, follow, lambda one: print(form(one), flush=follow))

    with contextlib.suppress(KeyboardInterrupt):
        run(namesrv, profile, work)
