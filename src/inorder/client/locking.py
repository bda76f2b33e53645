"""The locks of ordered queues at their brokers: ask, renew, give back.

One request of these to a broker at a time: a renewal that overtook an unlock in the threads of a
broker would lock the queue again, for nobody.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

from inorder.client.session import Session
from inorder.client.state.rebalance import apply_renewal, by_broker, to_renew
from inorder.client.state.tenure import Tenure
from inorder.errors import InorderError
from inorder.logs import get_logger
from inorder.model import TopicQueue

log = get_logger(__name__)


class Locks:
    """The locks of one group's consumer."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def acquire(self, queues: Iterable[TopicQueue]) -> dict[TopicQueue, int]:
        """Ask for locks; return those that we have now, with the time at which we asked."""
        granted: dict[TopicQueue, int] = {}
        for broker, wanted in by_broker(queues).items():
            async with self._turns[broker]:
                sent_ms = self._session.clock.monotonic_ms()
                try:
                    answer = await self._lock(wanted)
                except InorderError as error:
                    log.info("lock failed group=%s queues=%s error=%s", self._group, wanted, error)
                    continue
            granted.update((queue, sent_ms) for queue in answer if queue in wanted)
        return granted

    async def renew(self, owned: Mapping[TopicQueue, Tenure]) -> tuple[list[TopicQueue], bool]:
        """Renew all locks; return those that were lost, and whether every broker answered."""
        lost: list[TopicQueue] = []
        answered = True
        for broker in to_renew(owned):
            async with self._turns[broker]:
                asked = to_renew(owned).get(broker, ())  # some may have been given up meanwhile
                if not asked:
                    continue
                sent_ms = self._session.clock.monotonic_ms()
                try:
                    granted = await self._lock(asked)
                except InorderError as error:
                    log.info("locks not renewed group=%s error=%s", self._group, error)
                    answered = False
                    continue
                now_ms = self._session.clock.monotonic_ms()
                lost += apply_renewal(owned, asked, granted, sent_ms=sent_ms, now_ms=now_ms)
        return lost, answered

    async def release(self, queue: TopicQueue) -> bool:
        """Give a lock back and wait for the answer; tell whether it came."""
        async with self._turns[queue.broker]:
            try:
                api = await self._session.master_of(queue)
                await api.unlock(self._session.client_id, self._group, [queue])
            except InorderError as error:
                log.info("unlock failed group=%s queue=%s error=%s", self._group, queue, error)
                return False
        return True

    async def _lock(self, queues: tuple[TopicQueue, ...]) -> tuple[TopicQueue, ...]:
        api = await self._session.master_of(queues[0])
        return await api.lock(self._session.client_id, self._group, list(queues))
