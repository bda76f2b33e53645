"""What a dead letter says of itself beside the message: how its last try failed."""

from __future__ import annotations

from typing import Final

from inorder.escaping import escaped
from inorder.wire.extensions import DEAD_ERROR
from inorder.wire.properties import PROPERTIES_BYTES_MAX, format_properties

ERROR_CHARS_MAX: Final = 1000
_ROOM_BYTES: Final = 1024
"""What is left for what a broker and further tries add."""


def error_of(text: str) -> str:
    """Return an error as it is kept: one line, nothing that a terminal obeys, cut."""
    return escaped(text, ERROR_CHARS_MAX)


def put_error(properties: dict[str, str], text: str) -> None:
    """Let a dead letter say how it failed; nothing if its properties leave no room for that."""
    properties.pop(DEAD_ERROR, None)
    if not text:
        return
    properties[DEAD_ERROR] = error_of(text)
    if len(format_properties(properties).encode()) > PROPERTIES_BYTES_MAX - _ROOM_BYTES:
        del properties[DEAD_ERROR]
