"""What of a leased queue is committed, and when the next commit is due.

Commits of a queue are numbered within its epoch: the broker ignores one that is overtaken by a
later one, so requests need not wait for each other. The finished-map goes with the offset: whoever
comes next begins with both, and repeats nothing of what was committed.

    a queue has gone idle     at once, but no more often than every COMMIT_IDLE_MS
    handlers run              every COMMIT_BUSY_MS

Where a queue is read from: the offset of the group, or what consume-from says if it has none.

                  normal topic               %RETRY% topic
    stored        there                      there
    last          the end                    0: a retry must not be lost
    first         0                          0
    a time        the first message then     the end
    error         the queue is not added; asked again later

0 may be gone already: then the first pull is answered "offset moved" and the queue goes on at the
first message that is there. A queue that came after the group began (a topic that grew) is read
from its first message under `last` too: all that it holds is news to the group.

How far a consumer is in each of its queues, and what the store does not know of it yet.

RocketMQ's offset stores: an offset is noted here when messages are done and saved every 5 s, with
pulls, and when a queue is released. Unlike there only what changed is saved, so that an old number
cannot come late over a newer one of somebody else (O11).

The offsets of a broadcast consumer in a file, as RocketMQ's LocalFileOffsetStore writes them.

The file is `<directory>/<client id>/<group>/offsets.json`, fastjson's JSON with objects as keys.
The version before it is kept beside it as `offsets.json.bak`, and is read if the file is missing,
empty or damaged. This module has the text only; a shell reads and writes the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from inorder.errors import ConfigError, RemoteProtocolError, UsageError
from inorder.model import TopicQueue
from inorder.wire.fastjson import dumps, loads
from inorder.wire.names import RETRY_PREFIX

COMMIT_BUSY_MS: Final = 1000
COMMIT_IDLE_MS: Final = 100

NOTHING: Final = -1
"""No offset: the group has none, or there is none to commit."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a queue is: everything below the offset is done, and what the map says above it."""

    offset: int
    finished: str = ""


NOT_STORED: Final = Progress(NOTHING)


@dataclass(frozen=True, slots=True)
class Numbered:
    """One commit on its way."""

    number: int
    progress: Progress


class CommitLine:
    """The commits of one queue under one epoch."""

    __slots__ = ("_number", "_taken", "saved")

    def __init__(self, stored: Progress) -> None:
        """Begin with what came with the grant; its offset is NOTHING if the group has none.

        Where the group has none the broker may have said where to begin all the same, so the first
        commit is always sent: from then on the group has one.
        """
        self.saved = stored
        self._number = 0
        self._taken = 0

    def __repr__(self) -> str:
        return f"CommitLine({self.saved}, number={self._number})"

    def next(self, progress: Progress) -> Numbered | None:
        """Return what to send, None if the broker knows it already."""
        if progress == self.saved and self._taken:
            return None
        self._number += 1
        return Numbered(self._number, progress)

    def taken(self, commit: Numbered) -> None:
        """Note that the broker took it; answers may come in any order."""
        if commit.number > self._taken:
            self._taken = commit.number
            self.saved = commit.progress


def idle_commit_in_ms(now_ms: int, last_ms: int) -> int:
    """Return how long a queue that went idle waits for its commit, the last one being so old."""
    return max(0, last_ms + COMMIT_IDLE_MS - now_ms)


def busy_interval_ms(configured_ms: int) -> int:
    """Return how often a queue whose handlers run is committed under a lease."""
    return min(configured_ms, COMMIT_BUSY_MS)


NO_OFFSET: Final = -1
"""The answer of an offset store that has no offset of the queue."""
NOT_READ: Final = -2
"""The answer of an offset store that could not be asked."""


HALF_AN_HOUR_MS: Final = 30 * 60 * 1000
"""RocketMQ's consumeTimestamp if none is given: so long before the consumer was made."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """Begin with what was stored then or later (ms since 1970)."""

    at_ms: int


ConsumeFrom = Literal["first", "last"] | FromTime


def from_timestamp(now_ms: int) -> FromTime:
    """Return where "timestamp" begins for a consumer that is made now."""
    return FromTime(now_ms - HALF_AN_HOUR_MS)


@dataclass(frozen=True, slots=True)
class BeginAt:
    """Begin here."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskEnd:
    """Ask the broker for the end of the queue and begin there."""


