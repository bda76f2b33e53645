"""Transactions: halves are stored, ended, asked about and given up.

    place, stored     a send with TRAN_MSG becomes a half (`Sends` calls both)
    end               END_TRANSACTION: commit, or roll back
    begin_round       every `transactionCheckInterval`: ask producers, put back, give up
    note_ended        every `transactionOpBatchInterval`: records of ended halves, for RocketMQ

Each writes through the tick, as sends do, and changes the table and answers when the tick is safe
by the flush mode. A second request for the same end waits for the first one. The message of a
commit goes to the queue that the newest key map gives its key, as a delayed message does when it is
due: a message joins its key when it is committed.

A rollback has no message that tells of it, so its record of an ended half is written at once,
together with those that wait. Why: decision 50.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from inorder.broker.delays.storage import NOT_DELIVERED_TO
from inorder.broker.sends.checks import require_writable
from inorder.broker.sends.rules import illegal_size, level_in
from inorder.broker.transactions import records
from inorder.broker.transactions.checks import check_end
from inorder.broker.transactions.records import Noted
from inorder.broker.transactions.rules import (
    End,
    Fate,
    Half,
    Moved,
    Settings,
    Transactions,
    fate,
    judge_again,
)
from inorder.broker.transactions.storage import GROUP
from inorder.errors import (
    BrokerError,
    MessageIllegal,
    NoPermission,
    StoreError,
    SystemError_,
    broker_error,
)
from inorder.logs import get_logger
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.ids import offset_message_id
from inorder.wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from inorder.wire.properties import PGROUP, get, parse
from inorder.wire.record import Record, decode, encode
from inorder.wire.requests.transactions import (
    CheckTransactionState,
    EndTransaction,
    PendingTransaction,
    TransactionEnd,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.sends.packing import Target
    from inorder.net.accepted import ServerConnection

log = get_logger(__name__)

TURN_HALVES: Final = 128
TURN_BYTES: Final = 4 * 1024 * 1024
NOTE_BYTES: Final = 8
"""About how many bytes one offset takes in a record of ended halves."""


@dataclass(slots=True, eq=False)
class _Stored:
    """A half in the tick: it is pending unless the tick is refused."""

    service: TransactionService
    half: Half
    waiters: list[tuple[ServerConnection, Command]] = field(default_factory=list)
    count: int = 1

    def __post_init__(self) -> None:
        self.half.storing = True

    def write(self) -> None:
        self.half.storing = False
        self.service.answer(self.waiters)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        self.service.table.remove(self.half)
        self.service.answer(self.waiters, broker_error(code, remark))

    def write_late(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class _Ending:
    """The end of a transaction in the tick, and the requests that wait for it."""

    service: TransactionService
    half: Half
    how: End
    position: int
    """The record that tells of the end lies at or after this log position."""
    waiters: list[tuple[ServerConnection, Command]] = field(default_factory=list)
    count: int = 1

    def write(self) -> None:
        self.service.ended(self)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        self.service.not_ended(self, code, remark)

    def write_late(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class _Noting:
    """Records of ended halves in the tick."""

    service: TransactionService
    noted: list[Noted]
    """Halves that are over for sure."""
    rolling: list[_Ending]
    """Transactions that are rolled back by these records."""
    notes: list[tuple[int, int]]

    @property
    def count(self) -> int:
        return len(self.notes)

    def write(self) -> None:
        self.service.noted(self)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        self.service.not_noted(self, code, remark)

    def write_late(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class _Turn:
    """Halves that are put back in one tick, and the questions that follow."""

    service: TransactionService
    moved: list[tuple[Moved, Record, Fate]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.moved)

    def write(self) -> None:
        self.service.put_back(self)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        for moved, _, _ in self.moved:
            self.service.table.undo(moved)
        log.error("halves were not put back count=%d: %s", self.count, remark)

    def write_late(self) -> bool:
        return False


class TransactionService:
    """Stores halves, ends transactions, and asks producers."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, unnoted: list[Noted]
    ) -> None:
        self._broker = broker
        self._store = broker.store
        self._clock = broker.clock
        self._loop = loop
        config = broker.config
        self.table: Transactions = broker.transactions
        self._settings = Settings(
            config.transaction_timeout_ms,
            config.transaction_checks_max,
            config.store.retention_hours * 3_600_000,
        )
        self._unnoted = list(unnoted)  # offsets of ended halves without a record
        self._open: dict[_Ending, None] = {}  # ends being stored, oldest first
        self._rolling: list[_Ending] = []  # rolled back at the end of this turn of the loop
        self._round: deque[int] = deque()  # offsets that the round has yet to look at
        self._round_began_ms = 0
        self._asked = 0
        self._stopped = False
        self.committed = self.rolled_back = self.given_up = 0

    def __repr__(self) -> str:
        return f"TransactionService({len(self.table)} pending, {self.committed} committed)"

    def cancel(self) -> None:
        """Stop asking producers."""
        self._stopped = True
        self._round.clear()

    def finish(self) -> None:
        """Stop, and write the records of all ended halves."""
        self.cancel()
        self._note()

    @property
    def keep_from(self) -> int | None:
        """Return the position of the first half that is pending: retention keeps it."""
        return self.table.keep_from(self._store.log.durable_position)

    # -- halves ----------------------------------------------------------------------------------

    def place(self, target: Target, properties: str) -> tuple[Target, str]:
        """Return where to store a half, and its properties there. Raises the refusal."""
        config = self._broker.config
        if config.reject_transactions:
            raise NoPermission(
                f"the broker[{self._broker.address}] sending transaction message is forbidden"
            )
        self.table.require_room()
        found = parse(properties)
        if PGROUP not in found:
            raise MessageIllegal(
                "a transactional message names its producer group in PGROUP; without it nobody "
                f"could end the transaction, so nothing was stored for topic[{target.topic}]"
            )
        text = records.half_properties(found, target.topic, target.queue_id)
        if records.is_too_long(text.encode()):
            raise illegal_size(config.store.message_bytes_max)
        return self._target(HALF_TOPIC), text

    def stored(
        self, offset: int, position: int, properties: str, *, born_at_ms: int, now_ms: int
    ) -> None:
        """Count a half that was packed into the tick."""
        immunity_s = records.number(properties.encode(), records.IMMUNITY.encode())
        half = Half(
            position, offset, position, born_at_ms=born_at_ms, stored_at_ms=now_ms,
            immunity_s=immunity_s,
        )  # fmt: skip
        self.table.add(half)
        self._broker.ticks.take(_Stored(self, half))

    def resume(self, connection: ServerConnection, command: Command, position: int) -> None:
        """Make a half of a copy that was given up; reply when it is stored."""
        view = self._store.visible_record(position)
        record = None if view is None else decode(view)
        if record is None or record.topic != CHECK_MAX_TIME_TOPIC:
            raise SystemError_(
                f"no message of {CHECK_MAX_TIME_TOPIC} is at position {position}; nothing was done"
            )
        require_writable(self._broker)
        origin = records.origin_in(record.properties)
        if origin is None:  # RocketMQ gave it up; a request that comes again finds it so
            origin = position
        if self.table.get(origin) is not None:
            self.answer([(connection, command)])
            return
        known = self.table.known_end(origin)
        if known is not None and known is not End.GIVEN_UP:
            raise SystemError_(f"the transaction was {known.value} before; nothing was done")
        self.table.require_room()
        now_ms = self._clock.now_ms()
        record = records.resumed(record, origin, now_ms)
        target = self._target(HALF_TOPIC)
        offset = target.queue.next_offset
        at = self._broker.sends.packer.put_record(target, record)
        half = Half(
            origin, offset, at,
            born_at_ms=record.born_at_ms, stored_at_ms=now_ms,
            immunity_s=records.number(record.properties, records.IMMUNITY.encode()),
        )  # fmt: skip
        self.table.forget_end(half.origin)
        self.table.add(half)
        self._broker.ticks.take(_Stored(self, half, [(connection, command)]))

    # -- ends ------------------------------------------------------------------------------------

    def end(self, connection: ServerConnection, command: Command, request: EndTransaction) -> None:
        """Commit or roll back; reply when that is safe. An unknown outcome gets no reply."""
        if request.end not in (TransactionEnd.COMMIT, TransactionEnd.ROLLBACK):
            return
        how = End.of(TransactionEnd(request.end))
        now_ms = self._clock.now_ms()
        record = check_end(
            request, self._named(request),
            timeout_ms=self._settings.timeout_ms, now_ms=now_ms,
        )  # fmt: skip
        half = self._find(record)
        waiter = (connection, command)
        if half is None:
            refusal = judge_again(self.table.known_end(records.half_of(record).origin), how)
            if refusal is not None:
                raise refusal
            self.answer([waiter])
            return
        ending = half.ending
        if isinstance(ending, _Ending):
            if ending.how is not how:
                raise SystemError_(f"the transaction is being {ending.how.value}")
            ending.waiters.append(waiter)
            return
        require_writable(self._broker)
        if how is End.COMMITTED:
            self._commit(half, record, request.half_position, now_ms).waiters.append(waiter)
            return
        ending = half.ending = _Ending(self, half, how, -1, [waiter])
        if not self._rolling:
            self._loop.call_soon(self._note)
        self._rolling.append(ending)

    def _named(self, request: EndTransaction) -> Record | None:
        """Return the half that a request names.

        Retention may have deleted the first half of a transaction that is pending, once its copy
        is durable. Its producer still names that one.
        """
        record = self._record(request.half_position)
        half = None if record is not None else self.table.get(request.half_position)
        copy = None if half is None else self._record(half.position)
        if copy is None:
            return record
        return records.as_first(copy, request.half_offset, request.half_position)

    def topic_of(self, position: int) -> str | None:
        """Return the topic of a transaction, by the position that its producer knows."""
        record = self._record(position)
        if record is None:
            half = self.table.get(position)
            record = None if half is None else self._record(half.position)
        if record is None or record.topic != HALF_TOPIC:
            return None
        home = records.home_of(record.properties)
        return None if home is None else home[0]

    def _find(self, record: Record) -> Half | None:
        half = self.table.at(record.queue_offset)
        if half is not None and half.position == record.position:
            return half
        return self.table.get(records.half_of(record).origin)

    def _record(self, position: int) -> Record | None:
        view = self._store.record_at(position)
        return None if view is None else decode(view, check_crc=False)

    def _commit(self, half: Half, record: Record, named_position: int, now_ms: int) -> _Ending:
        if half.position != record.position:
            record = self._record(half.position) or record
        home = records.home_of(record.properties)
        if home is None or home[0] in NOT_DELIVERED_TO:
            raise SystemError_("the half names no topic and queue; nothing was done")
        broker, sends = self._broker, self._broker.sends
        level = level_in(parse(record.properties))
        record = records.committed(record, half, named_position, now_ms)
        position = self._store.log.end_position
        if level > 0:
            broker.delayed.put(sends.target(*home), record, level)
        else:
            name, queue_id = broker.resizing.placement.home(*home, record.properties)
            if name == broker.config.name:
                target = broker.delayed.target_for(home[0], queue_id)
            else:
                target = broker.forwarding.place(record, home[0], name)
            sends.packer.put_record(target, record)
        ending = half.ending = _Ending(self, half, End.COMMITTED, position)
        self._open[ending] = None
        broker.ticks.take(ending)
        return ending

    def ended(self, ending: _Ending) -> None:
        """Count an end that is stored, and reply."""
        half = ending.half
        self._open.pop(ending, None)
        self.table.end(half, ending.how)
        if ending.how is End.ROLLED_BACK:
            self.rolled_back += 1
        else:
            if ending.how is End.COMMITTED:
                self.committed += 1
            else:
                self.given_up += 1
            self._unnoted.append(Noted(half.offset, ending.how))
            if len(self._unnoted) * NOTE_BYTES >= self._broker.config.transaction_note_bytes_max:
                self._loop.call_soon(self._note_many)
        self.answer(ending.waiters)

    def not_ended(self, ending: _Ending, code: int, remark: str) -> None:
        """Let a transaction go on whose end was not stored."""
        self._open.pop(ending, None)
        ending.half.ending = None
        self.answer(ending.waiters, broker_error(code, remark))

    @staticmethod
    def answer(
        waiters: list[tuple[ServerConnection, Command]], error: BrokerError | None = None
    ) -> None:
        """Reply to requests; one-way requests get no reply."""
        for connection, command in waiters:
            if error is not None:
                log.warning(
                    "a transaction was not ended peer=%s: %s", connection.peer, error.remark
                )
            if command.is_oneway or connection.closed:
                continue
            if error is None:
                connection.send(command.reply())
            else:
                connection.send(command.reply(error.code, error.remark))

    # -- records of ended halves -----------------------------------------------------------------

    def note_ended(self) -> None:
        """Write the records of ended halves, if there are any."""
        if self._unnoted:
            self._note()

    def _note_many(self) -> None:
        size = len(self._unnoted) * NOTE_BYTES
        if not self._stopped and size >= self._broker.config.transaction_note_bytes_max:
            self._note()

    def _note(self) -> None:
        rolling, self._rolling = self._rolling, []
        noted, self._unnoted = self._unnoted, []
        noting = _Noting(self, noted, rolling, [])
        if not (rolling or noted):
            return
        try:
            require_writable(self._broker)
            self._put_notes(noting)
        except (BrokerError, StoreError, OSError) as error:
            remark = f"the store takes no writes: {error}"
            self.not_noted(noting, getattr(error, "code", 14), remark)
            if not noting.notes:
                return
        self._broker.ticks.take(noting)

    def _put_notes(self, noting: _Noting) -> None:
        broker, now_ms = self._broker, self._clock.now_ms()
        ended_before = self._store.log.end_position  # what lies after it is being stored
        for ending in self._open:
            ended_before = min(ended_before, ending.position)
            break
        noted = noting.noted + [Noted(one.half.offset, one.how) for one in noting.rolling]
        parts = records.ended_parts(noted, broker.config.transaction_note_bytes_max)
        target = self._target(OP_HALF_TOPIC)
        for part in parts:
            is_last = part is parts[-1]
            unique = broker.unique_ids.next(now_ms)
            body = records.ended_body(one.offset for one in part)
            record = Record(
                OP_HALF_TOPIC, 0, 0, 0, body,
                records.ended_properties(unique, part, ended_before if is_last else None),
                born_at_ms=now_ms, born_host=broker.store_host, stored_at_ms=now_ms,
                store_host=broker.store_host,
            )  # fmt: skip
            offset = target.queue.next_offset
            broker.sends.packer.put_record(target, record)
            noting.notes.append((offset, part[-1].offset))

    def noted(self, noting: _Noting) -> None:
        """Count the records, and the rollbacks that they tell of."""
        for ending in noting.rolling:
            self.ended(ending)
        for note in noting.notes:
            self.table.note(*note)
        self._save_offsets()

    def not_noted(self, noting: _Noting, code: int, remark: str) -> None:
        """Write the records later; what was to be rolled back goes on."""
        self._unnoted = noting.noted + self._unnoted
        noting.noted = []
        rolling, noting.rolling = noting.rolling, []
        for ending in rolling:
            self.not_ended(ending, code, remark)

    def _save_offsets(self) -> None:
        """Set the offsets from which a start, ours or RocketMQ's, reads the two queues."""
        now_ms, offsets = self._clock.now_ms(), self._broker.offsets
        halves, notes = self._target(HALF_TOPIC).queue, self._target(OP_HALF_TOPIC).queue
        first = self.table.first_offset(halves.next_offset)
        note = self.table.first_note(first, notes.visible_offset)
        try:
            offsets.commit(GROUP, HALF_TOPIC, 0, first, now_ms)
            offsets.commit(GROUP, OP_HALF_TOPIC, 0, note, now_ms)
        except BrokerError as error:  # a start reads more, then
            log.warning("offsets of transactions are not kept: %s", error)

    # -- questions -------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Look at all pending halves, some in each turn of the loop; not while a round runs."""
        if self._round or self._stopped or not len(self.table):
            return
        self._round.extend(self.table.offsets())
        self._round_began_ms = self._clock.now_ms()
        self._look()

    def _look(self) -> None:
        """Look at some halves of the round."""
        broker, now_ms = self._broker, self._clock.now_ms()
        if broker.unwritable_reason is not None or broker.ticks.unsettled_bytes > TURN_BYTES:
            self._round.clear()  # the next round begins anew
            return
        turn, size = _Turn(self), 0
        for _ in range(min(TURN_HALVES, len(self._round))):
            half = self.table.at(self._round.popleft())
            if half is None:
                continue
            what = fate(
                half, self._settings, now_ms=now_ms, began_ms=self._round_began_ms,
                log_end=self._store.log.end_position,
            )  # fmt: skip
            if what is Fate.LEAVE:
                continue
            try:
                size += self._act(half, what, turn, now_ms)
            except (BrokerError, StoreError, OSError) as error:
                log.error("a half has to wait offset=%d error=%s", half.offset, error)
                self._round.clear()  # the next round begins anew
                break
            if size > TURN_BYTES:
                break
        broker.ticks.take(turn)
        if self._round:
            self._loop.call_later(0, self._look)

    def _act(self, half: Half, what: Fate, turn: _Turn, now_ms: int) -> int:
        """Put a half back, or give it up; return its bytes."""
        record = self._record(half.position)
        if record is None:
            log.error(
                "a half is gone from the log, its transaction is dropped offset=%d position=%d",
                half.offset, half.position,
            )  # fmt: skip
            self.table.end(half, End.GIVEN_UP)
            self._unnoted.append(Noted(half.offset, End.GIVEN_UP))
            return 0
        packer, size = self._broker.sends.packer, record.size
        if what is Fate.GIVE_UP:
            self._give_up(half, record, now_ms)
            return size
        checks = half.checks + (what is Fate.ASK)
        record = records.put_back(record, half, checks, now_ms)
        target = self._target(HALF_TOPIC)
        offset = target.queue.next_offset
        position = packer.put_record(target, record)
        turn.moved.append((self.table.move(half, offset, position, now_ms), record, what))
        return size

    def _give_up(self, half: Half, record: Record, now_ms: int) -> None:
        log.error(
            "a transaction is given up and kept in topic=%s checks=%d topic=%s UNIQ_KEY=%s",
            CHECK_MAX_TIME_TOPIC, half.checks, _text(record, b"REAL_TOPIC"),
            _text(record, b"UNIQ_KEY"),
        )  # fmt: skip
        self._broker.ensure_topic(CHECK_MAX_TIME_TOPIC, queues=1)
        record = records.given_up(record, half, now_ms)
        target = self._target(CHECK_MAX_TIME_TOPIC)
        position = self._store.log.end_position
        self._broker.sends.packer.put_record(target, record)
        ending = half.ending = _Ending(self, half, End.GIVEN_UP, position)
        self._open[ending] = None
        self._broker.ticks.take(ending)

    def put_back(self, turn: _Turn) -> None:
        """Ask the producers of halves that were put back."""
        unasked = 0
        for moved, record, what in turn.moved:
            half = moved.half
            self.table.settle(moved)
            self._unnoted.append(Noted(moved.offset, None))
            if what is Fate.ASK:
                half.checks += 1
                if half.ending is None and not self._stopped:
                    unasked += not self._ask(half, record)
        if unasked:
            log.info("no producer of their groups can be asked transactions=%d", unasked)

    def _ask(self, half: Half, record: Record) -> bool:
        """Send the question to one producer of the group, each in turn."""
        found = self._broker.members.producers(_text(record, b"PGROUP"))
        # One that reads slowly is asked in a later round.
        members = [one.connection for one in found if not one.connection.congested]
        home = records.home_of(record.properties)
        if not members or home is None:
            return False
        self._asked += 1
        connection = members[self._asked % len(members)]
        record.topic, record.queue_id = home
        record.queue_offset, record.position = half.offset, half.position
        unique = _text(record, b"UNIQ_KEY")
        question = CheckTransactionState(
            half.offset, half.position, HALF_TOPIC, unique, unique,
            offset_message_id(self._broker.store_host, half.position), self._broker.config.name,
        )  # fmt: skip
        connection.notify(
            Command.request(
                CheckTransactionState.CODE, encode_fields(question), encode(record), oneway=True
            )
        )
        return True

    # -- listing ---------------------------------------------------------------------------------

    def describe(self, half: Half) -> PendingTransaction | None:
        """Return what a listing shows of a half, None if its record is not readable now."""
        record = self._record(half.position)
        home = None if record is None else records.home_of(record.properties)
        if record is None or home is None:
            return None
        return PendingTransaction(
            _text(record, b"UNIQ_KEY"), *home, _text(record, b"__SHARDINGKEY"),
            _text(record, b"PGROUP"), half.born_at_ms, half.checks, half.offset, half.position,
        )  # fmt: skip

    def _target(self, topic: str) -> Target:
        return self._broker.sends.target(topic, 0)


def _text(record: Record, name: bytes) -> str:
    return (get(record.properties, name) or b"").decode("utf-8", "replace")
