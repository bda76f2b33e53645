"""Transactions: their end (37), the broker's question (39), resuming (323), the pending ones.

A transactional message is a send with the property TRAN_MSG. The broker keeps it as a *half*; the
answer's message id holds the log position of the half, the answer's queue offset is the offset of
the half. Both come back in END_TRANSACTION.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import msgspec

from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionCode
from inorder.wire.fastjson import TABLE_ITEMS_MAX, dumps, loads
from inorder.wire.fields import Int32
from inorder.wire.replies import EMPTY, body_as


class TransactionEnd(IntEnum):
    """The outcome of a transaction, as bits of the flags of a record; RocketMQ's numbers."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class EndTransaction(msgspec.Struct, frozen=True):
    """End a transaction; RocketMQ clients but Go's expect no answer."""

    CODE: ClassVar = RequestCode.END_TRANSACTION
    REPLY = EMPTY

    producer_group: str
    half_offset: int = msgspec.field(name="tranStateTableOffset")
    half_position: int = msgspec.field(name="commitLogOffset")
    end: Int32 = msgspec.field(name="commitOrRollback")
    from_check: bool = msgspec.field(name="fromTransactionCheck", default=False)
    """It answers CHECK_TRANSACTION_STATE."""
    message_id: str = msgspec.field(name="msgId", default="")
    transaction_id: str = ""
    topic: str = ""
    broker: str = msgspec.field(name="bname", default="")


class CheckTransactionState(msgspec.Struct, frozen=True):
    """Ask a producer for the outcome of a transaction; the body is the message, as a record.

    The producer answers with END_TRANSACTION, which repeats the offset and the position.
    """

    CODE: ClassVar = RequestCode.CHECK_TRANSACTION_STATE

    half_offset: int = msgspec.field(name="tranStateTableOffset")
    half_position: int = msgspec.field(name="commitLogOffset")
    topic: str = ""
    """The topic of halves."""
    message_id: str = msgspec.field(name="msgId", default="")
    transaction_id: str = ""
    offset_message_id: str = msgspec.field(name="offsetMsgId", default="")
    broker: str = msgspec.field(name="bname", default="")


class ResumeCheck(msgspec.Struct, frozen=True):
    """Take a given-up half back: its producer is asked again."""

    CODE: ClassVar = RequestCode.RESUME_CHECK_HALF_MESSAGE
    REPLY = EMPTY

    message_id: str = msgspec.field(name="msgId")
    topic: str = ""


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction without an outcome: its half, and how often its producers were asked."""

    transaction_id: str
    topic: str
    queue_id: int
    key: str
    group: str
    born_at_ms: int
    checks: int
    half_offset: int
    half_position: int


def encode_pending_transactions(found: Iterable[PendingTransaction], total: int) -> bytes:
    """Return the answer's body; `total` counts also those that it leaves out."""
    listed = [
        {
            "transactionId": one.transaction_id,
            "topic": one.topic,
            "queueId": one.queue_id,
            "key": one.key,
            "producerGroup": one.group,
            "bornTimestamp": one.born_at_ms,
            "checks": one.checks,
            "tranStateTableOffset": one.half_offset,
            "commitLogOffset": one.half_position,
        }
        for one in found
    ]
    return dumps({"transactions": listed, "total": total})


def decode_pending_transactions(data: bytes | memoryview) -> tuple[list[PendingTransaction], int]:
    """Read the transactions and how many there are; malformed: RemoteProtocolError."""
    whole = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "transactions")
    listed = [
        PendingTransaction(
            shapes.text(one, "transactionId", ""),
            shapes.text(one, "topic", ""),
            shapes.integer(one, "queueId", 0),
            shapes.text(one, "key", ""),
            shapes.text(one, "producerGroup", ""),
            shapes.integer(one, "bornTimestamp", 0),
            shapes.integer(one, "checks", 0),
            shapes.integer(one, "tranStateTableOffset", -1),
            shapes.integer(one, "commitLogOffset", -1),
        )
        for one in shapes.objects(whole, "transactions")
    ]
    return listed, shapes.integer(whole, "total", len(listed))


class TransactionsPending(msgspec.Struct, frozen=True):
    """List the pending transactions, oldest half first; the body of the answer is JSON."""

    CODE: ClassVar = ExtensionCode.TRANSACTIONS_PENDING
    REPLY = body_as(decode_pending_transactions)

    topic: str = ""
    """Only those of this topic; empty: all."""
    count: Int32 = 1000
