"""What an answer to a send says of its message."""

from __future__ import annotations

import pytest

from inorder.client.rules.receipts import REFUSALS, STATUSES, Verdict, verdict
from inorder.model import SendStatus
from inorder.wire.codes import ResponseCode
from inorder.wire.extensions import ExtensionAnswer


@pytest.mark.parametrize(
    ("code", "stored", "meant"),
    [
        (ResponseCode.SUCCESS, "", Verdict.STORED),
        (ResponseCode.FLUSH_DISK_TIMEOUT, "", Verdict.STORED),
        (ResponseCode.SLAVE_NOT_AVAILABLE, "", Verdict.STORED),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, "", Verdict.STORED),
        (ResponseCode.SYSTEM_ERROR, "", Verdict.UNKNOWN),
        (ResponseCode.SYSTEM_ERROR, None, Verdict.UNKNOWN),
        (ResponseCode.SYSTEM_ERROR, "yes", Verdict.UNKNOWN),
        (ResponseCode.SYSTEM_ERROR, "no", Verdict.NOT_STORED),
        (ResponseCode.SYSTEM_BUSY, "", Verdict.NOT_STORED),
        (ResponseCode.MESSAGE_ILLEGAL, "", Verdict.NOT_STORED),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "", Verdict.NOT_STORED),
        (ResponseCode.NO_PERMISSION, "", Verdict.NOT_STORED),
        (ResponseCode.TOPIC_NOT_EXIST, "", Verdict.NOT_STORED),
        (ExtensionAnswer.PRODUCER_GAP, "", Verdict.NOT_STORED),
        (ExtensionAnswer.KEY_MAP_CHANGED, "", Verdict.NOT_STORED),
        (ResponseCode.TRANSACTION_FAILED, "", Verdict.UNKNOWN),
        (ResponseCode.GO_AWAY, "", Verdict.UNKNOWN),
        (9999, "", Verdict.UNKNOWN),
        (-1006, "", Verdict.UNKNOWN),
    ],
)
def test_the_code_decides(code: int, stored: str | None, meant: Verdict):
    """What nobody listed as a refusal may be stored; the field of our brokers excludes it."""
    assert verdict(code, stored) is meant


def test_the_table_has_no_code_twice():
    """A refusal is no success, and every status of RocketMQ's SendStatus has its code."""
    assert not REFUSALS & STATUSES.keys()
    assert set(STATUSES.values()) == set(SendStatus)
