"""Queue locks of ordered consumers: lock or renew (41), unlock (42)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.handlers.context import BrokerLike
from inorder.wire.bodies import LockBatchBody, LockedQueues

if TYPE_CHECKING:
    from inorder.net.server import ServerConnection
    from inorder.wire.command import Command


def lock_batch(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Lock or renew queues; answer those that the client owns now, which may be none."""
    request = LockBatchBody.decode(command.body)
    granted = broker.locks.lock_batch(
        request.group, request.queues, request.client_id, broker.clock.monotonic_ms()
    )
    if granted:
        broker.keeping.lock_deadline_changed()
    return command.reply(body=LockedQueues(tuple(granted)).encode())


def unlock_batch(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Release queues that the client owns, and tell the group: the next owner need not wait."""
    request = LockBatchBody.decode(command.body)
    released = broker.locks.unlock_batch(request.group, request.queues, request.client_id)
    if released:
        broker.notify_ids_changed(request.group)
    return command.reply()
