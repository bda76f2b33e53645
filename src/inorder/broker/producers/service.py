"""Judges idempotent sends: who sends, whether it is stored already, its key map, and its turn.

The fast path (`broker/sends/service.py`) serves a message that is plainly the next one of its
producer; `in_turn` and `items_in_turn` decide that. All others come to `SequenceChecks`: the first
message on a queue, duplicates, gaps, and unknown producers.

A duplicate gets the reply of the stored record, even if its queue or its map is closed by now or
the disk is full. A refusal would say "not stored", and that would be wrong.

Only sends of clients are judged. Messages of retry topics are copies that keep the sequence numbers
of their originals, so they are exempt. The broker's own appends do not pass here at all.

Why: decision 10.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from inorder.broker.sends.rules import require_batch, unique_key
from inorder.errors import (
    BrokerError,
    InvalidParameter,
    MessageIllegal,
    ProducerGap,
    ProducerMismatch,
    ProducerUnknown,
    StoredInPart,
    StoreError,
)
from inorder.ordering.sequence import Verdict, expected, is_next, judge_batch
from inorder.wire.extensions import MAP_DIGEST, MAP_VERSION, QUEUE_CHOSEN
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.properties import SHARDING_KEY, get, parse
from inorder.wire.record import scan
from inorder.wire.requests.producers import (
    MARK,
    MARK_BYTES,
    NUMBER_MAX,
    match_numbered,
    read_numbered,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.producers.rules import Producer, ProducerQueueState, ProducerTable
    from inorder.broker.sends.packing import Target
    from inorder.net.accepted import ServerConnection
    from inorder.store.store import Store
    from inorder.wire.header import Command
    from inorder.wire.record import ScannedRecord
    from inorder.wire.requests.sends import SendMessage


DIGESTS_SINCE: Final = 2
"""From this protocol version on, keyed sends of a producer say how their queue was chosen."""
_KEYED: Final = f"{SHARDING_KEY}\x01"
_KEYED_BYTES: Final = _KEYED.encode()


class Stored(NamedTuple):
    """Where a message of an earlier send lies; -1 and no id if that is not remembered."""

    offset: int
    position: int | None
    unique: str | None


@dataclass(slots=True)
class Claim:
    """A send of an idempotent producer that may be stored, less what is stored already."""

    table: ProducerTable[ServerConnection]
    producer: Producer[ServerConnection]
    state: ProducerQueueState[ServerConnection] | None
    topic: str
    queue_id: int
    stored: list[Stored]
    """The stored messages at the front of the request."""
    rest: list[int]
    """The sequence numbers of the others."""

    @property
    def done(self) -> bool:
        """Return whether the whole request is stored already."""
        return not self.rest

    def reserve(self) -> None:
        """Make room for its state before anything is stored. Raises ProducersFull."""
        if self.state is None:
            self.state = self.table.add_queue(self.producer, self.topic, self.queue_id)

    def settle(self, place: Target, offset: int, positions: list[int]) -> None:
        """Record where the rest was put; a delayed message does not lie in its own queue."""
        assert self.state is not None, "room is reserved before anything is stored"
        at_home = place.topic == self.topic and place.queue_id == self.queue_id
        for index, (number, position) in enumerate(zip(self.rest, positions, strict=True)):
            value = offset + index if at_home else -2 - position
            self.table.stored(self.state, number, value)


class SequenceChecks:
    """Judges sends by their sequence numbers and by the version of their key map."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self.table = broker.producers
        self._body_max = broker.config.store.message_bytes_max

    def claim(
        self, connection: ServerConnection, request: SendMessage, command: Command
    ) -> Claim | None:
        """Judge a send; None if it has no sequence numbers. Raises the refusal."""
        found = self._read(request, command)
        if found is None:
            self._check_map(request.topic, command)
            return None
        producer_id, items, keyed = found
        place = (request.topic, request.queue_id)
        if request.queue_id < 0:
            raise InvalidParameter("a message with a sequence number must name its queue")
        producer = self.table.speaker(producer_id, connection)
        if any((before is not None) != producer.named for _, before, _ in items):
            raise MessageIllegal(
                f"producer {producer_id} is {'named' if producer.named else 'anonymous'}: its "
                f"sends {'name' if producer.named else 'do not name'} their predecessor"
            )
        state = self.table.queue_state(producer_id, *place)
        last = None if state is None else state.last
        try:
            verdict, done = judge_batch(last, [item[:2] for item in items])
        except ValueError as error:
            raise MessageIllegal(f"the numbers of producer {producer_id}: {error}") from None
        stored = []
        for number, _, unique in items[:done]:
            assert state is not None, "stored messages have a state"
            stored.append(self._stored(state, number, unique))
        if done < len(items):
            with told_if_partly_stored(done):
                demanded = keyed and producer.protocol >= DIGESTS_SINCE
                self._check_map(request.topic, command, demanded=demanded)
                if verdict is Verdict.GAP:
                    self._broker.counts.add("inorder_producer_gaps_total")
                self._refuse(verdict, producer, items[done][0], last, place)
        rest = [number for number, _, _ in items[done:]]
        return Claim(self.table, producer, state, *place, stored, rest)

    def _read(
        self, request: SendMessage, command: Command
    ) -> tuple[str, list[tuple[int, int | None, str | None]], bool] | None:
        """Return the producer, (number, predecessor, UNIQ_KEY) per message, and if one has a key.

        None if the request has no sequence numbers.
        """
        if not has_sequences(request.topic):
            return None
        if not request.batch:
            if MARK not in (request.properties or ""):
                return None
            texts = [request.properties or ""]
        else:
            body = bytes(command.body)
            if MARK_BYTES not in body:
                return None
            split = require_batch(request, body, self._body_max)
            texts = [
                body[at + size + 2 : at + size + 2 + more].decode("utf-8", "replace")
                for _, at, size, more in split
            ]
        found = [read_numbered(text) for text in texts]
        numbered = [one for one in found if one is not None]
        if not numbered:
            return None
        producer_id = numbered[0][0]
        if len(numbered) < len(found) or any(one[0] != producer_id for one in numbered):
            raise MessageIllegal("one producer numbers all messages of a batch, or none")
        uniques = [unique_key(text) for text in texts]
        if numbered[0][2] is None and None in uniques:
            raise MessageIllegal("a message with a sequence number needs a UNIQ_KEY")
        judged = [
            (number, before, unique)
            for (_, number, before), unique in zip(numbered, uniques, strict=True)
        ]
        return producer_id, judged, any(SHARDING_KEY in parse(text) for text in texts)

    @staticmethod
    def _refuse(
        verdict: Verdict,
        producer: Producer[ServerConnection],
        number: int,
        last: int | None,
        place: tuple[str, int],
    ) -> None:
        where = f"topic={place[0]} queue={place[1]}"
        if verdict is Verdict.UNKNOWN:
            raise ProducerUnknown(
                f"nothing is known of producer {producer.id} {where}, so {number} cannot be next"
            )
        if verdict is Verdict.GAP:
            wanted = expected(last, named=producer.named)
            what = "the last one stored is" if producer.named else "expected is"
            raise ProducerGap(
                f"number {number} of producer {producer.id} {where} is out of turn: {what} "
                f"{wanted}",
                expected=wanted,
            )

    # -- stored messages -------------------------------------------------------------------------

    def _stored(
        self, state: ProducerQueueState[ServerConnection], number: int, unique: str | None
    ) -> Stored:
        """Find a message of an earlier send. Raises ProducerMismatch if it is another message."""
        named = state.producer.named
        value = state.find(number)
        if value is None:
            if named:
                return Stored(-1, None, None)
            raise ProducerUnknown(
                f"number {number} of producer {state.producer.id} was stored too long ago to "
                "know which message it was"
            )
        record = self._record(state, value)
        if record is None:  # deleted by retention
            return Stored(max(value, -1), None, unique)
        known = get(record.properties, b"UNIQ_KEY")
        first = None if known is None else known.decode("utf-8", "replace")
        if not named and first != unique:
            raise ProducerMismatch(
                f"number {number} of producer {state.producer.id} belongs to the message {first}"
            )
        return Stored(record.queue_offset, record.position, first)

    def _record(
        self, state: ProducerQueueState[ServerConnection], value: int
    ) -> ScannedRecord | None:
        found = _place(self._store, state, value)
        if found is None:
            return None
        position, size = found
        data = self._store.log.bytes_at(position, size)
        return next(scan(data, 0, len(data), position_of_at=position, check_crc=False), None)

    # -- key map ---------------------------------------------------------------------------------

    def _check_map(self, topic: str, command: Command, *, demanded: bool = False) -> None:
        """Refuse a send by another key map; `demanded`: also a send that does not name its map."""
        version, digest = command.fields.get(MAP_VERSION), command.fields.get(MAP_DIGEST)
        send_map = self._broker.resizing.placement.send_map(topic)
        if version is not None:
            send_map.check(topic, version, (digest or "") if demanded else None)
        elif demanded and QUEUE_CHOSEN not in command.fields and send_map.digest:
            send_map.check(topic, None)


