"""Whose word on a group's progress counts.

While a queue is held only its owner commits, and never back. Another client that was the owner
before, or the owner with an older state, would have messages repeated that are done, or push the
group past some that are not.

A group that once held a queue of a topic consumes it in order, also while nobody holds it: an owner
that was frozen may come back in the gap between an unlock and the next lock, and may commit before
its first heartbeat. So there no commit of a consumer lowers an offset, held or not. Resets do, and
tools: a request that waits for its answer, from a connection that is no member of the group, and of
no client that never sends one-way requests (Go, C++). Nor does a commit lower anything that says so
itself, as our clients' do (`onlyUp`): who commits may have lost the queue unawares. All other
commits of groups without order go where they say, as in RocketMQ.

Nobody commits messages that are not there: the next ones stored would be skipped.

Commits of our clients carry (epoch, number) and are taken in that order: of two connections of one
owner the older commit may arrive last. With the offset comes the map of what is finished above it.
The map counts only as long as the stored offset is the one that it was written with: a reset, or a
client without maps, makes it void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from inorder.errors import RemoteProtocolError
from inorder.ordering.finished import FinishedMap
from inorder.wire.codes import LanguageCode

if TYPE_CHECKING:
    from inorder.broker.locks.rules import QueueLocks
    from inorder.broker.state.offsets import OffsetTable
    from inorder.model import TopicQueue

MAP_CHARS_MAX: Final = 256 * 1024 * 1024
"""The text of all maps together."""


class Manner(Enum):
    """How a commit without an epoch came."""

    ORDINARY = auto()  # a consumer's, by request or with a pull
    ONLY_UP = auto()  # the same, said to be no step back
    TOOL = auto()  # an operator's


class Ruling(Enum):
    """What becomes of a commit."""

    TAKEN = auto()
    SILENT = auto()  # it says nothing
    HELD = auto()  # somebody else has the queue
    LOWER = auto()  # the group is further already
    BEYOND = auto()  # there are no such messages


class Committer(NamedTuple):
    """Who commits: the client id of the connection in the group, None if nobody knows."""

    client_id: str | None
    connection: int


def manner_of(*, oneway: bool, member: bool, language: int | None, only_up: bool = False) -> Manner:
    """Say how a request to commit came; `member`: its connection is known in the group.

    Go and C++ clients never set the one-way bit, and commit before their first heartbeat.
    """
    if only_up:
        return Manner.ONLY_UP
    if oneway or member or language in (LanguageCode.GO, LanguageCode.CPP):
        return Manner.ORDINARY
    return Manner.TOOL


def judge(
    offset: int, *, known: int, end: int, locked: bool, may_commit: bool, ordered: bool,
    manner: Manner,
) -> Ruling:  # fmt: skip
    """Say what becomes of an offset that came without an epoch.

    `known` is the stored one, -1 for none; `end` that of the log. `locked`: the queue is held;
    `may_commit`: by this client, or by nobody. `ordered`: the group once held a queue of the topic.
    """
    if offset < 0:
        return Ruling.SILENT
    if offset > end:
        return Ruling.BEYOND
    if not may_commit:
        return Ruling.HELD
    kept = locked or manner is Manner.ONLY_UP or (ordered and manner is not Manner.TOOL)
    lower = offset < min(known, end)  # one beyond the end, of an older broker, may be put right
    return Ruling.LOWER if lower and kept else Ruling.TAKEN


def commit(
    offsets: OffsetTable,
    locks: QueueLocks,
    group: str,
    queue: TopicQueue,
    offset: int,
    *,
    committer: Committer,
    manner: Manner,
    end: int,
    now_ms: int,
    look: bool = False,
) -> Ruling:
    """Store an offset that came without an epoch, if it may be; with `look` only say whether."""
    ruling = judge(
        offset,
        known=offsets.query(group, queue.topic, queue.index),
        end=end,
        locked=locks.is_locked(group, queue),
        may_commit=locks.may_commit(
            group, queue, client_id=committer.client_id, connection=committer.connection
        ),
        ordered=locks.leases.is_ordered(group, queue.topic),
        manner=manner,
    )
    if ruling is Ruling.TAKEN and not look:
        offsets.commit(group, queue.topic, queue.index, offset, now_ms)
    return ruling


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
