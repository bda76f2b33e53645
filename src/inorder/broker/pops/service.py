"""Pops: from a request to messages of one or more queues, and pops that wait for some.

    check -> read each queue -> write the journal -> change the tables -> answer

A pop finds nothing in a queue that somebody leases or locks, in one whose batch is not done, and
behind the end of a map version that its group has yet to finish elsewhere. A pop that finds nothing
waits; it is tried again in the turn in which a message of its topic is shown, a queue of its group
becomes free, or a message comes to its retry topic. A pop whose connection is gone takes nothing.

Messages that are probably not in memory are read in a thread first; then the pop begins anew with
them at hand. `acks.py` takes acknowledgements, `revival.py` ends what nobody acknowledged.
Why: decision 54.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import POPPED, Terms
from inorder.broker.pops.checks import (
    Wanted,
    check_pop,
    check_readable,
    check_unmixed,
    wanted_of,
)
from inorder.broker.pops.polls import Poll, PollKey
from inorder.broker.pops.reading import Chunk, Cold, PopReader, offset_of
from inorder.broker.pops.records import as_popped, batch_record, popped
from inorder.broker.pops.rules import Batch, CheckPoint, counts_of
from inorder.broker.pulls.checks import EXPRESSION_KEPT_CHARS
from inorder.errors import BrokerError, StoreError
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.store.reader import ReadStatus
from inorder.wire.codes import ResponseCode
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.record import decode
from inorder.wire.requests.pops import (
    INIT_MIN,
    ORDER_REVIVE_QUEUE,
    REVIVE_QUEUES,
    Notification,
    PeekMessage,
    PopMessage,
    Receipt,
    count_entries,
    offsets_entry,
    pop_header,
    pop_retry_topic,
    queue_entry,
    retry_flag,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Any

    from inorder.access.service import Admission
    from inorder.broker.broker import Broker
    from inorder.broker.leases.records import Record as JournalRecord
    from inorder.broker.leases.rules import Decision
    from inorder.model import TopicConfig
    from inorder.net.accepted import ServerConnection
    from inorder.store.consumequeue import QueueIndex
    from inorder.wire.header import Command

log = get_logger(__name__)

POLL_MS_MAX: Final = 600_000
SERVED_AT_ONCE: Final = 64
"""How many waiting requests are tried in one turn."""
LONG_EXPRESSIONS_MAX: Final = 1000
"""A pop that waits keeps its expression: one with a long one waits only beside fewer others."""
LOADS_MAX: Final = 4
"""How often a pop reads messages in a thread before it gives up for now."""
_PASSED: Final = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)


class Pop:
    """One pop, also while it waits."""

    __slots__ = ("admission", "command", "connection", "known", "request", "wanted")

    def __init__(
        self,
        connection: ServerConnection,
        command: Command,
        request: PopMessage,
        admission: Admission | None = None,
    ) -> None:
        self.admission = admission
        self.connection = connection
        self.command = command
        self.request = request
        self.wanted = Wanted()
        self.known: dict[tuple[GroupQueue, int], Chunk | None] = {}
        """What was read in a thread, by queue and offset; None: it cannot be read."""

    @property
    def key(self) -> PollKey:
        """Return what it waits for."""
        return PollKey(
            self.request.topic, self.request.consumer_group, max(self.request.queue_id, -1)
        )


class Ask:
    """A question whether a pop would find something, also while it waits."""

    __slots__ = ("admission", "command", "connection", "request")

    def __init__(
        self,
        connection: ServerConnection,
        command: Command,
        request: Notification,
        admission: Admission | None = None,
    ) -> None:
        self.admission = admission
        self.connection = connection
        self.command = command
        self.request = request

    @property
    def key(self) -> PollKey:
        """Return what it waits for."""
        return PollKey(
            self.request.topic, self.request.consumer_group, max(self.request.queue_id, -1)
        )


@dataclass(slots=True)
class Found:
    """What a pop found in one queue."""

    key: GroupQueue
    start: int
    records: list[bytes]
    offsets: list[int]
    next_offset: int
    batch: Batch | None = None
    """In order: the batch that is handed out again, or the new one before it has its token."""
    decision: Decision | None = None
    """In order: the lease for a new batch."""


@dataclass(slots=True)
class Gathered:
    """What a pop found in all queues."""

    found: list[Found] = field(default_factory=list)
    rest: int = 0
    count: int = 0
    size: int = 0


class Pops:
    """Serves pops, and those that wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.pop_table
        self._leases = broker.leases
        self._store = broker.store
        self._polls = broker.pop_polls
        self._asks = broker.ask_polls
        self._serving: deque[PollKey] = deque()
        self._queued: set[PollKey] = set()
        self._reader = PopReader(broker)
        self._revive_queue = 0

    # -- requests --------------------------------------------------------------------------------

    def pop(self, pop: Pop) -> Command | Coroutine[Any, Any, Command | None] | None:
        """Answer a pop, or let it wait."""
        if pop.command.is_oneway:
            return None  # nobody would learn of the messages
        pop.wanted = wanted_of(self._broker, self._checked(pop))
        try:
            answer = self._try(pop)
        except Cold as cold:
            return self._pop_apart(pop, cold, self._deadline(pop.request.poll_ms))
        return answer or self._wait(pop, self._deadline(pop.request.poll_ms))

    def _check_still(self, request: Pop | Ask) -> None:
        """Refuse a request that waited and whose user has lost the right to it."""
        guard = self._broker.guard
        if guard is not None and request.admission is not None:
            refusal = guard.still(request.admission)
            if refusal is not None:
                raise refusal

    def _checked(self, pop: Pop) -> PopMessage:
        self._check_still(pop)
        check_pop(self._broker, pop.request, pop.connection.peer)
        return pop.request

    def _deadline(self, poll_ms: int) -> int:
        now_ms = self._broker.clock.monotonic_ms()
        return now_ms + min(poll_ms, POLL_MS_MAX) if poll_ms > 0 else 0

    def _try(self, pop: Pop) -> Command | None:
        """Return the answer with messages, None if there are none. Raises Cold."""
        gathered = self._gather(pop)
        if not gathered.found:
            return None
        return self._hand_out(pop, gathered)

    def _wait(self, pop: Pop, deadline_ms: int) -> Command | None:
        pop.known.clear()
        if pop.connection.closed:
            return None
        if deadline_ms > self._broker.clock.monotonic_ms():
            long = len(pop.request.expression or "") > EXPRESSION_KEPT_CHARS
            if not (long and len(self._polls) >= LONG_EXPRESSIONS_MAX) and self._polls.hold(
                Poll(pop.connection, pop, pop.key, deadline_ms)
            ):
                self._broker.housekeeping.poll_deadline(deadline_ms)
                return None
            return self._nothing(pop, ResponseCode.POLLING_FULL)
        return self._nothing(pop, ResponseCode.POLLING_TIMEOUT)

    def _nothing(self, pop: Pop, code: int) -> Command:
        fields = pop_header(
            self._broker.clock.now_ms(), pop.request.invisible_ms, self._revive_of(pop)
        )
        fields |= {"startOffsetInfo": "", "msgOffsetInfo": ""}
        if pop.request.order:
            fields["orderCountInfo"] = ""
        return pop.command.reply(code, ReadStatus.NO_MESSAGE_IN_QUEUE.name, fields=fields)

    def _revive_of(self, pop: Pop) -> int:
        if pop.request.order:
            return ORDER_REVIVE_QUEUE
        found = self._revive_queue
        self._revive_queue = (found + 1) % REVIVE_QUEUES
        return found

    async def _pop_apart(self, pop: Pop, cold: Cold, deadline_ms: int) -> Command | None:
        """Read messages in a thread and begin anew, as often as that is needed."""
        for _ in range(LOADS_MAX):
            pop.known[cold.key, cold.start] = await self._reader.load(pop, cold)
            if pop.connection.closed:
                return None
            self._checked(pop)
            try:
                answer = self._try(pop)
            except Cold as another:
                cold = another
                continue
            return answer or self._wait(pop, deadline_ms)
        return self._wait(pop, deadline_ms)

    # -- reading ---------------------------------------------------------------------------------

    def _gather(self, pop: Pop) -> Gathered:
        broker, request = self._broker, pop.request
        gathered = Gathered()
        topic = broker.topics.get(request.topic)
        assert topic is not None, "it was checked"
        if request.order:
            again = self._again(pop, topic)
            if again is not None:
                return again
            for key in self._keys(request.consumer_group, topic, request.queue_id):
                self._from_queue_in_order(pop, key, gathered)
            return gathered
        retry = None
        if not request.topic.startswith(RETRY_PREFIX):
            retry = broker.topics.get(pop_retry_topic(request.consumer_group, request.topic))
        first = broker.random.randrange(100) < broker.config.pop_from_retry_probability
        if first and retry is not None:
            self._from_topic(pop, retry, -1, gathered)
        self._from_topic(pop, topic, request.queue_id, gathered)
        if not first and retry is not None:
            self._from_topic(pop, retry, -1, gathered)
        return gathered

    def _keys(self, group: str, topic: TopicConfig, queue_id: int) -> list[GroupQueue]:
        if queue_id >= 0:
            return [GroupQueue(group, topic.name, queue_id)]
        count = topic.read_queues
        first = self._broker.random.randrange(count) if count > 1 else 0
        return [GroupQueue(group, topic.name, (first + i) % count) for i in range(count)]

    def _from_topic(self, pop: Pop, topic: TopicConfig, queue_id: int, gathered: Gathered) -> None:
        for key in self._keys(pop.request.consumer_group, topic, queue_id):
            self._from_queue(pop, key, gathered)

    def _from_queue(self, pop: Pop, key: GroupQueue, gathered: Gathered) -> None:
        """Read a queue without order."""
        table, now_ms = self._table, self._broker.clock.monotonic_ms()
        if self._leases.get(key) is not None or (
            now_ms < self._leases.closed_until_ms and self._leases.is_ordered(*key[:2])
        ):
            return  # somebody has it, or may have it
        committed = self._committed(key, pop.request.init_mode)
        check_unmixed(self._broker, key, committed)
        start = table.next_offset(key, committed)
        room = min(pop.request.max_messages - gathered.count, table.has_room(key))
        if room <= 0 or not self._has_bytes(gathered):
            gathered.rest += max(0, self._store.end_offset(key.topic, key.queue_id) - start)
            return
        start, chunk = self._reader.read(pop, key, start, room, gathered)
        if chunk is None:
            return
        gathered.rest += max(0, chunk.max_offset - chunk.next_offset)
        if chunk.records:
            gathered.found.append(
                Found(key, start, chunk.records, chunk.offsets, chunk.next_offset)
            )
            gathered.count += len(chunk.records)
            gathered.size += sum(map(len, chunk.records))
        elif chunk.status in _PASSED and chunk.next_offset > start:
            table.pass_by(key, chunk.next_offset, now_ms)
            self.commit_floor(key)

    def _from_queue_in_order(self, pop: Pop, key: GroupQueue, gathered: Gathered) -> None:
        """Read a queue in order, if nobody has it."""
        request, table = pop.request, self._table
        now_ms = self._broker.clock.monotonic_ms()
        if (
            self._leases.get(key) is not None
            or table.in_flight(key)
            or now_ms < self._leases.closed_until_ms
        ):
            return
        committed = self._committed(key, request.init_mode)
        check_unmixed(self._broker, key, committed)
        room = request.max_messages - gathered.count
        if room <= 0 or not self._has_bytes(gathered):
            gathered.rest += max(0, self._store.end_offset(key.topic, key.queue_id) - committed)
            return
        start, chunk = self._reader.read(pop, key, committed, room, gathered)
        if chunk is None:
            return
        gathered.rest += max(0, chunk.max_offset - chunk.next_offset)
        if not chunk.records:
            if chunk.status in _PASSED and chunk.next_offset > start:
                self._commit(key, chunk.next_offset)
            return
        terms = Terms(request.invisible_ms, request.invisible_ms)
        decision = self._leases.decide(
            key, POPPED, now_ms, terms=terms, planned=len(gathered.found)
        )
        if not decision.is_granted:
            return
        offsets, attempt = chunk.offsets, request.attempt_id or ""
        batch = Batch(
            decision.epoch, attempt, 0, request.invisible_ms, now_ms + request.invisible_ms,
            tuple(offsets), counts=counts_of(table.batches.get(key), attempt, offsets),
        )  # fmt: skip
        gathered.found.append(
            Found(key, start, chunk.records, offsets, chunk.next_offset, batch, decision)
        )
        gathered.count += len(chunk.records)
        gathered.size += sum(map(len, chunk.records))

    def _again(self, pop: Pop, topic: TopicConfig) -> Gathered | None:
        """Return the batches that this attempt has already, if any: their answer may be lost."""
        attempt = pop.request.attempt_id
        if not attempt:
            return None
        gathered = Gathered()
        for key in self._keys(pop.request.consumer_group, topic, pop.request.queue_id):
            batch, lease = self._table.batches.get(key), self._leases.get(key)
            if (
                batch is None or lease is None or batch.attempt != attempt or batch.was_reset
                or (lease.owner, lease.epoch) != (POPPED, batch.epoch)
            ):  # fmt: skip
                continue
            records = self._reader.records_of(key, batch.unfinished)
            if records:
                offsets = [offset_of(one) for one in records]
                gathered.found.append(
                    Found(key, batch.offsets[0], records, offsets, batch.next_offset, batch)
                )
                gathered.count += len(records)
        tokens = [one.batch.pop_ms for one in gathered.found if one.batch is not None]
        gathered.found = [
            one for one in gathered.found if one.batch and one.batch.pop_ms == max(tokens)
        ]
        return gathered if gathered.found else None

    def _has_bytes(self, gathered: Gathered) -> bool:
        return gathered.size < self._broker.config.transfer_bytes_max

    def _committed(self, key: GroupQueue, init_mode: int) -> int:
        """Return the offset of a group; a group without one gets its first."""
        offsets = self._broker.offsets
        offsets.take_reset(*key)
        found = offsets.query(*key)
        if found >= 0:
            return found
        group, topic, queue_id = key
        least = self._store.min_offset(topic, queue_id)
        if init_mode == INIT_MIN or topic.startswith(RETRY_PREFIX):
            first = least
        else:
            known = self._broker.offset_service.first_offset(topic, queue_id)
            end = self._store.end_offset(topic, queue_id)
            first = max(end - 1, least, 0) if known is None else known
        offsets.commit(group, topic, queue_id, first, self._broker.clock.now_ms())
        self._broker.lease_journal.flush()  # or a kill would let the group begin elsewhere
        return first

    # -- taking ----------------------------------------------------------------------------------

    def _hand_out(self, pop: Pop, gathered: Gathered) -> Command:
        """Take what was found, and make the answer."""
        now_ms, request = self._broker.clock.monotonic_ms(), pop.request
        new = [one for one in gathered.found if not (one.batch and one.decision is None)]
        if not new:
            first = gathered.found[0].batch
            assert first is not None, "only batches are handed out again"
            return self._answer(pop, gathered, first.pop_ms, first.invisible_ms)
        pop_ms = self._table.pop_ms((one.key for one in new), self._broker.clock.now_ms())
        if request.order:
            self._take_in_order(new, pop_ms, now_ms)
        else:
            self._take(pop, new, pop_ms, now_ms)
        return self._answer(pop, gathered, pop_ms, request.invisible_ms)

    def _take(self, pop: Pop, new: list[Found], pop_ms: int, now_ms: int) -> None:
        end, invisible_ms = self._store.log.end_position, pop.request.invisible_ms
        name = self._broker.config.name
        points = [
            CheckPoint(
                pop_ms, invisible_ms, now_ms + invisible_ms, one.start, dict.fromkeys(one.offsets)
            )
            for one in new
        ]
        records: list[JournalRecord] = []
        for one, point in zip(new, points, strict=True):
            past = self._leases.past(one.key)
            if past is not None and not past.released:
                records.append(lease_records.freed(one.key, name))
            records.append(popped(one.key, point, one.next_offset, end))
        self._broker.lease_journal.write(records)
        for one, point in zip(new, points, strict=True):
            self._leases.forget_past(one.key)
            self._table.take(one.key, point, one.next_offset, now_ms)
        self._broker.housekeeping.pop_deadline(now_ms + invisible_ms)

    def _take_in_order(self, new: list[Found], pop_ms: int, now_ms: int) -> None:
        end = self._store.log.end_position
        for one in new:
            assert one.batch is not None, "a pop in order makes batches"
            one.batch = Batch(
                one.batch.epoch, one.batch.attempt, pop_ms, one.batch.invisible_ms,
                one.batch.until_ms, one.batch.offsets, counts=one.batch.counts,
            )  # fmt: skip
        self._broker.lease_service.grant_popped(
            [one.decision for one in new if one.decision is not None],
            [batch_record(one.key, one.batch, end) for one in new if one.batch is not None],
            now_ms,
        )
        for one in new:
            if one.batch is not None:
                self._table.put_batch(one.key, one.batch)

    def _answer(self, pop: Pop, gathered: Gathered, pop_ms: int, invisible_ms: int) -> Command:
        request, revive = pop.request, self._revive_of(pop)
        starts, messages, counts, body = [], [], [], []
        for one in gathered.found:
            group, topic, queue_id = one.key
            starts.append(queue_entry(topic, queue_id, one.start))
            messages.append(offsets_entry(topic, queue_id, one.offsets))
            if one.batch is not None:
                counts += count_entries(topic, queue_id, one.offsets, dict(one.batch.counts))
            if topic == request.topic:
                body += one.records
            else:
                receipt = Receipt(
                    one.start, pop_ms, invisible_ms, revive, retry_flag(topic),
                    self._broker.config.name, queue_id,
                )  # fmt: skip
                body += [
                    as_popped(decode(raw), topic=request.topic, receipt=receipt.encode(offset))
                    for raw, offset in zip(one.records, one.offsets, strict=True)
                ]
            size = sum(map(len, one.records))
            self._broker.deliveries.count(request.topic, group, len(one.records), size)
        fields = pop_header(pop_ms, invisible_ms, revive, gathered.rest)
        fields |= {"startOffsetInfo": ";".join(starts), "msgOffsetInfo": ";".join(messages)}
        if request.order:
            fields["orderCountInfo"] = ";".join(counts)
        data = b"".join(body)
        pulls = self._broker.pulls
        pulls.messages += sum(len(one.records) for one in gathered.found)
        pulls.bytes += len(data)
        return pop.command.reply(0, ReadStatus.FOUND.name, fields=fields, body=data)

    def _commit(self, key: GroupQueue, offset: int) -> None:
        if offset > self._broker.offsets.query(*key):
            self._broker.offsets.commit(*key, offset, self._broker.clock.now_ms())

    def commit_floor(self, key: GroupQueue) -> None:
        """Store the offset before which all popped messages of a queue are done."""
        floor = self._table.floor(key)
        if floor is not None:
            self._commit(key, floor)

    # -- looking ---------------------------------------------------------------------------------

    def peek(
        self, connection: ServerConnection, command: Command, request: PeekMessage
    ) -> Command | Coroutine[Any, Any, Command | None]:
        """Answer with messages that a pop would find, without taking them."""
        topic = check_readable(
            self._broker, request.consumer_group, request.topic, request.queue_id, connection.peer
        )
        count = min(request.max_messages, self._broker.config.transfer_count_max)
        pop = Pop(connection, command, PopMessage(
            request.consumer_group, request.topic, request.queue_id, max(1, count), 1, 0, INIT_MIN
        ))  # fmt: skip
        try:
            return self._peek(pop, topic)
        except Cold as cold:
            return self._peek_apart(pop, topic, cold)

    async def _peek_apart(self, pop: Pop, topic: TopicConfig, cold: Cold) -> Command:
        for _ in range(LOADS_MAX):
            pop.known[cold.key, cold.start] = await self._reader.load(pop, cold)
            try:
                return self._peek(pop, topic)
            except Cold as another:
                cold = another
        return pop.command.reply(ResponseCode.PULL_NOT_FOUND, fields=pop_header())

    def _peek(self, pop: Pop, topic: TopicConfig) -> Command:
        request, gathered = pop.request, Gathered()
        keys = self._keys(request.consumer_group, topic, request.queue_id)
        retry = self._broker.topics.get(pop_retry_topic(request.consumer_group, request.topic))
        if retry is not None and retry.name != topic.name:
            keys += self._keys(request.consumer_group, retry, -1)
        for key in keys:
            start = self._seen_from(key)
            room = request.max_messages - gathered.count
            if room <= 0 or not self._has_bytes(gathered):
                gathered.rest += max(0, self._store.end_offset(key.topic, key.queue_id) - start)
                continue
            chunk = self._reader.peek(pop, key, start, room, gathered)
            if chunk is not None:
                gathered.rest += max(0, chunk.max_offset - start)
                gathered.count += len(chunk.records)
                gathered.size += sum(map(len, chunk.records))
                if chunk.records:
                    gathered.found.append(
                        Found(key, start, chunk.records, chunk.offsets, chunk.next_offset)
                    )
        body = b"".join(b"".join(one.records) for one in gathered.found)
        code, status = (
            (0, ReadStatus.FOUND)
            if body
            else (ResponseCode.PULL_NOT_FOUND, ReadStatus.NO_MESSAGE_IN_QUEUE)
        )
        return pop.command.reply(
            code, status.name, fields=pop_header(rest=gathered.rest), body=body
        )

    def _seen_from(self, key: GroupQueue) -> int:
        """Return where a pop would read."""
        least = self._store.min_offset(key.topic, key.queue_id)
        return max(self._table.next_offset(key, self._broker.offsets.query(*key)), least)

    def ask(self, ask: Ask) -> Command | None:
        """Tell whether a pop would find something, or wait until it would."""
        found = self._check_ask(ask)
        if found:
            return self._told(ask, found=True)
        deadline_ms = self._deadline(ask.request.poll_ms)
        if not deadline_ms:
            return self._told(ask, found=False)
        if self._asks.hold(Poll(ask.connection, ask, ask.key, deadline_ms)):
            self._broker.housekeeping.poll_deadline(deadline_ms)
            return None
        return self._told(ask, found=False, full=True)

    @staticmethod
    def _told(ask: Ask, *, found: bool, full: bool = False) -> Command:
        fields = {"hasMsg": str(found).lower(), "pollingFull": str(full).lower()}
        return ask.command.reply(fields=fields)

    def _check_ask(self, ask: Ask) -> bool:
        self._check_still(ask)
        request = ask.request
        topic = check_readable(
            self._broker, request.consumer_group, request.topic, request.queue_id,
            ask.connection.peer,
        )  # fmt: skip
        keys = self._keys(request.consumer_group, topic, request.queue_id)
        if any(self._would_find(key, order=request.order) for key in keys):
            return True
        retry = self._broker.topics.get(pop_retry_topic(request.consumer_group, request.topic))
        if request.order or retry is None:
            return False
        keys = self._keys(request.consumer_group, retry, -1)
        return any(self._would_find(key, order=False) for key in keys)

    def _would_find(self, key: GroupQueue, *, order: bool) -> bool:
        group, topic, queue_id = key
        if self._leases.get(key) is not None or (order and self._table.in_flight(key)):
            return False
        start, end = self._seen_from(key), self._store.end_offset(topic, queue_id)
        if self._broker.resizing.is_resized(topic):
            held = self._broker.resizing.held_at(topic, group, queue_id, leased=True)
            end = end if held is None else min(end, held)
        return start < end and (order or self._table.has_room(key) > 0)

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many pops wait for a queue."""
        return self._polls.count(PollKey(topic, group, max(queue_id, -1)))

    # -- waking ----------------------------------------------------------------------------------

    def wake(self, touched: Iterable[tuple[QueueIndex, int]]) -> None:
        """Try the requests that wait for topics whose queues grew in this tick."""
        if not self._polls and not self._asks:
            return
        for queue, _ in touched:
            self.wake_queue(queue.topic, queue.queue_id)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Try the requests that wait for a queue of a topic, or of its retry topic."""
        for polls in (self._polls, self._asks):
            for key in polls.keys_of_topic(topic):
                if key.topic != topic or key.queue_id in (-1, queue_id):
                    self._queue(key)
        self._serve()

    def wake_group(self, group: str) -> None:
        """Try the requests of a group soon: a queue may be free."""
        for polls in (self._polls, self._asks):
            for key in polls.keys_of_group(group):
                self._queue(key)

    def _queue(self, key: PollKey) -> None:
        if key not in self._queued:
            if not self._queued:
                self._broker.server.turns.later(self._serve)
            self._queued.add(key)
            self._serving.append(key)

    def _serve(self) -> None:
        """Try some of the requests that were woken; the others in a later turn."""
        filters = self._broker.filters
        left, until_ns = SERVED_AT_ONCE, filters.spent_ns + 2_000_000
        while self._serving and left > 0 and filters.spent_ns <= until_ns:
            key = self._serving.popleft()
            self._queued.discard(key)
            left -= self._serve_key(key, left)
        if self._serving and left <= 0:
            self._broker.server.turns.later(self._serve)

    def _serve_key(self, key: PollKey, limit: int) -> int:
        """Try up to `limit` requests of a key; return how many were tried."""
        self._serve_asks(key)
        tried, missed = 0, set()
        for poll in self._polls.of(key):
            pop = poll.request
            kind = (pop.request.expression, pop.request.expression_type, pop.request.order)
            if kind in missed or poll.connection.closed or poll.connection.congested:
                continue
            if tried >= limit:
                self._queue(key)
                break
            tried += 1
            if not self._serve_poll(poll):
                missed.add(kind)
        return max(tried, 1)

    def _serve_poll(self, poll: Poll[ServerConnection, Pop]) -> bool:
        """Try a pop that waits; return whether it is answered."""
        pop = poll.request
        try:
            self._checked(pop)
            answer = self._try(pop)
        except Cold as cold:
            self._polls.end(poll)
            work = self._pop_apart(pop, cold, poll.deadline_ms)
            self._broker.router.spawn(poll.connection, pop.command, work)
            return True
        except (BrokerError, StoreError) as error:
            self._polls.end(poll)
            self._broker.router.fail(poll.connection, pop.command, error)
            return True
        if answer is None:
            return False
        self._polls.end(poll)
        self._broker.router.answer(poll.connection, pop.command, answer)
        return True

    def _serve_asks(self, key: PollKey) -> None:
        """Answer the questions of a key, if a pop would find something; one look serves all."""
        looked: dict[bool, bool] = {}
        for poll in self._asks.of(key):
            ask = poll.request
            try:
                if ask.request.order not in looked:
                    looked[ask.request.order] = self._check_ask(ask)
            except BrokerError as error:
                self._asks.end(poll)
                self._broker.router.fail(poll.connection, ask.command, error)
                continue
            if looked[ask.request.order]:
                self._asks.end(poll)
                answer = self._told(ask, found=True)
                self._broker.router.answer(poll.connection, ask.command, answer)

    def expire(self) -> int | None:
        """Answer requests whose time is over; return the next deadline."""
        now_ms = self._broker.clock.monotonic_ms()
        self._finish(self._polls.expire(now_ms), self._asks.expire(now_ms))
        deadlines = (self._polls.next_deadline_ms(), self._asks.next_deadline_ms())
        return min((one for one in deadlines if one is not None), default=None)

    def topic_gone(self, topic: str) -> None:
        """Answer what waits for a deleted topic: it does not exist."""
        for poll in self._polls.take(
            [key for key in self._polls.keys_of_topic(topic) if key.topic == topic]
        ):
            self._fail_unchecked(poll)
        for ask in self._asks.take(
            [key for key in self._asks.keys_of_topic(topic) if key.topic == topic]
        ):
            self._fail_unchecked(ask)

    def _fail_unchecked(self, poll: Poll[ServerConnection, Any]) -> None:
        request = poll.request.request
        try:
            check_readable(
                self._broker, request.consumer_group, request.topic, request.queue_id,
                poll.connection.peer, verb="pop",
            )  # fmt: skip
        except BrokerError as error:
            self._broker.router.fail(poll.connection, poll.request.command, error)

    def finish_all(self) -> None:
        """Answer everything that waits: the broker stops."""
        self._finish(self._polls.take_all(), self._asks.take_all())

    def _finish(
        self,
        polls: list[Poll[ServerConnection, Pop]],
        asks: list[Poll[ServerConnection, Ask]],
    ) -> None:
        for poll in polls:
            answer = self._nothing(poll.request, ResponseCode.POLLING_TIMEOUT)
            self._broker.router.answer(poll.connection, poll.request.command, answer)
        for ask in asks:
            answer = self._told(ask.request, found=False)
            self._broker.router.answer(ask.connection, ask.request.command, answer)
