"""Requests about RocketMQ's queue locks: lock or renew (41), unlock (42).

Locks and leases exclude each other. Decision 16 gives the reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.leases.rules import Owner
from inorder.model import GroupQueue
from inorder.wire.codes import LanguageCode
from inorder.wire.requests.leases import LockBatchBody, LockedQueues

if TYPE_CHECKING:
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command


def lock_batch(call: Call[None]) -> Reply:
    """Lock or renew queues; reply with those that the client owns now, possibly none.

    A renewal gives up the queues that it leaves out (`broker/locks/rules`). If another owner holds
    one of the queues past its deadline, the broker first reads pending input.
    """
    broker = call.broker
    request = LockBatchBody.decode(call.command.body)

    keys = [GroupQueue.of(request.group, queue) for queue in request.queues]

    def answer() -> Command:
        granted = broker.lock_service.lock_batch(
            request.group, request.queues, request.client_id, call.connection,
            frees_omitted=call.command.language == LanguageCode.GO,
        )  # fmt: skip
        return call.reply(body=LockedQueues(tuple(granted)).encode())

    async def answer_later() -> Command:
        await broker.lease_expiry.check()
        return answer()

    if broker.lease_expiry.is_overdue(keys, Owner(request.client_id)):
        return answer_later()
    return answer()


def unlock_batch(call: Call[None]) -> Command:
    """Release queues that the client owns, and notify the group."""
    request = LockBatchBody.decode(call.command.body)
    call.broker.lock_service.unlock_batch(request.group, request.queues, request.client_id)
    return call.reply()
