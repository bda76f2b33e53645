"""`inorder send`: one message, or one per line of standard input or files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.completing import TopicArgument
from inorder.cli.lines import Line, json_line, plain_line, sources
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.render import Output, put_line
from inorder.cli.values import parse_duration, parse_pairs
from inorder.errors import UsageError

if TYPE_CHECKING:
    from inorder.client.admin import Admin
    from inorder.client.session import Session


@on_cluster
def send(
    target: Cluster,
    topic: TopicArgument,
    body: Annotated[
        str | None, typer.Argument(help="Body; without, lines of stdin.", metavar="[BODY]")
    ] = None,
    *,
    key: Annotated[
        str | None, typer.Option("--key", help="Same key, same queue, in order.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Tag.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="Repeatable.", metavar="K=V")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="Lines of this file; repeatable.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="A file is one message.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Lines are JSON objects.")] = False,
    key_field: Annotated[
        str | None, typer.Option("--key-field", help="Field of --json with the key.")
    ] = None,
    tag_field: Annotated[
        str | None, typer.Option("--tag-field", help="Field of --json with the tag.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Lines are KEY, this, BODY.")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", help="Consumers get it later: 10s, 5m, 2h.", metavar="TIME"),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send a message, or one per line. Empty lines are left out."""
    if body is not None and file:
        raise UsageError("give a body or --file, not both")
    if (key_field or tag_field) and not as_json:
        raise UsageError("--key-field and --tag-field need --json")
    properties = parse_pairs(property_, "--property")
    delay_s = None if delay is None else parse_duration(delay, "--delay")
    read = json_line(key_field, tag_field) if as_json else plain_line(key_separator)

    def lines() -> Iterator[Line]:
        for where, data in sources(body, file, whole):
            found = read(where, data)
            yield Line(where, found.body, found.key or key, found.tag or tag)

    async def work(session: Session, admin: Admin) -> int:
        from inorder.cli.sending import print_receipt, send_all

        await admin.cluster.brokers()  # a wrong address is told now, not when a send gives up
        shown = print_receipt if output is Output.JSON else None
        return await send_all(session, topic, lines(), properties, shown, delay_s=delay_s)

    count = target.run(work)
    if output is Output.TABLE:
        put_line(f"sent {count} message{'' if count == 1 else 's'} to {topic}")
