"""Transactions of a producer: a message that is stored now and seen only once it is committed.

    async with producer.transaction("orders", b"paid", key="order-42"):
        ...                             # what must happen together with the message

The half is stored at the entry; the end of the block commits, an exception rolls back. If the
outcome does not reach the broker, the broker asks the producers of the group some seconds later.
`Decisions` answers for transactions of this producer: open, committed, or rolled back. For others,
for example of a process that was killed, the listener of the producer answers.

An inorder broker takes a half once, by its sequence number, and an end as often as it comes. Apache
RocketMQ would store a second half, and commit twice: there neither is sent again after an unknown
outcome, and the broker's question brings the end. Why: decision 50.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from inorder.client.send.queues import HalfReceipt
from inorder.errors import (
    BrokerError,
    InorderError,
    OutcomeUnknown,
    RemoteProtocolError,
    TransportError,
    UsageError,
)
from inorder.logs import get_logger
from inorder.model import (
    ReceivedMessage,
    SendStatus,
    TopicQueue,
    TransactionReceipt,
    TransactionState,
)
from inorder.tasks import Backoff, Tasks
from inorder.wire.compression import decompress_body
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.header import Command
from inorder.wire.ids import parse_message_id
from inorder.wire.properties import UNIQ_KEY, parse
from inorder.wire.record import Record, decode
from inorder.wire.requests.transactions import CheckTransactionState, EndTransaction, TransactionEnd

if TYPE_CHECKING:
    from inorder.client.send.producer import Producer
    from inorder.client.session import Session
    from inorder.net.connection import Connection

log = get_logger(__name__)

DECIDED_MAX: Final = 10_000
"""How many ends a producer remembers for questions of brokers."""
QUESTIONS_MAX: Final = 2000
"""How many questions wait for their answer, as in Java. A broker asks again about others, but gives
a transaction up at last."""
QUESTIONS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of messages in them; one fits always."""

OnTransactionCheck = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]

_ENDS: Final = {
    TransactionState.COMMIT: TransactionEnd.COMMIT,
    TransactionState.ROLLBACK: TransactionEnd.ROLLBACK,
    TransactionState.UNKNOWN: TransactionEnd.UNKNOWN,
}


class Decisions:
    """The transactions of a producer: the open ones, and the ends of the last ones."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._decided: OrderedDict[str, TransactionState] = OrderedDict()

    def opened(self, id_: str) -> None:
        """Note a transaction whose half is being stored."""
        self._open.add(id_)

    def decided(self, id_: str, state: TransactionState) -> None:
        """Note the end of a transaction; it is never changed."""
        self._open.discard(id_)
        self._decided.setdefault(id_, state)
        if len(self._decided) > DECIDED_MAX:
            self._decided.popitem(last=False)

    def state(self, id_: str) -> TransactionState | None:
        """Return the state of a transaction, None if this producer does not know it."""
        if id_ in self._open:
            return TransactionState.UNKNOWN
        return self._decided.get(id_)


class Checks:
    """Answers the questions of brokers about transactions of a producer group.

    The producers of a session that have one group share it.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.decisions = Decisions()
        self._listeners: list[OnTransactionCheck | None] = []  # of each producer
        self._tasks = Tasks(f"transactions of {group}")
        self._answering = 0
        self._answering_bytes = 0

    def join(self, listener: OnTransactionCheck | None) -> None:
        """Count a producer; any listener of the group will do."""
        self._listeners.append(listener)

    async def leave(self, listener: OnTransactionCheck | None) -> None:
        """Count one producer less; after the last one no more questions are answered."""
        self._listeners.remove(listener)
        if not self._listeners:
            self._session.stop_checks(self._group)
            await self._tasks.stop()

    def asked(self, connection: Connection, command: Command) -> None:
        """Answer a question soon, unless too many wait."""
        size = self._answering_bytes + len(command.body)
        if self._answering < QUESTIONS_MAX and (not self._answering or size <= QUESTIONS_BYTES_MAX):
            self._answering += 1
            self._answering_bytes = size
            self._tasks.start(self._answer(connection, command), name="transaction check")

    async def _answer(self, connection: Connection, command: Command) -> None:
        try:
            question = decode_fields(CheckTransactionState, command.fields)
            record = decode(command.body)
            message = self._message_of(question.broker, record)
            state = await self._judge(message)
        except InorderError as error:
            log.warning("a question about a transaction is not readable: %s", error)
            return
        finally:
            self._answering -= 1
            self._answering_bytes -= len(command.body)
        answer = EndTransaction(
            self._group, question.half_offset, question.half_position, int(_ENDS[state]),
            True, message.message_id, message.message_id, message.topic, question.broker,
        )  # fmt: skip
        connection.notify(Command.request(answer.CODE, encode_fields(answer), oneway=True))

    def _message_of(self, broker: str, record: Record) -> ReceivedMessage:
        limit = self._session.config.message_bytes_max
        properties = parse(record.properties)
        return ReceivedMessage(
            record.topic,
            TopicQueue(record.topic, broker, record.queue_id),
            record.queue_offset,
            decompress_body(record.sys_flag, record.body, limit=limit),
            properties,
            properties.get(UNIQ_KEY, ""),
            record.born_at_ms,
            record.stored_at_ms,
            record.redeliveries,
            record.position,
            record.flag,
        )

    async def _judge(self, message: ReceivedMessage) -> TransactionState:
        known = self.decisions.state(message.message_id)
        if known is not None:
            return known
        listener = next((one for one in self._listeners if one is not None), None)
        if listener is None:
            log.info(
                "a broker asks about a transaction of another producer of group=%s, and no "
                "on_transaction_check is set: unknown", self._group,
            )  # fmt: skip
            return TransactionState.UNKNOWN
        try:
            found: Any = listener(message)
            state = await found if inspect.isawaitable(found) else found
        except Exception:
            # The caller's own code; the broker asks again.
            log.exception("on_transaction_check failed topic=%s", message.topic)
            return TransactionState.UNKNOWN
        if not isinstance(state, TransactionState):
            log.error(
                "on_transaction_check returned a %s, no TransactionState: unknown",
                type(state).__name__,
            )
            return TransactionState.UNKNOWN
        return state


