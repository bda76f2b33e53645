"""Membership in a group: the queues that a consumer owns, and the rounds that share them out.

    round ── add ──> AssignedQueue: pull loop, handlers ── drop ──> release: wait, commit, unlock

`Member` owns one `AssignedQueue` per queue. Any part of the consumer may drop a queue with a
reason; the release is the same for all (`release.py`). Ordered queues are owned by a lease where
the broker knows leases, else by RocketMQ's lock; an assigned queue keeps the kind that it began
with.

`Rebalancer` runs the rounds. Each member computes its share alone from the route and the list of
members (`rules/assignment.py`). All members ask the same broker for the list, the first of the
topic that answers, so that they see the same list unless it is changing (O6). A round starts when a
broker says that the members changed, when a route changed, when a queue was released, and every 20
s. Who is a member, and who is told of changes: decision 20.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

from inorder.client.consume.commits import Committer, OffsetStore
from inorder.client.consume.leases import LeaseRenewer, Leases, Locks
from inorder.client.consume.pulls import Puller
from inorder.client.consume.queue import AssignedQueue, QueueEvents
from inorder.client.consume.registrations import HandlerRegistration
from inorder.client.consume.release import Releaser
from inorder.client.consume.rules import assignment as rules
from inorder.client.consume.rules import commits
from inorder.client.consume.rules.assignment import (
    LOCK_REFUSED_RETRY_MS,
    Allocation,
    by_broker,
    sort_ids,
    sort_queues,
)
from inorder.client.consume.rules.commits import NOT_STORED, Progress
from inorder.client.consume.rules.keyed import KeyOrder
from inorder.client.consume.rules.leases import Acquired, Grant, LeaseState, RevokeReason, Terms
from inorder.client.consume.rules.pulls import DENIED_RETRY_MS
from inorder.client.consume.rules.queue import Limits, QueueProgress
from inorder.client.consume.workers import Counts
from inorder.client.rules.routes import broker_masters, subscribe_queues
from inorder.client.session import Session
from inorder.errors import (
    AlreadyClosed,
    InorderError,
    LeasesFull,
    RemoteProtocolError,
    TopicNotRouted,
    TransportError,
)
from inorder.logs import get_logger
from inorder.model import Subscription, TopicQueue
from inorder.ordering.fence import QueueFence
from inorder.ordering.finished import FinishedMap
from inorder.tasks import Backoff, Patience, Tasks
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.requests.routes import TopicRoute

log = get_logger(__name__)

SAY_WAITING_MS: Final = 30_000
GATHER_MS: Final = 10
"""Notices within this time share a round."""


class Member:
    """The queues of one consumer, and the parts that lease, pull, commit and release them."""

    def __init__(
        self,
        session: Session,
        group: str,
        registrations: Mapping[str, HandlerRegistration],
        *,
        events: QueueEvents,
        store: OffsetStore,
        consume_from: commits.ConsumeFrom,
        clustering: bool,
        counts: Counts,
        terms: Terms,
    ) -> None:
        self.session = session
        self.group = group
        self.clustering = clustering
        self.counts = counts
        self.assigned_queues: dict[TopicQueue, AssignedQueue] = {}
        self.tasks = Tasks(f"consumer {group}")
        self.locks = Locks(session, group)
        self.leases = Leases(session, group, terms)
        self.final_offsets: dict[TopicQueue, int] = {}
        """The offsets of the queues when the consumer stopped."""
        self.changed = asyncio.Event()
        """Set to ask for a round of the rebalance."""
        self._registrations = registrations
        self._events = events
        config = session.config.consumer
        self._limits = Limits(
            config.cached_messages_max,
            config.cached_bytes_max,
            config.cached_span_max,
            topic_messages_max=config.topic_messages_max,
            topic_bytes_max=config.topic_bytes_max,
        )
        self._store = store
        self._consume_from = consume_from
        self.renewer = LeaseRenewer(self, events)
        self.committer = Committer(
            session,
            group,
            assigned_queues=self.assigned_queues,
            store=store,
            leases=self.leases,
            tasks=self.tasks,
            events=events,
        )
        self._puller = Puller(
            session,
            group,
            clustering=clustering,
            counts=counts,
            renewer=self.renewer,
            events=events,
        )
        self._releaser = Releaser(
            session,
            group,
            committer=self.committer,
            locks=self.locks,
            leases=self.leases,
        )
        self._releasing: dict[TopicQueue, asyncio.Task[None]] = {}
        self._left_behind: dict[AssignedQueue, asyncio.Task[None]] = {}
        self._paused: set[TopicQueue] = set()
        self._all_paused = False

    @property
    def stopping(self) -> bool:
        """Return whether the consumer is stopping."""
        return self._releaser.stopping

    def begin_stop(self) -> None:
        """Add no further queue."""
        self._releaser.stopping = True

    # Adding queues.

    @property
    def lease_states(self) -> Mapping[TopicQueue, LeaseState]:
        """Return the lease of every queue, including those being released."""
        return {queue: assigned.lease for queue, assigned in self.assigned_queues.items()}

    async def learn_brokers(self, queues: Iterable[TopicQueue]) -> None:
        """Learn which brokers of these queues know leases.

        The lease renewals to those brokers then carry this member's heartbeat, even if it owns
        none of their queues.
        """
        new = [
            one[0]
            for name, one in by_broker(queues).items()
            if name not in self.leases.asked_brokers
        ]
        if new:
            await asyncio.gather(*map(self._learn_broker, new))

    async def _learn_broker(self, queue: TopicQueue) -> None:
        try:
            await self.leases.known_at(queue)
        except InorderError as error:
            log.info("broker=%s is away: %s", queue.broker, error)

    async def acquire(self, queues: Iterable[TopicQueue]) -> Acquired:
        """Request ordered queues of all brokers at once, by leases or by RocketMQ's locks."""
        found = Acquired({})
        for got in await asyncio.gather(*map(self._acquire_at, by_broker(queues).values())):
            found = found.and_also(got)
        return found

    async def _acquire_at(self, queues: tuple[TopicQueue, ...]) -> Acquired:
        try:
            if await self.leases.known_at(queues[0]):
                leased = await self.leases.take(queues)
                if leased is not None:
                    return leased
        except LeasesFull as error:
            log.warning("no leases group=%s queues=%s error=%s", self.group, queues, error)
            return Acquired({}, LOCK_REFUSED_RETRY_MS)
        except InorderError as error:
            log.info("no leases group=%s queues=%s error=%s", self.group, queues, error)
            return Acquired({}, LOCK_REFUSED_RETRY_MS)
        granted = await self.locks.acquire(queues)
        again_ms = None if len(granted) == len(queues) else LOCK_REFUSED_RETRY_MS
        return Acquired({queue: Grant(sent) for queue, sent in granted.items()}, again_ms)

    async def add(
        self,
        queue: TopicQueue,
        subscription: Subscription,
        *,
        ordered: bool,
        late: bool,
        grant: Grant | None,
    ) -> bool:
        """Add a queue at the offset of the group; return whether that was possible."""
        leased = grant is not None and grant.epoch > 0
        stored = grant.stored.offset if grant and leased else await self._store.read(queue)
        begin = commits.begin(stored, queue.topic, self._consume_from, late=late)
        offset = await self._locate(queue, begin)
        if offset is None or self.stopping:
            await self._give_back(queue, grant)
            return False
        known = Progress(stored) if stored >= 0 else NOT_STORED
        progress = QueueProgress(
            offset,
            stored=grant.stored if grant and leased else known,
            finished=_finished(queue, offset, grant),
            keys=self._make_keys(queue.topic),
        )
        assigned = self._assign(queue, subscription, progress, ordered=ordered, grant=grant)
        self.assigned_queues[queue] = assigned
        self._share_limits(queue.topic)
        assigned.pulling = self.tasks.start(self._puller.run(assigned), name=f"pull {queue}")
        log.info("queue=%s of group=%s is assigned from offset %d on", queue, self.group, offset)
        self.committer.idle(assigned)  # commits the first offset, if the group has none
        if grant is not None and grant.parked:
            self._events.parked_changed(assigned)
        return True

    def _assign(
        self,
        queue: TopicQueue,
        subscription: Subscription,
        progress: QueueProgress,
        *,
        ordered: bool,
        grant: Grant | None,
    ) -> AssignedQueue:
        epoch = 0 if grant is None else grant.epoch
        assigned = AssignedQueue(
            queue,
            subscription=subscription,
            lease=LeaseState(
                queue,
                now_ms=self.session.clock.monotonic_ms(),
                lock_sent_ms=None if grant is None else grant.sent_ms,
                epoch=epoch,
                terms=self.leases.terms if epoch else None,
            ),
            progress=progress,
            limits=self._limits,
            ordered=ordered,
            needs_lock=grant is not None,
            on_drop=self._start_release,
            on_idle=self.committer.idle if epoch else None,
        )
        assigned.paused = self._all_paused or queue in self._paused
        if grant is not None and epoch:
            assigned.parked, assigned.redrive = grant.parked, grant.redrive
            assigned.fencing = QueueFence(
                queue,
                epoch,
                grant.chapters,
                key_map=lambda: self.session.key_map(queue.topic),
                key_of=self._registrations[queue.topic].key_of,
            )
        return assigned

    async def _give_back(self, queue: TopicQueue, grant: Grant | None) -> None:
        """Release a queue that was granted and is not added."""
        if grant is None:
            return
        if not grant.epoch:
            await self.locks.release(queue)
            return
        try:
            await self.leases.release(queue, grant.epoch, None)
        except InorderError as error:
            log.info("not given back group=%s queue=%s error=%s", self.group, queue, error)

    def _share_limits(self, topic: str) -> None:
        """Divide the limits of a topic among its assigned queues."""
        sharing = [one for queue, one in self.assigned_queues.items() if queue.topic == topic]
        limits = self._limits.shared(len(sharing))
        for assigned in sharing:
            assigned.limits = limits

    def _make_keys(self, topic: str) -> KeyOrder | None:
        """Return the key order; None unless the topic is handled with order="key"."""
        registration = self._registrations.get(topic)
        if registration is None or registration.key_of is None:
            return None
        return KeyOrder(registration.key_of, keyless=registration.keyless)

    async def _locate(self, queue: TopicQueue, begin: commits.Begin) -> int | None:
        try:
            match begin:
                case commits.AskEnd():
                    api = await self.session.reader_of(queue)
                    begin = commits.answered(await api.max_offset(queue))
                case commits.AskTime(at_ms):
                    api = await self.session.reader_of(queue)
                    begin = commits.answered(await api.search_offset(queue, at_ms))
                case _:
                    pass
        except InorderError as error:
            begin = commits.NotNow(str(error))
        if isinstance(begin, commits.BeginAt):
            return begin.offset
        reason = begin.reason if isinstance(begin, commits.NotNow) else "not asked"
        log.info("queue=%s is not added: %s", queue, reason)
        return None

    # Releasing queues.

    def _start_release(self, assigned: AssignedQueue) -> None:
        if assigned.queue not in self._releasing:
            task = self.tasks.start(self._release(assigned), name=f"release {assigned.queue}")
            self._releasing[assigned.queue] = task

    async def _release(self, assigned: AssignedQueue) -> None:
        queue, lease = assigned.queue, assigned.lease
        assert lease.dropped is not None
        log.info("queue=%s of group=%s is given up: %s", queue, self.group, lease.dropped.value)
        try:
            await self._releaser.release(assigned)
        finally:
            if self.stopping:
                self.final_offsets[queue] = assigned.progress.offset
            if not (lease.running and lease.is_waited_for(ordered=assigned.ordered)):
                self._released(assigned)  # else close() does not wait for its handlers any more

    def _released(self, assigned: AssignedQueue) -> None:
        queue, lease = assigned.queue, assigned.lease
        lease.released(ordered=assigned.ordered)
        if lease.running:
            self._leave_behind(assigned)
        del self.assigned_queues[queue]
        del self._releasing[queue]
        self._share_limits(queue.topic)
        self.changed.set()

    def _leave_behind(self, assigned: AssignedQueue) -> None:
        """Watch the handlers of a moved queue; only a stop waits for them."""
        task = self.tasks.start(self._watch(assigned), name=f"handlers of {assigned.queue}")
        self._left_behind[assigned] = task

    async def _watch(self, assigned: AssignedQueue) -> None:
        try:
            while assigned.lease.running:
                assigned.idle.clear()
                await assigned.idle.wait()
        finally:
            del self._left_behind[assigned]

    @property
    def running(self) -> int:
        """Return how many handlers run, those of moved queues included."""
        queues = (*self.assigned_queues.values(), *self._left_behind)
        return sum(assigned.lease.running for assigned in queues)

    def unordered(self) -> list[AssignedQueue]:
        """Return the queues that are handled without order."""
        return [assigned for assigned in self.assigned_queues.values() if not assigned.ordered]

    def drop_all(self) -> None:
        """Give all queues up: end their pull loops and start no handler."""
        for assigned in list(self.assigned_queues.values()):
            assigned.drop(RevokeReason.STOPPED)

    async def release_all(self, patience: Patience) -> bool:
        """Give all queues up and wait for their release; return whether all handlers ended."""
        self.begin_stop()
        self.drop_all()
        while waits := [each for each in self._ending() if not each.done()]:
            if not await patience.wait_for(waits):
                break
        running = [str(one.queue) for one in (*self.assigned_queues.values(), *self._left_behind)]
        if running:
            log.warning(
                "group=%s stops, but its handlers did not end in time: %s; their results are not "
                "committed, and the next owner waits until the locks have expired",
                self.group, ", ".join(running),
            )  # fmt: skip
        return not running

    def _ending(self) -> list[asyncio.Task[None]]:
        return [*self._releasing.values(), *self._left_behind.values()]

    async def move(self, queue: TopicQueue, offset: int) -> None:
        """Continue a queue at another offset, once its handlers have ended."""
        self.set_moving(queue, offset)
        releasing = self._releasing.get(queue)
        if releasing is not None:
            await asyncio.shield(releasing)

    def set_moving(self, queue: TopicQueue, offset: int) -> None:
        """Do the same without waiting, for a handler would wait for itself."""
        assigned = self.assigned_queues[queue]
        assigned.progress.moved_to = offset
        assigned.drop(RevokeReason.RESET)

    # Offsets.

    def offsets(self) -> dict[TopicQueue, int]:
        """Return the offset of every assigned queue, sorted by queue."""
        found = sorted(self.assigned_queues.items(), key=lambda item: item[0])
        return {queue: assigned.progress.offset for queue, assigned in found}

    def holds_locks(self) -> bool:
        """Return whether this consumer holds a lock or a lease."""
        return any(lease.locked for lease in self.lease_states.values())

    # Pausing.

    def pause(self, queues: Iterable[TopicQueue]) -> None:
        """Pause these queues; without queues, all present and future ones."""
        chosen = tuple(queues)
        self._paused.update(chosen)
        self._all_paused = self._all_paused or not chosen
        for assigned in self.assigned_queues.values():
            assigned.paused = self._all_paused or assigned.queue in self._paused

    def resume(self, queues: Iterable[TopicQueue]) -> None:
        """Resume these queues; without queues, all."""
        chosen = tuple(queues)
        if chosen:
            if self._all_paused:
                self._paused.update(self.assigned_queues)
                self._all_paused = False
            self._paused.difference_update(chosen)
        else:
            self._paused.clear()
            self._all_paused = False
        for assigned in self.assigned_queues.values():
            assigned.paused = self._all_paused or assigned.queue in self._paused
            if assigned.live and not assigned.paused:
                self._events.arrived(assigned)

    def paused(self) -> tuple[TopicQueue, ...]:
        """Return the assigned queues that are paused."""
        return tuple(sorted(q for q, assigned in self.assigned_queues.items() if assigned.paused))


