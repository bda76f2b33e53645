"""What a producer refuses before anything leaves: delays and batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from inorder.client.send.batches import one_topic
from inorder.client.send.checks import checked_delay
from inorder.errors import UsageError
from inorder.model import Message

LEVELS_MS = (1000, 5000, 10_000, 60_000, 7_200_000)


@pytest.mark.parametrize(
    ("delay", "level", "found"),
    [
        (None, None, ""),
        (0, None, ""),
        (1, None, "DELAY\x011\x02"),
        (10, None, "DELAY\x013\x02"),
        (10.0, None, "DELAY\x013\x02"),
        (timedelta(minutes=1), None, "DELAY\x014\x02"),
        (timedelta(hours=2), None, "DELAY\x015\x02"),
        (None, 0, ""),
        (None, 1, "DELAY\x011\x02"),
        (None, 5, "DELAY\x015\x02"),
        (12, None, "TIMER_DELAY_MS\x0112000\x02"),
        (0.0301, None, "TIMER_DELAY_MS\x0131\x02"),
        (timedelta(hours=3), None, "TIMER_DELAY_MS\x0110800000\x02"),
    ],
)
def test_a_delay_finds_its_level_or_is_a_time(delay: Any, level: int | None, found: str):
    """Seconds or a timedelta; a level is itself; fractions of a millisecond are rounded up."""
    assert checked_delay(delay, level, None, LEVELS_MS) == found


@pytest.mark.parametrize(
    ("delay", "level", "text"),
    [
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
def test_an_impossible_delay_is_refused(delay: Any, level: Any, text: str):
    """A broker would take level 99 for its longest, silently."""
    with pytest.raises(UsageError, match=text):
        checked_delay(delay, level, None, LEVELS_MS)


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000_000),
        (datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1_893_456_000_000),
        (datetime(2030, 1, 1, 0, 0, 0, 1001, tzinfo=UTC), 1_893_456_000_002),
    ],
)
def test_a_time_of_day_is_rounded_up_to_a_millisecond(moment: datetime, ms: int):
    """So that no message comes before it."""
    found = checked_delay(None, None, moment, LEVELS_MS)
    assert found == f"TIMER_DELIVER_MS\x01{ms}\x02"


def test_a_time_without_a_zone_is_local():
    """As in seeks by time."""
    local = datetime(2030, 6, 1, 12)
    assert checked_delay(None, None, local) == checked_delay(None, None, local.astimezone(UTC))


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("2030-01-01", "is a str; give a datetime"),
        (1_893_456_000, "is a int; give a datetime"),
        (datetime(1960, 1, 1, tzinfo=UTC), "no time that a message can wait for"),
    ],
)
def test_a_time_that_is_none_is_refused(moment: Any, text: str):
    """And a time beside a delay."""
    with pytest.raises(UsageError, match=text):
        checked_delay(None, None, moment)
    with pytest.raises(UsageError, match="not both"):
        checked_delay(10, None, datetime(2030, 1, 1, tzinfo=UTC))


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
