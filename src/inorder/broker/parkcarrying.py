"""Parked messages and the age of the log: they are stored again before their file is to go.

A message stays parked for as long as its operators take; the log around it need not stay. The copy
is the same record at another place, and the table learns the place when the copy is safe.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.broker.state.parkrecords import Event, read_event
from inorder.errors import BrokerError, CorruptRecord, RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.wire.record import Record, decode

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.parking import Parking
    from inorder.broker.state.parkedkeys import Place

log = get_logger(__name__)

CARRIED_AT_ONCE: Final = 256
HOUR_MS: Final = 3_600_000


class ParkCarrier:
    """Carries parked messages on."""

    def __init__(self, parking: Parking, broker: Broker) -> None:
        self._parking = parking
        self._broker = broker
        self._carrying: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Carry parked messages on that lie in files which are to go before long.

        A message stays parked for as long as its operators take; the log around it need not.
        """
        if self._carrying is not None and not self._carrying.done():
            return
        store, now_ms = self._broker.store, self._broker.clock.now_ms()
        oldest = self._parking.table.oldest_position()
        if oldest is None or not self._broker.writable:
            return
        half_ms = store.config.retention_hours * HOUR_MS // 2
        crowded = (
            self._broker.files.usage(self._broker.config.data_path).used_ratio
            > store.config.disk_used_ratio_max
        )
        before = 0
        for segment in store.log.segments.items[:-1]:
            if not crowded and now_ms - store.modified_ms(segment.path) < half_ms:
                break
            before = segment.end
        if oldest < before:
            self._carrying = asyncio.get_running_loop().create_task(
                self._carry_all(before), name="carry parked messages on"
            )

    async def _carry_all(self, before: int) -> None:
        try:
            while count := await self.carry(before):
                log.info("parked messages carried on count=%d before=%d", count, before)
        except (BrokerError, StoreError) as error:
            log.error("parked messages were not carried on: %s", error)

    def cancel(self) -> None:
        """Give up what is under way."""
        if self._carrying is not None:
            self._carrying.cancel()

    async def carry(self, before: int) -> int:
        """Store again what lies before a position, so that the files there can go.

        Returns how many messages were; a few at a time.
        """
        count = 0
        for place in list(self._parking.table.places):
            if count >= CARRIED_AT_ONCE:
                break
            async with self._parking.alone(
                place
            ):  # or it might be redriven meanwhile, and come back
                items = self._lying_before(place, before, CARRIED_AT_ONCE - count)
                if items:
                    await asyncio.shield(self._parking.store(items).settled)
                    count += len(items)
        return count

    def _lying_before(
        self, place: Place, before: int, count: int
    ) -> list[tuple[str, Event, Record]]:
        items: list[tuple[str, Event, Record]] = []
        queue, now_ms = self._parking.table.places.get(place), self._broker.clock.now_ms()
        for one in queue.keys.values() if queue is not None else ():
            for message in one.messages:
                if message.position >= before or len(items) >= count:
                    continue
                try:
                    record = decode(self._broker.store.log.bytes_at(message.position, message.size))
                    event = read_event(record)
                except (CorruptRecord, RemoteProtocolError) as error:
                    log.error(
                        "a parked message is damaged position=%d: %s", message.position, error
                    )
                    continue
                record.stored_at_ms = now_ms
                items.append((place.group, event, record))
        return items
