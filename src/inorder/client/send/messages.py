"""A message becomes the content of a request: checks, properties, compression, parts of a batch.

This finds everything that is wrong with a message before anything is sent. How a producer keeps
order and speed: decision 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from inorder.client.send.rules import WINDOW_MAX
from inorder.config import ClientConfig
from inorder.errors import LocalProtocolError, MessageIllegal, UsageError
from inorder.model import Message, key_text
from inorder.wire import properties as names
from inorder.wire.compression import COMPRESSION_FLAGS, compress_body
from inorder.wire.extensions import PREDECESSOR, PRODUCER_ID, SEQUENCE
from inorder.wire.properties import PROPERTIES_BYTES_MAX, format_properties
from inorder.wire.record import TRANSACTION_PREPARED
from inorder.wire.requests.sendframes import json_text
from inorder.wire.requests.sends import BatchItem, encode_batch

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_SET_BY_ARGUMENTS: Final = frozenset(
    {names.KEYS, names.TAGS, names.UNIQ_KEY, names.SHARDING_KEY, names.WAIT}
)
_SET_BY_PRODUCER: Final = frozenset({PRODUCER_ID, SEQUENCE, PREDECESSOR})
_NOT_YET: Final = frozenset(
    {
        names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC,
        names.TRAN_MSG,
    }
)  # fmt: skip
_ALONE: Final = frozenset(
    {"POP_CK", "INNER_NUM", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_BASE"}
)
"""Properties that a broker looks at in a single message only."""
BATCH_PROPERTIES: Final = json_text(format_properties({names.WAIT: "true"}))
_BATCH_ITEM_BYTES: Final = 22
_NUMBER_BYTES: Final = 64
"""About how many bytes the sequence properties of a batch item take."""
ITEM_BYTES: Final = _BATCH_ITEM_BYTES + _NUMBER_BYTES
_NUMBER_BYTES_MAX: Final = 256
"""How many they take at most, with the longest name of a producer."""
_TEXT_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - _NUMBER_BYTES_MAX
_CHECK_CHARS: Final = _TEXT_BYTES_MAX // 4
_PLAIN_KEY_MAX: Final = 255


PART_SLOTS: Final = (
    # Those that the compiled module knows by their place.
    "body", "raw", "ids", "born_at_ms", "bytes_together", "flag", "sys_flag",
    # The others.
    "_json", "alone", "half", "items", "sequences",
)  # fmt: skip


class Outgoing:
    """The content of one request: a message, or messages of one queue.

    A message has its properties in `raw`, as the log holds them. A batch has its messages in
    `items`, which get their sequence numbers when the request is written.
    """

    __slots__ = PART_SLOTS

    def __init__(  # noqa: PLR0917 - by place, for it is made for every message
        self,
        ids: tuple[str, ...],
        body: bytes,
        properties: bytes,
        born_at_ms: int,
        sys_flag: int = 0,
        flag: int = 0,
        items: Sequence[BatchItem] | None = None,
        sequences: tuple[int, ...] = (),
        raw: bytes | None = None,
        half: bool = False,
        alone: bool = False,
    ) -> None:
        self.ids = ids
        self.body = body
        self._json = properties
        self.born_at_ms = born_at_ms
        self.sys_flag = sys_flag
        self.flag = flag
        self.items = items
        self.sequences = sequences
        self.raw = raw
        self.bytes_together = 0 if raw is None else len(body) + len(raw) + ITEM_BYTES
        """How many bytes, about, a message takes in a request of several."""
        self.half = half  # transactional
        self.alone = alone  # its receipt says more than its offset

    @property
    def properties(self) -> bytes:
        """The properties of the request, as JSON."""
        return self._json if self.raw is None else json_text(self.raw.decode())

    def pick(self, indexes: Sequence[int]) -> Outgoing:
        """Return a request with some of a batch's messages."""
        assert self.items is not None, "a batch"
        return Outgoing(
            tuple(self.ids[index] for index in indexes), self.body, self._json,
            self.born_at_ms, sys_flag=self.sys_flag, flag=self.flag,
            items=[self.items[index] for index in indexes],
            sequences=tuple(self.sequences[index] for index in indexes) if self.sequences else (),
        )  # fmt: skip

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.ids)


