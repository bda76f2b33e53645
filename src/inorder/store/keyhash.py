"""Hashes of index keys: `abs(hashCode(topic + "#" + key))` as RocketMQ's index has it.

The hash of the topic's part is computed once per topic and combined with that of the key:
`h(a + b) = h(a) * 31**len(b) + h(b)`. This is the way without numpy; `keybatch.py` is its twin for
batches. numpy is imported by the first large batch only: it costs 0.1 s and 20 MB.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from operator import mul
from typing import Final

from inorder.wire.ids import java_hash

MASK: Final = 0xFFFFFFFF
SIGN: Final = 0x80000000
NUMPY_BATCH_MIN: Final = 256
TAIL_CHARS: Final = 12
HEADS_MAX: Final = 4096
BLOCK_CHARS: Final = 64

_numpy_wanted = True


@lru_cache(maxsize=65_536)  # topics in turn, one more than fits: none would ever be found
def prefix_hash(topic: str) -> int:
    """Return the hash of `topic#`, unsigned."""
    return java_hash(topic + "#") & MASK


@lru_cache(maxsize=512)
def powers(length: int) -> list[int]:
    """Return what each character of a key of this length counts."""
    return [pow(31, length - 1 - i, 1 << 32) for i in range(length)]


_heads: dict[bytes, int] = {}


def _key_hash(key: bytes) -> tuple[int, int]:
    """Return (hash, characters) of one key, unsigned."""
    length = len(key)
    if not key.isascii():
        text = key.decode("utf-8", "replace")
        return java_hash(text) & MASK, len(text.encode("utf-16-le", "surrogatepass")) // 2
    if length <= 2 * TAIL_CHARS:
        return sum(map(mul, key, powers(length))) & MASK, length
    # Message ids of one producer share all but their end.
    head = key[:-TAIL_CHARS]
    known = _heads.get(head)
    if known is None:
        if len(_heads) >= HEADS_MAX:
            _heads.clear()
        known = 0
        for start in range(0, len(head), BLOCK_CHARS):
            block = head[start : start + BLOCK_CHARS]
            value = sum(map(mul, block, powers(len(block))))
            known = (known * pow(31, len(block), 1 << 32) + value) & MASK
        _heads[head] = known
    tail = sum(map(mul, key[-TAIL_CHARS:], powers(TAIL_CHARS)))
    return (known * _TAIL_POWER + tail) & MASK, length


_TAIL_POWER: Final = pow(31, TAIL_CHARS, 1 << 32)


def _absolute(value: int) -> int:
    """Return Java's abs of an unsigned 32-bit pattern; RocketMQ makes 0 of the one without."""
    if value < SIGN:
        return value
    return 0 if value == SIGN else (1 << 32) - value


# hot: 1.0 µs a key
def hash_pure(prefixes: list[int], keys: list[bytes]) -> list[int]:
    """Hash keys one by one."""
    hashes = []
    for prefix, key in zip(prefixes, keys, strict=True):
        value, length = _key_hash(key)
        hashes.append(_absolute((prefix * pow(31, length, 1 << 32) + value) & MASK))
    return hashes


def numpy_for(count: int) -> bool:
    """Tell whether a batch of `count` is worth numpy, and numpy is there."""
    global _numpy_wanted  # noqa: PLW0603 - whether the package is there does not change
    if _numpy_wanted and count >= NUMPY_BATCH_MIN:
        if importlib.util.find_spec("numpy") is not None:
            return True
        _numpy_wanted = False
    return False
