"""Saving how far a consumer is: under leases by numbered commits, else in RocketMQ's way.

Under a lease a queue that has gone idle is committed at once, and one whose handlers run every
second, all queues of a broker in one request: so a kill repeats little, and a busy consumer sends
few requests. See `state/commits.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from inorder.client.holding import Holding
from inorder.client.leasing import Leases, commit_parts
from inorder.client.offsetstores import OffsetStore
from inorder.client.session import Session
from inorder.client.state import commits as rules
from inorder.client.state.commits import Numbered
from inorder.client.state.offsets import OffsetTable
from inorder.client.state.rebalance import by_broker
from inorder.errors import InorderError, LeasesFull
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.tasks import Tasks

log = get_logger(__name__)

PART_COUNT_MAX: Final = 1024
PART_CHARS_MAX: Final = 1024 * 1024


class Committer:
    """Saves the offsets of one consumer's queues."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        holdings: Mapping[TopicQueue, Holding],
        offsets: OffsetTable,
        store: OffsetStore,
        leases: Leases,
        tasks: Tasks,
        confirmed: Callable[[Holding, int], None],
        lost: Callable[[Holding], None],
    ) -> None:
        self._session = session
        self._group = group
        self._holdings = holdings
        self._offsets = offsets
        self._store = store
        self._leases = leases
        self._tasks = tasks
        self._confirmed = confirmed
        self._lost = lost
        self._saving = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._last_ms = 0
        self._stopped = False

    async def all(self) -> None:
        """Save what is not saved yet, of all queues that are ours for sure."""
        await self.of(list(self._holdings))

    async def leased(self) -> None:
        """Save what is not saved yet of the queues under leases."""
        await self.of([queue for queue, one in self._holdings.items() if one.leased])

    async def of(self, queues: Iterable[TopicQueue]) -> None:
        """Save offsets and wait for the answers."""
        now_ms = self._session.clock.monotonic_ms()
        mine = [
            holding
            for queue in queues
            if (holding := self._holdings.get(queue)) is not None and holding.may_commit(now_ms)
        ]
        classic = [one.queue for one in mine if not one.leased]
        leased = {one.queue: one for one in mine if one.leased}
        await asyncio.gather(
            *(self._commit([leased[queue] for queue in at]) for at in by_broker(leased).values()),
            *((self._save(classic),) if classic else ()),
        )

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set the offset of a queue without a lease, also to a lower one."""
        async with self._saving:
            return await self._store.move(queue, offset)

    def idle(self, holding: Holding) -> None:
        """Commit a queue soon whose last handler has ended, if it is idle then."""
        if self._timer is None and holding.leased and not self._stopped:
            now_ms = self._session.clock.monotonic_ms()
            delay_ms = rules.idle_commit_in_ms(now_ms, self._last_ms)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ms / 1000, self._start_idle)

    def stop(self) -> None:
        """Start no commit any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _start_idle(self) -> None:
        self._timer = None
        idle = [
            queue
            for queue, one in self._holdings.items()
            if one.leased and one.live and not one.tenure.running
        ]
        if idle:
            self._tasks.start(self.of(idle), name="commit of idle queues")

    async def _save(self, queues: list[TopicQueue]) -> None:
        """Save offsets in RocketMQ's way: one caller at a time, so that none overtakes."""
        async with self._saving:
            unsaved = self._offsets.unsaved(queues)
            if unsaved:
                for queue, offset in (await self._store.save(unsaved)).items():
                    self._offsets.saved(queue, offset)

    async def _commit(self, holdings: list[Holding]) -> None:
        """Commit queues of one broker under their leases."""
        commits = []
        for holding in holdings:
            assert holding.commits is not None
            progress = holding.progress(self._offsets.get(holding.queue))
            numbered = holding.commits.next(progress)
            if numbered is not None:
                commits.append((holding.queue, holding.tenure.epoch, numbered))
        if not commits:
            return
        self._last_ms = self._session.clock.monotonic_ms()
        by_queue = {holding.queue: holding for holding in holdings}
        for part in commit_parts(commits, count_max=PART_COUNT_MAX, chars_max=PART_CHARS_MAX):
            try:
                sent_ms, taken, lost = await self._send(part)
            except InorderError as error:
                log.info("not committed group=%s error=%s", self._group, error)
                return
            for queue, _, numbered in part:
                holding = by_queue[queue]
                if queue in taken:
                    assert holding.commits is not None
                    holding.commits.taken(numbered)
                    if self._holdings.get(queue) is holding:
                        self._offsets.saved(queue, numbered.progress.offset)
                    self._confirmed(holding, sent_ms)
                elif queue in lost:
                    self._lost(holding)

    async def _send(
        self, part: list[tuple[TopicQueue, int, Numbered]]
    ) -> tuple[int, set[TopicQueue], set[TopicQueue]]:
        """Send commits. A broker without room for their maps gets those that need none: of the
        others the commit before stands."""
        try:
            return await self._leases.commit(part)
        except LeasesFull as error:
            log.warning("group=%s: maps of finished messages are not taken: %s", self._group, error)
            plain = [one for one in part if not one[2].progress.finished]
            if not plain or len(plain) == len(part):
                raise
            return await self._leases.commit(plain)
