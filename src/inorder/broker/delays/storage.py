"""The file of delay offsets, and the deliveries in the log after it.

`DelaySnapshot` saves the file every few seconds, after the log is durable (`broker/durability`).
Messages that were delivered after the last save lie in the log after the position in the file,
each with its mark. After a crash `recover` finds them. Any client can send a message with such a
property, so a mark counts only if its message equals the one that waited. Why: decision 23.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from inorder.broker.delays.rules import Delays, destination, is_delivery, mark
from inorder.broker.durability import DurableTable
from inorder.errors import CorruptRecord
from inorder.logs import get_logger
from inorder.store.scan import LogScan, is_boundary
from inorder.wire.names import HALF_TOPIC, SCHEDULE_TOPIC
from inorder.wire.record import Record, decode

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.store.store import Store

log = get_logger(__name__)

NAME: Final = "delayOffset.json"
NOT_DELIVERED_TO: Final = (HALF_TOPIC, SCHEDULE_TOPIC)
"""No delayed message can be meant for these topics."""


class DelaySnapshot(DurableTable):
    """Saves and restores the progress of delayed delivery."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, NAME, "the progress of delays was not saved")

    @property
    def revision(self) -> int:
        """Return the revision of the delays."""
        return self._broker.delays.revision

    @property
    def settled_position(self) -> int:
        """Return a log position after which all unsettled deliveries lie."""
        return self._broker.delayed.settled_position

    def encode(self, covered: int) -> Iterator[bytes]:
        """Encode the delays in one step."""
        yield self._broker.delays.encode(position=covered)

    def load(self) -> None:
        """Restore the delays from the file and from the log after it."""
        store, delays = self._broker.store, self._broker.delays
        self.file.load(delays.decode)
        if recover(store, delays):
            self.save_here(store.log.end_position)
        self._saved_revision = delays.revision


def levels_of(store: Store) -> list[int]:
    """Return the levels that hold or held messages, including levels that were since removed."""
    return [queue.queue_id + 1 for queue in store.queues_of(SCHEDULE_TOPIC)]


def recover(store: Store, delays: Delays) -> bool:
    """Bring the levels to the state of the log; tell whether that must be saved.

    Only the log behind the last save and behind the first waiting message is read, because later
    deliveries lie there. If RocketMQ saved the file last, no marks exist, but the file needs a
    position for the marks to come.
    """
    before = delays.revision
    waiting: dict[int, int] = {}
    for level in (*delays.settled(), *levels_of(store)):
        queue = store.find_queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            delays.cut(level, 0)
            continue
        delays.advance(level, queue.min_offset)
        delays.cut(level, queue.visible_offset)
        first = queue.entry(delays.next_offset(level))
        if first is not None:
            waiting[level] = first[0]
    if waiting and delays.position is not None:
        _skip_delivered(store, delays, min(waiting.values()))
    return delays.revision != before or delays.position is None


def _skip_delivered(store: Store, delays: Delays, first_waiting: int) -> None:
    segments, start = store.log.segments, delays.position or 0
    if not store.log.min_position <= start <= store.log.end_position or not is_boundary(
        segments, start
    ):
        start = 0
    read = 0
    for record in LogScan(segments, max(start, first_waiting), check_crc=False):
        read += 1
        found = mark(record.properties)
        if found is None or found[1] < delays.next_offset(found[0]):
            continue
        level, offset = found
        delivered = _record(store, record.position, record.size)
        scheduled = _waiting(store, level, offset)
        if (
            delivered is not None
            and scheduled is not None
            and scheduled.position < delivered.position
            and is_delivery(delivered, scheduled)
            # Messages before it must be undeliverable ones.
            and not any(
                _is_deliverable(store, level, before)
                for before in range(delays.next_offset(level), offset)
            )
        ):
            delays.advance(level, offset + 1)
    log.info("delayed messages: levels=%s records_read=%d", delays.settled(), read)


def _waiting(store: Store, level: int, offset: int) -> Record | None:
    """Return a message of a level's queue, or None."""
    queue = store.find_queue(SCHEDULE_TOPIC, level - 1)
    entry = None if queue is None else queue.entry(offset)
    return None if entry is None else _record(store, entry[0], entry[1])


def _is_deliverable(store: Store, level: int, offset: int) -> bool:
    found = _waiting(store, level, offset)
    home = None if found is None else destination(found.properties)
    return home is not None and home[0] not in NOT_DELIVERED_TO


def _record(store: Store, position: int, size: int) -> Record | None:
    view = store.log.view_at(position, size)
    try:
        return None if view is None else decode(view)
    except CorruptRecord:
        return None