def _place(
    store: Store, state: ProducerQueueState[ServerConnection], value: int
) -> tuple[int, int] | None:
    """Return position and size of the record that a remembered value names; size 0: unknown."""
    if value < 0:
        return -2 - value, 0
    queue = store.find_queue(state.topic, state.queue_id)
    entry = None if queue is None else queue.given_entry(value)
    return None if entry is None else entry[:2]


def last_position(store: Store, state: ProducerQueueState[ServerConnection]) -> int:
    """Return the position of a producer's last record in a queue; -1 if it is gone."""
    value = state.find(state.last)
    found = None if value is None else _place(store, state, value)
    return -1 if found is None else found[0]


@contextlib.contextmanager
def told_if_partly_stored(count: int) -> Iterator[None]:
    """Turn the refusal of a partly stored batch into an error that says so.

    Any other refusal says that nothing of the request is stored, and frees its sequence numbers.
    """
    try:
        yield
    except (BrokerError, StoreError) as error:
        if not count:
            raise
        raise StoredInPart(
            f"the outcome is unknown: the first {count} messages of the batch are stored, the "
            f"others are refused: {error}"
        ) from error


def has_sequences(topic: str) -> bool:
    """Return whether sequence numbers count for messages of a topic."""
    return not topic.startswith(RETRY_PREFIX)


