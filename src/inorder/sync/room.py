"""Room for the pending sends of a blocking producer: many threads, one loop."""

from __future__ import annotations

import threading
from typing import Any, Final

from inorder.accelerated import native
from inorder.client.send.rules import Room

SHARE_SECONDS: Final = 0.005
"""How often a thread looks whether the broker of its message has room."""
SLICE_SECONDS: Final = 0.05
"""A waiting thread checks again after this time, since the client may be closed meanwhile."""


class SharedRoom(Room):
    """Room for pending sends: threads enter it, and the loop leaves it.

    The compiled module counts in steps that no thread interrupts; without it there is the lock.
    """

    __slots__ = ("_changed", "_lock", "_waiting", "tally")

    def __init__(self, messages_max: int, bytes_max: int, budget_ms: int = 10_000) -> None:
        super().__init__(messages_max, bytes_max, budget_ms)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self.tally: Any = None if native is None else native.Tally(Room, self)

    @property
    def full(self) -> bool:
        """Return whether callers wait: here all can."""
        return self.messages >= self.pace.allowed or self.bytes >= self.bytes_max

    def enter(self, messages: int, bytes_: int) -> bool:
        # hot: 0.25 us.
        if self.tally is not None:
            entered: bool = self.tally.enter(messages, bytes_)
            return entered
        with self._lock:
            if self.messages >= self.pace.allowed or self.bytes >= self.bytes_max:
                return False
            self.messages += messages
            self.bytes += bytes_
            return True

    def add(self, messages: int, bytes_: int) -> None:
        if self.tally is not None:
            self.tally.add(messages, bytes_)
            return
        with self._lock:
            super().add(messages, bytes_)

    def leave(self, messages: int, bytes_: int) -> None:
        if self.tally is not None:
            self.tally.add(-messages, -bytes_)
            if self._waiting:  # a thread counts as waiting before it looks for room
                self._tell()
            return
        with self._lock:
            super().leave(messages, bytes_)
            if self._waiting and self.wide:
                self._changed.notify_all()

    def _tell(self) -> None:
        with self._lock:
            if self.wide:
                self._changed.notify_all()

    def turn_away(self, messages: int) -> None:  # negative: they are tried again
        with self._lock:
            super().turn_away(messages)

    def wait(self, seconds: float, *, share: bool = False) -> None:
        """Wait until there is some room, or the time is up; `share`: of one of several brokers."""
        with self._lock:
            self._waiting += 1
            try:
                if self.full or share:
                    seconds = min(seconds, SHARE_SECONDS if share else seconds)
                    self._changed.wait(min(seconds, SLICE_SECONDS))
            finally:
                self._waiting -= 1
