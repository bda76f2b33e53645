"""What the answer to a send tells about its message: stored, not stored, or unknown.

The code decides, with the meaning that Apache RocketMQ gives it; the remark never does. After a
code that is not listed here the message may be stored. Is a failed send stored: decision 41.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from inorder.model import SendStatus
from inorder.wire.codes import ResponseCode
from inorder.wire.extensions import NOTHING_STORED, ExtensionAnswer


class Verdict(Enum):
    """The outcome of a send, as far as its answer tells."""

    STORED = "stored"
    NOT_STORED = "not stored"
    UNKNOWN = "unknown"


STATUSES: Final = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}
"""Codes of stored messages; all but the first: less safely than the broker's settings demand."""

REFUSALS: Final = frozenset(
    {
        # Refused before the store has seen the message.
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.VERSION_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        # Refused by the store before it has written.
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        # Extensions.
        ExtensionAnswer.PRODUCER_GAP,
        ExtensionAnswer.PRODUCER_UNKNOWN,
        ExtensionAnswer.PRODUCER_STALE,
        ExtensionAnswer.PRODUCER_MISMATCH,
        ExtensionAnswer.PRODUCERS_FULL,
        ExtensionAnswer.KEY_MAP_CHANGED,
    }
)
"""Codes of messages that are not stored."""


def verdict(code: int, stored: str | None = "") -> Verdict:
    """Return the outcome that an answer means; `stored` is the field that inorder brokers add."""
    if code in STATUSES:
        return Verdict.STORED
    if code in REFUSALS or stored == NOTHING_STORED:
        return Verdict.NOT_STORED
    return Verdict.UNKNOWN
