"""Whose word on a group's progress counts.

While a queue is held only its owner commits, and never back. Another client that was the owner
before, or the owner with an older state, would have messages repeated that are done, or push the
group past some that are not. Without a lock anybody commits anything, as in RocketMQ.

Commits of our clients carry (epoch, number) and are taken in that order: of two connections of one
owner the older commit may arrive last. With the offset comes the map of what is finished above it.
The map counts only as long as the stored offset is the one that it was written with: a reset, or a
client without maps, makes it void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from inorder.errors import RemoteProtocolError
from inorder.ordering.finished import FinishedMap

if TYPE_CHECKING:
    from inorder.broker.state.locks import QueueLocks
    from inorder.broker.state.offsets import OffsetTable
    from inorder.model import TopicQueue

MAP_CHARS_MAX: Final = 256 * 1024 * 1024
"""The text of all maps together."""


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
    only_up: bool = False,
) -> bool:
    """Store an offset that came without an epoch; False if an owner of the queue forbids it.

    With `only_up` who commits wants no offset lowered: it may have lost the queue unawares.
    """
    if only_up and 0 <= offset < offsets.query(group, queue.topic, queue.index):
        return False
    if locks.is_locked(group, queue):
        if offset < offsets.query(group, queue.topic, queue.index):
            return False
        if not locks.may_commit(
            group, queue, client_id=committer.client_id, connection=committer.connection
        ):
            return False
    offsets.commit(group, queue.topic, queue.index, offset, now_ms)
    return True


class QueueKey(NamedTuple):
    """A group on a queue of this broker."""

    group: str
    topic: str
    queue_id: int


class Committed(NamedTuple):
    """The last commit of an owner: its place in the order of commits, and what it said."""

    epoch: int
    number: int
    offset: int
    finished: str = ""


class CommitTable:
    """The last commit of each group on each queue, if it came under an epoch."""

    def __init__(self, *, map_chars_max: int = MAP_CHARS_MAX) -> None:
        self.map_chars_max = map_chars_max
        self._table: dict[QueueKey, Committed] = {}
        self._chars = 0

    def __repr__(self) -> str:
        return f"CommitTable({len(self._table)} queues, {self._chars} characters of maps)"

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: QueueKey) -> Committed | None:
        """Return the last commit."""
        return self._table.get(key)

    def keys(self) -> list[QueueKey]:
        """Return the queues that have one."""
        return list(self._table)

    def is_newer(self, key: QueueKey, epoch: int, number: int) -> bool:
        """Tell whether a commit comes after the last one."""
        last = self._table.get(key)
        return last is None or (epoch, number) > (last.epoch, last.number)

    def has_room(self, key: QueueKey, finished: str) -> bool:
        """Tell whether the map of a commit can be kept."""
        last = self._table.get(key)
        before = 0 if last is None else len(last.finished)
        return self._chars - before + len(finished) <= self.map_chars_max

    def put(self, key: QueueKey, commit: Committed) -> None:
        """Keep a commit."""
        last = self._table.get(key)
        self._chars += len(commit.finished) - (0 if last is None else len(last.finished))
        self._table[key] = commit

    def finished(self, key: QueueKey, offset: int) -> str:
        """Return the map above a stored offset; empty if there is none that belongs to it."""
        last = self._table.get(key)
        return last.finished if last is not None and last.offset == offset else ""

    def remove(self, *, group: str = "", topic: str = "") -> int:
        """Forget a group, a topic, or a group's topic; return how many queues that were."""
        gone = [key for key in self._table if group in ("", key.group) and topic in ("", key.topic)]
        for key in gone:
            self._chars -= len(self._table.pop(key).finished)
        return len(gone)

    def clamp(self, end_of: Callable[[str, int], int]) -> Iterator[QueueKey]:
        """Cut maps back to the end of what was recovered; give the queues that were cut.

        The messages that will be stored at those offsets are new ones and must not be skipped.
        """
        for key, last in list(self._table.items()):
            end = end_of(key.topic, key.queue_id)
            offset = min(last.offset, end)
            finished = cut_map(last.finished, offset, end)
            if (offset, finished) != (last.offset, last.finished):
                self.put(key, last._replace(offset=offset, finished=finished))
                yield key


def cut_map(text: str, offset: int, end: int) -> str:
    """Return a map without what lies at or beyond an offset; empty if nothing is left.

    One that cannot be read says nothing: a start must not fail for it.
    """
    if not text:
        return ""
    try:
        found = FinishedMap.decode(text)
    except RemoteProtocolError:
        return ""
    if found.base > offset or found.base + found.span <= end:
        return text if found.base <= offset else ""
    kept = FinishedMap(found.base)
    for done in found.above:
        if done < end:
            kept.add(done)
    return kept.encode() if kept.span else ""
