"""What a producer refuses before anything leaves: names, numbers, settings, what comes later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from inorder.client.sending import Choice
from inorder.client.state.lane import WINDOW_MAX
from inorder.config import ClientConfig
from inorder.errors import ConfigError, UsageError

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


def checked_delay(delay_level: int | None, deliver_at: datetime | None) -> int:
    """Return the delay level that a caller wants, 0 for none."""
    if deliver_at is not None:
        raise UsageError(
            "messages for a time of day are not supported yet (deliver_at=); use delay_level=, "
            "or send the message when it is due"
        )
    if delay_level is None:
        return 0
    if type(delay_level) is not int or delay_level < 0:
        raise UsageError(
            f"{delay_level!r} is no delay level; give 1 for the broker's shortest delay, 2 for the "
            "next, or 0 for none"
        )
    return delay_level
