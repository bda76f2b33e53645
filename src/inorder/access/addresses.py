"""The address patterns of RocketMQ's ACL files, as networks.

    *   *.*.*.*   *:*:*:*:*:*:*:*        every address
    10.1.1.7   2001:db8::7               one
    10.1.1.7,10.1.1.8                    several
    10.1.1.{7,8,9}   2001:db8::{7,8}     several that differ in the last part
    10.1.*.*   10.1.1.*   10.1.1.1-50    a range in one part; only `*` may follow it

Patterns become networks (`10.1.0.0/16`), as policies have them.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

EVERYWHERE: Final = frozenset(("*", "*.*.*.*", "*:*:*:*:*:*:*:*"))
PATTERN_CHARACTERS_MAX: Final = 4096
_RANGE: Final = re.compile(r"([0-9a-fA-F]{1,4})-([0-9a-fA-F]{1,4})")
_V4_PARTS: Final = 4
_V6_PARTS: Final = 8


class NoPattern(ValueError):
    """The text is no address pattern."""


def networks(pattern: str) -> tuple[str, ...] | None:
    """Return the networks of a pattern, None for every address; raises NoPattern."""
    text = pattern.strip()
    if text in EVERYWHERE:
        return None
    if not text or len(text) > PATTERN_CHARACTERS_MAX:
        raise NoPattern(f"{text[:40]!r} is no address pattern")
    if text.endswith("}"):
        return tuple(_one(each) for each in _braces(text))
    if "," in text:
        return tuple(_one(each) for each in text.split(","))
    if "*" in text or "-" in text:
        return _range(text)
    return (_one(text),)


def _one(text: str) -> str:
    """Return an address as a network of one; an IPv4-mapped IPv6 address as the IPv4 one."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        raise NoPattern(f"{text.strip()[:40]!r} is no IP address") from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise NoPattern(f"{text.strip()[:40]!r} has a zone, which an address list cannot have")
        address = address.ipv4_mapped or address
    return str(ipaddress.ip_network(address))


def _braces(text: str) -> list[str]:
    head, opening, choices = text[:-1].rpartition("{")
    if not opening or not head or head[-1] not in ".:" or not choices:
        raise NoPattern(f"{text[:40]!r}: only the last part may stand in braces")
    return [head + choice.strip() for choice in choices.split(",")]


def _range(text: str) -> tuple[str, ...]:
    parts = _v6_parts(text) if ":" in text else text.split(".")
    count, base = (_V6_PARTS, 16) if ":" in text else (_V4_PARTS, 10)
    bits = 128 // _V6_PARTS if ":" in text else 32 // _V4_PARTS
    if len(parts) != count:
        raise NoPattern(f"{text[:40]!r} has not {count} parts")
    low, high, open_ended = 0, 0, False
    for part in parts:
        first, last = _part(text, part.strip(), base, bits)
        if open_ended and (first, last) != (0, 2**bits - 1):
            raise NoPattern(f"{text[:40]!r}: only * may follow a range")
        open_ended = open_ended or first != last
        low, high = low << bits | first, high << bits | last
    return _summary(low, high, is_v6=base == 16)


def _v6_parts(text: str) -> list[str]:
    """Return the eight parts of an IPv6 pattern; `::` stands for as many zeros as are missing."""
    head, gap, tail = text.partition("::")
    if not gap:
        return text.split(":")
    before = head.split(":") if head else []
    after = tail.split(":") if tail else []
    missing = _V6_PARTS - len(before) - len(after)
    if missing < 1 or "" in after:
        raise NoPattern(f"{text[:40]!r} is no IPv6 pattern")
    return before + ["0"] * missing + after


def _part(text: str, part: str, base: int, bits: int) -> tuple[int, int]:
    highest = 2**bits - 1
    if part == "*":
        return 0, highest
    found = _RANGE.fullmatch(part) or _RANGE.fullmatch(f"{part}-{part}")
    try:
        if found is not None:
            first, last = int(found[1], base), int(found[2], base)
            if first <= last <= highest:
                return first, last
    except ValueError:
        pass
    raise NoPattern(f"{text[:40]!r}: {part[:20]!r} is no part of an address and no range")


def _summary(low: int, high: int, *, is_v6: bool) -> tuple[str, ...]:
    if is_v6:
        v6 = ipaddress.summarize_address_range(
            ipaddress.IPv6Address(low), ipaddress.IPv6Address(high)
        )
        return tuple(map(str, v6))
    v4 = ipaddress.summarize_address_range(ipaddress.IPv4Address(low), ipaddress.IPv4Address(high))
    return tuple(map(str, v4))
