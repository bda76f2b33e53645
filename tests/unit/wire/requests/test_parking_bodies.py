"""The bodies of requests about parked keys, and what a parked record says."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.broker.parking.records import (
    Dropped,
    Moved,
    Parked,
    Redriven,
    escape,
    note_record,
    parked_record,
    read_event,
    unescape,
)
from inorder.errors import MessageIllegal, RemoteProtocolError, SystemError_
from inorder.wire.extensions import ExtensionCode
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.properties import join, parse
from inorder.wire.record import Record, decode, encode
from inorder.wire.requests import parking as bodies
from inorder.wire.requests import parking as requests

PLACE = bodies.QueuePlace("broker-b", 3)
BODIES: list[Any] = [
    bodies.ParkBody([bodies.ParkItem(5, "k", 6, "no", 77), bodies.ParkItem(6, "k")]),
    bodies.ParkAnswer(["parked", "live", "full", "gone"], 1, 2, "why"),
    bodies.QueueParking(9, [bodies.OwnedKey("k", 8, 7, 500, [PLACE])], [(5, 6), (8, 9)]),
    bodies.ParkedPage(
        [bodies.ParkedEntry("g", "t", 0, "k", 2, 300, 1, 5, 6, "no", "again", moved_to=PLACE)],
        {"g": "full"}, "next",
    ),
    bodies.KeyList([bodies.NamedKey("t", 0, "k", 500)]),
    bodies.RedrivenBody([5, 6], "no", PLACE),
    bodies.MoveBody([bodies.Move(7, "k", PLACE, 1, 6, "no", "k")]),
]  # fmt: skip
REQUESTS: list[Any] = [
    requests.Park("g", "c", "i", "t", 0, 9),
    requests.ParkedKeys("g", "t", 0),
    requests.ParkedList("g", "after"),
    requests.ParkedRead("g", "t", 0, "k", 5, 8),
    requests.Redrive("g", True),
    requests.Redriven("g", "c", "i", "t", 0, 9, "k", True),
    requests.Unpark("g", "c", "i", "t", 0, 9, "k", 8),
    requests.ParkedDrop("g", "why", True),
    requests.ParkMove("g", "t"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_bodies_come_back_as_they_went(body: Any) -> None:
    """What is written is read again."""
    assert type(body).decode(body.encode()) == body


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_headers_come_back_as_they_went(request_: Any) -> None:
    """Each has a code of its own in our block."""
    assert decode_fields(type(request_), encode_fields(request_)) == request_
    assert 7130 <= ExtensionCode(request_.CODE) <= 7139


def test_the_park_request_is_compact() -> None:
    """A message is a short list."""
    assert BODIES[0].encode() == b'{"items":[[5,"k",6,"no",77,null],[6,"k",0,null,null,null]]}'


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"items":[]}',
        b'{"items":[[-1,"k"]]}',
        b'{"items":[[1,""]]}',
        b'{"items":[[1,"' + b"k" * 1025 + b'"]]}',
        b'{"items":[[1,"k",0,"' + b"e" * 1001 + b'"]]}',
        b'{"items":[' + b'[1,"k"],' * 1024 + b'[1,"k"]]}',
        b'{"items":[["\xff",0]]}',
    ],
)
def test_a_malformed_request_is_answered(text: bytes) -> None:
    """It is an error of the request, not of the connection."""
    with pytest.raises(SystemError_):
        bodies.ParkBody.decode(text)


def test_a_malformed_answer_is_a_breach() -> None:
    """An outcome that nobody knows is none."""
    with pytest.raises(RemoteProtocolError):
        bodies.ParkAnswer.decode(b'{"outcomes":["lost"],"before":1,"version":2}')


RECORD = Record(
    "orders", 3, 5, 700, b"body", join({"KEYS": "a", "INORDER_PID": "p", "INORDER_SEQ": "4",
    "__SHARDINGKEY": "k", "INORDER_PARK_KEY": "forged"}).encode(), born_at_ms=9, redeliveries=1,
)  # fmt: skip


def test_a_parked_record_says_where_it_comes_from() -> None:
    """Stored and read back it is the same event; the numbers of its send are gone."""
    event = Parked("orders", 3, 5, "k%\x01\x02", 6, "50% \x02", 123, 0, until=30)
    made = parked_record(RECORD, event, fence=42, store_host=RECORD.store_host, now_ms=1000)
    made.topic, made.queue_id = "%PARK%billing", 0
    found = decode(encode(made))
    assert read_event(found) == event._replace(size=found.size, sharding_key="k")
    properties = parse(found.properties)
    assert (found.body, found.born_at_ms, found.redeliveries) == (b"body", 9, 6)
    assert properties["INORDER_PARK_FENCE"] == "42"
    assert "INORDER_PID" not in properties
    assert "INORDER_SEQ" not in properties


def test_properties_that_leave_no_room_are_refused() -> None:
    """Nothing is cut off a message."""
    full = Record("orders", 3, 5, 700, b"body", join({"x": "y" * 32_500}).encode())
    with pytest.raises(MessageIllegal, match="no room"):
        parked_record(
            full, Parked("orders", 3, 5, "k", 0, "e" * 500, 0, 0), fence=None,
            store_host=full.store_host, now_ms=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    "note",
    [
        Redriven("t", 0, "k", [5], "no", PLACE),
        Dropped("t", 0, "k", [5], "why", "me", whole=False),
        Moved("t", 0, "k", PLACE),
    ],
)
def test_notes_come_back_as_they_went(note: Any) -> None:
    """A note ends with properties: torn by a crash it is not taken for whole."""
    made = note_record(note, store_host=RECORD.store_host, now_ms=5)
    made.topic = "%PARK%billing"
    found = decode(encode(made))
    assert read_event(found) == note
    assert found.properties.endswith(b"\x02")


@pytest.mark.parametrize("queue_id", [0, 1])
def test_other_records_are_no_events(queue_id: int) -> None:
    """They are told from inorder's own, never guessed at."""
    with pytest.raises(RemoteProtocolError):
        read_event(Record("%PARK%g", queue_id, 0, 0, b"{}"))


@pytest.mark.parametrize("text", ["", "plain", "%", "%25", "%01", "\x01\x02%", "%2501"])
def test_any_text_fits_into_a_property(text: str) -> None:
    """Escaped and back it is the same."""
    assert unescape(escape(text)) == text
    assert not {"\x01", "\x02"} & set(escape(text))
