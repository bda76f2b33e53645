"""Where two answers to one request differ.

Answers of whole conversations are compared by code, flag, fields with their values, and body;
answers of trimmed ones by code, flag and names of fields, since what went before is not all known.
Ids, addresses, times and positions are compared by their kind, never by value. If the codes differ
nothing else is looked at: the rest follows from it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from inorder.wire import fastjson
from inorder.wire.header import Command
from inorder.wire.ids import parse_message_id
from inorder.wire.properties import parse as parse_properties
from inorder.wire.record import Record
from tests.golden.replay.capture import BROKER, Row, records_of

ABSENT = "absent"
RECORD_CODES = frozenset((11, 12, 33, 361))
SEND_CODES = frozenset((10, 310, 320))
PROPERTIES_TEXT_CODES = frozenset((26, 319))
BINARY_CODES = frozenset((60,))

ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}:\d+")
_ID = re.compile(r"[0-9A-Fa-f]{32}")
# Values that tell when or where something happened; only their kind is compared.
_TIMES = frozenset(
    (
        "timestamp",
        "indexLastUpdateTimestamp",
        "lastUpdateTimestamp",
        "timeStamp",
        "lastTimestamp",
        "minTimeStamp",
        "maxTimeStamp",
        "consumeTimeStamp",
        "delayTime",
    )
)
_TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}")
_POSITIONS = frozenset(("indexLastUpdatePhyoffset", "physicOffset"))
_VERSIONS = frozenset(("dataVersion", "mappingDataVersion"))
# Written by Java from hash sets and hash maps, in no order that means anything.
_SETS = frozenset(
    (
        "topicList",
        "consumerIdList",
        "lockOKMQSet",
        "groupList",
        "tagsSet",
        "codeSet",
        "connectionSet",
        "queueDatas",
        "brokerDatas",
        "messageQueueAssignments",
        "DefaultCluster",
    )
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, the captured answer and ours."""

    file: str
    whole: bool
    request: Row
    captured: Command
    ours: Command

    @property
    def code(self) -> int:
        """Return the request's code."""
        return self.request.command.code

    def field(self, name: str) -> str:
        """Return a field of the request, empty if absent."""
        return self.request.command.fields.get(name, "")

    def properties(self) -> dict[str, str]:
        """Return the message properties of a send."""
        fields = self.request.command.fields
        return parse_properties(fields.get("i") or fields.get("properties") or "")


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where they differ: `where` is code, flag, field.X, body.X or of the header."""

    exchange: Exchange
    where: str
    captured: str
    ours: str

    def __str__(self) -> str:
        request = self.exchange.request
        return (
            f"{self.exchange.file} seq {request.seq} {request.peer} code {self.exchange.code} "
            f"{self.where}: {self.captured} / ours {self.ours}"
            + (f" ({self.exchange.ours.remark})" if self.where == "code" else "")
        )


def compare(exchange: Exchange) -> list[Difference]:
    """Return all differences of an exchange."""
    return [
        Difference(exchange, where, _short(captured), _short(ours))
        for where, captured, ours in _compare(exchange)
    ]


_Found = Iterator[tuple[str, object, object]]


def _compare(exchange: Exchange) -> _Found:
    captured, ours = exchange.captured, exchange.ours
    if captured.serializer != ours.serializer:
        yield "serializer", captured.serializer, ours.serializer
    if captured.language != ours.language:
        yield "language", captured.language, ours.language
    if captured.version != ours.version:
        yield "version", captured.version, ours.version
    if captured.flag != ours.flag:
        yield "flag", captured.flag, ours.flag
    if captured.code != ours.code:
        yield "code", f"{captured.code} {captured.remark!r}", ours.code
        return
    yield from _names(captured, ours)
    if exchange.whole:
        yield from _values(exchange)
        yield from _bodies(exchange)


def _names(captured: Command, ours: Command) -> _Found:
    if captured.serializer == ours.serializer and captured.has_fields != ours.has_fields:
        shown = {True: "{}", False: ABSENT}
        yield "fields", shown[captured.has_fields], shown[ours.has_fields]
    for name in sorted(captured.fields.keys() - ours.fields.keys()):
        yield f"field.{name}", captured.fields[name], ABSENT
    for name in sorted(ours.fields.keys() - captured.fields.keys()):
        yield f"field.{name}", ABSENT, ours.fields[name]


def _values(exchange: Exchange) -> _Found:
    unique = exchange.properties().get("UNIQ_KEY") if exchange.code in SEND_CODES else None
    captured, ours = exchange.captured.fields, exchange.ours.fields
    for name in sorted(captured.keys() & ours.keys()):
        theirs, mine = captured[name], ours[name]
        if name == "msgId":
            theirs, mine = _ids_kind(theirs), _ids_kind(mine)
        elif name == "transactionId" and unique is None:
            theirs, mine = _id_kind(theirs), _id_kind(mine)
        elif name in _TIMES or name in _POSITIONS:
            theirs, mine = _number_kind(theirs), _number_kind(mine)
        if theirs != mine:
            yield f"field.{name}", theirs, mine


def _ids_kind(text: str) -> str:
    """Describe message ids: how many, on which host."""
    hosts = {parse_message_id(one)[0] for one in text.split(",")}
    return f"{text.count(',') + 1} ids on {sorted(hosts)}"


def _id_kind(text: str) -> str:
    return "id" if _ID.fullmatch(text) else text


def _number_kind(value: object) -> str:
    return str(value) if int(str(value)) <= 0 else "set"


def _bodies(exchange: Exchange) -> _Found:
    captured, ours = bytes(exchange.captured.body), bytes(exchange.ours.body)
    if bool(captured) != bool(ours):
        yield "body", captured[:80] or ABSENT, ours[:80] or ABSENT
    elif captured and exchange.request.peer == BROKER and exchange.code in RECORD_CODES:
        theirs = records_of(exchange.code, exchange.captured)
        mine = records_of(exchange.code, exchange.ours)
        if len(theirs) != len(mine):
            yield "body.records", [_name(one) for one in theirs], [_name(one) for one in mine]
        else:
            for number, (one, other) in enumerate(zip(theirs, mine, strict=True)):
                yield from _records(f"body.{number}", one, other)
    elif captured and exchange.code in PROPERTIES_TEXT_CODES:
        yield from _sets("body", _keys_of_text(captured), _keys_of_text(ours))
    elif captured and exchange.code in BINARY_CODES:
        if len(captured) != len(ours):
            yield "body", f"{len(captured)} bytes", f"{len(ours)} bytes"
    elif captured:
        yield from _json("body", fastjson.loads(captured), fastjson.loads(ours))


def _name(record: Record) -> str:
    return f"{record.topic}/{record.queue_id}/{record.queue_offset}"


# Positions, hosts and times of storing are the server's own.
_RECORD_FIELDS = (
    "topic",
    "queue_id",
    "queue_offset",
    "flag",
    "sys_flag",
    "born_at_ms",
    "redeliveries",
    "prepared_position",
    "body_crc",
    "version",
    "body",
)


def _records(path: str, captured: Record, ours: Record) -> _Found:
    for name in _RECORD_FIELDS:
        theirs, mine = getattr(captured, name), getattr(ours, name)
        if theirs != mine:
            yield f"{path}.{name}", theirs, mine
    theirs, mine = parse_properties(captured.properties), parse_properties(ours.properties)
    for name in sorted(theirs.keys() | mine.keys()):
        one, other = theirs.get(name, ABSENT), mine.get(name, ABSENT)
        if one != other and not (name == "UNIQ_KEY" and _id_kind(one) == _id_kind(other) == "id"):
            yield f"{path}.property.{name}", one, other


def _keys_of_text(text: bytes) -> list[str]:
    return [line.partition("=")[0] for line in text.decode().splitlines() if line]


def _json(path: str, captured: Any, ours: Any) -> _Found:
    if isinstance(captured, dict) and isinstance(ours, dict):
        theirs = {_normal(key): value for key, value in captured.items()}
        mine = {_normal(key): value for key, value in ours.items()}
        for key in sorted(theirs.keys() | mine.keys(), key=repr):
            at = f"{path}.{key}"
            if key not in mine:
                yield at, theirs[key], ABSENT
            elif key not in theirs:
                yield at, ABSENT, mine[key]
            elif key in _VERSIONS:
                yield from _sets(at, list(theirs[key]), list(mine[key]))
            elif key in _TIMES or key in _POSITIONS:
                if _number_kind(theirs[key]) != _number_kind(mine[key]):
                    yield at, theirs[key], mine[key]
            else:
                yield from _json(at, theirs[key], mine[key])
    elif isinstance(captured, list) and isinstance(ours, list):
        if path.rpartition(".")[2] in _SETS:
            yield from _sets(path, captured, ours)
        elif len(captured) != len(ours):
            yield path, captured, ours
        else:
            for number, (one, other) in enumerate(zip(captured, ours, strict=True)):
                yield from _json(f"{path}.{number}", one, other)
    elif type(captured) is not type(ours) or _normal(captured) != _normal(ours):
        yield path, captured, ours


def _sets(path: str, captured: list[Any], ours: list[Any]) -> _Found:
    theirs = Counter(repr(_normal(item)) for item in captured)
    mine = Counter(repr(_normal(item)) for item in ours)
    for item in sorted((theirs - mine).elements()):
        yield f"{path}.{item.strip(chr(39))}", item, ABSENT
    for item in sorted((mine - theirs).elements()):
        yield f"{path}.{item.strip(chr(39))}", ABSENT, item


def _normal(value: Any) -> Any:
    """Return the value with addresses and the order of keys taken out; hashable for keys."""
    if isinstance(value, str):
        return _TIME_TEXT.sub("<time>", ADDRESS.sub("<address>", value))
    if isinstance(value, dict):
        items = [(_normal(key), _normal(item)) for key, item in value.items()]
        return tuple(sorted(items, key=repr))
    if isinstance(value, (list, tuple)):
        return tuple(_normal(item) for item in value)
    return value


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else text[:300] + "..."
