"""What a producer refuses before anything leaves: delays and batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inorder.client.send.batches import one_topic
from inorder.client.send.producer import checked_delay
from inorder.errors import UsageError
from inorder.model import Message

LEVELS_MS = (1000, 5000, 10_000, 60_000, 7_200_000)


@pytest.mark.parametrize(
    ("delay", "level", "found"),
    [
        (None, None, 0),
        (0, None, 0),
        (1, None, 1),
        (10, None, 3),
        (10.0, None, 3),
        (timedelta(minutes=1), None, 4),
        (timedelta(hours=2), None, 5),
        (None, 0, 0),
        (None, 1, 1),
        (None, 5, 5),
    ],
)
def test_a_delay_finds_its_level(delay: Any, level: int | None, found: int):
    """Seconds or a timedelta; a level is itself."""
    assert checked_delay(delay, level, None, LEVELS_MS) == found


@pytest.mark.parametrize(
    ("delay", "level", "text"),
    [
        (12, None, r"no delay level has 12s; nearest: 10s \(level 3\) and 1m \(level 4\)"),
        (0.5, None, r"no delay level has 0.5s; nearest: 1s \(level 1\)"),
        (timedelta(hours=3), None, r"has 3h; nearest: 2h \(level 5\); .*delay_levels"),
        (90, None, r"has 90s; nearest: 1m \(level 4\) and 2h"),
        ("10s", None, "is a str; give seconds"),
        (True, None, "is a bool"),
        (-1, None, "no duration"),
        (float("nan"), None, "no duration"),
        (10, 3, "delay= or delay_level=, not both"),
        (None, 6, r"no delay level 6; the levels are 1 \(1s\) to 5 \(2h\)"),
        (None, 99, "no delay level 99"),
        (None, -1, "no delay level"),
        (None, "3", "no delay level"),
    ],
)
def test_a_delay_that_no_level_has_is_refused(delay: Any, level: Any, text: str):
    """With the nearest ones; a broker would take level 99 for its longest, silently."""
    with pytest.raises(UsageError, match=text):
        checked_delay(delay, level, None, LEVELS_MS)


def test_a_time_of_day_is_refused():
    """With what there is instead."""
    with pytest.raises(UsageError, match="use delay="):
        checked_delay(None, None, datetime(2030, 1, 1, tzinfo=UTC), LEVELS_MS)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([("orders", b"x")], r"message 0 of the batch is a tuple: \('orders', b'x'\); give"),
        ([Message("orders", b"x"), {"topic": "orders"}], "message 1 of the batch is a dict"),
        (Message("orders", b"x"), "takes a list of messages, not a Message"),
        ("orders", "not a str"),
        (None, "not a NoneType"),
        ([Message(b"orders", "x")], "swapped"),  # type: ignore[arg-type]
        ([Message("a", b"x"), Message("b", b"x")], "one topic"),
    ],
)
def test_what_is_no_batch_is_refused(messages: Any, text: str):
    """Which message, what it is, and what to write."""
    with pytest.raises(UsageError, match=text):
        one_topic(messages)
