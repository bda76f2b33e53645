"""Failed messages: the copy for the retry topic, and the level of its delay."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.outcomes import (
    ATTEMPTS_MAX,
    BROKER_DECIDES,
    SEND_BACK_TIMEOUT_MS,
    delay_level,
    retry_copy,
)
from inorder.wire.names import DELAY_LEVELS_MS
from tests.unit.client.consume.consuming import message


def test_the_copy_knows_where_it_comes_from() -> None:
    """Topic, id and properties of the original, one redelivery more, level 3 + attempts."""
    failed = message(7, body=b"paid", tag="t", redeliveries=2, KEYS="k", TRAN_MSG="true")
    copy = retry_copy(failed, "billing", redeliveries_max=16)
    assert (copy.topic, copy.body) == ("%RETRY%billing", b"paid")
    assert copy.properties == {
        "KEYS": "k",
        "TAGS": "t",
        "ORIGIN_MESSAGE_ID": "id-7",
        "RETRY_TOPIC": "orders",
        "DELAY": "5",
    }
    assert (copy.redeliveries, copy.redeliveries_max) == (3, 16)
    assert failed.properties == {"KEYS": "k", "TAGS": "t", "TRAN_MSG": "true"}


def test_a_copy_of_a_copy_names_the_first_message() -> None:
    """However often it fails."""
    failed = message(7, ORIGIN_MESSAGE_ID="first", redeliveries=5)
    copy = retry_copy(failed, "billing", redeliveries_max=2**40)
    assert copy.properties["ORIGIN_MESSAGE_ID"] == "first"
    assert copy.redeliveries_max == ATTEMPTS_MAX


def test_there_are_18_levels() -> None:
    """1 s to 2 h."""
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert DELAY_LEVELS_MS[13:] == (600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000)
    assert list(DELAY_LEVELS_MS) == sorted(DELAY_LEVELS_MS)


@pytest.mark.parametrize(
    ("after_ms", "level"),
    [(None, 0), (0, 1), (1000, 1), (1001, 2), (30_000, 4), (7_200_000, 18), (10**9, 18)],
)
def test_a_wish_becomes_the_next_longer_level(after_ms: int | None, level: int) -> None:
    """Without a wish the broker decides; beyond 2 h it is 2 h."""
    assert delay_level(after_ms) == level


def test_rocketmqs_numbers() -> None:
    """Level 0: the broker decides; 5 s for the request."""
    assert (BROKER_DECIDES, SEND_BACK_TIMEOUT_MS) == (0, 5000)
