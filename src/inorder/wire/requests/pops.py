"""POP: messages that the broker hands out for a time, and the acknowledgements of them.

    extraInfo         start popTime invisibleTime reviveQueue retry broker queue [offset]
                      (in a message: the property POP_CK)
    startOffsetInfo   retry queue start;...
    msgOffsetInfo     retry queue offset,offset,...;...
    orderCountInfo    retry queue count;...   and   retry qo<queue>%<offset> count;...

`retry` is 0 for the topic itself, 1 for the group's POP retry topic `%RETRY%group_topic`, and 2 for
RocketMQ's second form `%RETRY%group+topic`. `reviveQueue` is 999 for a pop in order, which is how
an acknowledgement says that it belongs to one. Why: decision 54.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, NamedTuple

import msgspec

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.wire import fastjson, shapes
from inorder.wire.codes import RequestCode
from inorder.wire.fields import Int32
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.shapes import INT_CHARS_MAX, request_body

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue of pops in order; nothing is stored there."""
REVIVE_QUEUES: Final = 8
"""Numbers that other pops name by turns, as RocketMQ does; nothing is stored there either."""
POP_MESSAGES_MAX: Final = 32
ATTEMPT_CHARS_MAX: Final = 255
EXTRA_CHARS_MAX: Final = 512
BATCH_ACKS_MAX: Final = 1024
BATCH_OFFSETS_MAX: Final = 8192
"""Acknowledgements that one request may hold, and how many offsets each of them may span."""
INIT_MIN: Final = 0
FIRST_POP_TIME: Final = "1ST_POP_TIME"
POP_CK: Final = "POP_CK"


class PopMessage(msgspec.Struct, frozen=True):
    """Take messages of a queue (-1: of any), which others then do not see for a time."""

    CODE: ClassVar = RequestCode.POP_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    max_messages: Int32 = msgspec.field(name="maxMsgNums")
    invisible_ms: int = msgspec.field(name="invisibleTime")
    poll_ms: int = msgspec.field(name="pollTime")
    init_mode: Int32
    born_ms: int = msgspec.field(default=0, name="bornTime")
    expression_type: str | None = msgspec.field(default=None, name="expType")
    expression: str | None = msgspec.field(default=None, name="exp")
    order: bool = False
    attempt_id: str | None = None


class AckMessage(msgspec.Struct, frozen=True):
    """A popped message is done."""

    CODE: ClassVar = RequestCode.ACK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int


class ChangeInvisibleTime(msgspec.Struct, frozen=True):
    """Let others see a popped message at another time, counted from now."""

    CODE: ClassVar = RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int
    invisible_ms: int = msgspec.field(name="invisibleTime")


class PeekMessage(msgspec.Struct, frozen=True):
    """Read what a pop would find, without taking it."""

    CODE: ClassVar = RequestCode.PEEK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    max_messages: Int32 = msgspec.field(name="maxMsgNums")


class Notification(msgspec.Struct, frozen=True):
    """Ask whether a pop would find something; wait for it."""

    CODE: ClassVar = RequestCode.NOTIFICATION

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_ms: int = msgspec.field(name="pollTime")
    born_ms: int = msgspec.field(default=0, name="bornTime")
    order: bool = False
    attempt_id: str | None = None


class PollingInfo(msgspec.Struct, frozen=True):
    """Ask how many pops of a group wait."""

    CODE: ClassVar = RequestCode.POLLING_INFO

    consumer_group: str
    topic: str
    queue_id: Int32


class Receipt(NamedTuple):
    """What a consumer gets with a popped message and returns with its acknowledgement."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue_id: int

    @property
    def in_order(self) -> bool:
        """Return whether the message was popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def encode(self, offset: int) -> str:
        """Return the text for the message with an offset."""
        return " ".join(map(str, (*self, offset)))


def decode_receipt(text: str) -> Receipt:
    """Return what an `extraInfo` says.

    Raises:
        SystemError_: it is none.
    """
    parts = text.split(" ") if len(text) <= EXTRA_CHARS_MAX else []
    if not 7 <= len(parts) <= 8:
        raise SystemError_(f"extraInfo {text[:80]!r} has not 7 or 8 parts")
    numbers = [*parts[:4], *parts[6:]]
    if any(len(one) > INT_CHARS_MAX or not one.removeprefix("-").isdecimal() for one in numbers):
        raise SystemError_(f"extraInfo {text[:80]!r} has no number where one belongs")
    start, pop_ms, invisible_ms, revive = map(int, parts[:4])
    return Receipt(start, pop_ms, invisible_ms, revive, parts[4], parts[5], int(parts[6]))


