"""The body of REGISTER_BROKER, in its three forms: plain JSON, zlib, and the one before 3.0.11.

The zlib form: i32 length and DataVersion as JSON; i32 count, then per topic i32 length and one line
`name readQueues writeQueues perm filterType attributes`; i32 length and the filter servers as JSON;
from 5.0 on i32 count and the queue mappings. A 5.3.3 broker sends it with `compressed=false`: the
reader recognises it by its first byte.

A body may list 100,000 topics. The readers are therefore generators (`Steps`) that yield between
parts: a server advances them a little in each turn of its loop, and code without a loop runs them
to the end with `finish`. Why: decision 9.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from msgspec.json import decode as _decode_standard
from msgspec.json import encode as _encode_standard

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.model import DataVersion, TopicConfig
from inorder.wire import shapes
from inorder.wire.codes import VERSION_QUEUE_MAPPING, VERSION_REGISTER_BODY
from inorder.wire.fastjson import ITEMS_MAX, SLOW_ITEMS_MAX, loads
from inorder.wire.requests.topics import (
    TABLE_ENTRIES_MAX,
    TopicTable,
    check_entries,
    data_version_from_json,
    data_version_to_json,
    topic_config_from_json,
    topic_config_to_json,
)

T = TypeVar("T")

Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Take all steps; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""The maximum size of a decompressed registration: that of a frame."""
ATTRIBUTE_ITEMS_MAX: Final = 500_000
"""Commas and brackets in a compressed registration, all its topics together."""
FILTER_SERVERS_MAX: Final = 64
"""RocketMQ's brokers have none since 4.9."""

