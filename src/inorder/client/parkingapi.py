"""The requests about parked keys that a broker of ours answers; a stock one knows none of them."""

from __future__ import annotations

from typing import Final

from inorder.client.api import BrokerApi
from inorder.wire.fields import decode_fields
from inorder.wire.record import Record, decode_all
from inorder.wire.requests import parking as bodies
from inorder.wire.requests import parking as requests

WRITE_TIMEOUT_MS: Final = 10_000
"""A request that is answered when it is on disk, and waits for others of its queue."""


class ParkingApi:
    """Asks one broker."""

    __slots__ = ("_api",)

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    async def park(self, request: requests.Park, body: bodies.ParkBody) -> bodies.ParkAnswer:
        """Set messages aside. Raises LeaseLost."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)
        return bodies.ParkAnswer.decode(answer.body)

    async def keys(self, group: str, topic: str, queue_id: int) -> bodies.QueueParking:
        """Return what the owner of a queue has to know."""
        answer = await self._api.ask(
            requests.ParkedKeys(group, topic, queue_id), timeout_ms=WRITE_TIMEOUT_MS
        )
        return bodies.QueueParking.decode(answer.body)

    async def entries(self, group: str = "") -> tuple[list[bodies.ParkedEntry], dict[str, str]]:
        """Return the parked keys of a group (default: of all), and who cannot park more."""
        found: list[bodies.ParkedEntry] = []
        full: dict[str, str] = {}
        after = ""
        while True:
            answer = await self._api.ask(requests.ParkedList(group, after))
            page = bodies.ParkedPage.decode(answer.body)
            found += page.entries
            full |= page.full
            after = page.next
            if not after:
                return found, full

    async def read(self, request: requests.ParkedRead) -> list[Record]:
        """Return the next messages of a parked key, as they lie in %PARK%group."""
        return (await self.read_counted(request))[0]

    async def read_counted(self, request: requests.ParkedRead) -> tuple[list[Record], int]:
        """Return them, and how many there are of the key."""
        answer = await self._api.ask(request)
        reply = decode_fields(requests.ParkedReadReply, answer.fields)
        return decode_all(answer.body), reply.messages

    async def redrive(
        self, group: str, keys: list[bodies.NamedKey], *, cancel: bool = False
    ) -> int:
        """Ask for a redrive, or take that back; return for how many of the keys."""
        return await self._keys(requests.Redrive(group, cancel), keys, requests.RedriveReply)

    async def redriven(
        self, request: requests.Redriven, body: bodies.RedrivenBody
    ) -> requests.RedrivenReply:
        """Say what became of messages. Raises LeaseLost."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)
        return decode_fields(requests.RedrivenReply, answer.fields)

    async def unpark(self, request: requests.Unpark) -> requests.UnparkReply:
        """Let a key go live. Raises LeaseLost."""
        answer = await self._api.ask(request, timeout_ms=WRITE_TIMEOUT_MS)
        return decode_fields(requests.UnparkReply, answer.fields)

    async def drop(
        self, group: str, keys: list[bodies.NamedKey], *, reason: str, first: bool = False
    ) -> int:
        """Throw messages away; return how many that were."""
        request = requests.ParkedDrop(group, reason, first)
        return await self._keys(request, keys, requests.ParkedDropReply)

    async def _keys(
        self,
        request: requests.Redrive | requests.ParkedDrop,
        keys: list[bodies.NamedKey],
        reply: type[requests.RedriveReply] | type[requests.ParkedDropReply],
    ) -> int:
        count = 0
        for at in range(0, len(keys), bodies.ITEMS_MAX):
            body = bodies.KeyList(keys[at : at + bodies.ITEMS_MAX])
            answer = await self._api.ask(request, body.encode(), timeout_ms=WRITE_TIMEOUT_MS)
            found = decode_fields(reply, answer.fields)
            count += found.keys if isinstance(found, requests.RedriveReply) else found.messages
        return count
