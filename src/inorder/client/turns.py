"""Lines in front of queues: sends of one queue pass one after the other, in the order they came.

A place is taken by `join`, without an await, and entered with `async with`; whoever took one and
does not enter must `leave` it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable


class Turn:
    """A place in a line."""

    __slots__ = ("_before", "_done", "_left", "_turns", "line")

    def __init__(self, turns: Turns, line: Hashable, before: asyncio.Future[None] | None) -> None:
        self._turns = turns
        self._before = before
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = False
        self.line = line

    @property
    def done(self) -> asyncio.Future[None]:
        """Return what the next in line waits for."""
        return self._done

    @property
    def before(self) -> asyncio.Future[None] | None:
        """Return what this one waits for."""
        return self._before

    @property
    def is_first(self) -> bool:
        """Tell whether nobody is in front."""
        return self._before is None or self._before.done()

    async def __aenter__(self) -> None:
        before = self._before
        if before is None or before.done():
            return
        try:
            await asyncio.shield(before)
        except asyncio.CancelledError:
            self.leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the place up; whoever is behind still waits for whoever is in front."""
        if self._left:
            return
        self._left = True
        before, self._before = self._before, None
        if before is None or before.done():
            self._finish()
        else:
            before.add_done_callback(lambda _: self._finish())

    def _finish(self) -> None:
        self._done.set_result(None)
        self._turns.forget(self)


class Turns:
    """The lines of a producer."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Hashable, Turn] = {}

    def join(self, line: Hashable) -> Turn:
        """Take the place at the end of a line."""
        before = self._last.get(line)
        turn = Turn(self, line, None if before is None else before.done)
        self._last[line] = turn
        return turn

    def forget(self, turn: Turn) -> None:
        """Forget a line that nobody stands in."""
        if self._last.get(turn.line) is turn:
            del self._last[turn.line]

    def __contains__(self, line: Hashable) -> bool:
        return line in self._last

    def __len__(self) -> int:
        return len(self._last)
