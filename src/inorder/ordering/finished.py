"""Which messages of a queue are finished when they do not finish in order.

`base` is the lowest unfinished offset, which RocketMQ calls the committed offset. Above it one bit
per offset says which messages are finished, so that neither a restart nor a new owner repeats them.
Offsets that no handler will ever get (the tag did not match, retention deleted them) are added as
finished by the code that learns of it. Why a map beside the offset: decision 18.

    base 100, finished 102, 103, 105      mask 0b101100      text "100:2c"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inorder.errors import RemoteProtocolError

SPAN_MAX: Final = 65_536
"""Bits above the base; a message beyond them has to wait."""
_ZERO: Final = ord("0")


class FinishedMap:
    """The finished offsets of one queue."""

    __slots__ = ("_mask", "base")

    def __init__(self, base: int, mask: int = 0) -> None:
        if base < 0 or mask < 0:
            raise ValueError(f"an offset and a mask are not negative: {base}, {mask}")
        self.base = base
        self._mask = mask
        self._advance()

    def __repr__(self) -> str:
        return f"FinishedMap({self.encode()})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FinishedMap):
            return NotImplemented
        return (self.base, self._mask) == (other.base, other._mask)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __contains__(self, offset: int) -> bool:
        return offset < self.base or bool(self._mask >> (offset - self.base) & 1)

    @property
    def span(self) -> int:
        """Return how far the highest finished offset reaches above the base."""
        return self._mask.bit_length()

    @property
    def count(self) -> int:
        """Return how many messages above the base are finished."""
        return self._mask.bit_count()

    @property
    def above(self) -> list[int]:
        """Return the finished offsets above the base."""
        mask, base = self._mask, self.base
        return [base + bit for bit in range(mask.bit_length()) if mask >> bit & 1]

    def add(self, offset: int) -> None:
        """Add a finished message; adding it again changes nothing."""
        self.add_range(offset, offset + 1)

    def add_range(self, start: int, end: int) -> None:
        """Add every offset from `start` up to, but not including, `end`."""
        first, last = max(start, self.base) - self.base, end - self.base
        if last <= first:
            return
        if first > 0 and last > SPAN_MAX:
            raise ValueError(f"{end} lies more than {SPAN_MAX} above {self.base}")
        if first == 0 and last > SPAN_MAX:  # a contiguous range needs no bits
            self._mask >>= last
            self.base = end
        else:
            self._mask |= ((1 << (last - first)) - 1) << first
        self._advance()

    def add_below(self, end: int, *, unfinished: Sequence[int]) -> None:
        """Add every offset below `end` except the `unfinished` ones, which ascend."""
        if not unfinished:
            self.add_range(self.base, end)
            return
        first = unfinished[0]
        self.add_range(self.base, first)
        if self.base != first or end - first > SPAN_MAX:
            raise ValueError(f"{unfinished} below {end} do not fit onto {self!r}")
        bits = bytearray(b"1") * (end - first)  # the highest offset comes first
        for offset in unfinished:
            bits[end - 1 - offset] = _ZERO
        self._mask |= int(bits, 2)

    @property
    def end(self) -> int:
        """Return the offset from which on nothing is finished."""
        return self.base + self._mask.bit_length()

    def above_text(self) -> str:
        """Return the encoded map, or "" if nothing above the base is finished."""
        return self.encode() if self._mask else ""

    def copy(self) -> FinishedMap:
        """Return an independent copy."""
        return FinishedMap(self.base, self._mask)

    def encode(self) -> str:
        """Return base and mask as text; see above."""
        return f"{self.base}:{self._mask:x}"

    @classmethod
    def decode(cls, text: str) -> FinishedMap:
        """Read an encoded map.

        Raises:
            RemoteProtocolError: The text is no map, or its mask is longer than SPAN_MAX.
        """
        base, colon, mask = text.partition(":")
        digits = base.isascii() and base.isdigit() and len(base) <= 19
        if not colon or not digits or not 1 <= len(mask) <= SPAN_MAX // 4 + 1:
            raise RemoteProtocolError(f"not a map of finished messages: {text[:80]!r}")
        if not set(mask) <= set("0123456789abcdef"):
            raise RemoteProtocolError(f"not a map of finished messages: {text[:80]!r}")
        return cls(int(base), int(mask, 16))

    def _advance(self) -> None:
        """Move the base past the finished offsets that follow it."""
        mask = self._mask
        if mask & 1:
            done = ((mask + 1) & ~mask).bit_length() - 1
            self._mask = mask >> done
            self.base += done
