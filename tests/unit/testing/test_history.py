"""Histories as JSON lines."""

from __future__ import annotations

import pytest

from inorder.checker import Committed, Handled, HandledResult, Sent, SentResult, Stored, check
from inorder.errors import UsageError
from inorder.testing.history import read_history, write_history

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