@dataclass(frozen=True, slots=True)
class AskTime:
    """Ask the broker for the offset of a time and begin there."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class NotNow:
    """Do not add the queue; try again in the next round."""

    reason: str


Begin = BeginAt | AskEnd | AskTime | NotNow


def begin(stored: int, topic: str, consume_from: ConsumeFrom, *, late: bool = False) -> Begin:
    """Say where to begin; `stored` is an offset, NO_OFFSET or NOT_READ.

    `late`: the queue was not there when the group's consumer first saw the topic.
    """
    if stored >= 0:
        return BeginAt(stored)
    if stored != NO_OFFSET:
        return NotNow("the group's offset could not be read")
    retry = topic.startswith(RETRY_PREFIX)
    if isinstance(consume_from, FromTime):
        return AskEnd() if retry else AskTime(consume_from.at_ms)
    if consume_from == "first" or retry or late:
        return BeginAt(0)
    return AskEnd()


def answered(offset: int) -> Begin:
    """Take what the broker said to AskEnd or AskTime; a negative number is no offset."""
    return BeginAt(offset) if offset >= 0 else NotNow(f"the broker answered offset {offset}")


@dataclass(slots=True)
class _Progress:
    offset: int
    saved: int | None
    frozen: bool = False


class OffsetTable:
    """Noted offsets by queue."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: dict[TopicQueue, _Progress] = {}

    def __repr__(self) -> str:
        return f"OffsetTable({len(self._table)} queues, {len(self.unsaved())} unsaved)"

    def __len__(self) -> int:
        return len(self._table)

    def begin(self, queue: TopicQueue, offset: int, *, stored: bool) -> None:
        """Start a queue: at what the store said (`stored`), or at what it does not know yet."""
        self._table[queue] = _Progress(offset, offset if stored else None)

    def note(self, queue: TopicQueue, offset: int, *, only_up: bool = True) -> bool:
        """Note that everything below is done; tell whether that is news.

        With `only_up` a lower number is ignored. A frozen queue does not move.
        """
        found = self._table.get(queue)
        if found is None:
            self._table[queue] = _Progress(offset, None)
            return True
        if found.frozen or offset == found.offset or (only_up and offset < found.offset):
            return False
        found.offset = offset
        return True

    def freeze(self, queue: TopicQueue, offset: int) -> None:
        """Set an offset and let nothing move it until the queue is forgotten."""
        saved = self._table[queue].saved if queue in self._table else None
        self._table[queue] = _Progress(offset, saved, frozen=True)

    def get(self, queue: TopicQueue) -> int:
        """Return the noted offset, or NO_OFFSET."""
        found = self._table.get(queue)
        return NO_OFFSET if found is None else found.offset

    def is_unsaved(self, queue: TopicQueue) -> bool:
        """Tell whether the store does not know the noted offset yet."""
        found = self._table.get(queue)
        return found is not None and found.saved != found.offset

    def unsaved(self, queues: Iterable[TopicQueue] | None = None) -> dict[TopicQueue, int]:
        """Return what is to be saved (of these queues; default: of all)."""
        chosen = self._table if queues is None else queues
        return {queue: self._table[queue].offset for queue in chosen if self.is_unsaved(queue)}

    def saved(self, queue: TopicQueue, offset: int) -> None:
        """Note that the store took an offset."""
        found = self._table.get(queue)
        if found is not None:
            found.saved = offset

    def forget(self, queue: TopicQueue) -> None:
        """Drop a queue that was released."""
        self._table.pop(queue, None)

    def items(self) -> list[tuple[TopicQueue, int]]:
        """Return all offsets, sorted by queue."""
        return sorted((queue, found.offset) for queue, found in self._table.items())


FILE_NAME: Final = "offsets.json"
BACKUP_SUFFIX: Final = ".bak"

_OFFSET_MAX: Final = 2**63 - 1


def path_parts(client_id: str, group: str) -> tuple[str, str, str]:
    """Return where the file is below the directory.

    Raises UsageError: a name would lead out of the directory.
    """
    for name in (client_id, group):
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise UsageError(f"{name!r} cannot be the name of a directory for offsets")
    return client_id, group, FILE_NAME


def format_offsets(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return the text of the file."""
    table = {
        (("brokerName", queue.broker), ("queueId", queue.index), ("topic", queue.topic)): offset
        for queue, offset in sorted(offsets.items())
    }
    return dumps({"offsetTable": table}, pretty=True)


def parse_offsets(text: bytes) -> dict[TopicQueue, int]:
    """Return the offsets of a text.

    Raises RemoteProtocolError: it is damaged.
    """
    value = loads(text)
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if table is None:
        table = {}
    if not isinstance(table, dict):
        raise RemoteProtocolError("offsetTable is no map")
    return dict(_entry(key, offset) for key, offset in table.items())


def read_offsets(main: bytes | None, backup: bytes | None) -> tuple[dict[TopicQueue, int], bool]:
    """Return the offsets of the file or else of its backup, and whether the backup was used.

    Both missing or empty: none. A missing file is None.

    Raises ConfigError: the file cannot be used, and the backup that is there neither.
    """
    if main:
        try:
            return parse_offsets(main), False
        except RemoteProtocolError as error:
            if not backup:
                raise ConfigError(
                    f"the offset file is damaged and has no backup, move it away: {error}"
                ) from None
    if not backup:
        return {}, False
    try:
        return parse_offsets(backup), True
    except RemoteProtocolError as error:
        raise ConfigError(
            f"the offset file and its backup are damaged, move both away: {error}"
        ) from None


def merge_offsets(
    in_file: Mapping[TopicQueue, int], noted: Mapping[TopicQueue, int]
) -> dict[TopicQueue, int]:
    """Return what to write: what the file has of other queues stays."""
    return {**in_file, **noted}


def _entry(key: Any, offset: Any) -> tuple[TopicQueue, int]:
    bean = dict(key) if isinstance(key, tuple) else {}
    topic, broker, index = bean.get("topic"), bean.get("brokerName"), bean.get("queueId")
    if (
        not (isinstance(topic, str) and isinstance(broker, str) and type(index) is int)
        or type(offset) is not int
        or not 0 <= offset <= _OFFSET_MAX
    ):
        raise RemoteProtocolError(f"no queue and offset: {key!r}: {offset!r}")
    return TopicQueue(topic, broker, index), offset