class Placing(Protocol):
    """The fields of a send that say how its queue was chosen."""

    md: str
    mq: str


def lacks_map(
    fields: Placing, target: Target, producer: Producer[ServerConnection], content: str | bytes
) -> bool:
    """Return whether a send may have a key that no map, or another map than the target's, placed.

    `content` holds the properties. The general path judges such a send.
    """
    return (
        fields.md != target.map_digest
        and producer.protocol >= DIGESTS_SINCE
        and not fields.mq
        and (_KEYED in content if isinstance(content, str) else _KEYED_BYTES in content)
    )


def in_turn(
    connection: ServerConnection,
    known: dict[str, ProducerQueueState[ServerConnection]],
    properties: str,
    start: int,
) -> tuple[ProducerQueueState[ServerConnection], int] | None:
    """Return state and sequence number of a message that is plainly its producer's next one.

    `start` is where the mark first stands. Anything unusual there is left to the general path.
    """
    # hot: 0.7 µs
    found = match_numbered(properties, start)
    if found is None:
        return None
    producer_id, sequence, before = found.groups()
    state = known.get(producer_id)
    if (
        state is None
        or (start and properties[start - 1] != "\x02")
        or (producer := state.producer).connection is not connection
        or producer.named is (before is None)
    ):
        return None
    number = int(sequence)
    if is_next(state.last, number, None if before is None else int(before)):
        return (state, number) if number <= NUMBER_MAX else None
    return None


def items_in_turn(
    connection: ServerConnection,
    known: dict[str, ProducerQueueState[ServerConnection]],
    body: bytes,
    items: list[tuple[int, int, int, int]],
) -> list[tuple[ProducerQueueState[ServerConnection], int]] | None:
    """Return state and sequence number of each item, empty if none has one; None if unclear.

    Clear are only the next messages of one producer, one after another.
    """
    # hot: 1.5 µs a message
    found: list[tuple[ProducerQueueState[ServerConnection], int]] = []
    state: ProducerQueueState[ServerConnection] | None = None
    last = 0
    for index, (_, at, size, more) in enumerate(items):
        text = body[at + size + 2 : at + size + 2 + more].decode()
        numbered = read_numbered(text)
        if numbered is None:
            if found:
                return None
            continue
        producer_id, number, before = numbered
        if state is None:
            state = known.get(producer_id)
            if index or state is None or state.producer.connection is not connection:
                return None
            last = state.last
        if (
            state.producer.id != producer_id
            or state.producer.named is (before is None)
            or not is_next(last, number, before)
            or "UNIQ_KEY\x01" not in text
        ):
            return None
        last = number
        found.append((state, number))
    return found
