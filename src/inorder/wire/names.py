"""Names of topics and groups: which are valid, which belong to the system; and the delay levels.

The error texts are those of RocketMQ 5.3.3: tools show them to people, and some compare them.

A delay level is a word of RocketMQ's setting `messageDelayLevel`, counted from 1:

    1s 5s 10s 30s 1m …     units are s, m, h and d

The property DELAY of a message holds its level. A level above the highest counts as the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inorder.errors import ConfigError

TOPIC_CHARS_MAX: Final = 127
RETRY_TOPIC_CHARS_MAX: Final = 255
GROUP_CHARS_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
PARK_PREFIX: Final = "%PARK%"
GROUP_PREFIXES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX, PARK_PREFIX)
"""Topics that belong to a group begin with one of these."""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_TOPIC_PREFIXES: Final = (SYSTEM_TOPIC_PREFIX, "RMQ_SYS_")
RESERVED_PREFIXES: Final = ("%", *SYSTEM_TOPIC_PREFIXES)
"""A topic with such a name belongs to the system or to a group. No client creates it unasked."""
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The name server's namespace for the queues of topics that keep their order."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

FIXED_SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
NOT_SENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics that a client may not send to."""

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its offsets say how far the broker itself is with the halves of transactions and their ends."""

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""Groups that every broker has from the start."""

_ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%|_-")
_ALLOWED_TEXT: Final = "allowing only ^[%|a-zA-Z0-9_-]+$"


def retry_topic(group: str) -> str:
    """Return the retry topic of a group."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group gave up."""
    return DEAD_LETTER_PREFIX + group


def validate_topic(name: str) -> str | None:
    """Return what is wrong with a topic name, or None."""
    if not name or name.isspace():
        return "The specified topic is blank."
    if not _ALLOWED.issuperset(name):
        return f"The specified topic contains illegal characters, {_ALLOWED_TEXT}"
    if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        if len(name) > RETRY_TOPIC_CHARS_MAX:
            return "The specified topic is longer than topic max length."
    elif len(name) > TOPIC_CHARS_MAX:
        return "The specified topic is longer than topic max length."
    return None


def validate_group(name: str) -> str | None:
    """Return what is wrong with a group name, or None."""
    if not name or name.isspace():
        return "The specified group is blank."
    if not _ALLOWED.issuperset(name):
        return f"The specified group contains illegal characters, {_ALLOWED_TEXT}"
    if len(name) > GROUP_CHARS_MAX:
        return "The specified group is longer than group max length."
    return None


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
    """Return the delay of a level (1 or more); a level above the highest has the highest delay."""
    return delays_ms[min(level, len(delays_ms)) - 1]


DELAY_LEVELS_MS: Final = parse_delay_levels(
    "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
)
"""RocketMQ's default levels."""
