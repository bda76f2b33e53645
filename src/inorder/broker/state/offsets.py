"""How far each group has come on each queue: the next offset to consume.

An offset below zero means "none": some clients commit -1 where they have nothing to say, and that
must not erase what another member committed. Going back to a lower offset is allowed, as in
RocketMQ: this table records what it is told.

An operator's reset waits in memory until the next pull of that queue takes it (`take_reset`). The
stored offset is the new one at once, and what members commit meanwhile does not count: they have
yet to learn of it.

`consumerOffset.json` holds the table with bare integer keys; `groupTopicMap` in it is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from inorder.errors import InvalidParameter, SystemError_
from inorder.model import DataVersion
from inorder.wire import fastjson, shapes
from inorder.wire.requests.topics import data_version_from_json, data_version_to_json

NONE: Final = -1
VERSION_STEP: Final = 500
QUEUES_MAX: Final = 65_536
"""Queue ids that one group may commit on one topic; a bound against garbage."""
OFFSETS_MAX: Final = 2_000_000
"""Offsets of all groups together."""
PULLED_MAX: Final = 100_000
"""Groups and topics of which is known how far they pulled; then it is learnt anew."""
FILE_ITEMS_MAX: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Clamped:
    """An offset that lay beyond what is stored."""

    topic: str
    group: str
    queue_id: int
    was: int
    now: int


class OffsetTable:
    """(topic, group) to queue to next offset."""

    def __init__(self, *, now_ms: int) -> None:
        self.data_version = DataVersion(timestamp_ms=now_ms)
        self.revision = 0
        """Grows with every change: a saver compares it with the one it saved."""
        self._changed: dict[tuple[str, int], None] = {}
        self._table: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._commits = 0
        self._count = 0

    def __repr__(self) -> str:
        return f"OffsetTable({len(self._table)} topic@group, revision {self.revision})"

    def commit(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Store an offset; one below zero is taken as no statement and changes nothing.

        Nor does any while a reset waits to be taken.
        """
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
        """Store an offset that was decided upon and written down before."""
        self._store(group, topic, queue_id, offset, now_ms)
        self._changed.pop((f"{topic}@{group}", queue_id), None)

    def take_changed(self) -> list[tuple[str, str, int, int]]:
        """Take what changed since the last call: (group, topic, queue, offset)."""
        taken, self._changed = self._changed, {}
        found = []
        for key, queue_id in taken:
            offset = self._table.get(key, {}).get(queue_id)
            topic, _, group = key.partition("@")
            if offset is not None:
                found.append((group, topic, queue_id, offset))
        return found

    def put_back_changed(self, changed: Iterable[tuple[str, str, int, int]]) -> None:
        """Take note again of what could not be written down."""
        for group, topic, queue_id, _ in changed:
            self._changed[f"{topic}@{group}", queue_id] = None

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the stored offset, or -1."""
        queues = self._table.get(f"{topic}@{group}")
        return NONE if queues is None else queues.get(queue_id, NONE)

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far a group has pulled; kept in memory only."""
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
        """Set an offset by an operator's order; it holds until a pull has taken it."""
        self._store(group, topic, queue_id, offset, now_ms)
        key = f"{topic}@{group}"
        self._resets.setdefault(key, {})[queue_id] = offset
        self._pulled.get(key, {}).pop(queue_id, None)

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether a reset waits for the next pull."""
        return queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset that waits, which is then done; None if there is none."""
        if not self._resets:
            return None
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        found = None if queues is None else queues.pop(queue_id, None)
        if queues is not None and not queues:
            del self._resets[key]
        return found

    def clone(self, source: str, target: str, topic: str, now_ms: int) -> None:
        """Give a group the offsets of another one on a topic."""
        for queue_id, offset in self.queues(source, topic).items():
            self.commit(target, topic, queue_id, offset, now_ms)

    def entries(self) -> list[tuple[str, str, int, int]]:
        """Return all that stands: (group, topic, queue, offset)."""
        return [
            (group, topic, queue_id, offset)
            for topic, group in self._keys()
            for queue_id, offset in self._table[f"{topic}@{group}"].items()
        ]

    def topics_of(self, group: str) -> list[str]:
        """Return the topics on which a group has offsets."""
        return [topic for topic, owner in self._keys() if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets on a topic."""
        return [group for name, group in self._keys() if name == topic]

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of a group's offsets on a topic."""
        return dict(self._table.get(f"{topic}@{group}", ()))

    def remove_topic(self, topic: str) -> int:
        """Forget all offsets of a topic; return how many groups had some."""
        return self._remove(lambda name, _group: name == topic)

    def remove_group(self, group: str) -> int:
        """Forget all offsets of a group; return on how many topics it had some."""
        return self._remove(lambda _topic, name: name == group)

    def clamp(self, max_offset_of: Callable[[str, int], int]) -> list[Clamped]:
        """Cut offsets back to the end of what was recovered; return what was cut.

        A power cut may take the end of the log and leave a later commit: the messages that will
        be stored at those offsets are new ones and must not be skipped.
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
        """Take over the content of `consumerOffset.json`; RemoteProtocolError if it is not that."""
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
