"""What hostile peers say in our own requests: leases, parked keys, resizes (7120 to 7147).

Every field is left out, and given every name and number that is none; every body is what it should
not be. `plain` says what an honest request looks like, so that one thing at a time is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from inorder.wire.extensions import ExtensionCode as Code
from inorder.wire.fields import wire_names
from inorder.wire.header import Command
from inorder.wire.requests import leases, parking, resizing
from tests.garbage.catalogue import BIG, MIB, NAMES, NUMBERS

TOPIC, GROUP, KEY = "garbage", "garbage_group", "k"
LONG = "x" * 900_000

_OWNER = {"group": GROUP, "clientId": "hostile@1", "instance": "abc"}
_QUEUE = {"topic": TOPIC, "queueId": "0"}
_PLAN = {"topic": TOPIC, "planId": "p", "version": "2", "map": "2/broker-a:0-3"}
_NUMERIC = frozenset(
    ("leaseMs", "graceMs", "queueId", "epoch", "offset", "number", "after", "maxMessages", "end",
     "version")
)  # fmt: skip


class Plain(NamedTuple):
    """An honest request: its header class, its fields, its body."""

    header: type
    fields: dict[str, str]
    body: dict[str, object] | None = None


def plain() -> dict[int, Plain]:
    """Return an honest request of each code."""
    key = [TOPIC, 0, KEY, 0]
    owned = {**_OWNER, **_QUEUE, "epoch": "0"}
    return {
        Code.LEASE: Plain(
            leases.Lease, {**_OWNER, "leaseMs": "5000", "graceMs": "1000"},
            {"queues": [[TOPIC, 0, 0]]},
        ),
        Code.RELEASE: Plain(
            leases.Release, {**owned, "offset": "0", "finished": "", "number": "1"}
        ),
        Code.COMMIT: Plain(leases.Commit, dict(_OWNER), {"commits": [[TOPIC, 0, 1, 1, 0, ""]]}),
        Code.LEASES: Plain(leases.Leases, {"group": GROUP, "after": ""}),
        Code.LEASE_FREE: Plain(leases.LeaseFree, {"group": GROUP, **_QUEUE}),
        Code.PARK: Plain(parking.Park, owned, {"items": [[0, KEY, 1, "failed", 1]]}),
        Code.PARKED_KEYS: Plain(parking.ParkedKeys, {"group": GROUP, **_QUEUE}),
        Code.PARKED_LIST: Plain(parking.ParkedList, {"group": GROUP, "after": ""}),
        Code.PARKED_READ: Plain(
            parking.ParkedRead,
            {"group": GROUP, **_QUEUE, "key": KEY, "after": "-1", "maxMessages": "9"},
        ),
        Code.REDRIVE: Plain(parking.Redrive, {"group": GROUP, "cancel": "true"}, {"keys": [key]}),
        Code.REDRIVEN: Plain(
            parking.Redriven, {**owned, "key": KEY, "heir": "false"}, {"done": [0]}
        ),
        Code.UNPARK: Plain(parking.Unpark, {**owned, "key": KEY, "end": "0", "heir": "false"}),
        Code.PARKED_DROP: Plain(
            parking.ParkedDrop, {"group": GROUP, "reason": "test", "first": "true"}, {"keys": [key]}
        ),
        Code.PARK_MOVE: Plain(
            parking.ParkMove, {"group": GROUP, "topic": TOPIC},
            {"coming": [[0, "moved", ["broker-b", 1], 0, 0, "", "moved"]]},
        ),
        Code.RESIZE_DECIDE: Plain(resizing.ResizeDecide, dict(_PLAN)),
        Code.RESIZE_STOP: Plain(resizing.ResizeStop, {**_PLAN, "topic": "nowhere"}),
        Code.RESIZE_OPEN: Plain(
            resizing.ResizeOpen, {"topic": TOPIC, "planId": "p", "version": "2"}
        ),
        Code.RESIZE_STATUS: Plain(resizing.ResizeStatus, {"topic": TOPIC, "group": GROUP}),
        Code.RESIZE_RELEASE: Plain(
            resizing.ResizeRelease,
            {"topic": TOPIC, "group": GROUP, "version": "1", "force": "false"},
        ),
        Code.RESIZE_GO: Plain(resizing.ResizeGo, {"topic": TOPIC, "planId": "p", "version": "2"}),
        Code.RESIZE_REWIND: Plain(
            resizing.ResizeRewind, {"topic": TOPIC, "group": GROUP, "version": "1", "term": "1"}
        ),
        Code.RESIZE_WITHDRAW: Plain(resizing.ResizeWithdraw, {"topic": TOPIC, "planId": "p"}),
    }  # fmt: skip


def hostile_extensions(size: float = 1.0) -> Iterator[tuple[str, Command]]:
    """Yield well-formed frames of our own codes with content that is not; `size` scales bodies."""
    for code, honest in plain().items():
        body = b"" if honest.body is None else json.dumps(honest.body).encode()
        for name in wire_names(honest.header):
            without = {known: text for known, text in honest.fields.items() if known != name}
            yield f"{code} without {name}", Command.request(code, without, body)
            for value in (*NUMBERS, *(() if name in _NUMERIC else (*NAMES, LONG))):
                fields = {**honest.fields, name: value}
                yield f"{code}, {name}={value[:20]!r}", Command.request(code, fields, body)
        yield f"{code} with nothing", Command.request(code)
        for text, data in _texts(honest, round(12 * MIB * size)):
            yield f"{code}, body: {text}", Command.request(code, honest.fields, data)
    for name, text in _cursors().items():
        for code in (Code.LEASES, Code.PARKED_LIST):
            yield f"{code} after {name}", Command.request(code, {"after": text})
    for name, text in _maps().items():
        fields = {**_PLAN, "planId": name, "map": text}
        yield f"a plan with {name}", Command.request(Code.RESIZE_DECIDE, fields)
        yield f"a stop with {name}", Command.request(Code.RESIZE_STOP, fields)
    for name, text in _finished().items():
        fields = plain()[Code.RELEASE].fields | {"finished": text}
        yield f"a release with {name}", Command.request(Code.RELEASE, fields)


def _texts(honest: Plain, size_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield bodies, large ones of that size; also for requests that need none."""
    (name, items) = next(iter((honest.body or {"queues": [[TOPIC, 0, 0]]}).items()))
    assert isinstance(items, list)
    first = items[0]
    shown = json.dumps(first).encode()
    key = name.encode()

    def assigned(text: bytes) -> bytes:
        return b'{"%b":%b}' % (key, text)

    def filled(item: bytes) -> bytes:
        return assigned(b"[" + (item + b",") * (size_bytes // (len(item) + 1)) + item + b"]")

    yield from {
        "nothing": b"", "no JSON": b"\x00\x01\x02", "null": b"null", "a number": b"7",
        "a text": b'"x"', "a list": b"[]", "an empty object": b"{}",
        "cut": assigned(b"[" + shown)[:-2], "deep list": b"[" * 500_000,
        "deep items": assigned(b"[" * 500_000), "deep object": b'{"a":' * 200_000,
        "deep behind": b'{"x":' + b"[" * 500_000, "wrong UTF-8": assigned(b'[["\xff\xfe",0,0]]'),
        "lone surrogate": assigned(b'[["\\ud800",0,0]]'), "NaN": assigned(b"[NaN]"),
        "items null": assigned(b"null"), "items a text": assigned(b'"x"'),
        "items an object": assigned(b"{}"), "no items": assigned(b"[]"),
        "an item null": assigned(b"[null]"), "an item empty": assigned(b"[[]]"),
        "an item a number": assigned(b"[1]"), "an item of texts": assigned(b'[["a","b","c","d"]]'),
        "many items": assigned(b"[" + b",".join([shown] * 5000) + b"]"),
        "very many items": filled(shown), "very many numbers": filled(b"1"),
        "very many lists": filled(b"[]"), "very many texts": filled(b'""'),
        "twice the same name": b'{"%b":[],"%b":[%b]}' % (key, key, shown),
        "one long text": assigned(b'"' + b"x" * size_bytes + b'"'),
    }.items()  # fmt: skip
    if not isinstance(first, list):
        return
    for place in range(len(first)):
        for wrong in ("x" * 5000, "", "\x00", "\x01\x02", -1, BIG, 2**31, 1.5, None, True, [], {}):
            changed = [*first[:place], wrong, *first[place + 1 :]]
            text = json.dumps({name: [changed]}).encode()
            yield f"item {place} is {str(wrong)[:20]!r}", text
        digits = json.dumps({name: [[*first[:place], 7_777, *first[place + 1 :]]]}).encode()
        yield f"item {place} of 5000 digits", digits.replace(b"7777", b"7" * 5000)


def _cursors() -> dict[str, str]:
    return {
        "no JSON": "x", "deep list": "[" * 200_000, "a number": "7", "three": '["a","b",1]',
        "wrong types": '[1,2,3,4]', "huge": '["a","b","c",' + "9" * 5000 + "]",
        "long": json.dumps(["x" * 200_000, "", "", 1]), "null": "null", "objects": "[{},{},{},{}]",
    }  # fmt: skip


def _maps() -> dict[str, str]:
    return {
        "no map": "x", "an empty one": "", "no queues": "2/", "a billion": "2/broker-a:0-999999999",
        "many runs": "2/" + "/".join(f"b{n}:0-0" for n in range(60_000)),
        "a gap": "2/broker-a:5-9", "two runs": "2/broker-a:0-1/broker-a:0-1",
        "backwards": "2/broker-a:9-0", "another version": "3/broker-a:0-3",
        "version 0": "0/broker-a:0-3", "a huge version": "9" * 5000 + "/broker-a:0-3",
        "hostile names": "2/..%2F..%2Fx:0-1", "NUL": "2/%00:0-1", "percent": "2/%zz:0-1",
    }  # fmt: skip


def _finished() -> dict[str, str]:
    return {
        "no map": "x", "no mask": "0:", "no hexadecimal": "0:zz",
        "a long mask": "0:" + "f" * 20_000, "a longer mask": "0:" + "f" * 900_000,
        "a negative base": "-1:f", "another base": "7:f",
        "a huge base": "9" * 5000 + ":f", "full-width digits": "\uff10:1", "spaces": "0: 1",
        "underscores": "0:1_0", "a sign": "0:+1", "a prefix": "0:0x1",
    }  # fmt: skip
