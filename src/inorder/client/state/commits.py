"""What of a leased queue is committed, and when the next commit is due.

Commits of a queue are numbered within its epoch: the broker ignores one that is overtaken by a
later one, so requests need not wait for each other. The finished-map goes with the offset: whoever
comes next begins with both, and repeats nothing of what was committed.

    a queue has gone idle     at once, but no more often than every COMMIT_IDLE_MS
    handlers run              every COMMIT_BUSY_MS
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COMMIT_BUSY_MS: Final = 1000
COMMIT_IDLE_MS: Final = 100

NOTHING: Final = -1
"""No offset: the group has none, or there is none to commit."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a queue is: everything below the offset is done, and what the map says above it."""

    offset: int
    finished: str = ""


NOT_STORED: Final = Progress(NOTHING)


@dataclass(frozen=True, slots=True)
class Numbered:
    """One commit on its way."""

    number: int
    progress: Progress


class CommitLine:
    """The commits of one queue under one epoch."""

    __slots__ = ("_number", "_taken", "saved")

    def __init__(self, stored: Progress) -> None:
        """Begin with what came with the grant; its offset is NOTHING if the group has none.

        Where the group has none the broker may have said where to begin all the same, so the first
        commit is always sent: from then on the group has one.
        """
        self.saved = stored
        self._number = 0
        self._taken = 0

    def __repr__(self) -> str:
        return f"CommitLine({self.saved}, number={self._number})"

    def next(self, progress: Progress) -> Numbered | None:
        """Return what to send, None if the broker knows it already."""
        if progress == self.saved and self._taken:
            return None
        self._number += 1
        return Numbered(self._number, progress)

    def taken(self, commit: Numbered) -> None:
        """Note that the broker took it; answers may come in any order."""
        if commit.number > self._taken:
            self._taken = commit.number
            self.saved = commit.progress


def idle_commit_in_ms(now_ms: int, last_ms: int) -> int:
    """Return how long a queue that went idle waits for its commit, the last one being so old."""
    return max(0, last_ms + COMMIT_IDLE_MS - now_ms)


def busy_interval_ms(configured_ms: int) -> int:
    """Return how often a queue whose handlers run is committed under a lease."""
    return min(configured_ms, COMMIT_BUSY_MS)
