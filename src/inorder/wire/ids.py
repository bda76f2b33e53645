"""Message ids, the addresses inside them, and Java's string hash.

    offset message id   the broker's address and the record's position in its log
    unique message id   chosen by the producer: its address, process, start time and a counter
    address             4 or 16 bytes and a 4-byte port, in ids and in records
    `java_hash`         `String.hashCode`, by which RocketMQ compares tags and keys

Both ids are upper-case hex of 32 characters (IPv4) or 56 (IPv6), so their length does not tell them
apart.
"""

from __future__ import annotations

import struct
import sys
from datetime import datetime, tzinfo
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import count
from operator import mul
from typing import Final

from inorder.errors import CorruptRecord, LocalProtocolError, RemoteProtocolError

HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20

_PORT: Final = struct.Struct(">i")


def pack_host(ip: str, port: int) -> bytes:
    """Return the 8 (IPv4) or 20 (IPv6) bytes of an address.

    Raises:
        LocalProtocolError: the text is not an IP address, or the port is none.
    """
    try:
        address = ip_address(ip.partition("%")[0])
        return address.packed + _PORT.pack(port)
    except (ValueError, struct.error):
        raise LocalProtocolError(f"not an IP address and port: {ip!r} {port!r}") from None


def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return the address and port of packed bytes."""
    if len(packed) == HOST_V4_BYTES:
        return str(IPv4Address(packed[:4])), _PORT.unpack_from(packed, 4)[0]
    if len(packed) == HOST_V6_BYTES:
        return str(IPv6Address(packed[:16])), _PORT.unpack_from(packed, 16)[0]
    raise CorruptRecord(f"a packed host has 8 or 20 bytes, not {len(packed)}")


def show_address(host: str, port: int) -> str:
    """Write an address as routes and people do: `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_POSITION: Final = struct.Struct(">q")
_ID_LENGTHS: Final = (32, 56)
_DECEMBER: Final = 12


def offset_message_id(store_host: bytes, position: int) -> str:
    """Return the id of the record at a position; the host is packed (8 or 20 bytes)."""
    return (store_host + _POSITION.pack(position)).hex().upper()


def parse_message_id(text: str) -> tuple[str, int, int]:
    """Return the address, port and position of an offset message id.

    Raises:
        RemoteProtocolError: it is not one.
    """
    try:
        if len(text) not in _ID_LENGTHS or not text.isalnum():
            raise ValueError(text)
        data = bytes.fromhex(text)
    except ValueError:
        raise RemoteProtocolError(f"not a message id: {text[:64]!r}") from None
    ip, port = unpack_host(data[:-8])
    return ip, port, _POSITION.unpack(data[-8:])[0]


class UniqueIds:
    """Make ids as RocketMQ's clients do: address, process, a random number, time, counter.

    The time is counted from the start of the month, in local time unless a zone is given. Threads
    may share one of these without a lock: the count is atomic, and the rest only repeats itself.
    """

    __slots__ = ("_fixed", "_latest", "_month_ms", "_zone", "counter")

    def __init__(self, ip: str, pid: int, random32: int, *, zone: tzinfo | None = None) -> None:
        address = pack_host(ip, 0)[:-4]
        process = struct.pack(">HI", pid & 0xFFFF, random32 & 0xFFFFFFFF)
        self._fixed = (address + process).hex().upper()
        self.counter = count()
        self._zone = zone
        self._month_ms = (0, 0)  # its start and its end
        self._latest = (-1, "")  # a millisecond, and what all its ids begin with

    def next(self, now_ms: int) -> str:
        """Return the next id; 65,536 in one millisecond are distinct."""
        # hot: 0.2 us.
        latest_ms, prefix = self._latest
        if now_ms != latest_ms:
            prefix = self.prefix(now_ms)
            self._latest = (now_ms, prefix)
        return f"{prefix}{next(self.counter) & 0xFFFF:04X}"

    def prefix(self, now_ms: int) -> str:
        """Return what all ids of a millisecond begin with; four digits of the counter follow."""
        return f"{self._fixed}{now_ms - self._month_start(now_ms):08X}"

    def _month_start(self, now_ms: int) -> int:
        first_ms, end_ms = self._month_ms
        if first_ms <= now_ms < end_ms:
            return first_ms
        start = datetime.fromtimestamp(now_ms / 1000, self._zone).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        if start.month == _DECEMBER:
            end = start.replace(year=start.year + 1, month=1)
        else:
            end = start.replace(month=start.month + 1)
        first_ms = int(start.timestamp() * 1000)
        self._month_ms = (first_ms, int(end.timestamp() * 1000))
        return first_ms


_BLOCK: Final = 64
_MASK: Final = 0xFFFFFFFF
_POWERS: Final = [pow(31, _BLOCK - 1 - i, 1 << 32) for i in range(_BLOCK)]
_BLOCK_POWER: Final = pow(31, _BLOCK, 1 << 32)
_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

_CACHE_MAX: Final = 4096
_cache: dict[bytes, int] = {}


def java_hash(text: str) -> int:
    """Return the signed 32-bit hash of a string, over its UTF-16 code units."""
    if text.isascii():
        return java_hash_bytes(text.encode())
    units = memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
    return _hash_units(units)


def java_hash_bytes(ascii: bytes) -> int:
    """Return the hash of a string given as UTF-8; ASCII is the fast case.

    Bytes that are not UTF-8 count as U+FFFD, as Java decodes them.
    """
    # hot: once per stored record. 0.1 us for a tag seen before, 50 ns a character otherwise.
    known = _cache.get(ascii)
    if known is not None:
        return known
    if not ascii.isascii():
        return java_hash(ascii.decode("utf-8", "replace"))
    if len(ascii) > _BLOCK:
        return _hash_units(memoryview(ascii))
    result = 0
    for unit in ascii:
        result = 31 * result + unit
    result &= _MASK
    if result > 0x7FFFFFFF:
        result -= 1 << 32
    if len(_cache) >= _CACHE_MAX:
        _cache.clear()
    _cache[ascii] = result
    return result


def _hash_units(units: memoryview) -> int:
    """Hash any number of units, a block at a time; the integers stay below 2**64."""
    result = 0
    whole = len(units) - len(units) % _BLOCK
    for at in range(0, whole, _BLOCK):
        result = (result * _BLOCK_POWER + sum(map(mul, units[at : at + _BLOCK], _POWERS))) & _MASK
    for unit in units[whole:]:
        result = (31 * result + unit) & _MASK
    return result - (1 << 32) if result > 0x7FFFFFFF else result
