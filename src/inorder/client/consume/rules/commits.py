"""Where a queue is begun, what is committed of it, and when.

**Where to begin** (`begin`): at the group's offset, or by `consume_from` if the group has none.

                  normal topic               %RETRY% topic
    stored        the stored offset          the stored offset
    last          the end                    0: no retry may be lost
    first         0                          0
    a time        the first message then     the end
    error         the queue is not added; the next round asks again

Offset 0 may be deleted already. Then the broker answers the first pull with "offset moved", and the
queue continues at the first message that is stored. A queue that a topic gained after the group
began is read from its first message under `last` too, because all of it is new to the group.

**What is committed under a lease** (`Progress`): offset and finished map, so that the next owner
repeats nothing that was committed. Commits of a queue are numbered within its epoch. The broker
ignores a commit that a later one has overtaken, so requests need not wait for each other.

    the queue has gone idle   commit at once, but at most every COMMIT_IDLE_MS
    handlers run              commit every COMMIT_BUSY_MS

**What is committed in RocketMQ's way**: offsets, every 5 s, with pulls, and when a queue is
released. Unlike RocketMQ's stores the client saves only offsets that changed, so that a stale
offset never overwrites the newer offset of another member (O11).

`rules/queue.py` holds the progress of each queue.

**The file of a broadcasting consumer** (`format_offsets`, `read_offsets`): the JSON text of
RocketMQ's LocalFileOffsetStore at `<directory>/<client id>/<group>/offsets.json`. The version
before is kept as `offsets.json.bak`, and is read if the file is missing, empty or damaged.

Why these commits: decision 18.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from inorder.errors import ConfigError, RemoteProtocolError, UsageError
from inorder.model import TopicQueue
from inorder.wire.fastjson import dumps, loads
from inorder.wire.names import RETRY_PREFIX

COMMIT_BUSY_MS: Final = 1000
COMMIT_IDLE_MS: Final = 100

NOTHING: Final = -1
"""In place of an offset: the group has none, or there is none to commit."""
NO_OFFSET: Final = -1
"""Answer of an offset store that has no offset of the queue."""
NOT_READ: Final = -2
"""Answer of an offset store that could not be read."""
HALF_AN_HOUR_MS: Final = 30 * 60 * 1000
"""RocketMQ's default consumeTimestamp: this long before the consumer was created."""
FILE_NAME: Final = "offsets.json"
BACKUP_SUFFIX: Final = ".bak"
_OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything below the offset is finished, and above it the offsets in the finished map."""

    offset: int
    finished: str = ""


NOT_STORED: Final = Progress(NOTHING)


@dataclass(frozen=True, slots=True)
class NumberedCommit:
    """One commit that was sent, and its number within the epoch."""

    number: int
    progress: Progress


def idle_commit_in_ms(now_ms: int, last_ms: int) -> int:
    """Return how long the commit of an idle queue waits after the commit at `last_ms`."""
    return max(0, last_ms + COMMIT_IDLE_MS - now_ms)


def busy_interval_ms(configured_ms: int) -> int:
    """Return how often a queue whose handlers run is committed under a lease."""
    return min(configured_ms, COMMIT_BUSY_MS)


@dataclass(frozen=True, slots=True)
class FromTime:
    """Begin with the first message that was stored at this time (ms since 1970) or later."""

    at_ms: int


ConsumeFrom = Literal["first", "last"] | FromTime


def from_timestamp(now_ms: int) -> FromTime:
    """Return where "timestamp" begins for a consumer that is created now."""
    return FromTime(now_ms - HALF_AN_HOUR_MS)


@dataclass(frozen=True, slots=True)
class BeginAt:
    """Begin at this offset."""

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
    """Do not add the queue in this round; `reason` is for the log."""

    reason: str


Begin = BeginAt | AskEnd | AskTime | NotNow


def begin(stored: int, topic: str, consume_from: ConsumeFrom, *, late: bool = False) -> Begin:
    """Decide where to begin; `stored` is an offset, NO_OFFSET or NOT_READ.

    `late`: the topic gained the queue after this consumer first saw the topic.
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
    """Read the broker's answer to AskEnd or AskTime; a negative number is no offset."""
    return BeginAt(offset) if offset >= 0 else NotNow(f"the broker answered offset {offset}")


def path_parts(client_id: str, group: str) -> tuple[str, str, str]:
    """Return the path of the file below the directory.

    Raises UsageError if a name would lead out of the directory.
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
    """Return the offsets in the text of a file.

    Raises RemoteProtocolError if the text is damaged.
    """
    value = loads(text)
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if table is None:
        table = {}
    if not isinstance(table, dict):
        raise RemoteProtocolError("offsetTable is no map")
    return dict(_entry(key, offset) for key, offset in table.items())


def read_offsets(main: bytes | None, backup: bytes | None) -> tuple[dict[TopicQueue, int], bool]:
    """Return the offsets of the file, or else of its backup, and whether the backup was used.

    None stands for a missing file. If both are missing or empty there are no offsets.

    Raises ConfigError if the file is damaged and its backup is damaged or missing.
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
    """Return the offsets to write; the file keeps those of other queues."""
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
