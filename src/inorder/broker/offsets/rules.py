"""How far each group has come on each queue, and whose commit counts.

`OffsetTable` holds the next offset to consume. A negative offset means "none": some clients commit
-1 where they know nothing, and that must not erase the commit of another member. A reset by an
operator waits in memory until the next pull of the queue takes it (`take_reset`). The stored offset
is the new one at once, and commits do not count meanwhile, because members do not know of the reset
yet. `consumerOffset.json` holds the table with bare integer keys; its `groupTopicMap` is derived.

`judge` rules on a commit without an epoch:

- While a queue has an owner, only the owner commits, and never backwards. A former owner, or the
  owner with an older state, would repeat finished messages or skip unfinished ones.
- A group that ever held a queue of a topic consumes the topic in order, also while nobody holds a
  queue: a frozen owner may come back between an unlock and the next lock, and may commit before its
  first heartbeat. No commit of a consumer lowers such an offset; a reset or an operator's tool may.
  A commit comes from a tool if three things hold: it expects a reply, its connection is not known
  in the group, and its client is neither Go nor C++ (these never send one-way requests).
- A commit with `onlyUp` lowers nothing: its client may have lost the queue without knowing.
- All other commits of groups without order go where they say, as in RocketMQ.
- Nobody commits messages that are not there: the broker would skip the next ones.

`judge_commit` rules on a commit under an epoch. Such commits carry (epoch, number) and are taken in
that order: of two connections of one owner the older commit may arrive last. `CommitTable` keeps
the last one with its map of finished messages. The map counts only while the stored offset is the
one that it came with: a reset, or a client without maps, makes the map void.

Decisions 16 and 18 give the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from inorder.broker.leases.rules import Verdict
from inorder.errors import InvalidParameter, LeasesFull, RemoteProtocolError, SystemError_
from inorder.model import DataVersion, GroupQueue
from inorder.ordering.finished import FinishedMap
from inorder.wire import fastjson, shapes
from inorder.wire.codes import LanguageCode
from inorder.wire.requests.topics import data_version_from_json, data_version_to_json

if TYPE_CHECKING:
    from inorder.broker.leases.rules import Decision, LeaseTable, Owner
    from inorder.broker.locks.rules import QueueLocks
    from inorder.wire.requests.leases import QueueCommit

NONE: Final = -1
VERSION_STEP: Final = 500
QUEUES_MAX: Final = 65_536
"""Queues that one group may commit on one topic; a bound against garbage."""
OFFSETS_MAX: Final = 2_000_000
"""Offsets of all groups together."""
PULLED_MAX: Final = 100_000
"""Pairs of group and topic with a pull offset; a full table is cleared."""
FILE_ITEMS_MAX: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Clamped:
    """An offset that was cut back to the end of its queue."""

    topic: str
    group: str
    queue_id: int
    was: int
    now: int


class OffsetTable:
    """The next offset of each group on each queue."""

    def __init__(self, *, now_ms: int) -> None:
        self.data_version = DataVersion(timestamp_ms=now_ms)
        self.revision = 0
        """Grows with every change, so that a saver knows whether there is anything to save."""
        self._changed: dict[tuple[str, int], None] = {}
        self._table: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._commits = 0
        self._count = 0

    def __repr__(self) -> str:
        return f"OffsetTable({len(self._table)} topic@group, revision {self.revision})"

    def commit(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Store an offset; a negative offset, or a waiting reset, changes nothing."""
        if offset < 0 or (self._resets and self.has_reset(group, topic, queue_id)):
            return
        self._store(group, topic, queue_id, offset, now_ms)

    def _store(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
        if queue_id not in queues:
            if queue_id < 0 or len(queues) >= QUEUES_MAX:
                raise InvalidParameter(f"queueId {queue_id} of topic {topic} cannot be committed")
            if self._count >= OFFSETS_MAX:
                raise SystemError_(
                    f"this broker holds {OFFSETS_MAX} offsets already; delete groups that are gone"
                )
            self._count += 1
        elif queues[queue_id] == offset:
            return
        queues[queue_id] = offset
        self._changed[key, queue_id] = None
        self.revision += 1
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.data_version.next(now_ms)

    def put(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Store an offset that the journal already has."""
        self._store(group, topic, queue_id, offset, now_ms)
        self._changed.pop((f"{topic}@{group}", queue_id), None)

    def take_changed(self) -> list[tuple[str, str, int, int]]:
        """Return what changed since the last call: (group, topic, queue, offset)."""
        taken, self._changed = self._changed, {}
        found = []
        for key, queue_id in taken:
            offset = self._table.get(key, {}).get(queue_id)
            topic, _, group = key.partition("@")
            if offset is not None:
                found.append((group, topic, queue_id, offset))
        return found

    def put_back_changed(self, changed: Iterable[tuple[str, str, int, int]]) -> None:
        """Mark offsets as changed again that could not be written."""
        for group, topic, queue_id, _ in changed:
            self._changed[f"{topic}@{group}", queue_id] = None

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the stored offset, or -1."""
        queues = self._table.get(f"{topic}@{group}")
        return NONE if queues is None else queues.get(queue_id, NONE)

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far a group has pulled, in memory only."""
        key = f"{topic}@{group}"
        queues = self._pulled.get(key)
        if queues is None:
            if len(self._pulled) >= PULLED_MAX:
                self._pulled.clear()
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """Return how far a group has pulled, else its stored offset, else -1."""
        queues = self._pulled.get(f"{topic}@{group}")
        found = None if queues is None else queues.get(queue_id)
        return self.query(group, topic, queue_id) if found is None else found

    def reset(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Set an offset on behalf of an operator; commits do not count until a pull takes it."""
        self._store(group, topic, queue_id, offset, now_ms)
        key = f"{topic}@{group}"
        self._resets.setdefault(key, {})[queue_id] = offset
        self._pulled.get(key, {}).pop(queue_id, None)

    @property
    def has_resets(self) -> bool:
        """Return whether any reset waits for a pull."""
        return bool(self._resets)

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a reset waits for the next pull."""
        return queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the offset of a waiting reset; None if there is none."""
        if not self._resets:
            return None
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        found = None if queues is None else queues.pop(queue_id, None)
        if queues is not None and not queues:
            del self._resets[key]
        return found

    def clone(self, source: str, target: str, topic: str, now_ms: int) -> None:
        """Copy the offsets of one group to another on a topic."""
        for queue_id, offset in self.queues(source, topic).items():
            self.commit(target, topic, queue_id, offset, now_ms)

    def entries(self) -> list[tuple[str, str, int, int]]:
        """Return all offsets: (group, topic, queue, offset)."""
        return [
            (group, topic, queue_id, offset)
            for topic, group in self._keys()
            for queue_id, offset in self._table[f"{topic}@{group}"].items()
        ]

    def topics_of(self, group: str) -> list[str]:
        """Return the topics on which a group has offsets."""
        return [topic for topic, owner in self._keys() if owner == group]

    def pairs(self) -> list[tuple[str, str]]:
        """Return every topic and group with offsets."""
        return list(self._keys())

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets on a topic."""
        return [group for name, group in self._keys() if name == topic]

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of the offsets of a group on a topic."""
        return dict(self._table.get(f"{topic}@{group}", ()))

    def remove_topic(self, topic: str) -> int:
        """Forget all offsets of a topic; return how many groups had some."""
        return self._remove(lambda name, _group: name == topic)

    def remove_group(self, group: str) -> int:
        """Forget all offsets of a group; return on how many topics it had some."""
        return self._remove(lambda _topic, name: name == group)

    def clamp(self, max_offset_of: Callable[[str, int], int]) -> list[Clamped]:
        """Cut offsets back to the ends of their queues; return what was cut.

        A power cut may take the end of the log and leave a later commit. New messages will be
        stored at those offsets and must not be skipped.
        """
        cut: list[Clamped] = []
        for key, queues in self._table.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                end = max_offset_of(topic, queue_id)
                if offset > end:
                    cut.append(Clamped(topic, group, queue_id, offset, end))
                    queues[queue_id] = end
        self.revision += len(cut)
        return cut

    def encode(self, *, pretty: bool = True) -> bytes:
        """Return the content of `consumerOffset.json`."""
        topics: dict[str, list[str]] = {}
        for topic, group in self._keys():
            topics.setdefault(group, []).append(topic)
        table = {
            "dataVersion": data_version_to_json(self.data_version),
            "groupTopicMap": topics,
            "offsetTable": self._table,
        }
        return fastjson.dumps(table, pretty=pretty)

    def decode(self, data: bytes) -> None:
        """Load the content of `consumerOffset.json`; RemoteProtocolError if it is malformed."""
        content = shapes.as_object(fastjson.loads(data, items_max=FILE_ITEMS_MAX), "offsets")
        table = shapes.as_object(content.get("offsetTable"), "offsetTable")
        self._table = {str(key): _queues(str(key), queues) for key, queues in table.items()}
        self._count = sum(map(len, self._table.values()))
        version = shapes.as_object(content.get("dataVersion"), "dataVersion")
        self.data_version = data_version_from_json(version)
        self.revision += 1

    def _keys(self) -> Iterator[tuple[str, str]]:
        for key in self._table:
            topic, at, group = key.partition("@")
            if at:
                yield topic, group

    def _remove(self, matches: Callable[[str, str], bool]) -> int:
        removed = 0
        for table in (self._table, self._pulled, self._resets):
            for key in list(table):
                topic, _, group = key.partition("@")
                if matches(topic, group):
                    del table[key]
                    removed += table is self._table
        self._count = sum(map(len, self._table.values()))
        self.revision += removed
        return removed


def _queues(key: str, value: object) -> dict[int, int]:
    pairs = shapes.as_object(value, key).items()
    offsets = {shapes.as_integer(q, key, 32): shapes.as_integer(o, key) for q, o in pairs}
    return {queue_id: offset for queue_id, offset in offsets.items() if offset >= 0}


MAP_CHARS_MAX: Final = 256 * 1024 * 1024
"""Characters of all maps together."""


class CommitKind(Enum):
    """Who made a commit without an epoch, and what it asks for."""

    ORDINARY = auto()  # a consumer, by request or with a pull
    ONLY_UP = auto()  # a consumer that asks for no step back
    TOOL = auto()  # an operator


class Ruling(Enum):
    """What becomes of a commit without an epoch."""

    TAKEN = auto()
    NO_OFFSET = auto()  # the offset is negative
    HELD = auto()  # another client owns the queue
    LOWER = auto()  # the group is already further
    BEYOND = auto()  # the queue has no such messages
    OWN = auto()  # the broker itself keeps the offsets of this group


class Committer(NamedTuple):
    """The origin of a commit; `client_id` is None if the connection is not known in the group."""

    client_id: str | None
    connection: int


def kind_of(
    *, oneway: bool, member: bool, language: int | None, only_up: bool = False
) -> CommitKind:
    """Return the kind of a commit; `member`: its connection is known in the group.

    Go and C++ clients never send one-way requests, and commit before their first heartbeat.
    """
    if only_up:
        return CommitKind.ONLY_UP
    if oneway or member or language in (LanguageCode.GO, LanguageCode.CPP):
        return CommitKind.ORDINARY
    return CommitKind.TOOL


def judge(
    offset: int, *, known: int, end: int, locked: bool, may_commit: bool, ordered: bool,
    kind: CommitKind,
) -> Ruling:  # fmt: skip
    """Judge a commit without an epoch.

    `known` is the stored offset, -1 for none; `end` is the end of the queue. `locked`: the queue
    has an owner; `may_commit`: the owner is this client, or there is none. `ordered`: the group
    once held a queue of the topic.
    """
    if offset < 0:
        return Ruling.NO_OFFSET
    if offset > end:
        return Ruling.BEYOND
    if not may_commit:
        return Ruling.HELD
    kept = locked or kind is CommitKind.ONLY_UP or (ordered and kind is not CommitKind.TOOL)
    lower = offset < min(known, end)  # a stored offset beyond the end may be corrected
    return Ruling.LOWER if lower and kept else Ruling.TAKEN


def commit(
    offsets: OffsetTable,
    locks: QueueLocks,
    key: GroupQueue,
    offset: int,
    *,
    committer: Committer,
    kind: CommitKind,
    end: int,
    now_ms: int,
    judge_only: bool = False,
) -> Ruling:
    """Judge and store a commit without an epoch; with `judge_only` only judge it."""
    ruling = judge(
        offset,
        known=offsets.query(*key),
        end=end,
        locked=locks.is_locked(key),
        may_commit=locks.may_commit(
            key, client_id=committer.client_id, connection=committer.connection
        ),
        ordered=locks.leases.is_ordered(key.group, key.topic),
        kind=kind,
    )
    if ruling is Ruling.TAKEN and not judge_only:
        offsets.commit(*key, offset, now_ms)
    return ruling


class Committed(NamedTuple):
    """The last commit under an epoch: its order (epoch, number), offset and map."""

    epoch: int
    number: int
    offset: int
    finished: str = ""


class CommitTable:
    """The last commit under an epoch of each group on each queue."""

    def __init__(self, *, map_chars_max: int = MAP_CHARS_MAX) -> None:
        self.map_chars_max = map_chars_max
        self._table: dict[GroupQueue, Committed] = {}
        self._chars = 0

    def __repr__(self) -> str:
        return f"CommitTable({len(self._table)} queues, {self._chars} characters of maps)"

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: GroupQueue) -> Committed | None:
        """Return the last commit of a queue."""
        return self._table.get(key)

    def keys(self) -> list[GroupQueue]:
        """Return the keys of all commits."""
        return list(self._table)

    def is_newer(self, key: GroupQueue, epoch: int, number: int) -> bool:
        """Return whether a commit is newer than the last one."""
        last = self._table.get(key)
        return last is None or (epoch, number) > (last.epoch, last.number)

    def has_room(self, key: GroupQueue, finished: str) -> bool:
        """Return whether there is room for the map of a commit."""
        last = self._table.get(key)
        before = 0 if last is None else len(last.finished)
        return self._chars - before + len(finished) <= self.map_chars_max

    def put(self, key: GroupQueue, commit: Committed) -> None:
        """Store a commit."""
        last = self._table.get(key)
        self._chars += len(commit.finished) - (0 if last is None else len(last.finished))
        self._table[key] = commit

    def finished(self, key: GroupQueue, offset: int) -> str:
        """Return the map that belongs to a stored offset, or an empty text."""
        last = self._table.get(key)
        return last.finished if last is not None and last.offset == offset else ""

    def remove(self, *, group: str = "", topic: str = "") -> int:
        """Forget a group, a topic, or a group on a topic; return the number of queues."""
        gone = [key for key in self._table if group in ("", key.group) and topic in ("", key.topic)]
        for key in gone:
            self._chars -= len(self._table.pop(key).finished)
        return len(gone)

    def clamp(self, end_of: Callable[[str, int], int]) -> Iterator[GroupQueue]:
        """Cut maps back to the ends of their queues; yield the queues that were cut.

        New messages will be stored at those offsets and must not be skipped.
        """
        for key, last in list(self._table.items()):
            end = end_of(key.topic, key.queue_id)
            offset = min(last.offset, end)
            finished = cut_map(last.finished, offset, end)
            if (offset, finished) != (last.offset, last.finished):
                self.put(key, last._replace(offset=offset, finished=finished))
                yield key


class JudgedCommit(NamedTuple):
    """What becomes of a commit under an epoch."""

    renewal: Decision | None
    """The commit as a renewal of its lease; None: the commit is refused."""
    is_progress: bool = False
    """The commit changes the offset or its map."""


def judge_commit(
    key: GroupQueue,
    owner: Owner,
    one: QueueCommit,
    *,
    leases: LeaseTable,
    offsets: OffsetTable,
    commits: CommitTable,
    end: int,
    now_ms: int,
) -> JudgedCommit:
    """Judge a commit under an epoch; `end` is the end of the queue.

    The broker refuses a commit under a stale epoch, and one of messages that are not there. A
    commit that is older than the last one, or lower than the stored offset, is only a renewal.

    Raises:
        InvalidParameter: the map of finished messages cannot be read.
        LeasesFull: there is no room for the map.
    """
    if not one.epoch or one.offset > end:
        return JudgedCommit(None)
    renewal = leases.decide(key, owner, now_ms, epoch=one.epoch)
    if renewal.verdict not in (Verdict.RENEW, Verdict.RESUME):
        return JudgedCommit(None)
    if one.offset < 0 or not commits.is_newer(key, one.epoch, one.number):
        return JudgedCommit(renewal)
    if one.offset < offsets.query(*key):
        return JudgedCommit(renewal)
    _check_map(one)
    if not commits.has_room(key, one.finished):
        raise LeasesFull("the maps of finished messages have no more room")
    return JudgedCommit(renewal, is_progress=True)


def repeats_release(
    key: GroupQueue, owner: Owner, one: QueueCommit, *, leases: LeaseTable, commits: CommitTable
) -> bool:
    """Return whether a request repeats a release that was accepted; its reply may be lost."""
    past = leases.past(key)
    was_released = (
        past is not None and past.released and (past.owner, past.epoch) == (owner, one.epoch)
    )
    last = commits.get(key)
    if last is not None and last.epoch == one.epoch and last.number >= one.number:
        return one.offset >= 0 or was_released
    return was_released and one.offset < 0


def _check_map(one: QueueCommit) -> None:
    """Refuse a map that nobody could read: it would stay in the journal and in every grant."""
    if not one.finished:
        return
    what = f"the map of {one.topic} {one.queue_id}"
    if not one.finished.startswith(f"{one.offset}:"):
        raise InvalidParameter(f"{what} is not of its offset")
    try:
        FinishedMap.decode(one.finished)
    except RemoteProtocolError as error:
        raise InvalidParameter(f"{what}: {error}") from None


def cut_map(text: str, offset: int, end: int) -> str:
    """Return a map without offsets at or beyond `end`; empty if nothing is left.

    An unreadable map counts as empty, so that a start does not fail because of it.
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
