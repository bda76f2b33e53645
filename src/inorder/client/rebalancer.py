"""Sharing the queues of each topic among the members of a group, round by round.

Each member computes the allocation alone, from the route and the list of members; what follows is
in `state/rebalance.py`. All members ask the same broker for the list, the first one of the topic
that answers, so that they see the same list unless it is changing (O6). A round comes when a broker
says that the members changed, when a route changed, when a queue was released, and every 20 s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from inorder.client.member import Member
from inorder.client.state import rebalance as rules
from inorder.client.state.allocation import Allocation, sort_ids, sort_queues
from inorder.client.state.leasing import Acquired
from inorder.client.state.pulldecisions import RETRY_PREFIX
from inorder.client.state.routes import broker_masters, subscribe_queues
from inorder.client.state.tenure import DropReason
from inorder.errors import AlreadyClosed, InorderError, TopicNotRouted, TransportError
from inorder.logs import get_logger
from inorder.model import Subscription, TopicQueue
from inorder.tasks import Backoff
from inorder.wire.requests.routes import TopicRoute

log = get_logger(__name__)

SAY_WAITING_MS: Final = 30_000
GATHER_MS: Final = 10
"""Notices that come so close together share a round."""


class Rebalancer:
    """Runs the rounds of one member."""

    def __init__(
        self,
        member: Member,
        subscriptions: Mapping[str, Subscription],
        ordered: Mapping[str, bool],
        allocation: Allocation,
    ) -> None:
        self._member = member
        self._session = member.session
        self._subscriptions = subscriptions
        self._ordered = ordered
        self._allocation = allocation
        self._first_seen: dict[str, set[TopicQueue]] = {}
        self._said_ms: dict[str, int] = {}
        self.rounds = 0

    async def look(self) -> None:
        """Learn the routes of all topics before anything else happens.

        Name servers that are not there yet are waited for, and it is said now and then. Raises
        AlreadyClosed if the member stops meanwhile.
        """
        config = self._session.config
        backoff = Backoff(config.retry_first_ms, config.retry_max_ms)
        for topic in self._subscriptions:
            while True:
                if self._member.stopping:
                    raise AlreadyClosed("this consumer was closed while it started")
                try:
                    await self._queues(topic)
                    break
                except TransportError as error:
                    self._say_waiting("a name server", str(error))
                await self._pause(backoff.next_ms())

    async def _pause(self, wait_ms: int) -> None:
        """Wait, but no longer than until the member stops."""
        self._member.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._member.changed.wait()

    def _say_waiting(self, what: str, why: str) -> None:
        """Say what is waited for, at once and then every half a minute."""
        now_ms, last_ms = self._session.clock.monotonic_ms(), self._said_ms.get(what)
        if last_ms is None or now_ms - last_ms >= SAY_WAITING_MS:
            self._said_ms[what] = now_ms
            log.warning("group=%s waits for %s: %s", self._member.group, what, why)

    async def run(self) -> None:
        """Run rounds until the member stops."""
        member = self._member
        while not member.stopping:
            member.changed.clear()
            try:
                wait_ms = await self._round()
            except Exception:
                # A task root: an allocation of the user's own may fail, and must be tried again.
                log.exception("group=%s was not rebalanced; tried again soon", member.group)
                wait_ms = rules.next_round_ms(balanced=False)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await member.changed.wait()
                await asyncio.sleep(GATHER_MS / 1000)
            except TimeoutError:
                pass

    async def _round(self) -> int:
        """Run one round; return how long to wait for a reason before the next."""
        self.rounds += 1
        waits = []
        for queue in rules.plan_unsubscribed(self._member.tenures, self._subscriptions):
            self._member.holdings[queue].drop(DropReason.UNSUBSCRIBED)
        for topic in list(self._subscriptions):
            try:
                again_ms, complete = await self._share(topic)
            except InorderError as error:
                log.info("no rebalance topic=%s error=%s", topic, error)
                again_ms, complete = None, False
            waits.append(rules.next_round_ms(balanced=complete))
            waits += [] if again_ms is None else [again_ms]
            if self._member.stopping:
                break
        return min(waits, default=rules.REBALANCE_INTERVAL_MS)

    async def _share(self, topic: str) -> tuple[int | None, bool]:
        """Do one topic; return when to ask for the rest, if queues were refused, and whether all
        went well."""
        queues = await self._queues(topic)
        if queues is None:
            return None, topic.startswith(RETRY_PREFIX) and self.rounds > 3
        needs_lock = self._ordered[topic] and self._member.clustering
        if needs_lock:
            await self._member.meet(queues)
        allocated = await self._allocate(topic, queues)
        if allocated is None or self._member.stopping:
            return None, False
        plan = rules.plan(
            {q: tenure for q, tenure in self._member.tenures.items() if q.topic == topic},
            allocated,
            needs_lock=needs_lock,
            now_ms=self._session.clock.monotonic_ms(),
            absent=self._session.absent_brokers(topic),
        )
        for queue, reason in plan.drop:
            self._member.holdings[queue].drop(reason)
        got = await self._member.acquire(plan.lock) if plan.lock else Acquired({})
        added = await asyncio.gather(
            *(
                self._member.add(
                    queue,
                    self._subscriptions[topic],
                    ordered=self._ordered[topic],
                    late=queue not in self._first_seen[topic],
                    grant=got.grants.get(queue),
                )
                for queue in (*plan.add, *(q for q in plan.lock if q in got.grants))
            )
        )
        return got.again_ms, all(added)

    async def _queues(self, topic: str) -> list[TopicQueue] | None:
        """Return the queues of a topic; None if nobody serves it now."""
        try:
            route = await self._session.route(topic)
        except TopicNotRouted:
            if not topic.startswith(RETRY_PREFIX):
                self._say_waiting(f"topic {topic}", "it is not there yet")
            self._first_seen.setdefault(topic, set())
            return None
        queues = sort_queues(subscribe_queues(route, topic, self._session.key_map(topic)))
        self._first_seen.setdefault(topic, set(queues))
        return queues or None

    async def _allocate(self, topic: str, queues: list[TopicQueue]) -> list[TopicQueue] | None:
        """Return our share; None if the list of members is not to be had."""
        if not self._member.clustering:
            return queues
        client_id = self._session.client_id
        ids = await self._ids(await self._session.route(topic))
        if ids is None or client_id not in ids:
            # The broker has not heard of us, or has forgotten: what we hold stays ours for now.
            await self._session.heartbeat()
            ids = await self._ids(await self._session.route(topic))
        if ids is None or client_id not in ids:
            return None
        return self._allocation.allocate(self._member.group, client_id, queues, sort_ids(ids))

    async def _ids(self, route: TopicRoute) -> list[str] | None:
        for _, address in sorted(broker_masters(route).items()):
            try:
                api = await self._session.broker_at(address)
                return await api.consumer_ids(self._member.group)
            except InorderError as error:
                log.info("no members broker=%s error=%s", address, error)
        return None
