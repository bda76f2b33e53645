"""The file `consumerFilter.json`, which RocketMQ reads and writes, too.

RocketMQ drops a file whose entries lack their places in a bloom filter, with which it can mark the
messages that match. So every entry has them, for RocketMQ's default size of that filter: three bits
of 112, found by the hash murmur3 of `group#topic`. Nothing here uses them, because no bit maps are
kept. A RocketMQ broker that is set to another size reads the file as an empty one, until the groups
send heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from inorder.errors import RemoteProtocolError
from inorder.wire import fastjson, shapes
from inorder.wire.fastjson import TABLE_ITEMS_MAX, loads

BLOOM_BITS: Final = 112
BLOOM_HASHES: Final = 3

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class FilterRecord:
    """The filter of a group for a topic, as it is stored."""

    group: str
    topic: str
    expression: str
    kind: str
    version: int
    """The version of the subscription: the time at which the client made it."""
    born_ms: int
    dead_ms: int = 0

    @property
    def dead(self) -> bool:
        """Return whether no member of the group subscribes so any more."""
        return self.dead_ms >= self.born_ms

    def died(self, now_ms: int) -> FilterRecord:
        """Return the same filter, dead since a time."""
        return replace(self, dead_ms=max(now_ms, self.born_ms))


def encode_filter(record: FilterRecord) -> bytes:
    """Return an entry of the file, with its indentation there."""
    entry = fastjson.dumps(
        {
            record.group: {
                "bloomFilterData": {
                    "bitNum": BLOOM_BITS,
                    "bitPos": bloom_places(f"{record.group}#{record.topic}"),
                },
                "bornTime": record.born_ms,
                "clientVersion": record.version,
                "consumerGroup": record.group,
                "dead": record.dead,
                "deadTime": record.dead_ms,
                "expression": record.expression,
                "expressionType": record.kind,
                "topic": record.topic,
            }
        },
        pretty=True,
    )
    return entry[1:-2].replace(b"\n", b"\n\t\t\t")


def join_filters(topics: Mapping[str, list[bytes]]) -> bytes:
    """Return the content of the file."""
    parts = []
    for topic, entries in topics.items():
        name = fastjson.dumps(topic)
        parts.append(
            b'\n\t\t%b:{\n\t\t\t"groupFilterData":{%b\n\t\t\t},\n\t\t\t"topic":%b\n\t\t}'
            % (name, b",".join(entries), name)
        )
    end = b"\n\t" if parts else b""
    return b'{\n\t"filterDataByTopic":{%b%b}\n}' % (b",".join(parts), end)


def decode_filters(data: bytes) -> list[FilterRecord]:
    """Return the filters of a file. Raises RemoteProtocolError if it is malformed."""
    value = shapes.as_object(loads(data, items_max=TABLE_ITEMS_MAX), "filters")
    records = []
    for topic, filters in shapes.as_object(
        value.get("filterDataByTopic"), "filterDataByTopic"
    ).items():
        groups = shapes.as_object(filters, "filters of a topic").get("groupFilterData")
        for group, entry in shapes.as_object(groups, "groupFilterData").items():
            if entry is not None:
                fields = shapes.as_object(entry, "filter")
                records.append(_record(str(topic), str(group), fields))
    return records


def _record(topic: str, group: str, fields: dict[object, object]) -> FilterRecord:
    if shapes.text(fields, "topic", topic) != topic:
        raise RemoteProtocolError("a filter stands under another topic than its own")
    return FilterRecord(
        group,
        topic,
        shapes.text(fields, "expression", ""),
        shapes.text(fields, "expressionType", ""),
        shapes.integer(fields, "clientVersion", 0),
        shapes.integer(fields, "bornTime", 0),
        shapes.integer(fields, "deadTime", 0),
    )


def bloom_places(name: str) -> list[int]:
    """Return the bits of a name in RocketMQ's bloom filter of the default size."""
    hashed = murmur3(name.encode())
    first, second = _int32(hashed), _int32(hashed >> 32)
    places = []
    for turn in range(1, BLOOM_HASHES + 1):
        combined = _int32(first + turn * second)
        places.append((combined if combined >= 0 else ~combined) % BLOOM_BITS)
    return places


def murmur3(data: bytes) -> int:
    """Return the first half of the hash murmur3, of the variant x64 with 128 bits, seed 0."""
    one = two = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        one ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        one = ((_turned(one, 27) + two) * 5 + 0x52DCE729) & _MASK
        two ^= _mixed(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        two = ((_turned(two, 31) + one) * 5 + 0x38495AB5) & _MASK
    one ^= _mixed(int.from_bytes(data[whole : whole + 8], "little"), _C1, 31, _C2)
    two ^= _mixed(int.from_bytes(data[whole + 8 :], "little"), _C2, 33, _C1)
    one, two = one ^ len(data), two ^ len(data)
    one = (one + two) & _MASK
    two = (two + one) & _MASK
    return (_final(one) + _final(two)) & _MASK


def _mixed(word: int, first: int, turns: int, second: int) -> int:
    return _turned(word * first & _MASK, turns) * second & _MASK


def _turned(word: int, turns: int) -> int:
    return (word << turns | word >> (64 - turns)) & _MASK


def _final(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
