"""Messages for a time of day: when they are due, how they lie in the queue of timers, and handles.

A timer waits in the topic rmq_sys_wheel_timer with the properties of RocketMQ. RocketMQ rounds the
time down to its precision, one step below an even one. inorder's precision is a millisecond, so

    TIMER_OUT_MS = due - 1        also for RocketMQ, which delivers it in the second after
    TIMER_DELIVER_MS = due        also where the sender gave TIMER_DELAY_MS or TIMER_DELAY_SEC

Where RocketMQ stored the message, TIMER_DELIVER_MS tells its time to the millisecond if the sender
gave it; else it is due a second after TIMER_OUT_MS, as RocketMQ delivers it.

Its queue entry has a code in place of the tag hash, which is twice the due time, plus 1 for a
message and 0 for a recall: in the order of codes, the recalls of a millisecond come before its
messages. The hash of a tag has 32 bits, so no hash can be mistaken for a code.

A handle names a timer for its recall: base64 of `v1 topic broker due id`. Why: decision 52.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from inorder.errors import RemoteProtocolError
from inorder.wire.properties import get

RECALL_TAG: Final = "_RECALL_TAG_"
RECALL_BODY: Final = b"0"
RECALLED_KEY: Final = "TIMER_DEL_UNIQKEY"
"""Property of a recall: `topic+id` of the message; before RocketMQ 5.3 the id alone."""

PRECISION_MS: Final = 1000
"""RocketMQ's precision."""

_DIGITS_MAX: Final = 18
_HANDLE_CHARS_MAX: Final = 4096
_VERSION: Final = "v1"
_PARTS: Final = 5
_MESSAGE: Final = 1


def code_of(due_ms: int, *, recall: bool = False) -> int:
    """Return the code of a queue entry."""
    return due_ms * 2 + (0 if recall else _MESSAGE)


def due_of(code: int) -> int:
    """Return when the timer of a code is due."""
    return code // 2


def is_recall(code: int) -> bool:
    """Tell whether a code is that of a recall."""
    return not code & _MESSAGE


def due_ms(properties: bytes) -> int | None:
    """Return when a stored timer is due; None if it has no time."""
    out = _number(get(properties, b"TIMER_OUT_MS"))
    if out is None:
        return None
    due = _number(get(properties, b"TIMER_DELIVER_MS"))
    return due if due is not None and out < due <= out + PRECISION_MS else out + PRECISION_MS


def _number(value: bytes | None) -> int | None:
    known = value is not None and value.isdigit() and len(value) <= _DIGITS_MAX
    return int(value) if known and value is not None else None


def entry_code(properties: bytes) -> int | None:
    """Return the code of a stored timer's queue entry; None if it has no time."""
    due = due_ms(properties)
    if due is None:
        return None
    return code_of(due, recall=get(properties, RECALLED_KEY.encode()) is not None)


def recalled_key(topic: str, message_id: str) -> str:
    """Return what names a message in its recall."""
    return f"{topic}+{message_id}"


class Handle(NamedTuple):
    """What a handle names."""

    topic: str
    broker: str
    due_ms: int
    message_id: str

    def encode(self) -> str:
        """Return it as text."""
        text = f"{_VERSION} {self.topic} {self.broker} {self.due_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(text: str) -> Handle:
    """Return what a handle names. Raises RemoteProtocolError, with RocketMQ's text."""
    parts: list[str] = []
    if 0 < len(text) <= _HANDLE_CHARS_MAX:
        try:
            padded = text + "=" * (-len(text) % 4)
            parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, UnicodeError, ValueError):
            parts = []
    if len(parts) < _PARTS or parts[0] != _VERSION or not all(parts[1:_PARTS]):
        raise RemoteProtocolError("recall handle is invalid")
    due = parts[3]
    known = due.isascii() and due.isdigit() and len(due) <= _DIGITS_MAX
    return Handle(parts[1], parts[2], int(due) if known else -1, parts[4])
