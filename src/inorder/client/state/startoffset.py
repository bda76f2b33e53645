"""Where a queue is read from: the offset of the group, or what consume-from says if it has none.

                  normal topic               %RETRY% topic
    stored        there                      there
    last          the end                    0: a retry must not be lost
    first         0                          0
    a time        the first message then     the end
    error         the queue is not added; asked again later

0 may be gone already: then the first pull is answered "offset moved" and the queue goes on at the
first message that is there. A queue that came after the group began (a topic that grew) is read
from its first message under `last` too: all that it holds is news to the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from inorder.client.state.pulldecisions import RETRY_PREFIX

NOT_STORED: Final = -1
"""The answer of an offset store that has no offset of the queue."""
NOT_READ: Final = -2
"""The answer of an offset store that could not be asked."""


HALF_AN_HOUR_MS: Final = 30 * 60 * 1000
"""RocketMQ's consumeTimestamp if none is given: so long before the consumer was made."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """Begin with what was stored then or later (ms since 1970)."""

    at_ms: int


ConsumeFrom = Literal["first", "last"] | FromTime


def from_timestamp(now_ms: int) -> FromTime:
    """Return where "timestamp" begins for a consumer that is made now."""
    return FromTime(now_ms - HALF_AN_HOUR_MS)


@dataclass(frozen=True, slots=True)
class BeginAt:
    """Begin here."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskEnd:
    """Ask the broker for the end of the queue and begin there."""


@dataclass(frozen=True, slots=True)
class AskTime:
    """Ask the broker for the offset of a time and begin there."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class NotNow:
    """Do not add the queue; try again in the next round."""

    reason: str


Begin = BeginAt | AskEnd | AskTime | NotNow


def begin(stored: int, topic: str, consume_from: ConsumeFrom, *, late: bool = False) -> Begin:
    """Say where to begin; `stored` is an offset, NOT_STORED or NOT_READ.

    `late`: the queue was not there when the group's consumer first saw the topic.
    """
    if stored >= 0:
        return BeginAt(stored)
    if stored != NOT_STORED:
        return NotNow("the group's offset could not be read")
    retry = topic.startswith(RETRY_PREFIX)
    if isinstance(consume_from, FromTime):
        return AskEnd() if retry else AskTime(consume_from.at_ms)
    if consume_from == "first" or retry or late:
        return BeginAt(0)
    return AskEnd()


def answered(offset: int) -> Begin:
    """Take what the broker said to AskEnd or AskTime; a negative number is no offset."""
    return BeginAt(offset) if offset >= 0 else NotNow(f"the broker answered offset {offset}")
