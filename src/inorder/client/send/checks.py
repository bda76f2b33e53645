"""What a producer refuses before anything is sent: impossible names, numbers, times and settings.

How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from inorder.client.rules.routes import Duration, to_ms
from inorder.client.send.rules import WINDOW_MAX
from inorder.config import ClientConfig
from inorder.errors import ConfigError, UsageError
from inorder.wire import properties as names
from inorder.wire.names import DELAY_LEVELS_MS, UNITS_MS
from inorder.wire.properties import format_properties

if TYPE_CHECKING:
    from inorder.client.send.queues import Choice
    from inorder.client.send.transactions import OnTransactionCheck

GROUP: Final = "DEFAULT_PRODUCER"
PRODUCER_ID_CHARS_MAX: Final = 128
SEQUENCE_MAX: Final = (1 << 63) - 1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def checked_numbers(
    name: str | None, sequences: Sequence[int] | None, count: int
) -> tuple[int, ...]:
    """Return the caller's sequence numbers: a named producer needs them, others have none."""
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
    """Return the name of a producer if it is allowed."""
    if name is not None and not (
        0 < len(name) <= PRODUCER_ID_CHARS_MAX and name.isascii() and name.isprintable()
    ):
        raise UsageError(
            f"{name!r} is no id of a producer; give 1 to {PRODUCER_ID_CHARS_MAX} printable ASCII "
            "characters"
        )
    return name


def check_fixed(choice: Choice | None, key: str | None) -> None:
    """Refuse a message of a named producer that would go to another queue when sent again."""
    if choice is None and key is None:
        raise UsageError(
            "a named producer needs key=, queue= or selector=: sent again, a message must come to "
            "the same queue"
        )


def checked_config(config: ClientConfig) -> ClientConfig:
    """Return the settings if they are valid for a producer."""
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
) -> str:
    """Return the properties that delay a message as its caller wants; empty: not at all.

    A delay that a level has becomes that level, so that it works with every broker. A time without
    a zone is local.
    """
    given = [
        name
        for name, value in (
            ("delay=", delay), ("delay_level=", delay_level), ("deliver_at=", deliver_at),
        )
        if value is not None
    ]  # fmt: skip
    if len(given) > 1:
        raise UsageError(f"give {' or '.join(given)}, not both")
    if deliver_at is not None:
        return format_properties({names.TIMER_DELIVER_MS: str(_checked_moment(deliver_at))})
    if delay is not None:
        return _delayed(delay, levels_ms)
    if delay_level is None:
        return ""
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
    return _level(delay_level) if delay_level else ""


def _level(level: int) -> str:
    return format_properties({names.DELAY: str(level)})


def _checked_moment(deliver_at: datetime) -> int:
    """Return a time in ms since 1970, rounded up."""
    if not isinstance(deliver_at, datetime):
        raise UsageError(
            f"deliver_at={deliver_at!r:.64} is a {type(deliver_at).__name__}; give a datetime, as "
            "in datetime.now(UTC) + timedelta(minutes=90)"
        )
    try:
        due_ms = -((_EPOCH - deliver_at.astimezone(UTC)) // timedelta(milliseconds=1))
    except (OverflowError, ValueError, OSError):
        due_ms = -1
    if due_ms < 0:
        raise UsageError(f"deliver_at={deliver_at!r} is no time that a message can wait for")
    return due_ms


def _delayed(delay: Duration, levels_ms: Sequence[int]) -> str:
    """Return the properties for a delay: of the level that has it, else of a time."""
    if isinstance(delay, bool) or not isinstance(delay, int | float | timedelta):
        raise UsageError(
            f"delay={delay!r} is a {type(delay).__name__}; give seconds, as in 10, or a timedelta"
        )
    delay_ms = to_ms(delay)
    if not delay_ms:
        return ""
    if delay_ms in levels_ms:
        return _level(levels_ms.index(delay_ms) + 1)
    return format_properties({names.TIMER_DELAY_MS: str(delay_ms)})


def _shown(delay_ms: int) -> str:
    for unit, unit_ms in reversed(UNITS_MS.items()):
        if delay_ms >= unit_ms and delay_ms % unit_ms == 0:
            return f"{delay_ms // unit_ms}{unit}"
    return f"{delay_ms / 1000:g}s"


def checked_listener(listener: OnTransactionCheck | None, group: str) -> OnTransactionCheck | None:
    """Return the listener of a producer that has a group of its own."""
    if listener is not None and not callable(listener):
        raise UsageError(
            f"on_transaction_check is {listener!r}; give a function that takes the message and "
            "returns a TransactionState"
        )
    if listener is not None and group == GROUP:
        raise UsageError(
            "on_transaction_check needs group=: brokers ask any producer of the group, so that "
            "only programs that can answer should share it"
        )
    return listener
