"""Rows for people (`-o table`) and for programs (`-o json`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any


class Output(StrEnum):
    """The forms of `-o`."""

    TABLE = "table"
    JSON = "json"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align rows under headings with spaces."""
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
    return json.dumps(value, indent=2, ensure_ascii=False)


def say(output: Output, text: str, **values: object) -> None:
    """Print what was done: a sentence for people, an object for programs."""
    print(as_json(values) if output is Output.JSON else text)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in (None, "") else str(value)
