"""Whose turn it is: how much of the event loop many peers, or greedy ones, may take.

A connection that is older than a second and asks for little is always served where its bytes
arrive: there is no queue that others could fill before it. Two kinds of connections wait in line
for a slice of each turn of the loop:

- greedy ones, which took more than a share (`ServerConnection.end_share`: bytes of replies, or
  time) within the last second;
- new ones, in their first second, when the slice of this turn is used up: thousands that connect at
  once must not get ahead of the connections that were there before.

Closing connections takes its time from the same slice: ten thousand that close at once are
forgotten over many turns. While nobody waits and there is time, everything is done at once, so
fairness costs nothing in quiet times. Why: decision 9.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.net.accepted import ServerConnection

SLICE_MS = 3
"""The time slice of one turn for connections in line."""
SHARE_MS = 2
"""Time after which a connection has had its share, looked at between two requests."""
SHARE_FRAMES = 512
"""Requests after which a connection has had its share, however cheap they were."""
SPARED_MAX = 16
"""New connections served in a turn although its slice is used up."""
PROBATION_MS = 1000
"""How long a connection counts as new, or as greedy."""


class Turns:
    """The waiting connections of one server, and the remaining time of the present turn."""

    __slots__ = ("_clock", "_ends_ms", "_line", "_loop", "_open", "_scheduled", "_spared", "_work")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: deque[ServerConnection] = deque()
        self._work: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._open = False
        self._ends_ms = 0
        self._spared = 0

    def __repr__(self) -> str:
        return f"Turns(in line={len(self._line)}, work={len(self._work)})"

    def admits(self, *, greedy: bool) -> bool:
        """Return whether a new or greedy connection may be served now, without waiting."""
        if self._line:
            return False
        if self._has_time():
            return True
        # A few new ones need not wait because the machine was slow for a moment.
        self._spared += 1
        return not greedy and self._spared <= SPARED_MAX

    def wait(self, connection: ServerConnection) -> None:
        """Put a connection in line; its `take_turn` is called when it is its turn."""
        self._line.append(connection)
        self._schedule()

    def do(self, work: Callable[[], None]) -> None:
        """Do a small piece of work that nothing waits for: now, or when there is time."""
        if not self._work and self._has_time():
            work()
        else:
            self.later(work)

    def later(self, work: Callable[[], None]) -> None:
        """Do a small piece of work in the next turn, or when there is time."""
        self._work.append(work)
        self._schedule()

    @property
    def over(self) -> bool:
        """Return whether this turn has no time left for work that can wait."""
        return bool(self._work) or not self._has_time()

    def finish(self) -> None:
        """Do all waiting work now, except serving, because the server stops."""
        while self._work:
            self._work.popleft()()

    def _has_time(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        if not self._open:
            self._open = True
            self._ends_ms = now_ms + SLICE_MS
            self._loop = self._loop or asyncio.get_running_loop()
            self._loop.call_soon(self._end)
            return True
        return now_ms < self._ends_ms

    def _end(self) -> None:
        self._open = False
        self._spared = 0

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop = self._loop or asyncio.get_running_loop()
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Serve the connections in line, one share each, until the slice is over."""
        self._scheduled = False
        clock = self._clock
        ends_ms = clock.monotonic_ms() + SLICE_MS
        served, worked = len(self._line), len(self._work)
        while served or worked:
            if served:
                served -= 1
                self._line.popleft().take_turn()
            if worked:
                worked -= 1
                self._work.popleft()()
            if clock.monotonic_ms() >= ends_ms:
                break
        if self._line or self._work:
            self._schedule()
