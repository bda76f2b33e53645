"""How a message is printed: a line for people, an object for programs."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

from inorder.cli.values import show_time
from inorder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from inorder.model import ReceivedMessage

# What a message offers to `--format`, each with a value of its type.
FIELDS: Final[dict[str, str | int]] = {
    "time": "", "topic": "", "broker": "", "queue": 0, "offset": 0, "message_id": "", "key": "",
    "tag": "", "body": "", "properties": "", "born_at_ms": 0, "stored_at_ms": 0, "redeliveries": 0,
}  # fmt: skip


def as_line(message: ReceivedMessage) -> str:
    """Return when, where, key, tag and body."""
    where = f"{message.queue.broker}/{message.queue.index}@{message.offset}"
    words = [show_time(message.stored_at_ms), where, message.key or "-", message.tag or "-"]
    return "  ".join([*words, body_text(message)])


def body_text(message: ReceivedMessage) -> str:
    """Return the body as text; what is not UTF-8 is shown as escapes."""
    return message.body.decode("utf-8", "backslashreplace")


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


def by_template(template: str) -> Callable[[ReceivedMessage], str]:
    """Return how to print a message by a text with `{field}` in it; `\\t` and `\\n` are meant.

    Raises UsageError that names the fields if one is unknown.
    """
    text = template.replace("\\t", "\t").replace("\\n", "\n")
    try:
        text.format_map(FIELDS)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        fields = ", ".join(FIELDS)
        raise UsageError(f"--format {template!r}: {error}; fields are {fields}") from None

    def form(message: ReceivedMessage) -> str:
        values = as_object(message) | {"body": body_text(message)}
        values |= {"time": show_time(message.stored_at_ms)}
        return text.format_map({name: "" if one is None else one for name, one in values.items()})

    return form


def as_json_line(message: ReceivedMessage) -> str:
    """Return all of a message on one line."""
    return json.dumps(as_object(message), ensure_ascii=False)
