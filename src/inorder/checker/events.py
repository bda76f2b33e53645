"""The events of a history, each written by the program that saw it happen, and their text form.

    Sent       a producer learnt the outcome of a send; one event per outcome, a retry keeps the id
    Stored     a record was found in a queue (by a pull, or by reading the files)
    Handled    a handler ran over a message; without an end it never came back
    Committed  an offset of a group was stored
    Granted    the broker gave a queue to a consumer, under an epoch
    Applied    a store that compares fences took the effect of a message

Times are nanoseconds of one machine's monotonic clock. The order of the events in a history does
not matter. One history holds one consumer group. A sequence counts the sends of one producer for
one key, upwards; gaps are allowed. `queue` is any unique name; see `queue_name`. `fence` and
`epoch` are the sequence and the epoch of `message.fence`.

As text, a history is JSON lines or CSV, so that any program can write one. Fields with a default
may be left out.

    {"event": "sent", "producer": "p1", "key": "order-1", "sequence": 3, "id": "A1", "result": "ok",
     "queue": "orders/broker-a/0", "offset": 17}
    {"event": "stored", "queue": "orders/broker-a/0", "offset": 17, "id": "A1", "key": "order-1"}
    {"event": "handled", "client": "c1", "queue": "orders/broker-a/0", "offset": 17, "id": "A1",
     "key": "order-1", "start_ns": 100, "end_ns": 200, "result": "done"}
    {"event": "committed", "client": "c1", "queue": "orders/broker-a/0", "offset": 18, "at_ns": 300}
    {"event": "granted", "client": "c1", "queue": "orders/broker-a/0", "epoch": 7, "at_ns": 50}
    {"event": "applied", "id": "A1", "key": "order-1", "fence": 17, "at_ns": 150}

The first line of a CSV file names the columns, `event` among them. An empty cell is left out.

    event,producer,key,sequence,id,queue,offset,client,start_ns,end_ns,result
    sent,p1,order-1,3,A1,,,,,,ok
    handled,,order-1,,A1,orders/broker-a/0,17,c1,100,200,done

What the testing kit offers its users: decision 31.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final, get_type_hints

from inorder.errors import UsageError
from inorder.model import TopicQueue


class SentResult(StrEnum):
    """How a send ended, as its producer knows it."""

    OK = "ok"
    """Acknowledged: the message must be stored for ever."""
    UNKNOWN = "unknown"
    """Timed out or cut off: the message may be stored once, or not at all."""
    FAILED = "failed"
    """Refused: the message must not be stored."""


class HandledResult(StrEnum):
    """How a handler ended."""

    DONE = "done"
    """The effect took place."""
    FAILED = "failed"
    """A failed attempt; the message comes again."""
    DEAD = "dead"
    """Moved away for good: dead-lettered or parked."""
    PARKED = "parked"
    """Parked behind its key, without a handler: it comes again when the key is redriven."""
    RETURNED = "returned"
    """Handed back to the broker, which stores it again under a retry topic."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a send. `digest` is any hash of the body; compared if both sides have one."""

    producer: str
    key: str | None
    sequence: int
    id: str
    result: SentResult = SentResult.OK
    queue: str | None = None
    offset: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A record in a queue."""

    queue: str
    offset: int
    id: str
    key: str | None = None
    sequence: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Handled:
    """One run of a handler over one message; messages of one batch share client, start and end."""

    client: str
    queue: str
    offset: int
    id: str
    key: str | None
    start_ns: int
    end_ns: int | None = None
    result: HandledResult | None = None
    epoch: int | None = None
    fence: int | None = None

    @property
    def until_ns(self) -> int:
        """Return the end, or the instant of the start if there was none."""
        return self.start_ns if self.end_ns is None else self.end_ns

    @property
    def settled(self) -> bool:
        """Return whether the message needs no further delivery on its queue."""
        return self.result is not None and self.result != HandledResult.FAILED


@dataclass(frozen=True, slots=True)
class Committed:
    """A stored offset: everything below it is said to be done. `reset` marks an explicit one."""

    client: str
    queue: str
    offset: int
    at_ns: int
    reset: bool = False
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """The broker granted a queue to a client.

    In a history with grants, a client that starts a handler after the grant to another client is
    a finding. A handler that began before, and outlives its lease, is only counted."""

    client: str
    queue: str
    epoch: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Applied:
    """An effect that passed the comparison of fences: one for each message, in order per key."""

    id: str
    key: str | None
    fence: int
    at_ns: int


Event = Sent | Stored | Handled | Committed | Granted | Applied


def queue_name(queue: TopicQueue) -> str:
    """Return the name by which events call a queue."""
    return f"{queue.topic}/{queue.broker}/{queue.index}"


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
