"""What a send may contain: properties, bodies and batches, judged before a byte is stored.

Refusals follow RocketMQ's order and texts. A message that needs a feature which this broker does
not serve (an inner batch) is refused with a clear error; it is never stored as a plain message.
`checks.py` adds the checks that need tables.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from inorder.errors import (
    BrokerError,
    ItemIllegal,
    MessageIllegal,
    SystemError_,
)
from inorder.model import TopicConfig
from inorder.wire import properties as props
from inorder.wire.requests.sends import SendMessage, decode_batch

if TYPE_CHECKING:
    pass

FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_ITEM_HEAD: Final = struct.Struct(">iiiii")
_ITEM_BYTES_MIN: Final = 22
TRANSACTION_BITS: Final = 0xC
INNER_BATCH_BITS: Final = 0xC0
_LEVEL_DIGITS_MAX: Final = 9
_MARKS_ALONE: Final = (b"DELAY\x01", b"TIMER_D", b"TRAN_MSG\x01")
"""What a message has that a batch cannot hold."""
_TIMER_NAMES: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


def delay_level(properties: str) -> int:
    """Return the delay level that a message asks for; 0: none."""
    return max(0, level_in(props.parse(properties))) if "DELAY" in properties else 0


def refuse_special(found: dict[str, str], topic: str, *, delayed: bool = False) -> None:
    """Refuse properties of message kinds that this broker does not serve."""
    if "INNER_NUM" in found or "INNER_MULTI_DISPATCH" in found:
        raise not_served("inner batches and light queues (INNER_NUM, INNER_MULTI_DISPATCH)", topic)


def _refused_item(index: int, error: BrokerError) -> BrokerError:
    """Return a refusal of one message of a batch that names the message."""
    if isinstance(error, MessageIllegal):
        return ItemIllegal(f"message {index} of the batch: {error.remark}", index=index)
    return error


def _too_large(data: bytes, size_max: int) -> BrokerError:
    """Return the refusal of a batch above the limit; it names a message that is so by itself."""
    error, at, index = illegal_size(size_max), 0, 0
    while len(data) - at >= _ITEM_BYTES_MIN:
        size, _, _, _, body_size = _ITEM_HEAD.unpack_from(data, at)
        if body_size > size_max:
            return _refused_item(index, error)
        if size < _ITEM_BYTES_MIN:
            break
        at, index = at + size, index + 1
    return error


def refuse_timed_half(found: dict[str, str], topic: str) -> None:
    """Refuse a transactional message with a time of its own."""
    for name in _TIMER_NAMES:
        if name in found:
            raise MessageIllegal(
                f"a transactional message cannot have a time ({name}); nothing was stored for "
                f"topic[{topic}]. Send it without one, or begin the transaction when it is due."
            )


def _refuse_in_batch(found: dict[str, str], topic: str) -> None:
    if level_in(found) > 0:
        raise MessageIllegal(
            f"a batch cannot hold delayed messages; nothing was stored for topic[{topic}]. "
            "Send them one by one."
        )
    if found.get("TRAN_MSG", "false").lower() == "true":
        raise MessageIllegal(
            f"a batch cannot hold transactional messages; nothing was stored for topic[{topic}]. "
            "Send them one by one."
        )
    for name in _TIMER_NAMES:
        if name in found:
            raise MessageIllegal(
                f"a batch cannot hold timer messages ({name}); nothing was stored for "
                f"topic[{topic}]. Send them one by one."
            )
    refuse_special(found, topic)


def level_in(found: dict[str, str]) -> int:
    """Return the delay level in a message's properties; 0: none."""
    text = found.get("DELAY", "0")
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _LEVEL_DIGITS_MAX):
        raise MessageIllegal(f"DELAY={text[:32]} is not the number of a delay level")
    return int(text)


def not_served(what: str, topic: str) -> BrokerError:
    """Return the refusal of a message kind that this broker does not serve."""
    return MessageIllegal(
        f"this broker does not serve {what} yet; nothing was stored for topic[{topic}]. "
        "Send it as a plain message or use a broker that does."
    )


def is_special(properties: str) -> bool:
    """Tell whether the properties may name something that a plain message does not have."""
    return (
        "DELAY" in properties
        or "TIMER_D" in properties
        or "TRAN_MSG" in properties
        or "POP_CK" in properties
        or "INNER_" in properties
    )


