"""Keeping what is ours: renewing leases and locks, and what follows when one is lost or in doubt.

Leases are renewed every third of min(lease, grace), all queues of a broker in one request, which is
also a sign of life of a member that holds none. When the connection to a broker is lost, no handler
of its queues starts until the broker has confirmed their epochs over another one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.client.holding import Holding
from inorder.client.state import leasing as rules
from inorder.client.state import startoffset
from inorder.client.state.tenure import LOCK_RENEW_FIRST_MS, LOCK_RENEW_MS, DropReason
from inorder.errors import CodeNotSupported, InorderError, RequestTimeout
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.wire.requests.leases import LeaseGrant

if TYPE_CHECKING:
    from inorder.client.member import Member

log = get_logger(__name__)

UNANSWERED_MAX: Final = 2
"""Renewals in a row that a connection may leave without an answer."""


class Keeper:
    """Keeps the leases and locks of one member."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._clock = member.session.clock
        self._renewing: set[str] = set()
        self._unanswered: dict[str, int] = {}
        self._look = asyncio.Event()

    # Leases.

    async def keep_leases(self) -> None:
        """Renew the leases for as long as this is a member, and stop what outlives its own."""
        member, renew_ms = self._member, self._member.leases.terms.renew_ms
        due_ms = self._clock.monotonic_ms() + renew_ms
        while True:
            now_ms = self._clock.monotonic_ms()
            tenures = member.tenures
            for queue in rules.outlived(tenures, now_ms):
                self._outlived(member.holdings[queue])
            if now_ms >= due_ms or self._look.is_set():
                self._look.clear()
                due_ms = now_ms + renew_ms
                for broker in member.leases.brokers:
                    self._start_renewal(broker)
            wait_ms = rules.next_look_ms(tenures, now_ms=now_ms, renew_ms=max(1, due_ms - now_ms))
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._look.wait()
            except TimeoutError:
                pass

    def renew_now(self) -> None:
        """Ask all brokers soon whether what we hold is still ours."""
        self._look.set()

    def _start_renewal(self, broker: str) -> None:
        if broker not in self._renewing:
            self._renewing.add(broker)
            self._member.tasks.start(self._renew_at(broker), name=f"leases of {broker}")

    async def _renew_at(self, broker: str) -> None:
        try:
            for renewed in await self._member.leases.renew(broker, self._member.tenures):
                self._apply(renewed)
            self._unanswered.pop(broker, None)
        except CodeNotSupported:
            self._no_leases(broker)
        except InorderError as error:
            log.info("leases not renewed broker=%s error=%s", broker, error)
            if isinstance(error, RequestTimeout):
                self._not_answered(broker)
        finally:
            self._renewing.discard(broker)

    def _no_leases(self, broker: str) -> None:
        """Another kind of broker answers at its address: what we hold there is nobody's lease."""
        self._member.leases.forget(broker)
        for holding in list(self._member.holdings.values()):
            if holding.leased and holding.queue.broker == broker:
                self.lost(holding)

    def _not_answered(self, broker: str) -> None:
        """Give up a connection on which nothing comes back: its other end may be gone."""
        self._unanswered[broker] = self._unanswered.get(broker, 0) + 1
        if self._unanswered[broker] >= UNANSWERED_MAX:
            del self._unanswered[broker]
            self._member.leases.drop_connection(broker, "renewals were not answered in time")

    async def look(self, holding: Holding) -> None:
        """Hear what the broker has to say of a queue before anything else happens to it."""
        for renewed in await self._member.leases.renew(holding.queue.broker, self._member.tenures):
            self._apply(renewed)

    def _apply(self, renewed: rules.Renewed) -> None:
        holdings = self._member.holdings
        for queue in renewed.lost:
            self._drop(queue)
        for queue, grant in renewed.granted:
            if queue in holdings:
                self._news(holdings[queue], grant)
                self._settle(holdings[queue], revived=queue in renewed.revived)

    def _news(self, holding: Holding, grant: LeaseGrant) -> None:
        """Take what a renewal says beside "still yours"."""
        if grant.recalled and holding.live:
            holding.drop(DropReason.RECALLED)
            return
        if holding.fencing is not None:
            holding.fencing.chapters = tuple(grant.chapters)
        if grant.redrive or (grant.parked, grant.redrive) != (holding.parked, holding.redrive):
            holding.parked, holding.redrive = grant.parked, grant.redrive
            self._member.parked_changed(holding)

    def confirmed(self, holding: Holding, sent_ms: int) -> None:
        """Note that a request under a queue's epoch was answered as if it is ours."""
        revived = rules.confirm(holding.tenure, sent_ms, self._clock.monotonic_ms())
        self._settle(holding, revived=revived)

    def _settle(self, holding: Holding, *, revived: bool) -> None:
        """Let handlers start again that waited for the broker's word."""
        revived |= holding.confirm()
        if revived:
            holding.outlived = False
            holding.woken.set()
            if holding.live:
                self._member.handle(holding)

    def lost(self, holding: Holding) -> None:
        """Give up a queue of which the broker says that it is not ours any more."""
        if self._member.holdings.get(holding.queue) is holding and rules.is_leased(holding.tenure):
            holding.tenure.lock_lost()
            self._drop(holding.queue)

    def _drop(self, queue: TopicQueue) -> None:
        holding = self._member.holdings.get(queue)
        if holding is not None:
            log.warning("lock lost group=%s queue=%s", self._member.group, queue)
            holding.dropped()

    def _outlived(self, holding: Holding) -> None:
        """Cancel the async handlers of a queue whose lease has ended; others are only counted."""
        runs = [run for run in holding.runs if run.started_ms is not None]
        if holding.outlived or not runs:
            return
        holding.outlived = True
        cancelled = sum(run.cancel() for run in runs)
        self._member.counts.outlived += len(runs)
        log.warning(
            "queue=%s: %d handlers run longer than the lease, which could not be renewed; %d were "
            "cancelled, the others may overlap with those of the next owner", holding.queue,
            len(runs), cancelled,
        )  # fmt: skip

    # RocketMQ's locks.

    async def keep_locks(self) -> None:
        """Renew the locks for as long as this is a member."""
        delay_ms = LOCK_RENEW_FIRST_MS
        while True:
            await asyncio.sleep(delay_ms / 1000)
            answered = await self._renew_locks()
            delay_ms = LOCK_RENEW_MS if answered else LOCK_RENEW_FIRST_MS

    async def _renew_locks(self) -> bool:
        """Renew the locks once; give up what was lost. Tell whether every broker answered."""
        lost, answered = await self._member.locks.renew(self._member.tenures)
        for queue in lost:
            self._drop(queue)
        for holding in list(self._member.holdings.values()):
            if not holding.leased and holding.confirm() and holding.live:
                self._member.handle(holding)
        return answered

    # Connections.

    async def reconnected(self) -> None:
        """Confirm everything over a new connection, or by a new route."""
        self.renew_now()
        await self._renew_locks()

    def doubt(self, address: str) -> None:
        """Trust no lock of the broker at an address until it is confirmed over a new connection.

        A stock broker that was restarted has forgotten its locks, and may give them to others at
        once (O13); it may also have forgotten our last commits, so they are sent again.
        """
        member, now_ms = self._member, self._clock.monotonic_ms()
        for queue, holding in member.holdings.items():
            if member.session.master_address(queue) in (None, address):
                holding.doubt(now_ms)
                if not holding.leased:
                    member.offsets.saved(queue, startoffset.NOT_STORED)
        self.renew_now()
