"""What is gone: messages that were stored and have no record any more."""

from __future__ import annotations

import msgspec


class Loss(msgspec.Struct, frozen=True):
    """Offsets of a queue that are gone, from `low` to before `high`.

    Without a topic they are positions of the log.
    """

    topic: str
    queue_id: int
    low: int
    high: int
    reason: str

    def __str__(self) -> str:
        if not self.topic:
            return f"positions {self.low} to {self.high - 1} of the log: {self.reason}"
        return f"{self.topic}/{self.queue_id} offsets {self.low} to {self.high - 1}: {self.reason}"
