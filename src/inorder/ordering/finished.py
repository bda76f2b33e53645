"""Which messages of a queue are done when they are not done in order.

`base` is the lowest offset that is not done: what RocketMQ knows as the committed offset. Above it
a bit per offset says which ones are done already, so that neither a restart nor a hand-over repeats
them. Offsets that nobody will ever be given (the tag did not match, retention took them) are noted
as done by whoever learns of it.

    base 100, done 102, 103, 105      mask 0b101100      text "100:2c"
"""

from __future__ import annotations

from typing import Final

from inorder.errors import RemoteProtocolError

SPAN_MAX: Final = 65_536
"""Bits above the base; a message further away must wait."""


class FinishedMap:
    """The offsets of one queue that are done."""

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
        """Return how far above the base the highest one that is done lies."""
        return self._mask.bit_length()

    @property
    def above(self) -> list[int]:
        """Return the offsets above the base that are done."""
        mask, base = self._mask, self.base
        return [base + bit for bit in range(mask.bit_length()) if mask >> bit & 1]

    def add(self, offset: int) -> None:
        """Note that a message is done; again is fine."""
        self.add_range(offset, offset + 1)

    def add_range(self, start: int, end: int) -> None:
        """Note that everything from `start` up to, not including, `end` is done."""
        first, last = max(start, self.base) - self.base, end - self.base
        if last <= first:
            return
        if first > 0 and last > SPAN_MAX:
            raise ValueError(f"{end} lies more than {SPAN_MAX} above {self.base}")
        if first == 0 and last > SPAN_MAX:  # no bits needed for what is contiguous
            self._mask >>= last
            self.base = end
        else:
            self._mask |= ((1 << (last - first)) - 1) << first
        self._advance()

    @property
    def end(self) -> int:
        """Return the offset from which on nothing is done."""
        return self.base + self._mask.bit_length()

    def above_text(self) -> str:
        """Return the text, or nothing if nothing above the base is done: the base says it all."""
        return self.encode() if self._mask else ""

    def copy(self) -> FinishedMap:
        """Return one that later changes do not touch."""
        return FinishedMap(self.base, self._mask)

    def encode(self) -> str:
        """Return base and mask as text."""
        return f"{self.base}:{self._mask:x}"

    @classmethod
    def decode(cls, text: str) -> FinishedMap:
        """Read the text.

        Raises:
            RemoteProtocolError: it is no such map, or a larger one than we make.
        """
        base, colon, mask = text.partition(":")
        digits = base.isascii() and base.isdigit() and len(base) <= 19
        if not colon or not digits or not 1 <= len(mask) <= SPAN_MAX // 4 + 1:
            raise RemoteProtocolError(f"not a map of finished messages: {text[:80]!r}")
        if not set(mask) <= set("0123456789abcdef"):
            raise RemoteProtocolError(f"not a map of finished messages: {text[:80]!r}")
        return cls(int(base), int(mask, 16))

    def _advance(self) -> None:
        """Move the base over what is done."""
        mask = self._mask
        if mask & 1:
            done = ((mask + 1) & ~mask).bit_length() - 1
            self._mask = mask >> done
            self.base += done
