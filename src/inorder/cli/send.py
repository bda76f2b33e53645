"""`inorder send`: one message from the argument, or one per line of standard input or of files.

`sending.py` reads the lines, sends them, and ends them at Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from inorder.cli.oncluster import Cluster, OutputOption, TopicArgument, on_cluster
from inorder.cli.output import Output, parse_duration, parse_moment, parse_pairs, put_line
from inorder.errors import UsageError

if TYPE_CHECKING:
    from inorder.client.admin import Admin
    from inorder.client.session import Session


@dataclass(frozen=True, slots=True)
class Line:
    """One message to send, and where it came from."""

    where: str
    body: bytes
    key: str | None = None
    tag: str | None = None


def sources(
    body: str | None, files: list[Path] | None, whole: bool
) -> Iterator[tuple[str, bytes | BufferedIOBase]]:
    """Yield each body and its place in the input, and each stream of lines with a name for them."""
    if body is not None:
        yield "the body", body.encode()
    elif not files:
        if sys.stdin.isatty():
            put_line("inorder: one message a line; Ctrl-D ends", err=True)
        yield "line", cast(BufferedIOBase, sys.stdin.buffer)
    else:
        for path in files:
            if whole:
                yield str(path), path.read_bytes()
                continue
            with path.open("rb") as stream:
                yield f"{path}, line", stream


def plain_line(separator: str | None) -> Callable[[str, bytes], Line]:
    """Read a line as a body, or as key and body."""

    def read(where: str, data: bytes) -> Line:
        if separator is None:
            return Line(where, data)
        key, found, body = data.partition(separator.encode())
        if not found:
            raise UsageError(f"{where} has no {separator!r} between key and body")
        return Line(where, body, key.decode("utf-8", "replace"))

    return read


def json_line(key_field: str | None, tag_field: str | None) -> Callable[[str, bytes], Line]:
    """Read a line as JSON, which is the body and names the key and the tag."""

    def read(where: str, data: bytes) -> Line:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise UsageError(f"{where} is not JSON: {error}") from None
        return Line(where, data, _field(value, key_field, where), _field(value, tag_field, where))

    return read


def _field(value: Any, name: str | None, where: str) -> str | None:
    if name is None:
        return None
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, str | int):
        raise UsageError(f"{where} has no text or number in field {name!r}")
    return str(found)


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
        typer.Option("--delay", help="Consumers get it later: 250ms, 10s, 5m, 2h.", metavar="TIME"),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            "--deliver-at", help="Consumers get it then: 2030-01-31T12:00:00Z.", metavar="TIME"
        ),
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
    moment = None if deliver_at is None else parse_moment(deliver_at, "--deliver-at")
    read = json_line(key_field, tag_field) if as_json else plain_line(key_separator)

    async def work(session: Session, admin: Admin) -> int:
        from inorder.cli.sending import lines_of, print_receipt, send_all

        async def lines() -> AsyncIterator[Line]:
            async for where, data in lines_of(sources(body, file, whole)):
                found = read(where, data)
                yield Line(where, found.body, found.key or key, found.tag or tag)

        await admin.cluster.brokers()  # a wrong address is reported now, not when a send gives up
        shown = print_receipt if output is Output.JSON else None
        return await send_all(
            session, topic, lines(), properties, shown, delay_s=delay_s, moment=moment
        )

    count = target.run_session(work)
    if output is Output.TABLE:
        put_line(f"sent {count} message{'' if count == 1 else 's'} to {topic}")
