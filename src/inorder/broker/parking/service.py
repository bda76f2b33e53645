"""Parking: judge what owners and operators ask for, store it, and count it when it is safe.

Everything that happens to parked keys is a record of the %PARK% topic of its group: the message
itself, or a note. The table changes when the record is safe by the flush mode, never before, so an
answer, the table and the log agree whatever stops the broker. Of one queue one request at a time is
judged and stored (`alone`): nobody is answered from a table that is about to change.

Events of parked keys on their way into the log, and whose turn it is with a queue.

Parked messages and the age of the log: they are stored again before their file is to go.

A message stays parked for as long as its operators take; the log around it need not stay. The copy
is the same record at another place, and the table learns the place when the copy is safe.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.leases.rules import LeaseKey
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
from inorder.broker.parking.rules import Limits, ParkingTable, Place, Verdict
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
from inorder.model import TopicQueue
from inorder.wire.names import PARK_PREFIX
from inorder.wire.record import Record, decode
from inorder.wire.requests.parking import Outcome, ParkItem

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.leases.rules import Owner
    from inorder.net.accepted import ServerConnection

log = get_logger(__name__)


class PendingWrite:
    """Events on their way into the log, until the tick says what became of them."""

    __slots__ = ("_parking", "base", "events", "settled")

    def __init__(self, parking: Parking, base: int) -> None:
        self._parking = parking
        self.base = base
        """Its records lie at or behind this position."""
        self.events: list[tuple[str, Event, int]] = []
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def count(self) -> int:
        """Return how many records it has."""
        return len(self.events)

    def write(self) -> None:
        """Count the events: they are stored, safe by the flush mode."""
        self._parking.settle(self)
        if not self.settled.done():
            self.settled.set_result(None)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """Take note that they are not stored, or that nobody knows."""
        self._parking.forget(self)
        if not self.settled.done():
            self.settled.set_exception(broker_error(code, remark))
            self.settled.exception()  # whoever waited may have gone

    def write_late(self) -> bool:
        """What becomes of them has still to be known."""
        return False


class QueueMutex:
    """Of those who want the same queue, one after the other, in the order in which they came."""

    __slots__ = ("_busy", "_place")

    def __init__(self, busy: dict[Place, deque[asyncio.Future[None]]], place: Place) -> None:
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
                self._pass_on()  # it was our turn already
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


REAPPENDED_AT_ONCE: Final = 256
HOUR_MS: Final = 3_600_000
OUR_PROPERTIES_BYTES: Final = 300
"""About what parking adds to a record, for judging whether there is room."""


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
        self._busy: dict[Place, deque[asyncio.Future[None]]] = {}
        self._said_full: dict[str, str] = {}
        self.reach = RedriveScope(broker, self.table)
        self.moves = ParkMoves(self, config.name)
        self._reappending: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Parking({self.table!r})"

    def of_lease(self, group: str, topic: str, queue_id: int) -> tuple[int, bool]:
        """Return the version of a queue's parked keys, and whether a redrive waits."""
        if not self.table.places:
            return 0, False
        place = Place(group, topic, queue_id)
        wanted = self.table.wants_redrive(place) and any(
            self.reach.redrive_of(place, one) for one in self.table.places[place].keys.values()
        )
        return self.table.version(*place), wanted

    @property
    def settled_position(self) -> int:
        """Return a position before which every event is counted."""
        for pending in self._pending:
            return pending.base
        return self._broker.store.log.end_position

    @property
    def keep_from(self) -> int | None:
        """Return the position from which the log is needed, None if none of it is."""
        needed = (self.table.oldest_position(), self.file.keep_from)
        return min((position for position in needed if position is not None), default=None)

    def alone(self, place: Place) -> QueueMutex:
        """Let nobody else judge or change a queue meanwhile; what was under way has settled."""
        return QueueMutex(self._busy, place)

    def check_owner(
        self, place: Place, owner: Owner, epoch: int, connection: ServerConnection
    ) -> None:
        """Raise LeaseLost unless a consumer owns a queue under an epoch; it is a sign of life.

        Epoch 0 stands for a queue that nobody has: of a job that needs no lease.
        """
        broker = self._broker
        key = LeaseKey(place.group, TopicQueue(place.topic, broker.config.name, place.queue_id))
        lease = broker.leases.get(*key)
        if lease is None and not epoch:
            return
        if lease is None or (lease.owner, lease.epoch) != (owner, epoch):
            raise broker.lease_service.lost(key)
        broker.leases.renew(key, broker.clock.monotonic_ms(), connection.id)

    # -- the log ---------------------------------------------------------------------------------

    def store(self, items: Iterable[tuple[str, Event, Record]]) -> PendingWrite:
        """Put events into the log; they count when the pending has settled.

        Raises:
            BrokerError, StoreError: some are not stored; those before them are on their way.
        """
        broker = self._broker
        require_writable(broker)
        pending = PendingWrite(self, broker.store.log.end_position)
        try:
            for group, event, record in items:
                topic = broker.ensure_topic(park_topic(group), queues=QUEUES)
                is_message = isinstance(event, Parked)
                target = broker.hot.target(topic.name, MESSAGES if is_message else NOTES)
                position = broker.hot.packer.put_record(target, record)
                # What a start will read, not what was meant: so both count the same.
                pending.events.append((group, read_event(record), position))
        finally:
            if pending.events:
                self._pending[pending] = None
                broker.ticks.take(pending)
            else:
                pending.settled.set_result(None)
        return pending

    def settle(self, pending: PendingWrite) -> None:
        """Count what is stored."""
        del self._pending[pending]
        for group, event, position in pending.events:
            self.table.apply(group, event, position)

    def forget(self, pending: PendingWrite) -> None:
        """Forget what is not stored."""
        del self._pending[pending]

    async def note(self, group: str, *notes: Note) -> None:
        """Store notes; return when they count. Raises BrokerError, StoreError."""
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        records = [note_record(one, store_host=broker.store_host, now_ms=now_ms) for one in notes]
        pending = self.store(
            (group, one, record) for one, record in zip(notes, records, strict=True)
        )
        await asyncio.shield(pending.settled)

    def floor(self, place: Place) -> int:
        """Return how far a group has committed a queue; forget what lies below."""
        floor = max(0, self._broker.offsets.query(*place))
        self.table.prune(place, floor)
        return floor

    # -- parking ---------------------------------------------------------------------------------

    async def park(self, place: Place, items: list[ParkItem]) -> tuple[list[Outcome], str]:
        """Park messages of a queue; return what became of each, and what is full.

        Call it alone with the queue, and after the epoch was checked, without a wait in between.
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
            # Whatever the flush mode: its owner takes it for done now. A power cut that took the
            # copy, and not the commit that rests on it, would lose the message.
            await broker.housekeeping.log_synced()
        self._say_full(place.group, remark)
        return outcomes, remark

    def _origin(self, place: Place, offset: int) -> Record | None:
        """Return the broker's own record of a message, None if it does not have it (any more)."""
        store = self._broker.store
        queue = store.find_queue(place.topic, place.queue_id)
        entry = None if queue is None or offset >= queue.visible_offset else queue.entry(offset)
        view = None if entry is None else store.log.view_at(entry[0], entry[1])
        try:
            return None if view is None else decode(view)
        except CorruptRecord:
            return None

    def _say_full(self, group: str, remark: str) -> None:
        """Tell the log once that a group is at a bound, and once that it is not any more."""
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

    # -- redriving and letting go ----------------------------------------------------------------

    async def redriven(self, place: Place, note: Redriven, *, heir: bool) -> None:
        """Note what became of messages in a redrive, if that is new.

        The owner of another queue, an heir, is told of no reset by an epoch: what it handled before
        one, and that comes again, counts as not done.
        """
        if self.table.find(place, note.key) is not None:
            held = self.reach.held(place, self.floor(place)) if heir else None
            if held is not None:
                done = [offset for offset in note.done if offset < held]
                note = msgspec.structs.replace(note, done=done)
            await self.note(place.group, note)

    async def unpark(self, place: Place, key: str, end: int, *, heir: bool) -> str:
        """Let a key go live; return why not, empty if it is live."""
        one = self.table.find(place, key)
        if heir and one is not None and self.reach.came_back(place, one):
            await self.note(place.group, Moved(place.topic, place.queue_id, key, None))
            return ""
        why = self.table.may_unpark(place, key, end, successor=heir)
        if not why and one is not None:
            await self._let_live(place, key)
            log.info("key is live again group=%s topic=%s queue=%d key=%s", *place, key)
        return why

    async def _let_live(self, place: Place, key: str) -> None:
        await self.note(place.group, Unparked(place.topic, place.queue_id, key))
        if place.topic in self._broker.resizing.topics:
            await self._broker.resizing.publish(place.topic)  # its queue may be open for it alone

    async def drop(self, place: Place, key: str, *, reason: str, by: str, first: bool) -> int:
        """Throw the messages of a key away, or the first one; return how many that were."""
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

    def _is_owned(self, place: Place) -> bool:
        """Tell whether somebody may be handling messages of a queue."""
        queue = TopicQueue(place.topic, self._broker.config.name, place.queue_id)
        return self._broker.leases.get(place.group, queue) is not None

    def topic_gone(self, topic: str) -> None:
        """Forget what was parked in a topic that is deleted."""
        if topic.startswith(PARK_PREFIX):
            self.table.forget_group(topic[len(PARK_PREFIX) :])

    def was_reset(self, group: str, topic: str, queues: Iterable[int]) -> list[Task[None]]:
        """Let what was parked once, and is not any more, be handled again: offsets were set.

        Returns what is under way: when it has ended that counts.
        """
        if park_topic(group) not in self._broker.topics:
            return []  # nothing ever was
        tasks = []
        for queue_id in queues:
            queue = self.table.places.get(Place(group, topic, queue_id))
            if queue is not None:
                queue.hold_back()
            task = asyncio.get_running_loop().create_task(
                self.reset(group, topic, queue_id), name="forget what was parked"
            )
            self._forgetting.add(task)
            task.add_done_callback(self._forgot)
            tasks.append(task)
        return tasks

    def _forgot(self, task: Task[None]) -> None:
        self._forgetting.discard(task)
        if not task.cancelled():
            task.exception()  # it was logged; who waits for it hears it, too

    def went_back(self, group: str, topic: str, queue_id: int) -> None:
        """Do the same if an offset was committed that is lower; not for a job's, which knows."""
        queue = self.table.places.get(Place(group, topic, queue_id))
        if queue is not None and not queue.late:
            self.was_reset(group, topic, [queue_id])

    async def reset(self, group: str, topic: str, queue_id: int) -> None:
        """Do that for one queue; return when it counts."""
        place = Place(group, topic, queue_id)
        async with self.alone(place):
            # Also if nothing is known of it: a start reads the log, and would find what was parked.
            try:
                await self.note(group, Forgotten(topic, queue_id))
            except (BrokerError, StoreError) as error:
                log.error("what was parked is not forgotten: reset again %s: %s", place, error)
                raise

    def records(
        self, place: Place, key: str, after: int, count: int, bytes_max: int, *, in_order: bool
    ) -> list[bytes]:
        """Return the records of a key's messages in order, at least one if there is any.

        Of a group that was set back, those of versions that it has reached again; `in_order`: none
        that has to wait for an older list, or for what comes again.
        """
        one, held = self.table.find(place, key), self.reach.end(place)
        found: list[bytes] = []
        if one is not None and in_order:
            if self.reach.older(place, one):
                return found
            waits = self.reach.held(place, self.floor(place))
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
            async with self.alone(place):
                items = self._parked_before(place, before, REAPPENDED_AT_ONCE - count)
                if items:
                    await asyncio.shield(self.store(items).settled)
                    count += len(items)
        return count

    def _parked_before(
        self, place: Place, before: int, count: int
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
