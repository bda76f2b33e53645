"""Histories as text, so that any program can write one: JSON lines, or CSV.

    {"event": "sent", "producer": "p1", "key": "order-1", "sequence": 3, "id": "A1", "result": "ok",
     "queue": "orders/broker-a/0", "offset": 17}
    {"event": "stored", "queue": "orders/broker-a/0", "offset": 17, "id": "A1", "key": "order-1"}
    {"event": "handled", "client": "c1", "queue": "orders/broker-a/0", "offset": 17, "id": "A1",
     "key": "order-1", "start_ns": 100, "end_ns": 200, "result": "done"}
    {"event": "committed", "client": "c1", "queue": "orders/broker-a/0", "offset": 18, "at_ns": 300}
    {"event": "granted", "client": "c1", "queue": "orders/broker-a/0", "epoch": 7, "at_ns": 50}
    {"event": "applied", "id": "A1", "key": "order-1", "fence": 17, "at_ns": 150}

The fields are those of `inorder.checker.events`; those with a default may be left out. As CSV, the
first line names the columns, `event` among them; an empty cell is left out.

    event,producer,key,sequence,id,queue,offset,client,start_ns,end_ns,result
    sent,p1,order-1,3,A1,,,,,,ok
    handled,,order-1,,A1,orders/broker-a/0,17,c1,100,200,done
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, fields
from typing import Any, Final, get_type_hints

from inorder.checker.events import (
    Applied,
    Committed,
    Event,
    Granted,
    Handled,
    HandledResult,
    Sent,
    SentResult,
    Stored,
)
from inorder.errors import UsageError

KINDS: dict[str, type[Event]] = {
    "sent": Sent,
    "stored": Stored,
    "handled": Handled,
    "committed": Committed,
    "granted": Granted,
    "applied": Applied,
}
_RESULTS = {"sent": SentResult, "handled": HandledResult}
_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def read_history(lines: Iterable[str]) -> Iterator[Event]:
    """Return the events of JSON lines; blank lines are left out.

    Raises UsageError that names the line, and what is wrong with it.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise UsageError(f"line {number} is not JSON: {error}") from error
        yield _event(number, values)


def read_csv_history(lines: Iterable[str]) -> Iterator[Event]:
    """Return the events of CSV with a line of headings; empty cells are left out.

    Raises UsageError that names the line, and what is wrong with it.
    """
    reader = csv.DictReader(lines)
    if "event" not in (reader.fieldnames or ()):
        raise UsageError("line 1 must name the columns, and one of them must be event")
    for row in reader:
        given = {name: text for name, text in row.items() if text and name is not None}
        kind = given.get("event")
        types = get_type_hints(KINDS[kind]) if kind in KINDS else {}
        yield _event(
            reader.line_num,
            {name: _cell(reader.line_num, name, given[name], types.get(name)) for name in given},
        )


def write_history(events: Iterable[Event]) -> Iterator[str]:
    """Return a JSON line for each event, without line ends."""
    names = {cls: name for name, cls in KINDS.items()}
    for event in events:
        values = {key: value for key, value in asdict(event).items() if value is not None}
        yield json.dumps({"event": names[type(event)], **values}, ensure_ascii=False)


def _cell(number: int, name: str, text: str, kind: Any) -> object:
    """Return a cell as the type of its field."""
    try:
        if kind in (int, int | None):
            return int(text)
        return _TRUE[text.lower()] if kind is bool else text
    except (ValueError, KeyError):
        wanted = "true or false" if kind is bool else "a whole number"
        raise UsageError(f"line {number}: {name} is {text!r}, not {wanted}") from None


def _event(number: int, values: Any) -> Event:
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
