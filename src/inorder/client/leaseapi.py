"""The requests about leases that a broker of ours answers; a stock one knows none of them."""

from __future__ import annotations

from inorder.client.api import BrokerApi
from inorder.wire.fields import decode_fields
from inorder.wire.requests import leases as requests
from inorder.wire.requests.leases import (
    CommitAnswer,
    CommitBody,
    HeldLease,
    LeaseAnswer,
    LeaseBody,
    LeasePage,
)


class LeaseApi:
    """Asks one broker."""

    __slots__ = ("_api",)

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    async def lease(
        self, request: requests.Lease, body: LeaseBody, *, timeout_ms: int | None = None
    ) -> LeaseAnswer:
        """Take or renew queues under a lease."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=timeout_ms)
        return LeaseAnswer.decode(answer.body)

    async def commit(
        self, request: requests.Commit, body: CommitBody, *, timeout_ms: int | None = None
    ) -> CommitAnswer:
        """Commit queues under their epochs."""
        answer = await self._api.ask(request, body.encode(), timeout_ms=timeout_ms)
        return CommitAnswer.decode(answer.body)

    async def release(self, request: requests.Release, *, timeout_ms: int | None = None) -> None:
        """Commit a queue and give its lease back; LeaseLost if it is not ours any more."""
        await self._api.ask(request, timeout_ms=timeout_ms)

    async def list(self, group: str = "") -> list[HeldLease]:
        """Return who holds which queues of a group, or of all, in order."""
        found: list[HeldLease] = []
        after = ""
        while True:
            page = LeasePage.decode((await self._api.ask(requests.Leases(group, after))).body)
            found += page.leases
            if not page.next or page.next == after:
                return found
            after = page.next

    async def free(self, group: str, topic: str, queue_id: int) -> str:
        """Take a queue from its owner; return the owner's client id, empty if there was none."""
        answer = await self._api.ask(requests.LeaseFree(group, topic, queue_id))
        return decode_fields(requests.LeaseFreeReply, answer.fields).holder
