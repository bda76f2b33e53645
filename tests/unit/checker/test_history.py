"""Histories as JSON lines and as CSV."""

from __future__ import annotations

import pytest

from inorder.checker import (
    Committed,
    Handled,
    HandledResult,
    Sent,
    SentResult,
    Stored,
    check,
    read_csv_history,
    read_history,
    write_history,
)
from inorder.errors import UsageError

EVENTS = [
    Sent("p", "k", 1, "a", SentResult.OK, "q", 0, "d"),
    Sent("p", None, 2, "b", SentResult.UNKNOWN),
    Stored("q", 0, "a", "k", 1, "d"),
    Handled("c", "q", 0, "a", "k", 5, 6, HandledResult.DONE),
    Handled("c", "q", 0, "a", "k", 7),
    Committed("c", "q", 1, 9),
]


def test_events_make_the_round_trip():
    """What is written is read back."""
    assert list(read_history(write_history(EVENTS))) == EVENTS


def test_a_log_of_ones_own_can_be_checked():
    """Fields with a default may be left out, blank lines too."""
    lines = """
    {"event": "sent", "producer": "p", "key": "k", "sequence": 1, "id": "a"}

    {"event": "stored", "queue": "q", "offset": 0, "id": "a"}
    """.splitlines()
    assert check(read_history(lines)).ok


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "event must be one of"),
        ('{"event": "seen"}', "event must be one of"),
        ('{"event": "stored", "queue": "q", "id": "a"}', "missing offset"),
        ('{"event": "stored", "queue": "q", "id": "a", "offset": 0, "x": 1}', "unknown x"),
        (
            '{"event": "sent", "producer": "p", "sequence": 1, "id": "a", "result": "maybe"}',
            "maybe",
        ),
    ],
)
def test_a_bad_line_is_named(line: str, message: str):
    """The error says which line, and what is wrong with it."""
    with pytest.raises(UsageError, match=message):
        list(read_history([line]))


CSV = """\
event,producer,key,sequence,id,queue,offset,client,start_ns,end_ns,at_ns,result,reset
sent,p1,order-1,3,A1,,,,,,,ok,
stored,,order-1,,A1,q,17,,,,,,
handled,,order-1,,A1,q,17,c1,100,200,,done,
committed,,,,,q,18,c1,,,300,,true
"""


def test_csv_says_the_same_as_json() -> None:
    """Cells become numbers and truths by their fields; empty ones are left out."""
    events = list(read_csv_history(CSV.splitlines()))
    assert list(read_history(write_history(events))) == events
    assert [type(event).__name__ for event in events] == ["Sent", "Stored", "Handled", "Committed"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1 must name the columns"),
        ("queue,offset\nq,1\n", "line 1 must name the columns"),
        ("event,queue\nstored,q\n", "line 2: a stored event with missing id, missing offset"),
        ("event,queue,offset,id\nstored,q,x,A\n", "line 2: offset is 'x', not a whole number"),
        ("event,x\nstolen,1\n", "line 2: event must be one of"),
        ("event,colour\nstored,red\n", "unknown colour"),
        ("event,client,queue,offset,at_ns,reset\ncommitted,c,q,1,2,maybe\n", "not true or false"),
    ],
)
def test_a_bad_line_of_csv_is_named(text: str, says: str) -> None:
    """With its number and what is wrong."""
    with pytest.raises(UsageError) as caught:
        list(read_csv_history(text.splitlines()))
    assert says in str(caught.value)
