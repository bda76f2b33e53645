"""The snapshot of parked keys, and the replay of %PARK% topics after it.

The log is the source of truth; the snapshot only shortens the start. The snapshot must never be
ahead of the log, as with idempotent producers (`broker/producers/storage.py`). So it is written
after the log is durable up to the position of the table, and a start drops a snapshot that depends
on more log than there is. A start then replays the queues of the %PARK% topics from the snapshot
on.

The head of the file (`Saved`):

- `replay_from`: every event before this position is in the file.
- `depends_on`: the log was durable up to this position when the file was written, and no event
  after it is in the file.
- `log_crc`: the checksum of the log bytes before `depends_on`. It tells this log from another one
  and from one that lost its end.

Why: decisions 7 and 21.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.durability import DurableTable, check_fits, fingerprint
from inorder.broker.parking.records import park_topic, read_event
from inorder.broker.parking.rules import ParkedKey, ParkedMessage, ParkedQueue, ParkingTable
from inorder.errors import CorruptRecord, RemoteProtocolError
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.wire.names import PARK_PREFIX
from inorder.wire.record import decode as decode_record
from inorder.wire.requests.parking import QueuePlace

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.store.consumequeue import QueueIndex

log = get_logger(__name__)

FORMAT: Final = 1
NAME: Final = "inorderParked.json"


class SavedKey(msgspec.Struct, frozen=True):
    """A parked key in the file; `messages` are (offset, position, size)."""

    key: str
    since_ms: int
    first_error: str
    tries: int
    sharding_key: str
    messages: list[tuple[int, int, int]]
    end: int
    last_error: str = ""
    redrive: int = 0
    rate: int = 0
    older: list[QueuePlace] = []
    moved_to: QueuePlace | None = None
    older_versions: list[int] = []
    moved_by: int = 0


class SavedQueue(msgspec.Struct, frozen=True):
    """The parked keys of a queue in the file; `origins` are the offsets that are in no list."""

    group: str
    topic: str
    queue: int
    version: int
    keys: list[SavedKey]
    origins: list[int]
    late: list[tuple[int, int]] = []
    """Origins of a Spark job, with the group offset up to which each stays known."""
    replay_until: int = 0


class Saved(msgspec.Struct, frozen=True):
    """The content of the file."""

    format: int
    replay_from: int
    depends_on: int
    log_crc: int
    queues: list[SavedQueue]

    def restore(self, table: ParkingTable) -> None:
        """Fill an empty table."""
        for saved in self.queues:
            queue = ParkedQueue(
                saved.version, origins=set(saved.origins), late=dict(saved.late),
                replay_until=saved.replay_until,
            )  # fmt: skip
            for one in saved.keys:
                messages = [ParkedMessage(*message) for message in one.messages]
                queue.origins.update(message.origin for message in messages)
                queue.keys[one.key] = ParkedKey(
                    one.key, one.since_ms, one.first_error, one.tries, one.sharding_key, messages,
                    one.end, one.last_error, one.redrive, one.rate,
                    dict(zip(one.older, chain(one.older_versions, repeat(0)), strict=False)),
                    one.moved_to, one.moved_by,
                )  # fmt: skip
            table.restore(GroupQueue(saved.group, saved.topic, saved.queue), queue)


def encode(queues: Iterable[bytes], *, replay_from: int, depends_on: int, log_crc: int) -> bytes:
    """Return the file content for encoded queues.

    The queues may be encoded one after the other between other work, so some may contain later
    events. Their version tells, and those events are not applied again.
    """
    head = msgspec.json.encode(Saved(FORMAT, replay_from, depends_on, log_crc, []))
    assert head.endswith(b"[]}"), "the queues come last"
    return b"".join((head[:-2], b",".join(queues), b"]}"))


def encode_queue(place: GroupQueue, queue: ParkedQueue) -> bytes:
    """Return the encoded form of one queue."""
    return msgspec.json.encode(_saved(place, queue))


def _saved(place: GroupQueue, queue: ParkedQueue) -> SavedQueue:
    parked = {message.origin for one in queue.keys.values() for message in one.messages}
    keys = [
        SavedKey(
            one.key, one.since_ms, one.first_error, one.tries, one.sharding_key,
            [(message.origin, message.position, message.size) for message in one.messages],
            one.end, one.last_error, one.redrive, one.rate, list(one.older), one.moved_to,
            list(one.older.values()), one.moved_by,
        )
        for one in queue.keys.values()
    ]  # fmt: skip
    gone, late = sorted(queue.origins - parked), sorted(queue.late.items())
    return SavedQueue(*place, queue.version, keys, gone, late, queue.replay_until)


def decode(content: bytes) -> Saved:
    """Decode the file content. Raises RemoteProtocolError if it is malformed."""
    try:
        saved = msgspec.json.decode(content, type=Saved)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a file of parked keys: {error}") from None
    if saved.format != FORMAT or not 0 <= saved.replay_from <= saved.depends_on:
        raise RemoteProtocolError("the file of parked keys is inconsistent")
    return saved


class ParkingSnapshot(DurableTable):
    """Saves and restores the broker's parked keys."""

    def __init__(self, broker: Broker, table: ParkingTable) -> None:
        super().__init__(broker, NAME, "parked keys were not saved")
        self._table = table

    @property
    def revision(self) -> int:
        """Return the revision of the table."""
        return self._table.revision

    @property
    def settled_position(self) -> int:
        """Return a log position before which every event is applied."""
        return self._broker.parking.settled_position

    def encode(self, covered: int) -> Iterator[bytes]:
        """Encode one queue at a time."""
        queues = []
        for place, queue in list(self._table.places.items()):
            queues.append(encode_queue(place, queue))
            yield b""
        commit_log = self._broker.store.log
        end = commit_log.end_position
        yield encode(
            queues, replay_from=covered, depends_on=end, log_crc=fingerprint(commit_log, end)
        )

    # -- start -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Restore the table from the file and from the log after it."""
        commit_log, table = self._broker.store.log, self._table
        saved = self._find()
        start = commit_log.min_position
        if saved is not None:
            saved.restore(table)
            start = max(start, saved.replay_from)
        self._covered, self._saved_revision = start, table.revision
        count = self._replay(start)
        for group in {place.group for place in table.places}:
            if park_topic(group) not in self._broker.topics:
                table.forget_group(group)  # its topic was deleted after the save
        if table.places:
            log.info("parked: %s replayed=%d from=%d", table, count, start)

    def _find(self) -> Saved | None:
        for path, content in self.file.contents():
            try:
                saved = decode(content)
                check_fits(self._broker.store.log, saved.depends_on, saved.log_crc)
            except RemoteProtocolError as error:
                log.warning("dropped file=%s: %s", path, error)
                self.file.remove(path)
                continue
            return saved
        return None

    def _replay(self, start: int) -> int:
        store, count = self._broker.store, 0
        topics = [name for name in store.queues.topics() if name.startswith(PARK_PREFIX)]
        queues = [queue for topic in topics for queue in store.queues_of(topic)]
        for position, size, topic in heapq.merge(*(_entries(queue, start) for queue in queues)):
            view = store.log.view_at(position, size)
            try:
                if view is None:
                    raise RemoteProtocolError("the log does not hold it")
                event = read_event(decode_record(view))
            except (CorruptRecord, RemoteProtocolError) as error:
                log.error("event skipped topic=%s position=%d: %s", topic, position, error)
                continue
            group = topic[len(PARK_PREFIX) :]
            if position < self._table.version(group, event.topic, event.queue):
                continue  # already in the snapshot
            self._table.apply(group, event, position)
            count += 1
        return count

    def save_at_stop(self) -> None:
        """Save so that the next start need not replay the log.

        Raises:
            OSError, StoreError: the old file is kept.
        """
        if self.changed:
            self.save_here()


def _entries(queue: QueueIndex, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield (position, size, topic) of a queue's messages from a log position on."""
    for offset in range(queue.find_first(start, queue.min_offset), queue.settled_offset):
        found = queue.entry(offset)
        if found is not None:
            yield found[0], found[1], queue.topic
