"""Delay levels: the text of RocketMQ's setting `messageDelayLevel`, and the delay of each level.

    1s 5s 10s 30s 1m …     level 1 is the first word; units are s, m, h and d

The level of a message stands in its property DELAY. One above the highest counts as the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inorder.errors import ConfigError

LEVELS_MAX: Final = 1000
DELAY_MS_MAX: Final = 3650 * 24 * 3_600_000
UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS_MAX: Final = 12


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in milliseconds, of level 1 first.

    Raises:
        ConfigError: a word is not a number with a unit, or there is none.
    """
    words = text.split()
    if not 1 <= len(words) <= LEVELS_MAX:
        raise ConfigError(
            f"messageDelayLevel={text[:64]!r} has {len(words)} levels; it needs 1 to {LEVELS_MAX}"
        )
    return tuple(_delay_ms(word) for word in words)


def _delay_ms(word: str) -> int:
    number, unit_ms = word[:-1], UNITS_MS.get(word[-1])
    if unit_ms is None or not (number.isascii() and number.isdigit()):
        raise ConfigError(
            f"messageDelayLevel: {word[:32]!r} is not a delay; write a number and s, m, h or d, "
            "as in 30s or 2h"
        )
    if len(number) > _DIGITS_MAX or int(number) * unit_ms > DELAY_MS_MAX:
        raise ConfigError(f"messageDelayLevel: {word[:32]!r} is longer than ten years")
    return int(number) * unit_ms


def delay_ms(delays_ms: Sequence[int], level: int) -> int:
    """Return the delay of a level (1 or more); above the highest it is that one's."""
    return delays_ms[min(level, len(delays_ms)) - 1]
