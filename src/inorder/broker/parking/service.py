"""Parking: requests about parked keys are judged, stored as events, and applied when safe.

Every change of a parked key is a record in the %PARK% topic of its group: a copy of the message, or
a note. The table changes when the record is safe by the flush mode and never before, so replies,
table and log agree whatever stops the broker.

- `PendingWrite` holds events between the log write and the tick that makes them safe.
- `QueueMutex` lets one request at a time judge and change a queue (`Parking.exclusive`), so that no
  reply is based on a table that is about to change.
- `reappend_expiring` stores parked messages again before retention deletes their log file. A
  message stays parked as long as its operators need; the log around it need not stay.

The rules are in `rules.py`, moves over a resize in `moves.py`. Why: decisions 21 and 22.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.parking.moves import ParkMoves, RedriveScope
from inorder.broker.parking.records import (
    MESSAGES,
    NOTES,
    QUEUES,
    Dropped,
    Event,
    Forgotten,
    Moved,
    Note,
    Parked,
    Redriven,
    Unparked,
    note_record,
    park_topic,
    parked_record,
    read_event,
)
from inorder.broker.parking.rules import Limits, ParkingTable, Verdict
from inorder.broker.parking.storage import ParkingSnapshot
from inorder.broker.sends.checks import require_writable
from inorder.errors import (
    BrokerError,
    CorruptRecord,
    MessageIllegal,
    RemoteProtocolError,
    StoreError,
    broker_error,
)
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.store.retention import HOUR_MS
from inorder.wire.names import PARK_PREFIX
from inorder.wire.record import Record, decode
from inorder.wire.requests.parking import Outcome, ParkItem

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.leases.rules import Owner
    from inorder.net.accepted import ServerConnection

log = get_logger(__name__)

REAPPENDED_AT_ONCE: Final = 256
OUR_PROPERTIES_BYTES: Final = 300
"""Roughly how much parking adds to a record; used to judge the limits."""


class PendingWrite:
    """Events that are written to the log and not yet safe."""

    __slots__ = ("_parking", "base", "events", "settled")

    def __init__(self, parking: Parking, base: int) -> None:
        self._parking = parking
        self.base = base
        """Its records lie at or after this position."""
        self.events: list[tuple[str, Event, int]] = []
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def count(self) -> int:
        """Return how many records it has."""
        return len(self.events)

    def write(self) -> None:
        """Apply the events: their records are safe by the flush mode."""
        self._parking.settle(self)
        if not self.settled.done():
            self.settled.set_result(None)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """Give up the events: they are not stored, or the outcome is unknown."""
        self._parking.forget(self)
        if not self.settled.done():
            self.settled.set_exception(broker_error(code, remark))
            self.settled.exception()  # the waiting request may be gone

    def write_late(self) -> bool:
        """Keep waiting: the outcome matters even after the client has gone."""
        return False


class QueueMutex:
    """Lets one request at a time work on a queue, in the order of arrival."""

    __slots__ = ("_busy", "_place")

    def __init__(
        self, busy: dict[GroupQueue, deque[asyncio.Future[None]]], place: GroupQueue
    ) -> None:
        self._busy = busy
        self._place = place

    async def __aenter__(self) -> None:
        waiting = self._busy.get(self._place)
        if waiting is None:
            self._busy[self._place] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # this request already held the mutex
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        waiting = self._busy[self._place]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._busy[self._place]


class Parking:
    """The parked keys of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config
        self.table = ParkingTable(
            Limits(config.parked_keys_max, config.parked_bytes_max, config.parked_age_max_ms)
        )
        self.file = ParkingSnapshot(broker, self.table)
        self._pending: dict[PendingWrite, None] = {}
        self._busy: dict[GroupQueue, deque[asyncio.Future[None]]] = {}
        self._said_full: dict[str, str] = {}
        self.redrive_scope = RedriveScope(broker, self.table)
        self.moves = ParkMoves(self, config.name)
        self._reappending: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Parking({self.table!r})"

    def of_lease(self, group: str, topic: str, queue_id: int) -> tuple[int, bool]:
        """Return the version of a queue's parked keys, and whether its owner has to redrive."""
        if not self.table.places:
            return 0, False
        place = GroupQueue(group, topic, queue_id)
        wanted = self.table.wants_redrive(place) and any(
            self.redrive_scope.redrive_of(place, one)
            for one in self.table.places[place].keys.values()
        )
        return self.table.version(*place), wanted

    @property
    def settled_position(self) -> int:
        """Return a log position before which every event is applied."""
        for pending in self._pending:
            return pending.base
        return self._broker.store.log.end_position

    @property
    def keep_from(self) -> int | None:
        """Return the position from which the log is needed; None: nowhere."""
        needed = (self.table.oldest_position(), self.file.keep_from)
        return min((position for position in needed if position is not None), default=None)

    def exclusive(self, place: GroupQueue) -> QueueMutex:
        """Return the mutex of a queue. Earlier events have settled when it is entered."""
        return QueueMutex(self._busy, place)

    def check_owner(
        self, place: GroupQueue, owner: Owner, epoch: int, connection: ServerConnection
    ) -> None:
        """Check that a consumer owns a queue under an epoch, and renew its lease.

        Epoch 0 stands for a Spark job, which needs no lease: nobody may own the queue.

        Raises:
            LeaseLost: the consumer does not own the queue.
            StoreFailed: a file that ownership depends on is untrusted.
        """
        broker = self._broker
        lease = broker.leases.get(place)
        if lease is None and not epoch:
            return
        if lease is None or (lease.owner, lease.epoch) != (owner, epoch):
            raise broker.lease_service.refusal(place, "park")
        broker.safety.require()
        broker.lease_service.renew(place, lease, connection)

    # -- log -------------------------------------------------------------------------------------

    def store(self, items: Iterable[tuple[str, Event, Record]]) -> PendingWrite:
        """Write events to the log; they count when the returned write has settled.

        Raises:
            BrokerError, StoreError: some events are not stored; earlier ones are being written.
        """
        broker = self._broker
        require_writable(broker)
        pending = PendingWrite(self, broker.store.log.end_position)
        try:
            for group, event, record in items:
                topic = broker.ensure_topic(park_topic(group), queues=QUEUES)
                is_message = isinstance(event, Parked)
                target = broker.sends.target(topic.name, MESSAGES if is_message else NOTES)
                position = broker.sends.packer.put_record(target, record)
                # Decoded again, so that this process and a start apply the same event.
                pending.events.append((group, read_event(record), position))
        finally:
            if pending.events:
                self._pending[pending] = None
                broker.ticks.take(pending)
            else:
                pending.settled.set_result(None)
        return pending

    def settle(self, pending: PendingWrite) -> None:
        """Apply events that are stored."""
        del self._pending[pending]
        for group, event, position in pending.events:
            self.table.apply(group, event, position)
            self._count(group, event)

    def _count(self, group: str, event: Event) -> None:
        counts = self._broker.counts
        if isinstance(event, Parked):
            counts.add("inorder_parked_total", group, event.topic)
        elif isinstance(event, Dropped):
            count = len(event.offsets)
            counts.add("inorder_parked_dropped_total", group, event.topic, count=count)
        elif isinstance(event, Redriven):
            name, count = "inorder_redriven_total", len(event.done)
            if count:
                counts.add(name, group, event.topic, "done", count=count)
            if event.error:
                counts.add(name, group, event.topic, "failed")

    def forget(self, pending: PendingWrite) -> None:
        """Drop events that are not stored."""
        del self._pending[pending]

    async def note(self, group: str, *notes: Note) -> None:
        """Store notes and return when they count. Raises BrokerError, StoreError."""
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        records = [note_record(one, store_host=broker.store_host, now_ms=now_ms) for one in notes]
        pending = self.store(
            (group, one, record) for one, record in zip(notes, records, strict=True)
        )
        await asyncio.shield(pending.settled)

    def floor(self, place: GroupQueue) -> int:
        """Return a group's committed offset of a queue, and forget what lies below."""
        floor = max(0, self._broker.offsets.query(*place))
        self.table.prune(place, floor)
        return floor

    # -- parking ---------------------------------------------------------------------------------

    async def park(self, place: GroupQueue, items: list[ParkItem]) -> tuple[list[Outcome], str]:
        """Park messages of a queue; return the outcome of each, and which limit is reached.

        The caller holds the queue's mutex and has just checked the epoch, without an await in
        between.
        """
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        floor = self.floor(place)
        outcomes: list[Outcome] = []
        stored: list[tuple[str, Event, Record]] = []
        events: list[Parked] = []
        remark = ""
        for item in items:
            outcome: Outcome = "parked"
            found = self._origin(place, item.offset)
            size = OUR_PROPERTIES_BYTES + (0 if found is None else found.size)
            verdict, why = self.table.judge(
                place, item.offset, item.key, joins=item.error is None, size=size, floor=floor,
                now_ms=now_ms, before=events, until=item.until,
            )  # fmt: skip
            if verdict in (Verdict.LIVE, Verdict.FULL):
                outcome = "live" if verdict is Verdict.LIVE else "full"
                remark = why or remark
            elif verdict is Verdict.STORE and found is None:
                outcome = "gone"
            elif verdict is Verdict.STORE and found is not None:
                event = Parked(
                    place.topic, place.queue_id, item.offset, item.key, item.tries,
                    item.error or "", now_ms, size, until=item.until or 0,
                )  # fmt: skip
                try:
                    record = parked_record(
                        found, event, fence=item.fence, store_host=broker.store_host, now_ms=now_ms
                    )
                except MessageIllegal as error:
                    outcome, remark = "full", str(error)
                else:
                    events.append(event)
                    stored.append((place.group, event, record))
            outcomes.append(outcome)
        if stored:
            await asyncio.shield(self.store(stored).settled)
        if "parked" in outcomes:
            # In every flush mode: the owner now treats the message as done. A power cut that lost
            # the copy but kept the owner's commit would lose the message.
            await broker.log_sync.synced()
        self._say_full(place.group, remark)
        return outcomes, remark

    def _origin(self, place: GroupQueue, offset: int) -> Record | None:
        """Return the broker's own record of a message; None if it has none (any more)."""
        store = self._broker.store
        queue = store.find_queue(place.topic, place.queue_id)
        entry = None if queue is None or offset >= queue.visible_offset else queue.entry(offset)
        view = None if entry is None else store.log.view_at(entry[0], entry[1])
        try:
            return None if view is None else decode(view)
        except CorruptRecord:
            return None

    def _say_full(self, group: str, remark: str) -> None:
        """Log once that a group has reached a limit, and once that it is below it again."""
        said = self._said_full.pop(group, "")
        if remark:
            self._said_full[group] = remark
            if not said:
                log.error(
                    "nothing more is parked group=%s: %s; its keys block until some are redriven "
                    "or dropped (`inorder parked %s`)", group, remark, group,
                )  # fmt: skip
        elif said:
            log.warning("keys are parked again group=%s", group)

    def full_groups(self) -> dict[str, str]:
        """Return the groups that cannot park more, and why."""
        now_ms = self._broker.clock.now_ms()
        found = {group: self.table.full(group, now_ms, keys=1) for group in self.table.groups()}
        found.update(self._said_full)
        return {group: why for group, why in found.items() if why}

    # -- redrive, unpark, drop -------------------------------------------------------------------

    async def redriven(self, place: GroupQueue, note: Redriven, *, successor: bool) -> None:
        """Store the outcome of a redrive, if the key is still parked.

        `successor`: the owner of the queue to which the key moved. A reset does not change that
        owner's epoch, so messages that it handled before the reset, and that are replayed, do not
        count as done.
        """
        if self.table.find(place, note.key) is not None:
            held = self.redrive_scope.held(place, self.floor(place)) if successor else None
            if held is not None:
                done = [offset for offset in note.done if offset < held]
                note = msgspec.structs.replace(note, done=done)
            await self.note(place.group, note)

    async def unpark(self, place: GroupQueue, key: str, end: int, *, successor: bool) -> str:
        """Let a key go live; return why not, or empty."""
        one = self.table.find(place, key)
        if successor and one is not None and self.redrive_scope.came_back(place, one):
            await self.note(place.group, Moved(place.topic, place.queue_id, key, None))
            return ""
        why = self.table.may_unpark(place, key, end, successor=successor)
        if not why and one is not None:
            await self._let_live(place, key)
            log.info("key is live again group=%s topic=%s queue=%d key=%s", *place, key)
        return why

    async def _let_live(self, place: GroupQueue, key: str) -> None:
        await self.note(place.group, Unparked(place.topic, place.queue_id, key))
        if place.topic in self._broker.resizing.topics:
            await self._broker.resizing.publish(
                place.topic
            )  # its queue may be open only for this key

    async def drop(self, place: GroupQueue, key: str, *, reason: str, by: str, first: bool) -> int:
        """Drop all messages of a key, or only the first; return how many were dropped."""
        one = self.table.find(place, key)
        if one is None or (first and not one.messages):
            return 0
        gone = [message.origin for message in (one.messages[:1] if first else one.messages)]
        await self.note(
            place.group,
            Dropped(place.topic, place.queue_id, key, gone, reason, by, whole=not first),
        )
        log.warning(
            "parked messages dropped group=%s topic=%s queue=%d key=%s offsets=%s by=%s: %s",
            *place, key, gone, by, reason,
        )  # fmt: skip
        if not first and not one.older and one.moved_to is None and not self._is_owned(place):
            await self._let_live(place, key)
        return len(gone)

    def _is_owned(self, place: GroupQueue) -> bool:
        """Return whether a consumer may be handling messages of a queue."""
        return self._broker.leases.get(place) is not None

    def topic_gone(self, topic: str) -> None:
        """Forget a group whose %PARK% topic is deleted."""
        if topic.startswith(PARK_PREFIX):
            self.table.forget_group(topic[len(PARK_PREFIX) :])

    def was_reset(self, group: str, topic: str, queues: Iterable[int]) -> list[Task[None]]:
        """After an offset reset, forget offsets that are no longer parked.

        Otherwise their next owner would skip these messages, and the reset is to repeat them. What
        is still parked stays parked. Returns the tasks that store this; it counts when they end.
        """
        if park_topic(group) not in self._broker.topics:
            return []  # the group never parked anything
        tasks = []
        for queue_id in queues:
            queue = self.table.places.get(GroupQueue(group, topic, queue_id))
            if queue is not None:
                queue.hold_back()
            task = asyncio.get_running_loop().create_task(
                self.reset(group, topic, queue_id), name="record a reset of parked keys"
            )
            self._forgetting.add(task)
            task.add_done_callback(self._forgot)
            tasks.append(task)
        return tasks

    def _forgot(self, task: Task[None]) -> None:
        self._forgetting.discard(task)
        if not task.cancelled():
            task.exception()  # logged by `reset`, and raised to its caller

    def went_back(self, group: str, topic: str, queue_id: int) -> None:
        """After a commit of a lower offset, forget offsets that are no longer parked.

        A Spark job is exempt: it knows what it parked.
        """
        queue = self.table.places.get(GroupQueue(group, topic, queue_id))
        if queue is not None and not queue.late:
            self.was_reset(group, topic, [queue_id])

    async def reset(self, group: str, topic: str, queue_id: int) -> None:
        """Record the reset of one queue; return when it counts."""
        place = GroupQueue(group, topic, queue_id)
        async with self.exclusive(place):
            # Even if the queue is not in the table: a start replays the log and would find it.
            try:
                await self.note(group, Forgotten(topic, queue_id))
            except (BrokerError, StoreError) as error:
                log.error(
                    "the reset of parked keys is not stored: reset again %s: %s", place, error
                )
                raise

    def records(
        self, place: GroupQueue, key: str, after: int, count: int, bytes_max: int, *, in_order: bool
    ) -> list[bytes]:
        """Return the records of a key's messages in order; at least one if there is any.

        After a rewind only messages of versions that the group has reached again are returned.
        `in_order` also excludes messages that must wait for an older list or for replayed messages.
        """
        one, held = self.table.find(place, key), self.redrive_scope.end(place)
        found: list[bytes] = []
        if one is not None and in_order:
            if self.redrive_scope.older(place, one):
                return found
            waits = self.redrive_scope.held(place, self.floor(place))
            if waits is not None:
                held = waits if held is None else min(waits, held)
        size = 0
        for message in () if one is None else one.messages:
            if message.origin <= after:
                continue
            size += message.size
            if len(found) >= count or (found and size > bytes_max):
                break
            if held is not None and message.origin >= held:
                break
            found.append(self._broker.store.log.bytes_at(message.position, message.size))
        return found

    # -- retention -------------------------------------------------------------------------------

    def reappend_expiring(self) -> None:
        """Store parked messages again that lie in log files which retention deletes before long."""
        if self._reappending is not None and not self._reappending.done():
            return
        store, now_ms = self._broker.store, self._broker.clock.now_ms()
        oldest = self.table.oldest_position()
        if oldest is None or not self._broker.writable:
            return
        half_ms = store.config.retention_hours * HOUR_MS // 2
        usage = self._broker.files.usage(self._broker.config.data_path)
        crowded = usage.used_ratio > store.config.disk_used_ratio_max
        before = 0
        for segment in store.log.segments.items[:-1]:
            if not crowded and now_ms - store.modified_ms(segment.path) < half_ms:
                break
            before = segment.end
        if oldest < before:
            self._reappending = asyncio.get_running_loop().create_task(
                self._reappend_all(before), name="reappend parked messages"
            )

    async def _reappend_all(self, before: int) -> None:
        try:
            while count := await self.reappend_before(before):
                log.info("parked messages stored again count=%d before=%d", count, before)
        except (BrokerError, StoreError) as error:
            log.error("parked messages were not stored again: %s", error)

    async def reappend_before(self, before: int) -> int:
        """Store again at most `REAPPENDED_AT_ONCE` messages that lie before a log position.

        Returns how many were stored.
        """
        count = 0
        for place in list(self.table.places):
            if count >= REAPPENDED_AT_ONCE:
                break
            # Without the mutex a redrive could finish a message that the copy would bring back.
            async with self.exclusive(place):
                items = self._parked_before(place, before, REAPPENDED_AT_ONCE - count)
                if items:
                    await asyncio.shield(self.store(items).settled)
                    count += len(items)
        return count

    def _parked_before(
        self, place: GroupQueue, before: int, count: int
    ) -> list[tuple[str, Event, Record]]:
        items: list[tuple[str, Event, Record]] = []
        queue, now_ms = self.table.places.get(place), self._broker.clock.now_ms()
        for one in queue.keys.values() if queue is not None else ():
            for message in one.messages:
                if message.position >= before or len(items) >= count:
                    continue
                try:
                    record = decode(self._broker.store.log.bytes_at(message.position, message.size))
                    event = read_event(record)
                except (CorruptRecord, RemoteProtocolError) as error:
                    log.error(
                        "a parked message is damaged position=%d: %s", message.position, error
                    )
                    continue
                record.stored_at_ms = now_ms
                items.append((place.group, event, record))
        return items

    def cancel(self) -> None:
        """Cancel the background tasks."""
        self.file.cancel()
        if self._reappending is not None:
            self._reappending.cancel()
        for task in self._forgetting:
            task.cancel()
