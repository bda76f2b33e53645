"""Events of parked keys on their way into the log, and whose turn it is with a queue."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from inorder.errors import broker_error

if TYPE_CHECKING:
    from inorder.broker.parking import Parking
    from inorder.broker.state.parkedkeys import Place
    from inorder.broker.state.parkrecords import Event


class Flight:
    """Events on their way into the log, until the tick says what became of them."""

    __slots__ = ("_parking", "base", "events", "settled")

    def __init__(self, parking: Parking, base: int) -> None:
        self._parking = parking
        self.base = base
        """Its records lie at or behind this position."""
        self.events: list[tuple[str, Event, int]] = []
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def count(self) -> int:
        """Return how many records it has."""
        return len(self.events)

    def write(self) -> None:
        """Count the events: they are stored, safe by the flush mode."""
        self._parking.settle(self)
        if not self.settled.done():
            self.settled.set_result(None)

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """Take note that they are not stored, or that nobody knows."""
        self._parking.forget(self)
        if not self.settled.done():
            self.settled.set_exception(broker_error(code, remark))
            self.settled.exception()  # whoever waited may have gone

    def write_late(self) -> bool:
        """What becomes of them has still to be known."""
        return False


class Alone:
    """Of those who want the same queue, one after the other, in the order in which they came."""

    __slots__ = ("_busy", "_place")

    def __init__(self, busy: dict[Place, deque[asyncio.Future[None]]], place: Place) -> None:
        self._busy = busy
        self._place = place

    async def __aenter__(self) -> None:
        waiting = self._busy.get(self._place)
        if waiting is None:
            self._busy[self._place] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # it was our turn already
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        waiting = self._busy[self._place]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._busy[self._place]