def compose(  # noqa: PLR0917 - by place, for it is called for every message
    topic: str,
    body: bytes,
    key: str | None,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    message_id: str,
    born_at_ms: int,
    config: ClientConfig,
    *,
    flag: int = 0,
    sequences: tuple[int, ...] = (),
    later: str = "",
    half_group: str | None = None,
) -> Outgoing:
    """Return the request of a message. Raises MessageIllegal, UsageError, LocalProtocolError.

    `later` holds properties that delay the message. `half_group` makes it transactional: the
    producer group that a broker asks for the outcome.
    """
    # hot: 2 us.
    if type(topic) is not str:
        check_topic_type(topic, body)
    check_topic(topic)
    if flag:
        _check_flag(flag)
    text = _properties(body, key, tag, keys, properties, message_id, config)
    if later:
        text += later
    sys_flag = 0
    if half_group is not None:
        text += format_properties({names.TRAN_MSG: "true", names.PGROUP: half_group})
        sys_flag = TRANSACTION_PREPARED
    if len(body) >= config.compress_above_bytes and config.compression != "none":
        packed = compress_body(config.compression, body)
        if len(packed) < len(body):
            body, sys_flag = packed, sys_flag | COMPRESSION_FLAGS[config.compression]
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a text of the message is no UTF-8: {error}") from None
    return Outgoing(
        (message_id,), body, b"", born_at_ms, sys_flag, flag, None, sequences, raw,
        half=half_group is not None, alone=half_group is not None or later != "",
    )  # fmt: skip


def compose_plain(  # noqa: PLR0917 - by place, for it is called for every message
    topic: str, body: bytes, key: str | None, message_id: str, born_at_ms: int, config: ClientConfig
) -> Outgoing:
    """Return what `compose` returns for a message that has a key at most, sooner."""
    # hot: 0.7 us.
    if (
        type(topic) is not str
        or type(body) is not bytes
        or not 0 < len(body) <= config.message_bytes_max
        or (len(body) >= config.compress_above_bytes and config.compression != "none")
        or (
            key is not None
            # Printable: no separator, and nothing that UTF-8 cannot encode.
            and not (type(key) is str and 0 < len(key) <= _PLAIN_KEY_MAX and key.isprintable())
        )
    ):
        return compose(topic, body, key, None, (), None, message_id, born_at_ms, config)
    check_topic(topic)
    text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    if key is not None:
        text += f"__SHARDINGKEY\x01{key}\x02"
    return Outgoing((message_id,), body, b"", born_at_ms, 0, 0, None, (), text.encode())


def may_join(properties: Mapping[str, str] | None, later: str) -> bool:
    """Return whether a message may travel in one request with others.

    A broker treats some messages in a way of its own, which it does to none of a batch.
    """
    return not later and (not properties or _ALONE.isdisjoint(properties))


def pack_items_pure(
    bodies: Sequence[bytes], raws: Sequence[bytes], flags: Sequence[int], item_head: bytes,
    first: int,
) -> bytes:  # fmt: skip
    """Return the body of a request with several messages, numbered from `first` on.

    `item_head` are the properties that number a message, up to the number. The compiled module
    does the same: `pack_items` in `sender.py`.
    """
    return encode_batch(
        BatchItem(flag, body, b"%b%b%d\x02" % (raw, item_head, number))
        for number, (body, raw, flag) in enumerate(zip(bodies, raws, flags, strict=True), first)
    )


def compose_items(
    messages: Sequence[Message], message_ids: Sequence[str], config: ClientConfig
) -> list[BatchItem]:
    """Return messages as items of a batch. Raises as `compose` does.

    Bodies are not compressed, because the flags of a request count for all of its items.
    """
    items = []
    for message, id_ in zip(messages, message_ids, strict=True):
        if message.flag:
            _check_flag(message.flag)
        text = _properties(
            message.body, message.key, message.tag, message.keys, message.properties, id_, config
        )
        items.append(BatchItem(message.flag, message.body, text.encode()))
    return items


def compose_batch(
    items: Sequence[BatchItem],
    message_ids: Sequence[str],
    born_at_ms: int,
    config: ClientConfig,
    *,
    sequences: Sequence[int] = (),
) -> list[Outgoing]:
    """Return requests with the items of one queue, in order, each below the limit of a batch."""
    limit = min(config.batch_bytes_max, config.message_bytes_max)
    return [
        Outgoing(
            tuple(message_ids[first:end]), b"", BATCH_PROPERTIES, born_at_ms,
            items=items[first:end], sequences=tuple(sequences[first:end]),
        )
        for first, end in _cuts(items, limit)
    ]  # fmt: skip


def _cuts(items: Sequence[BatchItem], limit: int) -> Iterator[tuple[int, int]]:
    """Return the bounds of as few parts as the limits allow; a part has at least one item."""
    first = size = 0
    for index, item in enumerate(items):
        bytes_ = _BATCH_ITEM_BYTES + len(item.body) + len(item.properties) + _NUMBER_BYTES
        if index > first and (size + bytes_ > limit or index - first == WINDOW_MAX):
            yield first, index
            first, size = index, 0
        size += bytes_
    if first < len(items):
        yield first, len(items)


