"""RocketMQ's queue locks at work: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ and clients that unregister.

`broker/locks/rules.py` decides on the lease table, because locks and leases exclude each other
(decision 16). A grant is in the lease journal before it is applied. A queue that becomes free is
free even if the disk is full: the journal writes that record as soon as it can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import LeaseKey, Owner
from inorder.model import TopicQueue

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
        freed = locks.omitted(group, queues, client_id, now_ms, at_once=frees_omitted)
        self._freed(group, freed)
        decisions = locks.decide(group, queues, client_id, now_ms)
        self._broker.lease_service.apply(decisions, now_ms, connection)
        if freed:
            self._broker.notify_ids_changed(group)
        return [one.key.queue for one in decisions if one.is_granted]

    def unlock_batch(
        self, group: str, queues: tuple[TopicQueue, ...], client_id: str
    ) -> list[TopicQueue]:
        """Release queues that a client owns."""
        released = self._broker.locks.unlock_batch(group, queues, client_id)
        self._freed(group, released)
        if released:
            self._broker.notify_unlocked(group)
        return released

    def client_left(
        self, group: str, client_id: str, connection: ServerConnection, *, gone: bool
    ) -> bool:
        """Free what a client that unregistered has forgotten; tell whether there was any.

        A stock client's locks only if it is `gone`, with all connections.
        """
        self._broker.lease_expiry.left(group, connection)
        mine = [
            queue
            for queue, lease in self._table.held(group).items()
            if (gone and lease.owner == Owner(client_id))
            or (lease.client_id == client_id and lease.connection == connection.id)
        ]
        for queue in mine:
            self._table.release(LeaseKey(group, queue))
        self._freed(group, mine)
        return bool(mine)

    def _freed(self, group: str, queues: Iterable[TopicQueue]) -> None:
        self._journal.write_later(lease_records.freed(LeaseKey(group, queue)) for queue in queues)
