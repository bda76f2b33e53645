"""Rows for people (`-o table`) and for programs (`-o json`), and the only way to the terminal.

What a command prints was mostly said by others, so nothing leaves here that a terminal obeys
(`inorder.escaping`): a line stays a line, a cell stays in its column.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from inorder.escaping import escaped, escaped_json

CELL_MAX: Final = 300
LINE_MAX: Final = 4000


class Output(StrEnum):
    """The forms of `-o`."""

    TABLE = "table"
    JSON = "json"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align rows under headings with spaces; what is in a cell is escaped, and cut if long."""
    cells = [[heading.upper() for heading in headings]]
    cells += [[_text(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def as_json(value: Any) -> str:
    """Write a value as indented JSON."""
    return escaped_json(json.dumps(value, indent=2, ensure_ascii=False))


def put_line(text: str, *, err: bool = False, flush: bool = False) -> None:
    """Print one line, whatever is in it."""
    print(escaped(text, LINE_MAX), file=sys.stderr if err else sys.stdout, flush=flush)


def put_page(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print lines whose parts are escaped already, such as a table."""
    print(escaped(text, None, keep="\n\t\u200c\u200d"), end=end, flush=flush)


def say(output: Output, text: str, **values: object) -> None:
    """Print what was done: a sentence for people, an object for programs."""
    if output is Output.JSON:
        put_page(as_json(values))
    else:
        put_line(text)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in (None, "") else escaped(str(value), CELL_MAX)
