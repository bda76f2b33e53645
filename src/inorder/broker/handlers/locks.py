"""Queue locks of ordered consumers: lock or renew (41), unlock (42)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.handlers.context import BrokerLike
from inorder.wire.bodies import LockBatchBody, LockedQueues
from inorder.wire.codes import LanguageCode

if TYPE_CHECKING:
    from inorder.net.server import ServerConnection
    from inorder.wire.command import Command


def lock_batch(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Lock or renew queues; answer those that the client owns now, which may be none.

    What it holds and leaves out of a renewal it has given up (`state/locks.py`).
    """
    request = LockBatchBody.decode(command.body)
    now_ms = broker.clock.monotonic_ms()
    freed = broker.locks.omitted(
        request.group, request.queues, request.client_id, now_ms,
        at_once=command.language == LanguageCode.GO,
    )  # fmt: skip
    granted = broker.locks.lock_batch(
        request.group, request.queues, request.client_id, now_ms, connection=connection.id
    )
    if freed:
        broker.notify_ids_changed(request.group)
    if granted or freed:
        broker.keeping.lock_deadline_changed()
    return command.reply(body=LockedQueues(tuple(granted)).encode())


def unlock_batch(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Release queues that the client owns, and tell the group: the next owner need not wait."""
    request = LockBatchBody.decode(command.body)
    released = broker.locks.unlock_batch(request.group, request.queues, request.client_id)
    if released:
        broker.notify_unlocked(request.group)
    return command.reply()
