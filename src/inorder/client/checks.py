"""What a producer refuses before anything leaves: names, numbers, settings, what comes later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from inorder.client.durations import Duration, to_ms
from inorder.client.sending import Choice
from inorder.client.state.lane import WINDOW_MAX
from inorder.client.state.sendback import DELAY_LEVELS_MS
from inorder.config import ClientConfig
from inorder.errors import ConfigError, UsageError
from inorder.wire.names import UNITS_MS

NAME_CHARS_MAX: Final = 128
SEQUENCE_MAX: Final = (1 << 63) - 1


def checked_numbers(
    name: str | None, sequences: Sequence[int] | None, count: int
) -> tuple[int, ...]:
    """Return the numbers that a caller gave: a named producer needs them, others have none."""
    if name is None:
        if sequences is not None:
            raise UsageError("sequence= is for named producers; give the producer an id=")
        return ()
    if sequences is None or len(sequences) != count:
        raise UsageError(
            f"producer {name!r} is named: give every message its sequence= (sequences= of a "
            "batch, one for each)"
        )
    for number in sequences:
        if type(number) is not int or not 0 <= number <= SEQUENCE_MAX:
            raise UsageError(f"{number!r} is no sequence; give an int, 0 or more")
    return tuple(sequences)


def checked_name(name: str | None) -> str | None:
    """Return the name of a producer if it may have it."""
    if name is not None and not (
        0 < len(name) <= NAME_CHARS_MAX and name.isascii() and name.isprintable()
    ):
        raise UsageError(
            f"{name!r} is no id of a producer; give 1 to {NAME_CHARS_MAX} printable ASCII "
            "characters"
        )
    return name


def check_fixed(choice: Choice | None, key: str | None) -> None:
    """Refuse a numbered message that would come to another queue the next time."""
    if choice is None and key is None:
        raise UsageError(
            "a named producer needs key=, queue= or selector=: sent again, a message must come to "
            "the same queue"
        )


def checked_config(config: ClientConfig) -> ClientConfig:
    """Return the settings if a producer can live with them."""
    if not 1 <= config.sends_in_flight_max <= WINDOW_MAX:
        raise ConfigError(
            f"sends_in_flight_max is {config.sends_in_flight_max}; it may be 1 to {WINDOW_MAX}"
        )
    return config


def checked_delay(
    delay: Duration | None,
    delay_level: int | None,
    deliver_at: datetime | None,
    levels_ms: Sequence[int] = DELAY_LEVELS_MS,
) -> int:
    """Return the delay level that a caller wants, 0 for none."""
    if deliver_at is not None:
        raise UsageError(
            "messages for a time of day are not supported yet (deliver_at=); use delay= or "
            "delay_level=, or send the message when it is due"
        )
    if delay is not None:
        if delay_level is not None:
            raise UsageError("give delay= or delay_level=, not both")
        return _level_of(delay, levels_ms)
    if delay_level is None:
        return 0
    if type(delay_level) is not int or delay_level < 0:
        raise UsageError(
            f"{delay_level!r} is no delay level; give 1 for the broker's shortest delay, 2 for the "
            "next, or 0 for none"
        )
    if delay_level > len(levels_ms):
        raise UsageError(
            f"there is no delay level {delay_level}; the levels are 1 ({_shown(levels_ms[0])}) to "
            f"{len(levels_ms)} ({_shown(levels_ms[-1])}); a broker with others: set delay_levels "
            "of the client to them"
        )
    return delay_level


def _level_of(delay: Duration, levels_ms: Sequence[int]) -> int:
    """Return the level that has exactly this delay; the broker has no others."""
    if isinstance(delay, bool) or not isinstance(delay, int | float | timedelta):
        raise UsageError(
            f"delay={delay!r} is a {type(delay).__name__}; give seconds, as in 10, or a timedelta"
        )
    delay_ms = to_ms(delay)
    if not delay_ms:
        return 0
    if delay_ms in levels_ms:
        return levels_ms.index(delay_ms) + 1
    shorter = max((one for one in levels_ms if one < delay_ms), default=None)
    longer = min((one for one in levels_ms if one > delay_ms), default=None)
    nearest = " and ".join(
        f"{_shown(one)} (level {levels_ms.index(one) + 1})"
        for one in (shorter, longer)
        if one is not None
    )
    raise UsageError(
        f"no delay level has {_shown(delay_ms)}; nearest: {nearest}; a broker with other levels: "
        "set delay_levels of the client to them"
    )


def _shown(delay_ms: int) -> str:
    for unit, unit_ms in reversed(UNITS_MS.items()):
        if delay_ms >= unit_ms and delay_ms % unit_ms == 0:
            return f"{delay_ms // unit_ms}{unit}"
    return f"{delay_ms / 1000:g}s"
