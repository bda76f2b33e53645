"""How much a producer takes in that has no outcome yet, in messages and in bytes.

A call comes in while there is any room at all, also if it brings more than fits: so a message or a
batch that is larger than the limit goes too, and what waits exceeds the limits by one call at most.
"""

from __future__ import annotations


class Room:
    """What waits, and the limits of that."""

    __slots__ = ("bytes", "bytes_max", "messages", "messages_max", "refused")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        self.refused = 0  # messages that found no room

    @property
    def full(self) -> bool:
        """Tell whether nothing more comes in."""
        return self.messages >= self.messages_max or self.bytes >= self.bytes_max

    @property
    def wide(self) -> bool:
        """Tell whether half of it is free: worth it to wake a thread that waits."""
        return (
            self.messages <= self.messages_max - max(self.messages_max // 2, 1)
            and self.bytes <= self.bytes_max - max(self.bytes_max // 2, 1)
        )  # fmt: skip

    def enter(self, messages: int, bytes_: int) -> bool:
        """Take in what a call brings; False if there is no room."""
        if self.full:
            return False
        self.add(messages, bytes_)
        return True

    def add(self, messages: int, bytes_: int) -> None:
        """Take it in, full or not."""
        self.messages += messages
        self.bytes += bytes_

    def leave(self, messages: int, bytes_: int) -> None:
        """Let go what has its outcome."""
        self.messages -= messages
        self.bytes -= bytes_

    def turn_away(self, messages: int) -> None:
        """Count messages that were refused for want of room."""
        self.refused += messages

    def __str__(self) -> str:
        return (
            f"{self.messages} messages with {self.bytes} bytes have no outcome yet, the limits are "
            f"{self.messages_max} (sends_waiting_max) and {self.bytes_max} "
            "(sends_waiting_bytes_max)"
        )
