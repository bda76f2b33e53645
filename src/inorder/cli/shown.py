"""How a message is printed: a line for people, an object for programs."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder.cli.values import show_time
from inorder.errors import UsageError
from inorder.escaping import escaped, escaped_body, escaped_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from inorder.model import ReceivedMessage

RawOption = Annotated[
    bool, typer.Option("--raw", help="Bodies alone, byte by byte: not escaped, not cut.")
]
RAW_AND_JSON: Final = "--raw and -o json: give one; -o json holds whole bodies, too"
NAME_MAX: Final = 200
PAGE_MAX: Final = 10_000

# What a message offers to `--format`, each with a value of its type.
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