def unique_key(properties: str) -> str | None:
    """Return the message's UNIQ_KEY."""
    return props.parse(properties).get("UNIQ_KEY") if "UNIQ_KEY" in properties else None


def tag_of(properties: bytes) -> bytes:
    """Return the message's tag by the full rules of the properties encoding; empty: none."""
    return props.get(properties, b"TAGS") or b""


def with_separator(properties: str) -> str:
    """Append the final separator if it is missing."""
    return properties if not properties or properties[-1] == "\x02" else properties + "\x02"


def require_body(body: bytes, size_max: int) -> None:
    """Refuse an empty or too large body."""
    if not body:
        raise SystemError_("the message body is empty; a message needs at least one byte")
    if len(body) > size_max:
        raise illegal_size(size_max)


def require_properties(properties: str, size_max: int) -> None:
    """Refuse properties that no record can hold."""
    if len(properties.encode()) > props.PROPERTIES_BYTES_MAX:
        raise illegal_size(size_max)


def illegal_size(size_max: int) -> BrokerError:
    """Return the refusal of a message that is too large."""
    return MessageIllegal(
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {size_max}B, msg properties length limit 32KB."
    )


def split_batch(body: bytes, size_max: int) -> list[tuple[int, int, int, int]] | None:
    """Return (flag, body start, body size, properties size) per item; None: it is not plain."""
    # hot: 0.6 µs a message
    end = len(body)
    if not end or end > size_max or any(mark in body for mark in _MARKS_ALONE):
        return None
    items = []
    at = 0
    unpack = _ITEM_HEAD.unpack_from
    while at < end:
        if end - at < _ITEM_BYTES_MIN:
            return None
        size, _, _, flag, body_size = unpack(body, at)
        body_at = at + 20
        properties_at = body_at + body_size
        if body_size < 1 or properties_at + 2 > end:
            return None
        properties_size = body[properties_at] << 8 | body[properties_at + 1]
        at = properties_at + 2 + properties_size
        # The broker adds nothing to an item's properties, so the plain limit applies.
        if (
            size != at - body_at + 20
            or at > end
            or properties_size > 32_767
            or (properties_size and not body[at - 1])
        ):
            return None
        items.append((flag, body_at, body_size, properties_size))
    return items


def require_batch(
    request: SendMessage, body: bytes | memoryview, size_max: int
) -> list[tuple[int, int, int, int]]:
    """Split a batch body, or raise the refusal."""
    data = bytes(body)
    if len(data) > size_max:
        raise _too_large(data, size_max)
    found = props.parse(request.properties or "")
    _refuse_in_batch(found, request.topic)
    items = split_batch(data, size_max)
    if items is not None:
        return items
    try:
        decoded = decode_batch(data)
    except MessageIllegal as error:  # RocketMQ answers 1 for a batch that does not parse
        raise SystemError_(f"the batch does not parse: {error.remark}") from None
    for index, item in enumerate(decoded):
        try:
            _refuse_in_batch(props.parse(item.properties), request.topic)
            if item.properties.endswith(b"\0"):  # recovery would take it for a torn write
                raise MessageIllegal("the properties of an item of the batch end in a zero byte")
        except BrokerError as error:
            raise _refused_item(index, error) from None
        if not item.body:
            raise SystemError_("an item of the batch has no body")
    exact = _split_exact(data)
    if not exact:
        raise SystemError_("the batch is empty")
    return exact


def _split_exact(data: bytes) -> list[tuple[int, int, int, int]]:
    """Split a batch that `decode_batch` has accepted."""
    items, at = [], 0
    while at < len(data):
        size, _, _, flag, body_size = _ITEM_HEAD.unpack_from(data, at)
        items.append((flag, at + 20, body_size, size - _ITEM_BYTES_MIN - body_size))
        at += size
    return items


def describe(topic: TopicConfig) -> str:
    """Format a topic's configuration as RocketMQ does in its remarks."""
    perm = "".join(
        letter if topic.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1))
    )
    attributes = "{" + ", ".join(f"{k}={v}" for k, v in topic.attributes.items()) + "}"
    return (
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.read_queues}, "
        f"writeQueueNums={topic.write_queues}, perm={perm}, topicFilterType={topic.filter_type}, "
        f"topicSysFlag={topic.sys_flag}, order={'true' if topic.order else 'false'}, "
        f"attributes={attributes}]"
    )
