"""From a message to what is sent: checks, properties, compression, the cutting of batches.

Everything that is wrong with a message is found here, before anything leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from inorder.config import ClientConfig
from inorder.errors import MessageIllegal, UsageError
from inorder.model import Message
from inorder.wire import properties as names
from inorder.wire.batch import BatchItem, encode_batch
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body
from inorder.wire.properties import PROPERTIES_BYTES_MAX, format_properties

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_OURS: Final = frozenset({names.KEYS, names.TAGS, names.UNIQ_KEY, names.SHARDING_KEY, names.WAIT})
_NOT_YET: Final = frozenset(
    {
        names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC,
        names.TRAN_MSG,
    }
)  # fmt: skip
_BATCH_PROPERTIES: Final = format_properties({names.WAIT: "true"})
_BATCH_ITEM_BYTES: Final = 22


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request: a message, or messages of one queue."""

    message_ids: tuple[str, ...]
    body: bytes
    properties: str
    sys_flag: int = 0
    flag: int = 0
    batch: bool = False


def compose(message: Message, message_id: str, config: ClientConfig) -> Outgoing:
    """Return the request of a message. Raises MessageIllegal, UsageError, LocalProtocolError."""
    properties = _checked_properties(message, message_id, config)
    body, sys_flag = message.body, 0
    if len(body) >= config.compress_above_bytes and config.compression != "none":
        packed = compress_body(config.compression, body)
        if len(packed) < len(body):
            body, sys_flag = packed, COMPRESSION_FLAGS[config.compression]
    return Outgoing((message_id,), body, properties, sys_flag, message.flag)


def compose_batch(
    messages: Sequence[Message], message_ids: Sequence[str], config: ClientConfig
) -> list[Outgoing]:
    """Return the requests of messages of one queue, in order, each below the limit of a batch.

    The flags of a request count for all of it, so that bodies are not packed here.
    """
    items = [
        BatchItem(message.flag, message.body, _checked_properties(message, id_, config).encode())
        for message, id_ in zip(messages, message_ids, strict=True)
    ]
    limit = min(config.batch_bytes_max, config.message_bytes_max)
    return [
        Outgoing(
            tuple(message_ids[first:end]), encode_batch(items[first:end]), _BATCH_PROPERTIES,
            batch=True,
        )
        for first, end in _cuts(items, limit)
    ]  # fmt: skip


def _cuts(items: Sequence[BatchItem], limit: int) -> Iterator[tuple[int, int]]:
    """Return where to cut: as few parts as the limit allows; a part has at least one item."""
    first = size = 0
    for index, item in enumerate(items):
        bytes_ = _BATCH_ITEM_BYTES + len(item.body) + len(item.properties)
        if index > first and size + bytes_ > limit:
            yield first, index
            first, size = index, 0
        size += bytes_
    if first < len(items):
        yield first, len(items)


def _checked_properties(message: Message, message_id: str, config: ClientConfig) -> str:
    """Check the parts of a message and return its properties, encoded."""
    _check_topic(message.topic)
    _check_body(message.body, config.message_bytes_max)
    more = message.properties
    if not more.keys().isdisjoint(_OURS):
        reserved = ", ".join(sorted(_OURS & more.keys()))
        raise UsageError(f"properties {reserved} are set by key=, tag= and keys=")
    if not more.keys().isdisjoint(_NOT_YET):
        refused = ", ".join(sorted(_NOT_YET & more.keys()))
        raise UsageError(
            f"properties {refused}: delayed and transactional messages are not supported yet; "
            "send the message when it is due"
        )
    found = {names.UNIQ_KEY: message_id, names.WAIT: "true", **more}
    for name, value in (
        (names.TAGS, message.tag),
        (names.KEYS, " ".join(words(message.keys))),
        (names.SHARDING_KEY, message.key),
    ):
        if value is None or (value == "" and name == names.KEYS):
            continue
        if not isinstance(value, str):
            raise UsageError(f"{value!r} is not a str; keys and tags are texts")
        found[name] = value
    text = format_properties(found)
    if len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"the properties have more than {PROPERTIES_BYTES_MAX} bytes; put data into the body"
        )
    return text


def words(keys: Sequence[str]) -> tuple[str, ...]:
    """Return keys as they are kept in a message; a text is probably a mistake."""
    if isinstance(keys, str):
        raise UsageError("keys= takes a list of words; for one word write keys=[word]")
    return tuple(keys)


def _check_topic(topic: str) -> None:
    if not _TOPIC.fullmatch(topic):
        raise UsageError(
            f"{topic!r} is no topic; a name has 1 to 127 letters, digits, '_', '-', '%' or '|'"
        )


def _check_body(body: bytes, limit: int) -> None:
    if not isinstance(body, bytes):
        raise UsageError(f"the body is a {type(body).__name__}; give bytes (text.encode())")
    if not body:
        raise MessageIllegal("the body is empty; a message needs at least one byte")
    if len(body) > limit:
        raise MessageIllegal(
            f"the body has {len(body)} bytes, the limit is {limit} (message_bytes_max); "
            "split it, or raise the limit here and at the broker"
        )