class Transaction:
    """One message that is stored as a half, and then committed or rolled back.

    `commit` and `rollback` end it within the block. `receipt` says where the half is, and how the
    transaction has ended as far as the broker has answered.
    """

    def __init__(self, producer: Producer, message: dict[str, Any], timeout_ms: int) -> None:
        self._producer = producer
        self._message = message
        self._timeout_ms = timeout_ms
        self._half: HalfReceipt | None = None
        self._decided: TransactionState | None = None
        self._receipt: TransactionReceipt | None = None

    @property
    def receipt(self) -> TransactionReceipt:
        """Return what is known of the transaction. Raises UsageError before its half is stored."""
        if self._receipt is None:
            raise UsageError("the transaction has not begun; enter it by `with`")
        return self._receipt

    async def __aenter__(self) -> Transaction:
        await self.begin()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.leave(failed=kind is not None)

    async def begin(self) -> None:
        """Store the half. After an error there is no transaction, or it will be rolled back."""
        if self._half is not None or self._decided is not None:
            raise UsageError("a transaction is for one message; call producer.transaction again")
        self._decided = TransactionState.ROLLBACK  # unless the half is stored
        half = await self._producer._send_half(self._message)
        self._half, self._decided = half, None
        self._receipt = TransactionReceipt(half.message_id, half.queue, half.offset)
        if half.status is not SendStatus.OK:
            await self.leave(failed=True)
            raise OutcomeUnknown(
                f"the message is stored less safely than the broker's settings ask for "
                f"({half.status.value}); the transaction was rolled back and nothing was done"
            )

    async def leave(self, *, failed: bool) -> None:
        """End the block: commit, or roll back after an exception; not if it is ended already.

        The failure of a rollback is logged: the broker asks, and gets the same outcome.
        """
        if self._decided is not None or self._half is None:
            return
        if not failed:
            await self.commit()
            return
        try:
            await self.rollback()
        except InorderError as error:
            log.warning("a transaction is rolled back when the broker asks: %s", error)

    async def commit(self) -> TransactionReceipt:
        """Store the message for consumers, now. Raises OutcomeUnknown if no answer came."""
        return await self._end(TransactionState.COMMIT)

    async def rollback(self) -> TransactionReceipt:
        """Drop the message. Raises OutcomeUnknown if no answer came."""
        return await self._end(TransactionState.ROLLBACK)

    async def _end(self, state: TransactionState) -> TransactionReceipt:
        half = self._half
        if half is None or self._receipt is None:
            raise UsageError("the transaction has not begun; enter it by `with`")
        if self._decided is not None and self._decided is not state:
            raise UsageError(
                f"the transaction was ended by {self._decided.value}; it cannot be ended by "
                f"{state.value}"
            )
        self._decided = state
        await self._producer._end_half(half, state, self._timeout_ms)
        self._receipt = TransactionReceipt(half.message_id, half.queue, half.offset, state)
        return self._receipt

    def __repr__(self) -> str:
        return f"Transaction({self._receipt or 'not begun'})"


async def end_half(
    session: Session, group: str, half: HalfReceipt, state: TransactionState, timeout_ms: int
) -> None:
    """Tell the broker the end of a transaction. Raises OutcomeUnknown, BrokerError."""
    try:
        _, _, position = parse_message_id(half.stored_id)
    except RemoteProtocolError as error:
        raise OutcomeUnknown(f"the broker did not say where the half is ({error})") from None
    request = EndTransaction(
        group, half.offset, position, int(_ENDS[state]), False, half.message_id, half.message_id,
        half.queue.topic, half.queue.broker,
    )  # fmt: skip
    clock, config = session.clock, session.config
    deadline_ms = clock.monotonic_ms() + timeout_ms
    backoff = Backoff(config.retry_first_ms, config.retry_max_ms)
    unanswered: InorderError | None = None
    while True:
        written = False
        try:
            ours = await session.capability(half.queue) > 0
            api = await session.master_of(half.queue)
            written = True
            left_ms = max(1, deadline_ms - clock.monotonic_ms())
            await api.ask(request, timeout_ms=min(left_ms, config.request_timeout_ms))
            return
        except BrokerError as error:
            if not error.retriable:
                if unanswered is not None:
                    raise _unknown(state, half.queue, error) from error
                raise
            last: InorderError = error
        except TransportError as error:
            if written:
                unanswered = error
                if not ours:
                    raise _unknown(state, half.queue, error) from error
            last = error
        pause_ms = backoff.next_ms()
        if clock.monotonic_ms() + pause_ms >= deadline_ms:
            raise _unknown(state, half.queue, last) from last
        await asyncio.sleep(pause_ms / 1000)


def _unknown(state: TransactionState, queue: TopicQueue, error: InorderError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"broker {queue.broker} did not confirm the {state.value} of a transaction: {error}; it "
        f"asks some seconds later, and this producer will answer {state.value}"
    )
