"""A failed message on its way back: the request for the broker, and the copy for the retry topic.

A concurrent message goes back by request 36: the broker copies the stored record to `%RETRY%group`
with a delay that grows with the attempts (level 3 + attempts), or to `%DLQ%group` after the last
one. If that fails, and always for ordered queues, the client sends a copy to the retry topic
itself; one that was handed out more often than allowed is dead-lettered by the broker on arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inorder.client.policies import ATTEMPTS_MAX, Reject, Retry
from inorder.client.state.pulldecisions import RETRY_PREFIX
from inorder.model import ReceivedMessage
from inorder.wire import properties as names
from inorder.wire.names import parse_delay_levels
from inorder.wire.properties import error_of, put_error

FIRST_DELAY_LEVEL: Final = 3
BROKER_DECIDES: Final = 0
DEAD_LETTER_NOW: Final = -1
SEND_BACK_TIMEOUT_MS: Final = 5000

DELAY_LEVELS_MS: Final = parse_delay_levels(
    "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
)
"""RocketMQ's 18 levels, from level 1 on, as brokers have them if not set otherwise."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a try failed, and what the handler asked for."""

    error: str = ""
    after_ms: int | None = None
    rejected: bool = False
    level: int | None = None
    """The delay level, where it is not for the handler to say."""


def failure_of(error: BaseException | None) -> Failure:
    """Return what a handler said by what it raised; None: it returned that it failed."""
    return Failure(
        error_of(error_text(error)),
        error.after_ms if isinstance(error, Retry) else None,
        isinstance(error, Reject),
    )


def error_text(error: BaseException | None) -> str:
    """Return how a try failed, for people."""
    if error is None:
        return "the handler asked for a pause"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class RetryCopy:
    """What the client sends to the retry topic; both numbers go into the header of the send."""

    topic: str
    body: bytes
    properties: dict[str, str]
    redeliveries: int
    redeliveries_max: int
    flag: int = 0


def retry_topic(group: str) -> str:
    """Return the topic of a group's failed messages."""
    return RETRY_PREFIX + group


def retry_copy(
    message: ReceivedMessage, group: str, *, redeliveries_max: int, failure: Failure | None = None
) -> RetryCopy:
    """Return the copy: same body, flag and properties, its origin, one redelivery more, a delay.

    One that is to be a dead letter says how it failed.
    """
    failure = failure or Failure()
    if failure.rejected:
        redeliveries_max = min(redeliveries_max, message.redeliveries)
    properties = dict(message.properties)
    properties.pop(names.TRAN_MSG, None)
    properties[names.ORIGIN_MESSAGE_ID] = (
        properties.get(names.ORIGIN_MESSAGE_ID) or message.message_id
    )
    properties[names.RETRY_TOPIC] = message.topic
    properties[names.DELAY] = str(FIRST_DELAY_LEVEL + message.redeliveries)
    if message.redeliveries >= redeliveries_max:
        put_error(properties, failure.error)
    return RetryCopy(
        retry_topic(group),
        message.body,
        properties,
        message.redeliveries + 1,
        min(redeliveries_max, ATTEMPTS_MAX),
        message.flag,
    )


def level_of(failure: Failure) -> int:
    """Return the delay level of a message that goes back: RocketMQ's delayLevelWhenNextConsume."""
    if failure.level is not None:
        return failure.level
    return DEAD_LETTER_NOW if failure.rejected else delay_level(failure.after_ms)


def delay_level(after_ms: int | None, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return the level for `Retry(after=…)`: the shortest that is long enough, else the last.

    None: the broker decides by the attempts.
    """
    if after_ms is None:
        return BROKER_DECIDES
    for level, delay_ms in enumerate(levels_ms, 1):
        if delay_ms >= after_ms:
            return level
    return len(levels_ms)
