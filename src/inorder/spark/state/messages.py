"""What the rules of `process_in_order` speak of: a message, a line of them, a dead letter."""

from __future__ import annotations

from typing import Final

import msgspec

CAUSE_CHARS_MAX: Final = 500


class OrderedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a handler gets. Columns that the stream does not have are empty."""

    topic: str
    broker: str
    queue: int
    offset: int
    key: str | None = None
    body: bytes = b""
    tag: str | None = None
    keys: str | None = None
    properties: dict[str, str] = {}
    message_id: str = ""
    born_at_ms: int = 0
    stored_at_ms: int = 0
    redeliveries: int = 0

    @property
    def attempt(self) -> int:
        """Return which time it is handed to the handler, the first being 1."""
        return self.redeliveries + 1


class Line(msgspec.Struct, array_like=True):
    """The messages of a key that waits; the first one was tried and comes first."""

    messages: list[OrderedMessage]
    due_ms: int
    cause: str
    left_in: int = 0
    """The version of the key map in which its key left this queue; 0: it is here."""


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """A message that is given up, and why."""

    message: OrderedMessage
    cause: str