def _finished(queue: TopicQueue, offset: int, grant: Grant | None) -> FinishedMap:
    """Return the finished messages above the first offset of a queue."""
    text = "" if grant is None else grant.stored.finished
    if not text:
        return FinishedMap(offset)
    try:
        found = FinishedMap.decode(text)
        if found.base == offset:
            return found
        log.warning("map of finished messages of %s is not for offset %d: %s", queue, offset, found)
    except RemoteProtocolError as error:
        log.warning("map of finished messages of %s is not read: %s", queue, error)
    return FinishedMap(offset)


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

    async def learn_routes(self) -> None:
        """Learn the routes of all topics before the first round.

        Waits for name servers that do not answer yet, with a log line now and then. Raises
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
        """Wait for `wait_ms`, or until the member stops."""
        self._member.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._member.changed.wait()

    def _say_waiting(self, what: str, why: str) -> None:
        """Log what the group waits for, at once and then every half a minute."""
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
                # A task root: a user's own allocation may fail, and the next round tries again.
                log.exception("group=%s was not rebalanced; trying again soon", member.group)
                wait_ms = rules.next_round_ms(balanced=False)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await member.changed.wait()
                await asyncio.sleep(GATHER_MS / 1000)
            except TimeoutError:
                pass

    async def _round(self) -> int:
        """Run one round; return the longest pause before the next."""
        self.rounds += 1
        waits = []
        for queue in rules.plan_unsubscribed(self._member.lease_states, self._subscriptions):
            self._member.assigned_queues[queue].drop(RevokeReason.UNSUBSCRIBED)
        for topic in list(self._subscriptions):
            denials = self._session.denials
            try:
                again_ms, complete = await self._share(topic)
            except InorderError as error:
                log.info("no rebalance topic=%s error=%s", topic, error)
                again_ms, complete = None, False
            if self._session.denials != denials:
                waits.append(DENIED_RETRY_MS)
                continue
            waits.append(rules.next_round_ms(balanced=complete))
            waits += [] if again_ms is None else [again_ms]
            if self._member.stopping:
                break
        return min(waits, default=rules.REBALANCE_INTERVAL_MS)

    async def _share(self, topic: str) -> tuple[int | None, bool]:
        """Share one topic's queues.

        Returns when to ask again for refused queues, None if none was refused, and whether every
        allocated queue was added.
        """
        queues = await self._queues(topic)
        if queues is None:
            return None, topic.startswith(RETRY_PREFIX) and self.rounds > 3
        needs_lock = self._ordered[topic] and self._member.clustering
        if needs_lock:
            await self._member.learn_brokers(queues)
        allocated = await self._allocate(topic, queues)
        if allocated is None or self._member.stopping:
            return None, False
        plan = rules.plan(
            {q: lease for q, lease in self._member.lease_states.items() if q.topic == topic},
            allocated,
            needs_lock=needs_lock,
            now_ms=self._session.clock.monotonic_ms(),
            absent=self._session.absent_brokers(topic),
        )
        for queue, reason in plan.drop:
            self._member.assigned_queues[queue].drop(reason)
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
        """Return the queues of a topic; None if no broker serves it now."""
        try:
            route = await self._session.route(topic)
        except TopicNotRouted:
            if not topic.startswith(RETRY_PREFIX):
                self._say_waiting(f"topic {topic}", "no broker serves it yet")
            self._first_seen.setdefault(topic, set())
            return None
        queues = sort_queues(subscribe_queues(route, topic, self._session.key_map(topic)))
        self._first_seen.setdefault(topic, set(queues))
        return queues or None

    async def _allocate(self, topic: str, queues: list[TopicQueue]) -> list[TopicQueue] | None:
        """Return this member's share; None if no broker lists it as a member."""
        if not self._member.clustering:
            return queues
        client_id = self._session.client_id
        ids = await self._ids(await self._session.route(topic))
        if ids is None or client_id not in ids:
            # The broker does not know this member, or has forgotten it: its queues stay for now.
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
