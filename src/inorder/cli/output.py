"""Output for people (`-o table`) and for programs (`-o json`), and the only way to the terminal.

Most printed values come from others, so control characters never reach the terminal
(`inorder.escaping`): a line stays a line, a cell stays in its column. This file also reads the
words of the command line that mean values (times, permissions, `name=value`), prints messages, and
shows the progress of long work on a terminal's stderr. How commands behave: decision 30; how text
from peers is shown: decision 46.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from inorder.errors import UsageError
from inorder.escaping import escaped, escaped_body, escaped_json
from inorder.model import PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from collections.abc import Callable

    from inorder.model import ReceivedMessage

CELL_MAX: Final = 300
LINE_MAX: Final = 4000


class Output(StrEnum):
    """The forms of `-o`."""

    TABLE = "table"
    JSON = "json"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align rows under headings with spaces; cells are escaped, and cut if long."""
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
    """Print one line, escaped."""
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


_AGO: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PERMS: Final = {"r": PERM_READ, "w": PERM_WRITE, "-": 0}
TIME_HELP: Final = "a time (2026-11-15T08:00:00, 1794716671692ms) or an age (90s, 15m, 2h, 1d)"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DIGITS_MIN: Final = 12


def parse_time(text: str, now_ms: int) -> datetime:
    """Read a time: ISO 8601 (local if no zone), ms since 1970, or how long ago."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        amount, unit = int(ago[1]), ago[2]
        if unit == "ms" and len(ago[1]) >= _EPOCH_DIGITS_MIN:
            return _moment(amount)
        return _moment(max(0, now_ms - amount * _UNIT_MS[unit]))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(f"{text!r} is no time; give {TIME_HELP}") from None


def parse_moment(text: str, option: str) -> datetime:
    """Read a time to come: ISO 8601 (local if no zone), or ms since 1970."""
    found = _AGO.fullmatch(text)
    if found is not None and found[2] == "ms" and len(found[1]) >= _EPOCH_DIGITS_MIN:
        return _moment(int(found[1]))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is no time; give one as in 2030-01-31T12:00:00Z or 1794716671692ms"
        ) from None


def parse_duration(text: str, option: str) -> float:
    """Read a duration in seconds: `10`, `10s`, `5m`, `2h`."""
    found = _AGO.fullmatch(text if not text.isdigit() else f"{text}s")
    if found is None:
        raise UsageError(f"{option} {text!r} is no duration; give seconds, or 10s, 5m, 2h")
    return int(found[1]) * _UNIT_MS[found[2]] / 1000


def _moment(timestamp_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


def show_time(timestamp_ms: int) -> str:
    """Write a time for people, in UTC."""
    if timestamp_ms <= 0:
        return ""
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def parse_perm(text: str) -> int:
    """Read `rw`, `r`, `w` or `-`."""
    if not text or any(letter not in _PERMS for letter in text):
        raise UsageError(f"{text!r} is no permission; give rw, r, w or -")
    return sum({_PERMS[letter] for letter in text})


def show_perm(perm: int) -> str:
    """Write permissions as `rw`."""
    return "".join(letter for letter, bit in _PERMS.items() if bit and perm & bit) or "-"


def parse_pairs(items: Iterable[str] | None, option: str) -> dict[str, str]:
    """Read `name=value` items."""
    found = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {item!r} is not name=value")
        found[name] = value
    return found


RawOption = Annotated[
    bool, typer.Option("--raw", help="Bodies alone, byte by byte: not escaped, not cut.")
]
RAW_AND_JSON: Final = "--raw and -o json: give one; -o json holds whole bodies, too"
NAME_MAX: Final = 200
PAGE_MAX: Final = 10_000

# The fields of a message for `--format`, each with a value of its type.
FIELDS: Final[dict[str, str | int]] = {
    "time": "", "topic": "", "broker": "", "queue": 0, "offset": 0, "message_id": "", "key": "",
    "tag": "", "body": "", "properties": "", "born_at_ms": 0, "stored_at_ms": 0, "redeliveries": 0,
}  # fmt: skip


def as_line(message: ReceivedMessage) -> str:
    """Return when, where, key, tag and body, on one line."""
    where = f"{message.queue.broker}/{message.queue.index}@{message.offset}"
    names = [escaped(one, NAME_MAX) for one in (where, message.key or "-", message.tag or "-")]
    return "  ".join([show_time(message.stored_at_ms), *names, body_text(message)])


def body_text(message: ReceivedMessage) -> str:
    """Return the body on one line: escaped, and cut if it is long or binary."""
    return escaped_body(message.body)


def body_page(message: ReceivedMessage) -> str:
    """Return the body with its own lines: escaped, and cut if it is very long or binary."""
    return escaped_body(message.body, PAGE_MAX, keep="\n\t")


def write_raw(message: ReceivedMessage, *, flush: bool = False) -> None:
    """Write the body to stdout, byte by byte, and a newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(message.body + b"\n")
    if flush:
        sys.stdout.buffer.flush()


def as_object(message: ReceivedMessage) -> dict[str, object]:
    """Return all of a message; a body that is not UTF-8 comes as `body_base64`."""
    found: dict[str, object] = {
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue": message.queue.index,
        "offset": message.offset,
        "message_id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "properties": message.properties,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": message.stored_at_ms,
        "redeliveries": message.redeliveries,
    }
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    return found


class Properties(dict[str, str]):
    """The properties of a message in a template: all of them, or `{properties[NAME]}`."""

    def __missing__(self, name: str) -> str:
        return ""

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in sorted(self.items()))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def by_template(template: str, *, raw: bool = False) -> Callable[[ReceivedMessage], str]:
    """Return how to print a message by a text with `{field}` in it; `\\t` and `\\n` are meant.

    Fields are escaped and cut as everywhere; with `raw` they are as they are. Raises UsageError
    that names the fields if one is unknown.
    """
    text = template.replace("\\t", "\t").replace("\\n", "\n")
    try:
        text.format_map({**FIELDS, "properties": Properties()})
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        fields = ", ".join(FIELDS)
        raise UsageError(f"--format {template!r}: {error}; fields are {fields}") from None

    def fit(value: object) -> object:
        return value if raw or not isinstance(value, str) else escaped(value)

    def form(message: ReceivedMessage) -> str:
        values = {name: "" if one is None else fit(one) for name, one in as_object(message).items()}
        properties = message.properties.items()
        values["properties"] = Properties(
            {str(fit(name)): str(fit(one)) for name, one in properties}
        )
        values["time"] = show_time(message.stored_at_ms)
        body = message.body.decode("utf-8", "backslashreplace") if raw else body_text(message)
        return text.format_map({**values, "body": body})

    return form


def as_json_line(message: ReceivedMessage) -> str:
    """Return all of a message on one line."""
    return escaped_json(json.dumps(as_object(message), ensure_ascii=False))


class Advance(Protocol):
    """Advances a progress bar, and sets its total where that is learnt on the way."""

    def __call__(self, more: int, total: int | None = None, /) -> None: ...


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Advance]:
    """Yield a function that advances the bar; without a terminal it does nothing."""
    if not sys.stderr.isatty():
        yield lambda _, __=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    count = "{task.completed:,.0f}" + ("" if total is None else " of {task.total:,.0f}")
    middle = [] if total is None else [BarColumn()]
    columns = [SpinnerColumn(), *middle, TextColumn(f"{count} {what}"), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(more: int, total: int | None = None, /) -> None:
            bar.update(task, advance=more, total=total)

        yield advance
