"""What we add to RocketMQ's protocol, in one table.

A stock broker answers our request codes with 3 and ignores our fields; a stock client never sends
either. Both blocks of numbers are unused by RocketMQ. `docs/design/extensions.md` is made from this
file.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

CAPABILITY: Final = "inorder"
"""The field of HEART_BEAT's and PRODUCER_HELLO's answers that says: this is our broker."""

PROTOCOL: Final = 1
"""Its value."""

PRODUCER_ID: Final = "INORDER_PID"
"""Property: the producer that numbers its messages."""

SEQUENCE: Final = "INORDER_SEQ"
"""Property: the number of the message within (producer, topic, queue)."""

PREDECESSOR: Final = "INORDER_PREV"
"""Property of a named producer's message: the number before it on that queue; -1 for none."""

SCHEDULED: Final = "INORDER_SCHED"
"""Property of a delayed message on delivery: `level:offset` of the queue in which it waited."""

MAP_VERSION: Final = "mv"
"""Field of a send: the version of the key map by which its queue was chosen; absent: no map."""

BULK: Final = "bulk"
"""Field of a pull: the answer may have so many bytes, and as many messages as were asked for."""


class ExtensionCode(IntEnum):
    """Requests of ours."""

    PRODUCER_HELLO = 7100
    PRODUCER_STATE = 7101
    PRODUCER_DROP = 7102
    PRODUCER_LIST = 7103


class ExtensionAnswer(IntEnum):
    """Answers of ours."""

    PRODUCER_GAP = 7100
    """The number is not the next one; `expected` is. Nothing was stored."""
    PRODUCER_UNKNOWN = 7101
    """Nothing is known of this producer on this queue (evicted, or lost with the log's tail)."""
    PRODUCER_STALE = 7102
    """A newer incarnation of this producer has said hello, or none did here. Nothing was stored."""
    PRODUCER_MISMATCH = 7103
    """The number belongs to another message. Nothing was stored."""
    PRODUCERS_FULL = 7104
    """There is no room for another named producer."""
    KEY_MAP_CHANGED = 7110
    """The key map has another version, `version`; `map` holds it. Nothing was stored."""
