"""RocketMQ's setting messageDelayLevel."""

from __future__ import annotations

import pytest

from inorder.config import StoreConfig
from inorder.errors import ConfigError
from inorder.wire.names import delay_ms, parse_delay_levels


def test_the_default_has_rocketmqs_eighteen_levels() -> None:
    """One second to two hours."""
    levels = parse_delay_levels(StoreConfig().delay_levels)
    assert len(levels) == 18
    assert [ms // 1000 for ms in levels] == [
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
    ]  # fmt: skip


def test_units_are_seconds_minutes_hours_and_days() -> None:
    """Any number of blanks may lie between."""
    assert parse_delay_levels(" 1s  2m 3h 4d 0s") == (1000, 120_000, 10_800_000, 345_600_000, 0)


@pytest.mark.parametrize("text", ["", "   ", "5", "s", "1x", "1.5s", "-1s", "1S", "٣s", "1s,2s"])
def test_what_is_no_delay_is_an_error_that_shows_it(text: str) -> None:
    """The broker does not start with levels that it guessed."""
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        parse_delay_levels(text)


def test_a_delay_has_a_bound() -> None:
    """Ten years are enough; a time must fit its field."""
    with pytest.raises(ConfigError, match="ten years"):
        parse_delay_levels("4000d")
    with pytest.raises(ConfigError, match="ten years"):
        parse_delay_levels("9" * 40 + "s")
    with pytest.raises(ConfigError, match="1001 levels"):
        parse_delay_levels("1s " * 1001)


def test_a_level_above_the_highest_is_the_highest() -> None:
    """As RocketMQ caps it."""
    assert [delay_ms((10, 20, 30), level) for level in (1, 3, 4, 99)] == [10, 30, 30, 30]
