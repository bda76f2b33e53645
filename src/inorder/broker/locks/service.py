"""Owners of queues but for requests under an epoch: stock clients' locks, and operators' orders.

What is decided is written down before it is done (`broker/leases/storage.py`), but for what happens
also on a full disk: queues become free, groups and topics are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import NOBODY, LeaseKey, Owner
from inorder.broker.offsets.rules import Committed, QueueKey
from inorder.model import TopicQueue

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.leases.records import Record
    from inorder.net.accepted import ServerConnection


class LockService:
    """The verbs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.leases
        self._file = broker.lease_journal

    # -- stock clients ---------------------------------------------------------------------------

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
        self._file.write_later(lease_records.freed(LeaseKey(group, queue)) for queue in queues)

    # -- operators -------------------------------------------------------------------------------

    def take_away(self, group: str, topic: str, queue_id: int) -> tuple[str, int]:
        """Free a queue by an operator's order; return the client id and epoch of who had it.

        Its owner's next request is refused. Another one gets the queue when the owner has ceased
        to start handlers by itself, at most its grace after its last renewal.
        """
        key = self._key(group, topic, queue_id)
        lease = self._table.get(*key)
        if lease is None or lease.owner == NOBODY:
            return "", 0
        holder, epoch = lease.client_id, lease.epoch
        new = self._table.take_epoch()
        now_ms = self._broker.clock.monotonic_ms()
        until_ms = self._table.trusted_until_ms(key, now_ms)
        self._file.write(
            [lease_records.granted(key, NOBODY, new, lease.terms, deadline_ms=until_ms)]
        )
        self._table.void(key, new, now_ms)
        self._broker.housekeeping.lock_deadline_changed()
        self._broker.wake(topic, queue_id)  # its pulls that wait are refused
        return holder, epoch

    def recall(self, group: str, topic: str, queue_id: int) -> bool:
        """Have a queue given back; tell whether somebody has it, or could go on with it.

        Ours finish what they handle first. Stock clients cannot be asked: theirs is taken away.
        """
        key = self._key(group, topic, queue_id)
        lease, past = self._table.get(*key), self._table.past(key)
        if lease is not None and lease.owner.is_rocketmq:
            return bool(self.take_away(group, topic, queue_id)[0])
        if lease is not None:
            if lease.owner != NOBODY and not lease.recalled:
                self._file.write(
                    [
                        lease_records.granted(
                            key,
                            lease.owner,
                            lease.epoch,
                            lease.terms,
                            recalled=True,
                            deadline_ms=lease.deadline_ms,
                        )
                    ]
                )
                lease.recalled = True
            return True
        if past is None or past.released:
            return False
        self._file.write([lease_records.freed(key)])
        self._table.forget_past(key)
        return True

    def reset(self, group: str, topic: str, targets: dict[int, int]) -> None:
        """Set offsets by an operator's order: what was under way does not count any more."""
        records: list[Record] = []
        raised: dict[LeaseKey, int] = {}
        end = self._broker.store.log.end_position
        for queue_id, offset in targets.items():
            key = self._key(group, topic, queue_id)
            epoch = raised[key] = self._table.take_epoch()
            lease = self._table.get(*key)
            records.append(
                lease_records.freed(key)
                if lease is None
                else lease_records.granted(
                    key,
                    lease.owner,
                    epoch,
                    lease.terms,
                    recalled=lease.recalled,
                    deadline_ms=lease.deadline_ms,
                )
            )
            records.append(lease_records.Commit(group, topic, queue_id, offset, end, epoch, 0, ""))
        self._file.write(records)
        for (key, epoch), offset in zip(raised.items(), targets.values(), strict=True):
            queue = QueueKey(group, topic, key.queue.index)
            self._broker.offsets.reset(*queue, offset, self._broker.clock.now_ms())
            self._broker.commits.put(queue, Committed(epoch, 0, offset))
            if self._table.get(*key) is None:
                self._table.forget_past(key)
            else:
                self._table.raise_epoch(key, epoch)

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """Forget what is known of a group or a topic that is no more."""
        broker = self._broker
        self._file.write_later([lease_records.Forgotten(group, topic)])
        if topic:
            broker.offsets.remove_topic(topic)
            if broker.store.queues_of(topic):
                self._file.retire(topic)
        else:
            broker.offsets.remove_group(group)
        broker.commits.remove(group=group, topic=topic)
        self._table.forget(group=group, topic=topic)

    def _key(self, group: str, topic: str, queue_id: int) -> LeaseKey:
        return LeaseKey(group, TopicQueue(topic, self._broker.config.name, queue_id))
