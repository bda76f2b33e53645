"""Where a queue begins: stored offset, first start, retry topic, times, errors."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.commits import (
    NO_OFFSET,
    NOT_READ,
    AskEnd,
    AskTime,
    Begin,
    BeginAt,
    ConsumeFrom,
    FromTime,
    NotNow,
    answered,
    begin,
)

THEN = FromTime(1_600_000_000_000)
RETRY = "%RETRY%billing"


@pytest.mark.parametrize(
    ("consume_from", "topic", "where"),
    [
        ("last", "orders", AskEnd()),
        ("last", RETRY, BeginAt(0)),
        ("first", "orders", BeginAt(0)),
        ("first", RETRY, BeginAt(0)),
        (THEN, "orders", AskTime(THEN.at_ms)),
        (THEN, RETRY, AskEnd()),
    ],
)
def test_a_group_without_an_offset_begins_where_it_is_told(
    consume_from: ConsumeFrom, topic: str, where: Begin
) -> None:
    """RocketMQ's table, retry topics included."""
    assert begin(NO_OFFSET, topic, consume_from) == where


@pytest.mark.parametrize("topic", ["orders", RETRY])
@pytest.mark.parametrize("consume_from", ["first", "last", THEN])
@pytest.mark.parametrize("stored", [0, 1, 10**12])
@pytest.mark.parametrize("late", [False, True])
def test_a_stored_offset_counts_whatever_consume_from_says(
    stored: int, consume_from: ConsumeFrom, topic: str, late: bool
) -> None:
    """Consume-from is for the first start only; 0 is an offset."""
    assert begin(stored, topic, consume_from, late=late) == BeginAt(stored)


@pytest.mark.parametrize("topic", ["orders", RETRY])
@pytest.mark.parametrize("consume_from", ["first", "last", THEN])
@pytest.mark.parametrize("stored", [NOT_READ, -3])
def test_a_store_that_cannot_be_asked_adds_no_queue(
    stored: int, consume_from: ConsumeFrom, topic: str
) -> None:
    """An error is not "none stored": the queue waits for the next round."""
    assert isinstance(begin(stored, topic, consume_from), NotNow)


@pytest.mark.parametrize(
    ("consume_from", "where"),
    [("last", BeginAt(0)), ("first", BeginAt(0)), (THEN, AskTime(THEN.at_ms))],
)
def test_a_queue_that_came_late_is_read_from_its_first_message(
    consume_from: ConsumeFrom, where: Begin
) -> None:
    """O28: a topic that grew while the group was there; all that the queue holds is news."""
    assert begin(NO_OFFSET, "orders", consume_from, late=True) == where


@pytest.mark.parametrize(("offset", "added"), [(0, True), (5, True), (-1, False)])
def test_what_the_broker_answers_must_be_an_offset(offset: int, added: bool) -> None:
    """A negative answer adds no queue."""
    found = answered(offset)
    assert found == BeginAt(offset) if added else isinstance(found, NotNow)
