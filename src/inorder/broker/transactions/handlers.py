"""Requests of transactions: end (37), resume (323), list the pending ones (7170)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.wire.ids import parse_message_id
from inorder.wire.requests.transactions import (
    EndTransaction,
    PendingTransaction,
    ResumeCheck,
    TransactionsPending,
    encode_pending_transactions,
)

if TYPE_CHECKING:
    from inorder.broker.router import Call
    from inorder.wire.header import Command

LISTED_MAX: Final = 1000
SHARE: Final = 100
"""Halves that are read in one turn of the loop."""


def end_transaction(call: Call[EndTransaction]) -> None:
    """Commit or roll back a transaction (37); the service replies when that is safe."""
    call.broker.transaction_service.end(call.connection, call.command, call.request)


def resume_check(call: Call[ResumeCheck]) -> None:
    """Ask again about a transaction that was given up (323); the service replies."""
    try:
        _, _, position = parse_message_id(call.request.message_id)
    except RemoteProtocolError as error:
        raise SystemError_(str(error)) from None
    call.broker.transaction_service.resume(call.connection, call.command, position)


async def list_pending(call: Call[TransactionsPending]) -> Command:
    """Return the pending transactions, oldest first (7170)."""
    request, service = call.request, call.broker.transaction_service
    wanted = max(0, min(request.count, LISTED_MAX))
    found: list[PendingTransaction] = []
    total = 0
    for index, offset in enumerate(service.table.offsets()):
        if index % SHARE == SHARE - 1:
            await asyncio.sleep(0)
        half = service.table.at(offset)
        if half is None or (not request.topic and len(found) >= wanted):
            total += half is not None
            continue
        shown = service.describe(half)
        if shown is not None and request.topic in ("", shown.topic):
            total += 1
            if len(found) < wanted:
                found.append(shown)
    return call.reply(fields={}, body=encode_pending_transactions(found, total))
