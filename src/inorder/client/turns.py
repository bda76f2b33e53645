"""Lines in front of queues: sends of one queue pass one after the other, in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turn:
    """A place in a line."""

    __slots__ = ("_before", "_done", "_turns", "line")

    def __init__(self, turns: Turns, line: Hashable, before: asyncio.Future[None] | None) -> None:
        self._turns = turns
        self._before = before
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line = line

    @property
    def done(self) -> asyncio.Future[None]:
        """Return what the next in line waits for."""
        return self._done

    async def __aenter__(self) -> None:
        try:
            if self._before is not None:
                await asyncio.shield(self._before)
        except asyncio.CancelledError:
            # Whoever is behind must still wait for whoever is in front.
            assert self._before is not None
            self._before.add_done_callback(lambda _: self._finish())
            raise

    async def __aexit__(self, *_: object) -> None:
        self._finish()

    def _finish(self) -> None:
        self._done.set_result(None)
        self._turns.leave(self)


class Turns:
    """The lines of a producer."""

    __slots__ = ("_gates", "_last")

    def __init__(self) -> None:
        self._last: dict[Hashable, Turn] = {}
        self._gates: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    def join(self, line: Hashable) -> Turn:
        """Take the place at the end of a line; enter it with `async with`."""
        before = self._last.get(line)
        turn = Turn(self, line, None if before is None else before.done)
        self._last[line] = turn
        return turn

    def leave(self, turn: Turn) -> None:
        """Forget a line that nobody stands in."""
        if self._last.get(turn.line) is turn:
            del self._last[turn.line]

    @asynccontextmanager
    async def gate(self, name: Hashable) -> AsyncIterator[None]:
        """Let callers through one by one while they find out which line is theirs."""
        lock, users = self._gates.setdefault(name, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._gates[name]

    def __len__(self) -> int:
        return len(self._last)