def _properties(  # noqa: PLR0917 - as above
    body: bytes,
    key: str | None,
    tag: str | None,
    keys: Sequence[str],
    more: Mapping[str, str] | None,
    message_id: str,
    config: ClientConfig,
) -> str:
    """Check the parts of a message and return its properties, encoded."""
    if type(body) is not bytes or not 0 < len(body) <= config.message_bytes_max:
        _check_body(body, config.message_bytes_max)
    text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    if more:
        _check_properties(more)
        text += format_properties(more)
    if tag is not None:
        text += f"TAGS\x01{_checked(tag, 'tag=')}\x02"
    if keys:
        text += f"KEYS\x01{_checked(' '.join(words(keys)), 'keys=')}\x02"
    if key is not None:
        text += f"__SHARDINGKEY\x01{_checked(key, 'key=')}\x02"
    if len(text) > _CHECK_CHARS and len(text.encode()) > _TEXT_BYTES_MAX:
        raise MessageIllegal(
            f"the properties have more than {_TEXT_BYTES_MAX} bytes; put data into the body"
        )
    return text


def _checked(value: str, argument: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{argument} is {value!r}, a {type(value).__name__}; give text")
    if not value:
        raise UsageError(
            f"{argument} is empty; give at least one character, or leave {argument} out"
        )
    if "\x01" in value or "\x02" in value:
        raise LocalProtocolError(
            f"{argument} holds \\x01 or \\x02, which separate the properties of a message; give "
            "text without them"
        )
    return value


def _check_properties(more: Mapping[str, str]) -> None:
    if not isinstance(more, Mapping):
        raise UsageError(
            f"properties= is a {type(more).__name__}; give a dict of texts, as in "
            '{"source": "web"}'
        )
    for name, value in more.items():
        for what, text in (("name", name), ("value", value)):
            if not isinstance(text, str):
                raise UsageError(
                    f"property {name!r} has the {what} {text!r}, a {type(text).__name__}; names "
                    f"and values of properties are texts: write str({text!r})"
                )
    found = more.keys()
    if not found.isdisjoint(_SET_BY_ARGUMENTS):
        reserved = ", ".join(sorted(_SET_BY_ARGUMENTS & found))
        raise UsageError(f"properties {reserved} are set by key=, tag= and keys=")
    if not found.isdisjoint(_SET_BY_PRODUCER):
        reserved = ", ".join(sorted(_SET_BY_PRODUCER & found))
        raise UsageError(f"properties {reserved} are the producer's own")
    if not found.isdisjoint(_NOT_YET):
        refused = ", ".join(sorted(_NOT_YET & found))
        raise UsageError(
            f"properties {refused}: a delay is given by delay=, delay_level= or deliver_at=; a "
            "transaction is begun by producer.transaction()"
        )


def words(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the index keys of a message; refuse a single text, which is probably a mistake."""
    if isinstance(keys, str):
        raise UsageError("keys= takes a list of words; for one word write keys=[word]")
    return tuple(word if type(word) is str else key_text(word) for word in keys)


def check_topic_type(topic: object, body: object) -> None:
    """Refuse a topic that is no text, and say what probably went wrong."""
    if isinstance(topic, str):
        return  # a subclass of str
    if isinstance(topic, bytes) and isinstance(body, str):
        raise UsageError(
            f"topic and body are swapped: the topic is the bytes {topic[:32]!r}, the body the text "
            f"{body[:32]!r}; call send(topic, body), as in send('orders', b'paid')"
        )
    raise UsageError(
        f"the topic is {topic!r:.64}, a {type(topic).__name__}; give its name as text, as in "
        "send('orders', b'paid')"
    )


@lru_cache(1024)
def check_topic(topic: str) -> None:
    """Refuse an impossible topic name."""
    if not _TOPIC.fullmatch(topic):
        raise UsageError(
            f"{topic!r} is no topic; a name has 1 to 127 letters, digits, '_', '-', '%' or '|'"
        )


def _check_flag(flag: object) -> None:
    """Refuse a flag that does not fit its 32 bits: packed later, it would fail other messages."""
    if not isinstance(flag, int) or not -(1 << 31) <= flag < 1 << 31:
        raise UsageError(f"the flag of the message is {flag!r:.64}; give a whole number of 32 bits")


def _check_body(body: object, limit: int) -> None:
    if not isinstance(body, bytes):
        kinds: dict[type, str] = {
            str: "text.encode()",
            bytearray: "bytes(body)",
            memoryview: "bytes(body)",
        }
        how = kinds.get(type(body), "json.dumps(value).encode(), for example")
        raise UsageError(f"the body is a {type(body).__name__}; give bytes ({how})")
    if not body:
        raise MessageIllegal("the body is empty; a message needs at least one byte")
    if len(body) > limit:
        raise MessageIllegal(
            f"the body has {len(body)} bytes, the limit is {limit} (message_bytes_max); "
            "split it, or raise the limit here and at the broker"
        )
