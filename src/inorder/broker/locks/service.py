"""RocketMQ's queue locks at work: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ and clients that unregister.

`broker/locks/rules.py` decides on the lease table, because locks and leases exclude each other
(decision 16). A grant is in the lease journal before it is applied. A queue that becomes free is
free even if the disk is full: the journal writes that record as soon as it can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import Owner
from inorder.model import GroupQueue, TopicQueue

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.net.accepted import ServerConnection


class LockService:
    """Grants, renews and releases the locks of RocketMQ clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.leases
        self._journal = broker.lease_journal

    def lock_batch(
        self,
        group: str,
        queues: tuple[TopicQueue, ...],
        client_id: str,
        connection: ServerConnection,
        *,
        frees_omitted: bool,
    ) -> list[TopicQueue]:
        """Lock or renew queues by RocketMQ's rules; return those that the client owns now."""
        self._broker.safety.require()
        locks, now_ms = self._broker.locks, self._broker.clock.monotonic_ms()
        keys = {queue: GroupQueue.of(group, queue) for queue in queues}
        freed = locks.omitted(group, keys.values(), client_id, now_ms, at_once=frees_omitted)
        self._freed(freed)
        decisions = locks.decide(keys.values(), client_id, now_ms)
        self._broker.lease_service.apply(decisions, now_ms, connection)
        if freed:
            self._broker.notify_ids_changed(group)
        granted = {one.key for one in decisions if one.is_granted}
        return [queue for queue, key in keys.items() if key in granted]

    def unlock_batch(self, group: str, queues: tuple[TopicQueue, ...], client_id: str) -> None:
        """Release queues that a client owns."""
        keys = [GroupQueue.of(group, queue) for queue in queues]
        released = self._broker.locks.unlock_batch(group, keys, client_id)
        self._freed(released)
        if released:
            self._broker.notify_unlocked(group, by=client_id)

    def client_left(
        self, group: str, client_id: str, connection: ServerConnection, *, gone: bool
    ) -> bool:
        """Free the queues of a client that unregistered; return whether it held any.

        The locks of a RocketMQ client are freed only if it is `gone` with all its connections.
        """
        self._broker.lease_expiry.left(group, connection)
        mine = [
            key
            for key, lease in self._table.held(group).items()
            if (gone and lease.owner == Owner(client_id))
            or (lease.client_id == client_id and lease.connection == connection.id)
        ]
        for key in mine:
            self._broker.lease_service.ended(key, "released")
            self._table.release(key)
        self._freed(mine)
        return bool(mine)

    def _freed(self, keys: Iterable[GroupQueue]) -> None:
        name = self._broker.config.name
        self._journal.write_later(lease_records.freed(key, name) for key in keys)
