"""Java's `String.hashCode`: RocketMQ compares tags and keys by it, on disk and on the wire."""

from __future__ import annotations

import sys
from operator import mul
from typing import Final

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
