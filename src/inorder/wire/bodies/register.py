"""The body of REGISTER_BROKER, in its three forms: plain JSON, zlib, and the one before 3.0.11.

The zlib form: i32 length and DataVersion as JSON; i32 count, then per topic i32 length and one line
`name readQueues writeQueues perm filterType attributes`; i32 length and the filter servers as JSON;
from 5.0 on i32 count and the queue mappings. A 5.3.3 broker sends it with `compressed=false`:
it is recognised by its first byte.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.json import encode as _encode_standard

from inorder.errors import RemoteProtocolError
from inorder.model import DataVersion, TopicConfig
from inorder.wire import shapes
from inorder.wire.bodies.topics import (
    TABLE_ENTRIES_MAX,
    TABLE_ITEMS_MAX,
    TopicTable,
    data_version_from_json,
    data_version_to_json,
)
from inorder.wire.codes import VERSION_QUEUE_MAPPING, VERSION_REGISTER_BODY
from inorder.wire.fastjson import SLOW_ITEMS_MAX, loads

PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""What a compressed registration may grow to: as much as a frame could have carried."""
ATTRIBUTE_ITEMS_MAX: Final = 500_000
"""Commas and brackets in a compressed registration, all its topics together."""
FILTER_SERVERS_MAX: Final = 64
"""RocketMQ's brokers have none since 4.9."""

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

    @classmethod
    @shapes.request_body
    def decode(
        cls, data: bytes | memoryview, *, version: int, compressed: bool = False
    ) -> RegisterBrokerBody:
        """Read the body that a broker of some version sent.

        Raises:
            SystemError_: it is no registration.
        """
        raw = bytes(data)
        if compressed or raw[:1] == _ZLIB_FIRST_BYTE:
            return _decode_compressed(raw, version)
        if raw.count(b":{") > 2 * TABLE_ENTRIES_MAX + 16:  # cheaper than to read them first
            raise RemoteProtocolError(f"more than {TABLE_ENTRIES_MAX} topics in a registration")
        value = shapes.as_object(
            loads(raw, items_max=TABLE_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX), "registration"
        )
        if version < VERSION_REGISTER_BODY:
            table = TopicTable.from_json(value)
            return cls(table.version, table.topics)
        wrapper = value.get("topicConfigSerializeWrapper")
        table = TopicTable.from_json(shapes.as_object(wrapper, "topicConfigSerializeWrapper"))
        servers = shapes.as_list(value.get("filterServerList"), "filterServerList")
        return cls(table.version, table.topics, _filter_servers(servers))


def _encode_compressed(body: RegisterBrokerBody) -> bytes:
    pieces = [_encode_standard(data_version_to_json(body.version))]
    parts = [_INT.pack(len(pieces[0])), pieces[0], _INT.pack(len(body.topics))]
    for config in body.topics.values():
        line = (
            f"{config.name} {config.read_queues} {config.write_queues} {config.perm} "
            f"{config.filter_type} {_encode_standard(config.attributes).decode()}"
        ).encode()
        parts += (_INT.pack(len(line)), line)
    servers = _encode_standard(body.filter_servers)
    parts += (_INT.pack(len(servers)), servers, _INT.pack(0))
    return zlib.compress(b"".join(parts), 1)  # 15 MB of topics: 0.1 s, with level 9 it is 1 s


def _decode_compressed(raw: bytes, version: int) -> RegisterBrokerBody:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(raw, PLAIN_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"registration is not zlib data: {error}") from None
    if not stream.eof:
        raise RemoteProtocolError("registration is cut short or too large")
    if plain.count(b",") + plain.count(b"{") > ATTRIBUTE_ITEMS_MAX:
        raise RemoteProtocolError(f"registration has more than {ATTRIBUTE_ITEMS_MAX} attributes")
    reader = _Reader(plain)
    data_version = data_version_from_json(shapes.as_object(loads(reader.piece()), "dataVersion"))
    topics: dict[str, TopicConfig] = {}
    count = reader.count()
    if count > TABLE_ENTRIES_MAX:
        raise RemoteProtocolError(f"registration has more than {TABLE_ENTRIES_MAX} topics")
    for _ in range(count):
        config = _config_from_line(reader.piece())
        topics[config.name] = config
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
