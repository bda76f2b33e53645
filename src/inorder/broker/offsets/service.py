"""Consumer offsets at work: commits without an epoch, first offsets, resets, deletions.

`broker/offsets/rules.py` decides. Commits under an epoch belong to `broker/leases/service.py`.
A reset is in the lease journal before it is applied (decision 25). A deletion also works on a full
disk: the journal writes that record as soon as it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.leases import records as lease_records
from inorder.broker.offsets.rules import CommitKind, Committed, Committer, Ruling, commit
from inorder.broker.pops.records import PopForgotten, PopReset
from inorder.model import GroupQueue
from inorder.wire.names import TRANSACTION_GROUP

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.leases.records import Record
    from inorder.net.accepted import ServerConnection


class OffsetService:
    """Stores, resets and forgets the offsets of groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases = broker.leases
        self._journal = broker.lease_journal

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        connection: ServerConnection,
        *,
        kind: CommitKind,
        judge_only: bool = False,
    ) -> Ruling:
        """Store an offset if the rules allow it; with `judge_only` only return the ruling."""
        broker = self._broker
        if group == TRANSACTION_GROUP:
            return Ruling.OWN
        return commit(
            broker.offsets,
            broker.locks,
            GroupQueue(group, topic, queue_id),
            offset,
            committer=Committer(broker.members.client_id(group, connection), connection.id),
            kind=kind,
            end=broker.store.end_offset(topic, queue_id),
            now_ms=broker.clock.now_ms(),
            judge_only=judge_only,
        )

    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Return where a group without an offset starts; None if the client decides.

        An empty queue starts at its end. A queue starts at 0 if its first message is still there
        and in memory, as in RocketMQ.
        """
        config = self._broker.topics.get(topic)
        if config is None or not 0 <= queue_id < config.read_queues:
            return None
        store = self._broker.store
        queue = store.find_queue(topic, queue_id)
        if queue is None:
            return 0
        if queue.min_offset >= queue.visible_offset:
            return queue.visible_offset
        first = queue.entry(0) if queue.min_offset <= 0 else None
        if first is not None and store.log.end_position - first[0] <= store.reader.hot_bytes:
            return 0
        return None

    def reset(self, group: str, topic: str, targets: dict[int, int]) -> None:
        """Set offsets on behalf of an operator.

        Each queue gets a new epoch, so that commits under way are stale.
        """
        records: list[Record] = []
        raised: dict[GroupQueue, int] = {}
        end = self._broker.store.log.end_position
        for queue_id, offset in targets.items():
            key = GroupQueue(group, topic, queue_id)
            epoch = raised[key] = self._leases.take_epoch()
            lease = self._leases.get(key)
            records.append(
                lease_records.freed(key, self._broker.config.name)
                if lease is None
                else lease_records.granted(
                    key,
                    self._broker.config.name,
                    lease.owner,
                    epoch,
                    lease.terms,
                    revoked=lease.is_revoked,
                    deadline_ms=lease.deadline_ms,
                )
            )
            records.append(lease_records.Commit(group, topic, queue_id, offset, end, epoch, 0, ""))
            records.append(PopReset(*key))
        self._journal.write(records)
        for (key, epoch), offset in zip(raised.items(), targets.values(), strict=True):
            self._broker.offsets.reset(*key, offset, self._broker.clock.now_ms())
            self._broker.commits.put(key, Committed(epoch, 0, offset))
            self._broker.pop_table.reset(key)
            if self._leases.get(key) is None:
                self._leases.forget_past(key)
            else:
                self._leases.raise_epoch(key, epoch)

    def forget_pops(self, group: str) -> None:
        """Forget what a deleted group has popped; its offsets stay."""
        self._journal.write_later([PopForgotten(group, "")])
        self._broker.pop_table.forget(group=group)

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """Forget the offsets, commits and leases of a deleted group or topic."""
        broker = self._broker
        broker.deliveries.forget(group=group, topic=topic)
        broker.counts.forget(group=group, topic=topic)
        self._journal.write_later(
            [lease_records.Forgotten(group, topic), PopForgotten(group, topic)]
        )
        if topic:
            broker.offsets.remove_topic(topic)
            if broker.store.queues_of(topic):
                self._journal.retire(topic)
        else:
            broker.offsets.remove_group(group)
        broker.commits.remove(group=group, topic=topic)
        broker.pop_table.forget(group=group, topic=topic)
        broker.assignments.forget(group=group, topic=topic)
        self._leases.forget(group=group, topic=topic)