JSON_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger registration is sent compressed, or it might not fit a frame."""
PIECE_BYTES: Final = 64 * 1024
CUTS_MAX: Final = 8
"""Commas tried to cut a piece: those inside of one topic are few."""
REST_BYTES_MAX: Final = 1024 * 1024
"""The maximum size of a registration without its topics."""
PACKED_BYTES: Final = 64 * 1024
PLAIN_STEP_BYTES: Final = 256 * 1024
ENCODED_PER_STEP: Final = 250
DECODED_PER_STEP: Final = 250

_TABLE_KEY: Final = b'"topicConfigTable":{'
_INT: Final = struct.Struct(">i")
_ZLIB_FIRST_BYTE: Final = b"\x78"
_WORDS_MIN: Final = 5


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody:
    """The topics of a broker."""

    version: DataVersion
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()

    def encode(self, *, compressed: bool = False) -> bytes:
        """Return the JSON text, or the zlib form."""
        if compressed:
            return _encode_compressed(self)
        return _encode_standard(
            {
                "filterServerList": self.filter_servers,
                "topicConfigSerializeWrapper": TopicTable(self.version, self.topics).to_json(),
            }
        )

    def encode_steps(self) -> Steps[bytes]:
        """Do as `encode`, in steps: JSON, or the zlib form if that would be too long."""
        lines: list[bytes] = []
        size = 0
        for number, config in enumerate(self.topics.values()):
            entry = _encode_standard({config.name: topic_config_to_json(config)})[1:-1]
            lines.append(entry)
            size += len(entry)
            if number % ENCODED_PER_STEP == ENCODED_PER_STEP - 1:
                yield
            if size > JSON_BYTES_MAX:
                return (yield from _encode_compressed_steps(self))
        rest = dataclasses.replace(self, topics={}).encode()
        head, found, tail = rest.partition(_TABLE_KEY)
        assert found, "the key stands in every registration"
        return b"".join((head, found, b",".join(lines), tail))

    @classmethod
    def decode(
        cls, data: bytes | memoryview, *, version: int, compressed: bool = False
    ) -> RegisterBrokerBody:
        """Read the body that a broker of some version sent.

        Raises:
            SystemError_: it is no registration.
        """
        return finish(cls.decode_steps(data, version=version, compressed=compressed))

    @classmethod
    def decode_steps(
        cls, data: bytes | memoryview, *, version: int, compressed: bool = False
    ) -> Steps[RegisterBrokerBody]:
        """Do as `decode`, in steps of about a millisecond: a hundred thousand topics take long."""
        try:
            raw = bytes(data)
            if compressed or raw[:1] == _ZLIB_FIRST_BYTE:
                return (yield from _decode_compressed(raw, version))
            topics: dict[str, TopicConfig] = {}
            raw = yield from _cut_topics(raw, topics)
            value = shapes.as_object(
                loads(raw, items_max=ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX), "registration"
            )
            servers: list[Any] = []
            if version >= VERSION_REGISTER_BODY:
                servers = shapes.as_list(value.get("filterServerList"), "filterServerList")
                wrapper = value.get("topicConfigSerializeWrapper")
                value = shapes.as_object(wrapper, "topicConfigSerializeWrapper")
            table = TopicTable.from_json(value)
            topics.update(table.topics)
            check_entries(len(topics), "topics")
            return cls(table.version, topics, _filter_servers(servers))
        except RemoteProtocolError as error:
            raise SystemError_(f"the body cannot be read: {error}") from None


def _cut_topics(raw: bytes, topics: dict[str, TopicConfig]) -> Steps[bytes]:
    """Take the topics out of a long JSON text, a piece at a time; return the remaining text.

    A piece begins at a member of the table and ends before a comma. If it is the inside of a JSON
    object by itself, the comma belongs to the table, for the meaning of a text does not depend on
    what follows; if it is not, the comma lay inside a member, and one before it is tried.
    """
    start = raw.find(_TABLE_KEY) + len(_TABLE_KEY)
    at = start
    while start >= len(_TABLE_KEY) and len(raw) - at > PIECE_BYTES:
        end = at + PIECE_BYTES
        for _ in range(CUTS_MAX):
            end = raw.rfind(b'},"', at, end)
            if end < 0:
                break
            try:
                piece = _decode_standard(b"{" + raw[at : end + 1] + b"}")
            except (msgspec.MsgspecError, ValueError, RecursionError):
                end += 2
                continue
            check_entries(len(topics) + len(piece), "topics")
            for number, (name, config) in enumerate(piece.items()):
                found = topic_config_from_json(shapes.as_object(config, "topic config"), name)
                topics[found.name] = found
                if number % DECODED_PER_STEP == DECODED_PER_STEP - 1:
                    yield
            at = end + 2
            break
        else:
            end = -1
        if end < 0:
            break  # no piece was found: the text must be short
        yield
    left = raw[:start] + raw[at:] if at > start else raw
    if len(left) > REST_BYTES_MAX:
        raise RemoteProtocolError(
            f"registration has more than {REST_BYTES_MAX} bytes beside topics"
        )
    return left


def _encode_compressed(body: RegisterBrokerBody) -> bytes:
    return finish(_encode_compressed_steps(body))


def _encode_compressed_steps(body: RegisterBrokerBody) -> Steps[bytes]:
    packer = zlib.compressobj(1)  # 15 MB of topics: 0.1 s, with level 9 it is 1 s
    version = _encode_standard(data_version_to_json(body.version))
    packed = []
    parts = [_INT.pack(len(version)), version, _INT.pack(len(body.topics))]
    for number, config in enumerate(body.topics.values()):
        line = (
            f"{config.name} {config.read_queues} {config.write_queues} {config.perm} "
            f"{config.filter_type} {_encode_standard(config.attributes).decode()}"
        ).encode()
        parts += (_INT.pack(len(line)), line)
        if number % ENCODED_PER_STEP == ENCODED_PER_STEP - 1:
            packed.append(packer.compress(b"".join(parts)))
            parts = []
            yield
    servers = _encode_standard(body.filter_servers)
    parts += (_INT.pack(len(servers)), servers, _INT.pack(0))
    packed += (packer.compress(b"".join(parts)), packer.flush())
    return b"".join(packed)


def _unpack(raw: bytes) -> Steps[bytes]:
    """Return the plain form of zlib data, up to its limits."""
    stream = zlib.decompressobj()
    plain = bytearray()
    items = 0
    for start in range(0, len(raw), PACKED_BYTES):
        rest = raw[start : start + PACKED_BYTES]
        while rest and not stream.eof:
            try:
                more = stream.decompress(rest, PLAIN_STEP_BYTES)
            except zlib.error as error:
                raise RemoteProtocolError(f"registration is not zlib data: {error}") from None
            rest = stream.unconsumed_tail
            plain += more
            items += more.count(b",") + more.count(b"{")
            if len(plain) > PLAIN_BYTES_MAX:
                raise RemoteProtocolError("registration is cut short or too large")
            if items > ATTRIBUTE_ITEMS_MAX:
                raise RemoteProtocolError(
                    f"registration has more than {ATTRIBUTE_ITEMS_MAX} attributes"
                )
            yield
    if not stream.eof:
        raise RemoteProtocolError("registration is cut short or too large")
    return bytes(plain)


def _decode_compressed(raw: bytes, version: int) -> Steps[RegisterBrokerBody]:
    reader = _Reader((yield from _unpack(raw)))
    data_version = data_version_from_json(shapes.as_object(loads(reader.piece()), "dataVersion"))
    topics: dict[str, TopicConfig] = {}
    count = reader.count()
    if count > TABLE_ENTRIES_MAX:
        raise RemoteProtocolError(f"registration has more than {TABLE_ENTRIES_MAX} topics")
    for number in range(count):
        config = _config_from_line(reader.piece())
        topics[config.name] = config
        if number % DECODED_PER_STEP == DECODED_PER_STEP - 1:
            yield
    servers = shapes.as_list(loads(reader.piece()), "filterServerList")
    if version >= VERSION_QUEUE_MAPPING:
        for _ in range(reader.count()):
            reader.piece()
    return RegisterBrokerBody(data_version, topics, _filter_servers(servers))


def _filter_servers(servers: list[Any]) -> tuple[str, ...]:
    if len(servers) > FILTER_SERVERS_MAX:
        raise RemoteProtocolError(f"registration has more than {FILTER_SERVERS_MAX} filter servers")
    return tuple(shapes.as_text(item, "filter server") for item in servers)


class _Reader:
    """Cuts length-prefixed pieces; a count never exceeds what the bytes can hold."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        if self._at + _INT.size > len(self._data):
            raise RemoteProtocolError("registration ends too early")
        (number,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        if not 0 <= number <= len(self._data) - self._at:
            raise RemoteProtocolError(f"registration has an impossible length {number}")
        return int(number)

    def piece(self) -> bytes:
        size = self.count()
        self._at += size
        return self._data[self._at - size : self._at]


def _config_from_line(line: bytes) -> TopicConfig:
    try:
        words = line.decode().split(" ", _WORDS_MIN)
    except UnicodeDecodeError:
        raise RemoteProtocolError("a topic line is not UTF-8") from None
    if len(words) < _WORDS_MIN:
        raise RemoteProtocolError("a topic line has too few words")
    name, read_queues, write_queues, perm, filter_type = words[:_WORDS_MIN]
    attributes = {}
    if len(words) > _WORDS_MIN and words[_WORDS_MIN].strip():
        attributes = shapes.text_map({"attributes": loads(words[_WORDS_MIN])}, "attributes")
    return TopicConfig(
        name,
        shapes.as_integer(read_queues, "readQueueNums", 32),
        shapes.as_integer(write_queues, "writeQueueNums", 32),
        shapes.as_integer(perm, "perm", 32),
        filter_type,
        attributes=attributes,
    )
