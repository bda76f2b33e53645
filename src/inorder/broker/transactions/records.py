"""Bytes of transactions: halves, committed messages, records of ended halves; and their replay.

The properties of a half, besides its own:

    REAL_TOPIC, REAL_QID         where the message goes when it is committed
    __transactionId__            its UNIQ_KEY
    TRANSACTION_CHECK_TIMES      how often producers were asked
    INORDER_HALF                 of a half that was put back: the log position of the first one

A record of ended halves has the offsets as its body, each with a comma: `12,15,`. Its tag is `d`.

The record of an end may be lost in a crash, or not be written yet. Then the end itself tells: the
flags of a committed message say so, which no send of a client can do, and it has INORDER_HALF; the
message of a RocketMQ broker has the position of its half in its head. `living` puts it together.
Why: decision 50.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from inorder.broker.delays.rules import without
from inorder.broker.transactions.rules import End, Half
from inorder.wire import properties as names
from inorder.wire.extensions import ENDED_BEFORE, ENDS, HALF, SEND_PROPERTIES
from inorder.wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from inorder.wire.properties import PROPERTIES_BYTES_MAX, append, get, join
from inorder.wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Record

IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PUT_BACK_FROM: Final = b"TRAN_PREPARED_QUEUE_OFFSET"
ENDED_TAG: Final = "d"
PUT_BACK: Final = "p"
BODY_BYTES_MAX: Final = 30_000
"""So that the letters of a record of ended halves fit into its properties."""
_ENDS: Final = {end.letter: end for end in End}
HALF_MARK: Final = f"{HALF}\x01".encode()
ROOM_BYTES: Final = 768
"""Bytes of properties that a half leaves free for those that the broker adds later."""
_DIGITS_MAX: Final = 18
_REAL_QUEUE_MAX: Final = 65_536
_SEND_PROPERTIES: Final = tuple(name.encode() for name in SEND_PROPERTIES)
_CHECKS: Final = names.TRANSACTION_CHECK_TIMES.encode()
_OWN: Final = (HALF, ENDED_BEFORE, names.TRANSACTION_CHECK_TIMES, PUT_BACK_FROM.decode())


def is_half(found: dict[str, str], level: int, redeliveries: int | None) -> bool:
    """Return whether a send is transactional.

    A retry copy of an old client keeps the mark and is none.
    """
    marked = found.get(names.TRAN_MSG, "false").lower() == "true"
    return marked and not (level > 0 and (redeliveries or 0) > 0)


def half_properties(found: dict[str, str], topic: str, queue_id: int) -> str:
    """Return the properties of a message as a half. Those that brokers write do not count."""
    kept = {name: value for name, value in found.items() if name not in _OWN}
    unique = kept.get(names.UNIQ_KEY)
    if unique:
        kept[names.TRANSACTION_ID] = unique
    kept[names.REAL_TOPIC], kept[names.REAL_QID] = topic, str(queue_id)
    return join(kept)


def is_too_long(properties: bytes) -> bool:
    """Return whether the properties of a half leave too little room for later ones."""
    return len(properties) > PROPERTIES_BYTES_MAX - ROOM_BYTES


def number(properties: bytes, name: bytes) -> int | None:
    """Return a property that is a whole number, None without one."""
    value = get(properties, name)
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return None
    return int(value)


def origin_in(properties: bytes) -> int | None:
    """Return the position of the first half, None if this is the first or names none."""
    return number(properties, HALF.encode())


def half_of(record: Record) -> Half:
    """Return the half in a record of the half topic."""
    properties = record.properties
    origin = origin_in(properties)
    return Half(
        record.position if origin is None else origin,
        record.queue_offset,
        record.position,
        born_at_ms=record.born_at_ms,
        stored_at_ms=record.stored_at_ms,
        immunity_s=number(properties, IMMUNITY.encode()),
        checks=number(properties, _CHECKS) or 0,
    )


def home_of(properties: bytes) -> tuple[str, int] | None:
    """Return the topic and queue that a half names; None if it names none."""
    topic, queue_id = get(properties, b"REAL_TOPIC"), get(properties, b"REAL_QID")
    if topic is None or queue_id is None or not queue_id.isdigit() or len(queue_id) > _DIGITS_MAX:
        return None
    found = int(queue_id)
    return (topic.decode("utf-8", "replace"), found) if found < _REAL_QUEUE_MAX else None


def committed(record: Record, half: Half, named_position: int, now_ms: int) -> Record:
    """Turn a half into its committed message; as in RocketMQ its properties stay."""
    record.properties = _marked(without(record.properties, _SEND_PROPERTIES), half)
    record.sys_flag = record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    record.prepared_position = named_position
    record.stored_at_ms = now_ms
    record.version = 1
    return record


def put_back(record: Record, half: Half, checks: int, now_ms: int) -> Record:
    """Turn a half into the copy that is stored when its producers are asked."""
    kept = _marked(without(record.properties, (*_SEND_PROPERTIES, _CHECKS)), half)
    record.properties = append(kept, b"%s\x01%d\x02" % (_CHECKS, checks)) if checks else kept
    record.stored_at_ms = now_ms
    record.version = 1
    return record


def as_first(copy: Record, offset: int, position: int) -> Record:
    """Turn the newest copy of a half into the first half, whose log file retention has deleted."""
    copy.queue_offset, copy.position = offset, position
    return copy


def given_up(record: Record, half: Half, now_ms: int) -> Record:
    """Turn a half into the copy that is kept for an operator."""
    record.properties = _marked(without(record.properties, _SEND_PROPERTIES), half)
    record.stored_at_ms = now_ms
    record.version = 1
    return record


def resumed(record: Record, origin: int, now_ms: int) -> Record:
    """Turn the copy of a half that was given up into a half again."""
    kept = without(record.properties, (HALF.encode(), _CHECKS))
    more = b"%s\x01%d\x02%s\x010\x02" % (HALF.encode(), origin, _CHECKS)
    record.properties = append(kept, more)
    record.stored_at_ms = now_ms
    record.version = 1
    return record


def _marked(properties: bytes, half: Half) -> bytes:
    kept = without(properties, (HALF.encode(),))
    return append(kept, b"%s\x01%d\x02" % (HALF.encode(), half.origin))


# Records of ended halves.


def ended_body(offsets: Iterable[int]) -> bytes:
    """Return the body of a record of ended halves."""
    return b"".join(b"%d," % offset for offset in offsets)


def ended_offsets(body: bytes) -> list[int]:
    """Return the half offsets in the body of such a record; words that are none do not count."""
    return [int(word) for word in body.split(b",") if word.isdigit() and len(word) <= _DIGITS_MAX]


class Noted(NamedTuple):
    """The offset of a half that is over: its transaction has ended, or it was put back (None)."""

    offset: int
    how: End | None


def ended_parts(noted: Iterable[Noted], bytes_max: int) -> list[list[Noted]]:
    """Return what goes into records of ended halves with bodies of about this size."""
    parts: list[list[Noted]] = []
    size = 0
    for one in sorted(noted, key=lambda one: one.offset):
        if not parts or size >= min(bytes_max, BODY_BYTES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += len(str(one.offset)) + 1
    return parts


def ended_properties(unique: str, part: list[Noted], ended_before: int | None) -> bytes:
    """Return the properties of a record of ended halves.

    Of several that are written at once only the last one says before which position none is
    missing, because a crash may lose the last ones.
    """
    letters = "".join(PUT_BACK if one.how is None else one.how.letter for one in part)
    found = {names.TAGS: ENDED_TAG, names.UNIQ_KEY: unique, ENDS: letters}
    if ended_before is not None:
        found[ENDED_BEFORE] = str(ended_before)
    return join(found).encode()


def ends_in(record: Record) -> list[tuple[int, End]]:
    """Return how the transactions of a record of ended halves have ended, as far as it says so."""
    letters = (get(record.properties, ENDS.encode()) or b"").decode("utf-8", "replace")
    offsets = ended_offsets(record.body)
    if len(letters) != len(offsets):
        return []
    return [
        (offset, _ENDS[letter])
        for offset, letter in zip(offsets, letters, strict=True)
        if letter in _ENDS
    ]


# Replay.


class Ended(NamedTuple):
    """The end of a transaction that was found in the log."""

    position: int
    origin: int | None
    half_position: int
    how: End


def end_in(
    topic: str, sys_flag: int, properties: bytes, position: int, prepared_position: int
) -> Ended | None:
    """Return the end that a record of the log tells of, None if it tells of none.

    A client can send any property, but neither these flags nor to this topic.
    """
    if topic in (HALF_TOPIC, OP_HALF_TOPIC):
        return None
    how = End.GIVEN_UP
    if topic != CHECK_MAX_TIME_TOPIC:
        if sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
            return None
        how = End.COMMITTED
    origin = number(properties, HALF.encode())
    if origin is None and not prepared_position:
        return None  # a copy, of a retry for example
    return Ended(position, origin, prepared_position, how)


@dataclass(frozen=True, slots=True)
class Found:
    """A half that a start finds in its queue, not told of by any record of ended halves."""

    half: Half
    unique: bytes
    group: bytes
    put_back_from: int | None
    """Of a copy that RocketMQ made: the offset of the first half, if it says so."""
    marked: bool
    """It names its first half."""


def found_in(record: Record) -> Found:
    """Return the half of a record, with what tells that another half is a copy of it."""
    properties = record.properties
    return Found(
        half_of(record),
        get(properties, b"UNIQ_KEY") or b"",
        get(properties, b"PGROUP") or b"",
        number(properties, PUT_BACK_FROM),
        get(properties, HALF.encode()) is not None,
    )


def living(
    found: Iterable[Found], ended: set[int], ends: Iterable[Ended]
) -> tuple[list[Half], list[Noted], dict[int, End]]:
    """Return the pending halves, others to be noted as ended, and the ends.

    `found` are the halves of the queue in its order, `ended` the offsets that records tell of (the
    halves there are not in `found`), `ends` the ends that the log tells of.
    """
    newest: dict[int, Half] = {}
    twins: dict[tuple[bytes, bytes, int], int] = {}
    positions: dict[int, int] = {}
    to_note: list[Noted] = []
    for one in found:
        half = one.half
        if one.put_back_from is not None and one.put_back_from in ended:
            to_note.append(Noted(half.offset, None))  # RocketMQ ended the half before this copy
            continue
        twin = (one.unique, one.group, half.born_at_ms)
        is_copy = half.checks > 0 or one.put_back_from is not None
        if not one.marked and is_copy and one.unique and twin in twins:
            half.origin = twins[twin]  # a copy that RocketMQ made
        twins[twin] = half.origin
        older = newest.pop(half.origin, None)
        if older is not None:
            to_note.append(Noted(older.offset, None))
        newest[half.origin] = half
        positions[half.position] = half.origin
    known: dict[int, End] = {}
    for end in ends:
        origin = positions.get(end.half_position) if end.origin is None else end.origin
        if origin is None:
            continue
        known[origin] = end.how
        half_ended = newest.get(origin)
        if half_ended is not None and half_ended.position < end.position:
            del newest[origin]
            to_note.append(Noted(half_ended.offset, end.how))
    for origin in newest:  # resumed after it was given up
        known.pop(origin, None)
    return sorted(newest.values(), key=lambda half: half.offset), to_note, known
