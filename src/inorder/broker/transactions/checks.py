"""RocketMQ's checks of the end of a transaction, in RocketMQ's order and with its remarks."""

from __future__ import annotations

from inorder.broker.transactions.records import IMMUNITY, number
from inorder.broker.transactions.rules import is_late
from inorder.errors import IllegalOperation, SystemError_
from inorder.wire.names import HALF_TOPIC
from inorder.wire.properties import get
from inorder.wire.record import Record
from inorder.wire.requests.transactions import EndTransaction

_MISSING = "Find prepared transaction message failed"


def check_end(
    request: EndTransaction, record: Record | None, *, timeout_ms: int, now_ms: int
) -> Record:
    """Return the half that a request names, or raise the refusal.

    Unlike RocketMQ this takes records of the topic of halves only: any other message would be
    stored once more.
    """
    if record is None or record.topic != HALF_TOPIC:
        raise SystemError_(_MISSING)
    immunity_s = number(record.properties, IMMUNITY.encode())
    if not request.from_check and is_late(immunity_s, record.born_at_ms, timeout_ms, now_ms):
        raise IllegalOperation(
            f"the time in {IMMUNITY} has passed; only the answer to a question of the broker ends "
            "this transaction now"
        )
    group = get(record.properties, b"PGROUP")
    if group is None or group.decode("utf-8", "replace") != request.producer_group:
        raise SystemError_("The producer group wrong")
    if record.queue_offset != request.half_offset:
        raise SystemError_("The transaction state table offset wrong")
    if record.position != request.half_position:
        raise SystemError_("The commit log offset wrong")
    return record
