"""Histories on disk: one event per line, as JSON, so that any program can write one.

    {"event": "sent", "producer": "p1", "key": "order-1", "sequence": 3, "id": "A1", "result": "ok",
     "queue": "orders/broker-a/0", "offset": 17}
    {"event": "stored", "queue": "orders/broker-a/0", "offset": 17, "id": "A1", "key": "order-1"}
    {"event": "handled", "client": "c1", "queue": "orders/broker-a/0", "offset": 17, "id": "A1",
     "key": "order-1", "start_ns": 100, "end_ns": 200, "result": "done"}
    {"event": "committed", "client": "c1", "queue": "orders/broker-a/0", "offset": 18, "at_ns": 300}

The fields are those of `inorder.checker.events`; those with a default may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, fields
from typing import Any

from inorder.checker import Committed, Event, Handled, HandledResult, Sent, SentResult, Stored
from inorder.errors import UsageError

KINDS: dict[str, type[Sent] | type[Stored] | type[Handled] | type[Committed]] = {
    "sent": Sent,
    "stored": Stored,
    "handled": Handled,
    "committed": Committed,
}
_RESULTS = {"sent": SentResult, "handled": HandledResult}


def read_history(lines: Iterable[str]) -> Iterator[Event]:
    """Return the events of JSON lines; blank lines are left out.

    Raises UsageError that names the line, and what is wrong with it.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _read_event(number, line)


def write_history(events: Iterable[Event]) -> Iterator[str]:
    """Return a JSON line for each event, without line ends."""
    names = {cls: name for name, cls in KINDS.items()}
    for event in events:
        values = {key: value for key, value in asdict(event).items() if value is not None}
        yield json.dumps({"event": names[type(event)], **values}, ensure_ascii=False)


def _read_event(number: int, line: str) -> Event:
    try:
        values: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"line {number} is not JSON: {error}") from error
    kind = values.pop("event", None) if isinstance(values, dict) else None
    if kind not in KINDS:
        raise UsageError(f"line {number}: event must be one of {', '.join(KINDS)}, not {kind!r}")
    cls = KINDS[kind]
    known = {field.name: field for field in fields(cls)}
    unknown = sorted(values.keys() - known.keys())
    needed = {n for n, f in known.items() if f.default is MISSING and n != "key"}
    missing = sorted(needed - values.keys())
    if unknown or missing:
        wrong = [f"unknown {name}" for name in unknown] + [f"missing {name}" for name in missing]
        raise UsageError(f"line {number}: a {kind} event with {', '.join(wrong)}")
    values.setdefault("key", None)
    if "key" not in known:
        del values["key"]
    if values.get("result") is not None:
        try:
            values["result"] = _RESULTS[kind](values["result"])
        except ValueError as error:
            raise UsageError(f"line {number}: {error}") from error
    return cls(**values)
