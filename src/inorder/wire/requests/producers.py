"""Idempotent producers: hello, state, drop and list, and the sequence numbers in a message.

    INORDER_PID \x01 producer \x02 INORDER_SEQ \x01 number \x02
    INORDER_PID \x01 producer \x02 INORDER_SEQ \x01 number \x02 INORDER_PREV \x01 before \x02

These properties stand side by side, in this order; the first such group counts. One reader serves
the fast path, the general path and the replay of the log, so that a replay finds what the broker
judged when the message came. How the numbers are remembered: decision 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec
from msgspec.json import encode as _encode_standard

from inorder.errors import MessageIllegal
from inorder.wire import shapes
from inorder.wire.extensions import PREDECESSOR, PRODUCER_ID, SEQUENCE, ExtensionCode
from inorder.wire.fastjson import TABLE_ITEMS_MAX, loads
from inorder.wire.replies import body_as, fields_as


class ProducerHelloReply(msgspec.Struct, frozen=True):
    """The broker is an inorder broker; `highest` is the incarnation that may send."""

    inorder: int
    highest: int
    memory: int = 0
    """Changes whenever the broker forgets a producer; see `ProducerHello.memory`."""
    batches: int = 0
    """1: a refusal of a batch names the message; `ProducerState.since` is understood."""


class ProducerHello(msgspec.Struct, frozen=True):
    """Bind a producer to this connection; the first request, before any send.

    After its answer the broker refuses sends of this producer over connections of lower
    incarnations. The answer carries the capability.
    """

    CODE: ClassVar = ExtensionCode.PRODUCER_HELLO
    REPLY = fields_as(ProducerHelloReply)

    producer_id: str
    incarnation: int
    named: bool = False
    memory: int = -1
    """`memory` of the answer to this producer's first hello to this broker; -1 in the first.

    If the broker has forgotten producers since, and does not know this one, it answers
    PRODUCER_UNKNOWN: the outcome of unconfirmed sends is unknown.
    """
    protocol: int = 1
    """The protocol of this producer; see `PROTOCOL`."""


class ProducerStateReply(msgspec.Struct, frozen=True):
    """`expected`: the next number (anonymous; 0 if unknown). `last`: the last stored, else -1.

    `known` is false if the broker has no state of this producer on this queue. `offsets` answers
    `ProducerState.since`; `offsets_of` reads it.
    """

    known: bool
    expected: int
    last: int
    offsets: str | None = None


class ProducerState(msgspec.Struct, frozen=True):
    """Ask for the sequence numbers of a producer on one queue.

    With `since`, also for the places of its messages from that number on.
    """

    CODE: ClassVar = ExtensionCode.PRODUCER_STATE
    REPLY = fields_as(ProducerStateReply)

    producer_id: str
    topic: str
    queue_id: int
    since: int = -1


def offsets_text(runs: Iterable[tuple[int, int]]) -> str:
    """Return offsets of consecutive messages, given as (first offset, count), as a field."""
    return ",".join(f"{offset}:{count}" for offset, count in runs)


def offsets_of(text: str | None, most: int) -> list[int]:
    """Read such a field, `most` offsets of it; -1: unknown, and what is malformed ends the list."""
    found: list[int] = []
    for run in text.split(",") if text else ():
        first, _, count = run.partition(":")
        if not (_OFFSET.fullmatch(first) and _COUNT.fullmatch(count)):
            break
        offset, left = int(first), min(int(count), most - len(found))
        found += range(offset, offset + left) if offset >= 0 else [-1] * left
    return found


class ProducerDropReply(msgspec.Struct, frozen=True):
    """On how many queues the producer was known."""

    queues: int


class ProducerDrop(msgspec.Struct, frozen=True):
    """Forget a named producer; the answer says on how many queues it was known."""

    CODE: ClassVar = ExtensionCode.PRODUCER_DROP
    REPLY = fields_as(ProducerDropReply)

    producer_id: str


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """A named producer: whether it is connected, and its last number per (topic, queue)."""

    producer_id: str
    connected: bool
    last: dict[tuple[str, int], int]


def encode_named_producers(producers: Iterable[NamedProducer], total: int) -> bytes:
    """Return the answer's body; `total` counts also those that it leaves out."""
    listed = [
        {
            "producerId": producer.producer_id,
            "connected": producer.connected,
            "queues": [
                {"topic": topic, "queueId": queue_id, "last": last}
                for (topic, queue_id), last in producer.last.items()
            ],
        }
        for producer in producers
    ]
    return _encode_standard({"producers": listed, "total": total})


def decode_named_producers(data: bytes | memoryview) -> tuple[list[NamedProducer], int]:
    """Read the producers and how many there are; malformed: RemoteProtocolError."""
    whole = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "producers")
    listed = [
        NamedProducer(
            shapes.text(producer, "producerId"),
            shapes.boolean(producer, "connected", False),
            {
                (shapes.text(queue, "topic"), shapes.integer(queue, "queueId", 0)): shapes.integer(
                    queue, "last", -1
                )
                for queue in shapes.objects(producer, "queues")
            },
        )
        for producer in shapes.objects(whole, "producers")
    ]
    return listed, shapes.integer(whole, "total", len(listed))


class ProducerList(msgspec.Struct, frozen=True):
    """List named producers; the body of the answer is JSON."""

    CODE: ClassVar = ExtensionCode.PRODUCER_LIST
    REPLY = body_as(decode_named_producers)

    prefix: str = ""


_OFFSET: Final = re.compile("-1|[0-9]{1,18}")
_COUNT: Final = re.compile("[0-9]{1,9}")
PRODUCER_ID_CHARS_MAX: Final = 255
NUMBER_MAX: Final = 2**63 - 2
MARK: Final = f"{PRODUCER_ID}\x01"
MARK_BYTES: Final = MARK.encode()

_GROUP: Final = re.compile(
    f"{PRODUCER_ID}\x01([^\x01\x02]+)\x02{SEQUENCE}\x01([0-9]{{1,19}})"
    f"(?:\x02{PREDECESSOR}\x01(-1|[0-9]{{1,19}}))?(?:\x02|\\Z)"
)
_search: Final = _GROUP.search
match_numbered: Final = _GROUP.match
"""The same group at a position; the caller checks that a property begins there, and its size."""

Numbered = tuple[str, int, int | None]
"""Producer id, number, and, of a named producer, the number before it (-1: none)."""


def read_numbered(properties: str) -> Numbered | None:
    """Return a message's sequence numbers, None if it has none.

    Raises:
        MessageIllegal: the numbers are malformed.
    """
    # hot: 0.6 µs
    found = _search(properties)
    if found is None:
        if MARK not in properties or not _is_named(properties):
            return None
        raise MessageIllegal(
            f"{PRODUCER_ID}, {SEQUENCE} and, if there is one, {PREDECESSOR} do not stand side by "
            "side, or are no numbers"
        )
    at = found.start()
    if at and properties[at - 1] != "\x02":
        raise MessageIllegal(f"{PRODUCER_ID} stands inside of another property")
    producer_id, text, before = found.groups()
    number = int(text)
    if number > NUMBER_MAX or len(producer_id) > PRODUCER_ID_CHARS_MAX:
        raise MessageIllegal(
            f"{SEQUENCE} is at most {NUMBER_MAX}, {PRODUCER_ID} has at most "
            f"{PRODUCER_ID_CHARS_MAX} characters"
        )
    return producer_id, number, None if before is None else int(before)


def _is_named(properties: str) -> bool:
    return any(entry.startswith(MARK) for entry in properties.split("\x02"))
