"""Whose word on a group's progress counts.

While a queue is locked only its owner commits, and never back. Another client that was the owner
before, or the owner with an older state, would have messages repeated that are done, or push the
group past some that are not. Without a lock anybody commits anything, as in RocketMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inorder.broker.state.locks import QueueLocks
    from inorder.broker.state.offsets import OffsetTable
    from inorder.model import TopicQueue


class Committer(NamedTuple):
    """Who commits: the client id of the connection in the group, None if nobody knows."""

    client_id: str | None
    connection: int


def commit(
    offsets: OffsetTable,
    locks: QueueLocks,
    group: str,
    queue: TopicQueue,
    offset: int,
    *,
    committer: Committer,
    now_ms: int,
    monotonic_ms: int,
) -> bool:
    """Store an offset; False if a lock on the queue forbids it."""
    if locks.is_locked(group, queue, monotonic_ms):
        if offset < offsets.query(group, queue.topic, queue.index):
            return False
        if not locks.may_commit(
            group,
            queue,
            monotonic_ms,
            client_id=committer.client_id,
            connection=committer.connection,
        ):
            return False
    offsets.commit(group, queue.topic, queue.index, offset, now_ms)
    return True
