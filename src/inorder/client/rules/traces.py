"""RocketMQ's message traces as text: what a client writes for each send and each call of a handler.

    Pub        a message was sent, or failed
    SubBefore  a handler begins with a message
    SubAfter   the handler has ended

The fields of a trace are separated by \\x01, and traces by \\x02. Empty texts are `null` or empty
as in Java, whose tools read all of this (`mqadmin queryMsgTraceById`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

FIELD: Final = "\x01"
END: Final = "\x02"
REGION: Final = "DefaultRegion"
NORMAL: Final = 0
"""RocketMQ's kind of a plain message."""
BYTES_MAX: Final = 128_000
"""A message of traces holds at most so many bytes, as in Java."""
KEYS_BYTES_MAX: Final = 24_000
"""So that the index keys of a message of traces fit into its properties."""
RETURN_TYPES: Final = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")


class Trace(NamedTuple):
    """One trace: its text, and the index keys under which it is found."""

    text: str
    keys: tuple[str, ...]


class Traced(NamedTuple):
    """What traces say of a message."""

    message_id: str
    keys: tuple[str, ...] = ()
    redeliveries: int = 0


def _keys_of(message_id: str, keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(one for one in (message_id, *keys) if one)


def sent(
    *, at_ms: int, group: str, topic: str, message: Traced, tag: str | None, store_host: str,
    body_bytes: int, spent_ms: int, success: bool,
) -> Trace:  # fmt: skip
    """Return the trace of a send."""
    parts = (
        "Pub", at_ms, REGION, group, topic, message.message_id, tag or "null",
        " ".join(message.keys) or "null", store_host, body_bytes, spent_ms, NORMAL, "",
        "true" if success else "false",
    )  # fmt: skip
    return Trace(FIELD.join(map(str, parts)) + END, _keys_of(message.message_id, message.keys))


def begun(*, at_ms: int, group: str, call_id: str, message: Traced) -> Trace:
    """Return the trace of a handler that begins."""
    parts = (
        "SubBefore", at_ms, REGION, group, call_id, message.message_id, message.redeliveries,
        " ".join(message.keys) or "null",
    )  # fmt: skip
    return Trace(FIELD.join(map(str, parts)) + END, _keys_of(message.message_id, message.keys))


def ended(
    *, at_ms: int, group: str, call_id: str, message: Traced, spent_ms: int, success: bool,
    return_type: str,
) -> Trace:  # fmt: skip
    """Return the trace of a handler that has ended."""
    code = RETURN_TYPES.index(return_type) if return_type in RETURN_TYPES else 0
    parts = (
        "SubAfter", call_id, message.message_id, spent_ms, "true" if success else "false",
        " ".join(message.keys) or "null", code, at_ms, group,
    )  # fmt: skip
    return Trace(FIELD.join(map(str, parts)) + END, _keys_of(message.message_id, message.keys))


def cut(traces: Iterable[Trace]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the bodies of messages of traces, each with its index keys, each below the limits.

    Of a trace that has too many keys alone the last ones are left out.
    """
    bodies: list[tuple[str, tuple[str, ...]]] = []
    texts: list[str] = []
    keys: dict[str, None] = {}
    size = keys_size = 0
    for trace in traces:
        length = len(trace.text.encode())
        more = sum(_key_bytes(key) for key in trace.keys if key not in keys)
        if texts and (size + length > BYTES_MAX or keys_size + more > KEYS_BYTES_MAX):
            bodies.append(("".join(texts), tuple(keys)))
            texts, keys, size, keys_size = [], {}, 0, 0
        texts.append(trace.text)
        size += length
        for key in trace.keys:
            if key not in keys and keys_size + _key_bytes(key) <= KEYS_BYTES_MAX:
                keys[key] = None
                keys_size += _key_bytes(key)
    if texts:
        bodies.append(("".join(texts), tuple(keys)))
    return bodies


def _key_bytes(key: str) -> int:
    return len(key.encode()) + 1


@dataclass(frozen=True, slots=True)
class TraceView:
    """One step of a message, as a client traced it."""

    kind: str
    """`Pub`: sent. `SubBefore`, `SubAfter`: a handler began, and has ended."""
    at_ms: int
    group: str
    success: bool | None = None
    """None: not known, because the step only began."""
    spent_ms: int = 0
    attempt: int | None = None
    call_id: str = ""
    """The same for the two steps of one call of a handler."""
    topic: str = ""
    broker: str = ""
    """The address to which the message was sent."""


def views_of(body: bytes, message_id: str) -> list[TraceView]:
    """Return the traces of one message in the body of a trace message; others are left out."""
    found = []
    for text in body.decode("utf-8", "replace").split(END):
        fields = text.split(FIELD)
        with contextlib.suppress(IndexError, ValueError):  # written by another client, cut, or ours
            view = _view_of(fields, message_id)
            if view is not None:
                found.append(view)
    return found


def calls_of(body: bytes) -> list[tuple[TraceView, str]]:
    """Return the traces of handlers in the body of a trace message, each with its message's id."""
    found = []
    for text in body.decode("utf-8", "replace").split(END):
        fields = text.split(FIELD)
        with contextlib.suppress(IndexError, ValueError):  # written by another client, cut, or ours
            id_ = fields[5 if fields[0] == "SubBefore" else 2]
            view = _view_of(fields, id_) if fields[0] != "Pub" else None
            if view is not None:
                found.append((view, id_))
    return found


def _view_of(fields: Sequence[str], message_id: str) -> TraceView | None:
    kind = fields[0]
    if kind == "Pub" and fields[5] == message_id:
        success = fields[12 if len(fields) == 13 else 13] == "true"
        return TraceView(
            kind, int(fields[1]), fields[3], success, int(fields[10]), topic=fields[4],
            broker=fields[8],
        )  # fmt: skip
    if kind == "SubBefore" and fields[5] == message_id:
        return TraceView(
            kind, int(fields[1]), fields[3], attempt=int(fields[6]) + 1, call_id=fields[4]
        )
    if kind == "SubAfter" and fields[2] == message_id:
        at_ms, group = (int(fields[7]), fields[8]) if len(fields) >= 9 else (0, "")
        return TraceView(kind, at_ms, group, fields[4] == "true", int(fields[3]), call_id=fields[1])
    return None