def retry_flag(topic: str) -> str:
    """Return which kind of topic a popped message came from."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the topic of messages that a group popped and did not acknowledge in time."""
    return topic if topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{group}_{topic}"


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return the topic of a message whose receipt says `retry`.

    Raises:
        RemoteProtocolError: there is no such kind.
    """
    if retry == "0" or topic.startswith(RETRY_PREFIX):
        return topic
    if retry not in ("1", "2"):
        raise RemoteProtocolError(f"the retry flag {retry[:16]!r} is not 0, 1 or 2")
    return f"{RETRY_PREFIX}{group}{'_' if retry == '1' else '+'}{topic}"


def queue_entry(topic: str, queue_id: int, value: object) -> str:
    """Return an entry of startOffsetInfo, msgOffsetInfo or orderCountInfo."""
    return f"{retry_flag(topic)} {queue_id} {value}"


def offsets_entry(topic: str, queue_id: int, offsets: Iterable[int]) -> str:
    """Return an entry of msgOffsetInfo."""
    return queue_entry(topic, queue_id, ",".join(map(str, offsets)))


def count_entries(
    topic: str, queue_id: int, offsets: Iterable[int], counts: Mapping[int, int]
) -> list[str]:
    """Return the entries of orderCountInfo: how often messages were handed out before.

    The last entry is for old clients, which know one number for a queue.
    """
    flag, least, found = retry_flag(topic), None, []
    for offset in offsets:
        count = counts.get(offset, 0)
        least = count if least is None else min(least, count)
        if count:
            found.append(f"{flag} qo{queue_id}%{offset} {count}")
    return [*found, queue_entry(topic, queue_id, least or 0)]


def pop_header(
    pop_ms: int = 0, invisible_ms: int = 0, revive_queue: int = 0, rest: int = 0
) -> dict[str, str]:
    """Return the fields that each answer to a pop has, also a refusal."""
    return {
        "popTime": str(pop_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
        "restNum": str(rest),
    }


class BatchAck(NamedTuple):
    """One entry of a batch of acknowledgements."""

    group: str
    topic: str
    queue_id: int
    revive_queue: int
    pop_ms: int
    offsets: list[int]

    @property
    def in_order(self) -> bool:
        """Return whether the messages were popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE


@request_body
def decode_batch_ack(body: bytes | memoryview) -> list[BatchAck]:
    """Return the acknowledgements of a body. Raises SystemError_."""
    value = fastjson.loads(
        body, items_max=fastjson.REQUEST_ITEMS_MAX, slow_items_max=fastjson.SLOW_ITEMS_MAX
    )
    content = shapes.as_object(value, "acks")
    acks = shapes.objects(content, "acks")
    if len(acks) > BATCH_ACKS_MAX:
        raise RemoteProtocolError(f"{len(acks)} acks are more than {BATCH_ACKS_MAX}")
    return [_batch_ack(one) for one in acks]


def _batch_ack(one: dict[object, object]) -> BatchAck:
    # fastjson takes both names of each.
    def named(short: str, long: str) -> str:
        return short if one.get(short) is not None else long

    group = shapes.text(one, named("c", "consumerGroup"))
    topic = shapes.text(one, named("t", "topic"))
    return BatchAck(
        group,
        real_topic(topic, group, shapes.text(one, named("r", "retry"), "0")),
        shapes.integer(one, named("q", "queueId"), 0, 32),
        shapes.integer(one, named("rq", "reviveQueueId"), 0, 32),
        shapes.integer(one, named("pt", "popTime"), 0),
        _offsets(
            shapes.integer(one, named("so", "startOffset"), 0),
            shapes.text(one, named("b", "bitSet"), ""),
        ),
    )


def _offsets(start: int, bits: str) -> list[int]:
    if len(bits) > BATCH_OFFSETS_MAX // 8 * 4 // 3 + 4:
        raise RemoteProtocolError(f"a bit set spans more than {BATCH_OFFSETS_MAX} offsets")
    try:
        raw = base64.b64decode(bits, validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError("a bit set is not in base64") from None
    return [
        start + 8 * index + bit
        for index, byte in enumerate(raw)
        for bit in range(8)
        if byte >> bit & 1
    ]
