"""The parts of a running consumer, put together: member, pull loops, handlers, rebalance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from inorder.client.asked import Answers, run_directly
from inorder.client.concurrent import ConcurrentRunner, Lane
from inorder.client.counting import Counts
from inorder.client.durations import moment_ms
from inorder.client.handlers import Registration, fallback
from inorder.client.holding import Holding
from inorder.client.keyed import KeyedRunner
from inorder.client.member import Member
from inorder.client.offsetstores import LocalOffsets, OffsetStore, RemoteOffsets
from inorder.client.ordered import OrderedRunner
from inorder.client.pullconsumer import Target
from inorder.client.puller import Puller
from inorder.client.rebalancer import Rebalancer
from inorder.client.returning import Returner
from inorder.client.running import LoopWorkers, Run, Workers, WorkersFactory
from inorder.client.session import Session
from inorder.client.state import startoffset
from inorder.client.state.allocation import Allocation
from inorder.client.state.concurrent import EXPIRED_SCAN_MS
from inorder.client.state.sendback import retry_topic
from inorder.disk import Files
from inorder.errors import UsageError
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.tasks.periodic import periodic
from inorder.wire.bodies import ConsumerData
from inorder.wire.subscription import parse_subscription

log = logging.getLogger(__name__)

_ROUND_MS = 5000
"""How long a stop waits for a round of the rebalance to end by itself."""


class Consuming:
    """One consumer from its start to its stop."""

    def __init__(
        self,
        session: Session,
        group: str,
        registrations: Mapping[str, Registration],
        *,
        consume_from: startoffset.ConsumeFrom,
        clustering: bool,
        allocation: Allocation,
        threads: WorkersFactory | None,
        files: Files,
    ) -> None:
        self._session = session
        self._config = session.config.consumer
        self._group = group
        self._registrations = registrations
        self._consume_from = consume_from
        self._clustering = clustering
        self._threads = threads
        self._subscriptions = self._all_subscriptions()
        clock, counts = session.clock, Counts(since_ms=session.clock.monotonic_ms())
        self._store = self._make_store(files)
        self.member = member = Member(
            session,
            group,
            store=self._store,
            consume_from=consume_from,
            clustering=clustering,
            counts=counts,
        )
        returner = Returner(session, group, holds_locks=member.holds_locks)
        self._workers = {topic: self._make_workers(one) for topic, one in registrations.items()}
        self._lanes = {
            topic: Lane(one, self._workers[topic]) for topic, one in registrations.items()
        }
        self._concurrent = ConcurrentRunner(
            lanes=self._lanes,
            fallback=self._fallback,
            clock=clock,
            counts=counts,
            tasks=member.tasks,
            note=member.note,
            send_back=returner.send_back,
            broadcasting=not clustering,
            handler_timeout_ms=self._config.handler_timeout_ms,
        )
        self._ordered = {
            topic: (OrderedRunner if one.key_of is None else KeyedRunner)(
                one,
                self._workers[topic],
                clock=clock,
                counts=counts,
                tasks=member.tasks,
                note=member.note,
                dead_letter=returner.dead_letter,
                suspend_ms=self._config.suspend_ms,
            )
            for topic, one in registrations.items()
            if one.ordered
        }
        member.handle = self._handle
        member.keyed = frozenset(
            topic for topic, one in registrations.items() if one.key_of is not None
        )
        member.pull = Puller(
            session,
            group,
            clustering=clustering,
            counts=counts,
            done_to=member.done_to,
            piggybacked=lambda holding, offset: member.offsets.saved(holding.queue, offset),
            arrived=self._handle,
            finished_to=lambda holding, offset: member.note(holding.queue, offset),
        ).run
        ordered = {topic: topic in self._ordered for topic in self._subscriptions}
        self._rebalancer = Rebalancer(member, self._subscriptions, ordered, allocation)
        self._rounds: asyncio.Task[None] | None = None
        self._started_at_ms = clock.now_ms()

    @property
    def rebalances(self) -> int:
        """Return how many rounds there were."""
        return self._rebalancer.rounds

    async def start(self) -> None:
        """Join the group, tell the brokers at once, and begin."""
        member, clock = self.member, self._session.clock
        self._store.check()
        answers = Answers(
            member,
            subscriptions=lambda: tuple(self._subscriptions.values()),
            properties=self._properties,
            direct=self._direct,
        )
        self._session.join(self._data(), answers)
        try:
            await self._rebalancer.look()
            await self._session.heartbeat()
        except BaseException:
            await self._session.leave(self._group)
            raise
        self._rounds = member.tasks.start(self._rebalancer.run(), name="rebalance")
        member.tasks.start(member.keep_locks(), name="locks")
        for action, interval_ms, name in (
            (member.commit_all, self._config.commit_interval_ms, "commit"),
            (self._clean, min(EXPIRED_SCAN_MS, self._config.handler_timeout_ms), "expired"),
        ):
            work = periodic(action, interval_ms=interval_ms, clock=clock, name=name)
            member.tasks.start(work, name=name)

    async def stop(self) -> None:
        """Stop pulling, let handlers end, commit, release, unregister; in this order."""
        member = self.member
        member.stopping = True
        member.changed.set()
        if self._rounds is not None:
            await asyncio.wait((self._rounds,), timeout=_ROUND_MS / 1000)
        clean = await member.release_all(self._config.close_timeout_ms)
        await member.tasks.stop()
        await self._session.leave(self._group, unregister=clean)
        for workers in self._workers.values():
            await workers.close()

    async def seek(self, queue: TopicQueue, to: Target) -> int:
        """Go on with a queue elsewhere; return the offset."""
        holding = self.member.holdings.get(queue)
        if holding is None or not holding.live:
            raise UsageError(f"{queue} is not ours now; see assignment()")
        offset = await self._resolve(queue, to)
        await self.member.move(queue, offset)
        return offset

    async def _resolve(self, queue: TopicQueue, to: Target) -> int:
        if isinstance(to, int) and not isinstance(to, bool):
            if to < 0:
                raise UsageError(f"offset {to}: offsets begin at 0")
            return to
        api = await self._session.reader_of(queue)
        if isinstance(to, datetime):
            return await api.search_offset(queue, moment_ms(to))
        if to == "beginning":
            return await api.min_offset(queue)
        if to == "end":
            return await api.max_offset(queue)
        raise UsageError(f"{to!r}: seek to an offset, a datetime, 'beginning' or 'end'")

    # Parts.

    def _all_subscriptions(self) -> dict[str, Subscription]:
        found = {topic: one.subscription for topic, one in self._registrations.items()}
        if self._clustering:
            retry = retry_topic(self._group)
            found[retry] = parse_subscription(retry, "*", self._session.clock.now_ms())
        return found

    def _make_store(self, files: Files) -> OffsetStore:
        if self._clustering:
            return RemoteOffsets(self._session, self._group)
        folder = Path(self._config.offsets_dir).expanduser()
        return LocalOffsets(files, folder, self._session.client_id, self._group)

    def _make_workers(self, registration: Registration) -> Workers:
        clock = self._session.clock
        if registration.is_async:
            return LoopWorkers(registration.call, registration.concurrency, clock)
        assert self._threads is not None, "plain handlers were refused when they were registered"
        return self._threads(registration.call, registration.concurrency, clock)

    def _fallback(self, topic: str) -> Lane:
        lane = self._lanes.get(topic)
        if lane is None:
            one = fallback(topic)
            lane = self._lanes[topic] = Lane(one, LoopWorkers(one.call, 1, self._session.clock))
            self._workers[topic] = lane.workers
        return lane

    def _handle(self, holding: Holding) -> None:
        runner = self._ordered.get(holding.queue.topic)
        if runner is not None:
            runner.pump(holding)
        else:
            self._concurrent.pump(holding)

    async def _clean(self) -> None:
        if self._clustering:
            await self._concurrent.clean(
                [holding for holding in self.member.holdings.values() if not holding.ordered]
            )

    async def _direct(self, message: ReceivedMessage) -> Run:
        workers = self._lanes.get(message.topic, self._fallback(message.topic)).workers
        return await run_directly(workers.submit, message)

    def _data(self) -> ConsumerData:
        where = {"last": "CONSUME_FROM_LAST_OFFSET", "first": "CONSUME_FROM_FIRST_OFFSET"}
        begin = self._consume_from
        return ConsumerData(
            self._group,
            "CONSUME_PASSIVELY",
            "CLUSTERING" if self._clustering else "BROADCASTING",
            where[begin] if isinstance(begin, str) else "CONSUME_FROM_TIMESTAMP",
            tuple(self._subscriptions.values()),
        )

    def _properties(self) -> dict[str, str]:
        """Return what RocketMQ's tools show of a consumer."""
        session = self._session.statistics()
        return {
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMEORDERLY": "true" if self._ordered else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": f"{session.name_server};",
            "PROP_THREADPOOL_CORE_SIZE": str(
                sum(one.concurrency for one in self._registrations.values())
            ),
        }
