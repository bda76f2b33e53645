"""Remembering parked keys over a restart: a file, and the records of %PARK% topics behind it.

As with numbering producers (`broker/producers/storage.py`) the file must not know more than the
log: it is written when the log is durable up to where the table was taken, and a start drops one
that depends on more log than there is. What came after the file is read from the queues of the
%PARK% topics.

The file of parked keys: the table as it was at a position of the log.

`replay_from`: every event before it is counted. `depends_on`: the log was durable up to there
before the file was written, and nothing from behind is counted. `log_crc` is that of the bytes
before `depends_on`, by which another log, or one that lost its end, is told from this one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.durability import check_fits, fingerprint
from inorder.broker.parking.records import park_topic, read_event
from inorder.broker.parking.rules import ParkedKey, ParkedMessage, ParkedQueue, ParkingTable, Place
from inorder.errors import CorruptRecord, RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.store.snapshot import Snapshot
from inorder.wire.names import PARK_PREFIX
from inorder.wire.record import decode as decode_record
from inorder.wire.requests.parking import QueuePlace

if TYPE_CHECKING:
    from pathlib import Path

    from inorder.broker.broker import Broker
    from inorder.store.consumequeue import QueueIndex

log = get_logger(__name__)

FORMAT: Final = 1


class SavedKey(msgspec.Struct, frozen=True):
    """A parked key; `messages` are (offset, position, size)."""

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
    """What is parked of a queue; `origins` are those that are in no list any more."""

    group: str
    topic: str
    queue: int
    version: int
    keys: list[SavedKey]
    origins: list[int]
    late: list[tuple[int, int]] = []
    """Origins of a job, and the group's offset up to which they are known."""
    replay_until: int = 0


class Saved(msgspec.Struct, frozen=True):
    """A whole file."""

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
            table.restore(Place(saved.group, saved.topic, saved.queue), queue)


def encode(queues: Iterable[bytes], *, replay_from: int, depends_on: int, log_crc: int) -> bytes:
    """Return the file of queues that were encoded, perhaps one after the other between other work.

    What came meanwhile may be in some of them: their version says so, and it is not applied again.
    """
    head = msgspec.json.encode(Saved(FORMAT, replay_from, depends_on, log_crc, []))
    assert head.endswith(b"[]}"), "the queues come last"
    return b"".join((head[:-2], b",".join(queues), b"]}"))


def encode_queue(place: Place, queue: ParkedQueue) -> bytes:
    """Return what the file holds of one queue."""
    return msgspec.json.encode(_saved(place, queue))


def _saved(place: Place, queue: ParkedQueue) -> SavedQueue:
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
    """Read a file. Raises RemoteProtocolError if it is none."""
    try:
        saved = msgspec.json.decode(content, type=Saved)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a file of parked keys: {error}") from None
    if saved.format != FORMAT or not 0 <= saved.replay_from <= saved.depends_on:
        raise RemoteProtocolError("the file of parked keys makes no sense")
    return saved


NAME: Final = "inorderParked.json"
SAVE_INTERVAL_MS: Final = 30_000
RETRY_MS: Final = 10_000


class ParkingSnapshot:
    """Saves and restores the broker's parked keys."""

    def __init__(self, broker: Broker, table: ParkingTable) -> None:
        self._broker = broker
        self._table = table
        self._file = Snapshot(broker.files, broker.config.data_path / "config" / NAME)
        self._covered = 0
        self._saved_revision = 0
        self._due_ms = broker.clock.monotonic_ms() + SAVE_INTERVAL_MS
        self._task: asyncio.Task[None] | None = None

    @property
    def path(self) -> Path:
        """Return where the file lies."""
        return self._file.path

    @property
    def changed(self) -> bool:
        """Tell whether the file lacks something."""
        return self._table.revision != self._saved_revision

    @property
    def keep_from(self) -> int | None:
        """Return the position from which the log is needed for what the file lacks."""
        return self._covered if self.changed else None

    # -- start -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Restore the table: the file, then the log behind it."""
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
                table.forget_group(group)  # it was deleted after the file was written
        if table.places:
            log.info("parked: %s replayed=%d from=%d", table, count, start)

    def _find(self) -> Saved | None:
        for path, content in self._file.contents():
            try:
                saved = decode(content)
                check_fits(self._broker.store.log, saved.depends_on, saved.log_crc)
            except RemoteProtocolError as error:
                log.warning("dropped file=%s: %s", path, error)
                self._file.remove(path)
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
                    raise RemoteProtocolError("the log does not have it")
                event = read_event(decode_record(view))
            except (CorruptRecord, RemoteProtocolError) as error:
                log.error("not counted topic=%s position=%d: %s", topic, position, error)
                continue
            group = topic[len(PARK_PREFIX) :]
            if position < self._table.version(group, event.topic, event.queue):
                continue  # the file has it
            self._table.apply(group, event, position)
            count += 1
        return count

    # -- save ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Save if it is time to."""
        now_ms = self._broker.clock.monotonic_ms()
        if not self.changed or now_ms < self._due_ms:
            return
        if self._task is None or self._task.done():
            self._due_ms = now_ms + SAVE_INTERVAL_MS
            self._task = asyncio.get_running_loop().create_task(self._save_soon(), name="parked")

    async def _save_soon(self) -> None:
        broker, commit_log = self._broker, self._broker.store.log
        revision, covered = self._table.revision, broker.parking.settled_position
        queues = []
        for place, queue in list(self._table.places.items()):
            queues.append(encode_queue(place, queue))
            await asyncio.sleep(0)  # a long table is written between other work
        content = self._content(queues, covered)
        try:
            await broker.housekeeping.flush_now()
            await broker.offload.call(lambda: self._file.save(content))
        except (OSError, StoreError) as error:
            log.error("parked keys were not saved, the old file is kept error=%s", error)
            self._due_ms = broker.clock.monotonic_ms() + RETRY_MS
        else:
            assert covered <= commit_log.end_position
            self._covered, self._saved_revision = covered, revision

    def _content(self, queues: list[bytes], covered: int) -> bytes:
        commit_log = self._broker.store.log
        end = commit_log.end_position
        return encode(
            queues, replay_from=covered, depends_on=end, log_crc=fingerprint(commit_log, end)
        )

    def cancel(self) -> None:
        """Give up a save that is under way."""
        if self._task is not None:
            self._task.cancel()

    def save_at_stop(self) -> None:
        """Save what a start would have to read from the log otherwise.

        Raises:
            StoreError: the log could not be made durable; the old file is kept.
        """
        if self.changed:
            self._broker.store.sync()
            end = self._broker.store.log.end_position
            queues = [encode_queue(place, queue) for place, queue in self._table.places.items()]
            self._file.save(self._content(queues, end))
            self._covered, self._saved_revision = end, self._table.revision


def _entries(queue: QueueIndex, start: int) -> Iterator[tuple[int, int, str]]:
    """Give (position, size, topic) of a queue's messages from a position of the log on."""
    for offset in range(queue.find_first(start, queue.min_offset), queue.settled_offset):
        found = queue.entry(offset)
        if found is not None:
            yield found[0], found[1], queue.topic
