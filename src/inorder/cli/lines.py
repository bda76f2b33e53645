"""Where the messages of `inorder send` come from: the argument, lines of stdin or of files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from inorder.cli.render import put_line
from inorder.errors import UsageError


@dataclass(frozen=True, slots=True)
class Line:
    """One message to send, and where it came from."""

    where: str
    body: bytes
    key: str | None = None
    tag: str | None = None


def sources(body: str | None, files: list[Path] | None, whole: bool) -> Iterator[tuple[str, bytes]]:
    """Give each body and where it stands."""
    if body is not None:
        yield "the body", body.encode()
    elif not files:
        if sys.stdin.isatty():
            put_line("inorder: one message a line; Ctrl-D ends", err=True)
        yield from _lines("line", sys.stdin.buffer)
    else:
        for path in files:
            if whole:
                yield str(path), path.read_bytes()
                continue
            with path.open("rb") as stream:
                yield from _lines(f"{path}, line", stream)


def _lines(name: str, stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(stream, 1):
        data = line.rstrip(b"\r\n")
        if data:
            yield f"{name} {number}", data


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
