"""What the answer to a send says of its message: stored, not stored, or nobody knows.

By the code, as Apache RocketMQ means it, and never by the remark. A code that is not listed here
does not exclude that the message is stored.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from inorder.model import SendStatus
from inorder.wire.codes import ResponseCode
from inorder.wire.extensions import NOTHING_STORED, ExtensionAnswer


class Verdict(Enum):
    """What became of a message."""

    STORED = "stored"
    NOT_STORED = "not stored"
    UNKNOWN = "unknown"


STATUSES: Final = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}
"""Stored; all but the first less safely than the broker is set to."""

REFUSALS: Final = frozenset(
    {
        # Before the store has seen it.
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
        # By the store, before it has written.
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        # Of ours.
        ExtensionAnswer.PRODUCER_GAP,
        ExtensionAnswer.PRODUCER_UNKNOWN,
        ExtensionAnswer.PRODUCER_STALE,
        ExtensionAnswer.PRODUCER_MISMATCH,
        ExtensionAnswer.PRODUCERS_FULL,
        ExtensionAnswer.KEY_MAP_CHANGED,
    }
)
"""Not stored."""


def verdict(code: int, stored: str | None = "") -> Verdict:
    """Return what an answer says; `stored` is the field of that name, of brokers of ours."""
    if code in STATUSES:
        return Verdict.STORED
    if code in REFUSALS or stored == NOTHING_STORED:
        return Verdict.NOT_STORED
    return Verdict.UNKNOWN
