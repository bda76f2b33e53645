"""One running consumer: its parts, how they are wired, and its start and stop.

    Member        owns queues: leases, pull loops, commits, release     assignment.py
    Rebalancer    shares the queues of the group, round by round        assignment.py
    runners       hand messages to handlers, with order or without      ordered.py, concurrent.py
    Parker        parks keys; Redriver handles parked keys again        parking.py

The parts get their collaborators in the constructor. What they tell about a queue comes back by
`QueueEvents`, which the service implements. How handlers run and stop: decision 29.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from inorder.client.consume.assignment import Member, Rebalancer
from inorder.client.consume.commits import LocalOffsets, OffsetStore, RemoteOffsets
from inorder.client.consume.concurrent import ConcurrentRunner, Returner, TopicHandler
from inorder.client.consume.handlers import ConsumerRequests, run_directly
from inorder.client.consume.hooks import Hooks
from inorder.client.consume.ordered import KeyedRunner, OrderedRunner
from inorder.client.consume.parking import Parker, Redriver
from inorder.client.consume.pullconsumer import Target
from inorder.client.consume.pulls import require_filter
from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.registrations import HandlerRegistration, fallback
from inorder.client.consume.replies import Replier
from inorder.client.consume.rules import commits
from inorder.client.consume.rules.assignment import Allocation, by_broker
from inorder.client.consume.rules.commits import busy_interval_ms
from inorder.client.consume.rules.leases import Terms
from inorder.client.consume.rules.outcomes import EXPIRED_SCAN_MS, Park, retry_topic
from inorder.client.consume.workers import Counts, LoopWorkers, Run, Workers, WorkersFactory
from inorder.client.rules.routes import moment_ms, subscribe_queues
from inorder.client.session import Session
from inorder.disk import Files
from inorder.errors import AlreadyClosed, InorderError, TransportError, UsageError
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.tasks import Patience, periodic
from inorder.wire.requests.groups import ConsumerData
from inorder.wire.requests.pulls import TAG, parse_subscription

log = get_logger(__name__)

_ROUND_MS = 5000
"""How long a stop waits for the end of a round of the rebalance."""


class ConsumerService:
    """One consumer from its start to its stop."""

    def __init__(
        self,
        session: Session,
        group: str,
        registrations: Mapping[str, HandlerRegistration],
        *,
        consume_from: commits.ConsumeFrom,
        clustering: bool,
        allocation: Allocation,
        threads: WorkersFactory | None,
        consumer: object,
        files: Files,
        terms: Terms,
        hooks: Hooks,
    ) -> None:
        self._session = session
        self._config = session.config.consumer
        self._group = group
        self._registrations = registrations
        self._consume_from = consume_from
        self._clustering = clustering
        self._threads = threads
        self._consumer = consumer
        self._subscriptions = self._all_subscriptions()
        clock, counts = session.clock, Counts(since_ms=session.clock.monotonic_ms())
        self._store = self._make_store(files)
        self.member = member = Member(
            session,
            group,
            registrations,
            events=self,
            store=self._store,
            consume_from=consume_from,
            clustering=clustering,
            counts=counts,
            terms=terms,
        )
        self._parker = Parker(
            session, group, leases=member.leases, tasks=member.tasks, counts=counts, events=self,
            hooks=hooks,
        )  # fmt: skip
        self._redriver = Redriver(
            session,
            group,
            parker=self._parker,
            leases=member.leases,
            tasks=member.tasks,
            events=self,
            suspend_ms=self._config.suspend_ms,
        )
        returner = Returner(session, group, holds_locks=member.holds_locks)
        self._replier = Replier(session, group, counts)
        self._workers = {topic: self._make_workers(one) for topic, one in registrations.items()}
        self._handlers = {
            topic: TopicHandler(one, self._workers[topic]) for topic, one in registrations.items()
        }
        self._concurrent = ConcurrentRunner(
            handlers=self._handlers,
            fallback=self._fallback,
            clock=clock,
            counts=counts,
            tasks=member.tasks,
            send_back=returner.send_back,
            broadcasting=not clustering,
            handler_timeout_ms=self._config.handler_timeout_ms,
        )
        self._ordered = {
            topic: self._make_ordered(one, returner)
            for topic, one in registrations.items()
            if one.ordered
        }
        ordered = {topic: topic in self._ordered for topic in self._subscriptions}
        self._rebalancer = Rebalancer(member, self._subscriptions, ordered, allocation)
        self._rounds: asyncio.Task[None] | None = None
        self._directs: set[asyncio.Future[Run]] = set()
        self._started_at_ms = clock.now_ms()

    @property
    def rebalances(self) -> int:
        """Return how many rounds of the rebalance have started."""
        return self._rebalancer.rounds

    async def start(self) -> None:
        """Join the group, send a heartbeat, and start the periodic work."""
        member, clock = self.member, self._session.clock
        self._store.check()
        requests = ConsumerRequests(
            member,
            subscriptions=lambda: tuple(self._subscriptions.values()),
            properties=self._properties,
            direct=self._direct,
        )
        self._session.join(self._data(), requests)
        try:
            await self._rebalancer.learn_routes()
            await self._session.heartbeat()
            refusal = self._session.refusal(self._group)
            if refusal is not None:
                raise refusal
            await self._refuse_to_park()
            await self._require_filters()
        except BaseException:
            await self._session.leave(self._group)
            raise
        self._rounds = member.tasks.start(self._rebalancer.run(), name="rebalance")
        member.tasks.start(member.renewer.keep_locks(), name="locks")
        member.tasks.start(member.renewer.keep_leases(), name="leases")
        busy_ms = busy_interval_ms(self._config.commit_interval_ms)
        for action, interval_ms, name in (
            (member.committer.all, self._config.commit_interval_ms, "commit"),
            (member.committer.leased, busy_ms, "commit under leases"),
            (self._clean, min(EXPIRED_SCAN_MS, self._config.handler_timeout_ms), "expired"),
        ):
            work = periodic(action, interval_ms=interval_ms, clock=clock, name=name)
            member.tasks.start(work, name=name)

    def halt(self) -> None:
        """Give every queue up: pull nothing and start no handler from now on.

        Without order handlers still get what lies before a message that was begun.
        """
        self.member.begin_stop()
        self.member.changed.set()
        self.member.drop_all()
        for workers in self._workers.values():
            workers.halt()
        self._concurrent.halt(self.member.unordered())

    async def stop(self, patience: Patience) -> None:
        """Stop pulling, wait for handlers, commit, release and unregister, in this order."""
        member = self.member
        self.halt()
        if self._rounds is not None:
            await asyncio.wait((self._rounds,), timeout=_ROUND_MS / 1000)
        clean = await member.release_all(patience)
        clean = await patience.wait_for(self._directs) and clean
        self._concurrent.end()
        member.committer.stop()
        await member.tasks.stop()
        await self._session.leave(self._group, unregister=clean)
        for workers in self._workers.values():
            await workers.close()

    async def seek(self, queue: TopicQueue, to: Target, *, wait: bool = True) -> int:
        """Continue a queue at another offset, once its handlers have ended; return the offset."""
        assigned = self.member.assigned_queues.get(queue)
        if assigned is None or not assigned.live:
            raise UsageError(f"{queue} is not assigned to this consumer now; see assignment()")
        offset = await self._resolve(queue, to)
        if wait:
            await self.member.move(queue, offset)
        else:
            self.member.set_moving(queue, offset)
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

    # QueueEvents.

    def arrived(self, assigned: AssignedQueue) -> None:
        """Start the handlers of a queue that may start now."""
        runner = self._ordered.get(assigned.queue.topic)
        if runner is not None:
            runner.pump(assigned)
        else:
            self._concurrent.pump(assigned)

    def passed(self, assigned: AssignedQueue) -> None:
        """Commit a leased queue soon: it has no unfinished message."""
        self.member.committer.idle(assigned)

    def confirmed(self, assigned: AssignedQueue, sent_ms: int) -> None:
        """Count the lease from a request that the broker has accepted."""
        self.member.renewer.confirmed(assigned, sent_ms)

    def lost(self, assigned: AssignedQueue) -> None:
        """Give up a queue that the broker has given to another owner."""
        self.member.renewer.lost(assigned)

    def parked_changed(self, assigned: AssignedQueue) -> None:
        """Go on at once if the parked keys are known; else `parked_loaded` follows."""
        self._redriver.check(assigned)
        if self._parker.is_known(assigned):
            self.parked_loaded(assigned)

    def parked_loaded(self, assigned: AssignedQueue) -> None:
        """Start the redrives that are wanted, and the handlers of a queue."""
        runner = self._ordered.get(assigned.queue.topic)
        if isinstance(runner, KeyedRunner):
            self._redriver.start_wanted(assigned, runner)
        elif self._parker.view(assigned).keys:
            self._session.say_once(
                f"parked {assigned.queue}",
                "keys of queue %s are parked, but its topic is not handled with order='key' here: "
                "their new messages are handled before those that are parked", assigned.queue,
            )  # fmt: skip
        self.arrived(assigned)

    async def _refuse_to_park(self) -> None:
        """Raise UsageError if on_failure=Park cannot work with this group or its brokers."""
        for topic, one in self._registrations.items():
            if not isinstance(one.policy, Park):
                continue
            if not self._clustering:
                raise UsageError(
                    f"on_failure=Park of topic {topic}: a broadcasting group cannot park keys; "
                    "use Block()"
                )
            for queue in self._queue_of_each_broker(topic):
                try:
                    known = await self.member.leases.known_at(queue)
                except InorderError as error:
                    log.info("broker=%s is away: %s", queue.broker, error)
                    continue
                if not known:
                    raise UsageError(
                        f"on_failure=Park of topic {topic}: broker {queue.broker} is "
                        "Apache RocketMQ, which keeps no parked keys; use DeadLetter(attempts=…) "
                        "or Block(), or put the topic on inorder brokers"
                    )

    async def _require_filters(self) -> None:
        """Raise the refusal of a broker that cannot filter by an expression of this consumer.

        A broker that is away is asked before the first pull.
        """
        for topic, one in self._registrations.items():
            if one.subscription.expression_type == TAG:
                continue
            for queue in self._queue_of_each_broker(topic):
                try:
                    api = await self._session.reader_of(queue)
                    await require_filter(
                        self._session, api, queue.broker, self._group, one.subscription
                    )
                except TransportError as error:
                    log.info("broker=%s is away: %s", queue.broker, error)

    def _queue_of_each_broker(self, topic: str) -> list[TopicQueue]:
        """Return a queue of each broker that is known to serve a topic."""
        route = self._session.known_route(topic)
        if route is None:
            return []
        queues = subscribe_queues(route, topic, self._session.key_map(topic))
        return [of_broker[0] for of_broker in by_broker(queues).values()]

    # The parts.

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

    def _make_workers(self, registration: HandlerRegistration) -> Workers:
        clock, answer = self._session.clock, self._replier.answer
        call, count = registration.call, registration.concurrency
        if registration.is_async:
            return LoopWorkers(call, count, clock, self._consumer, answer)
        assert self._threads is not None, "plain handlers were refused when they were registered"
        return self._threads(call, count, clock, self._consumer, answer)

    def _make_ordered(
        self, registration: HandlerRegistration, returner: Returner
    ) -> OrderedRunner | KeyedRunner:
        workers, member = self._workers[registration.topic], self.member
        if registration.key_of is None:
            return OrderedRunner(
                registration,
                workers,
                clock=self._session.clock,
                counts=member.counts,
                tasks=member.tasks,
                dead_letter=returner.dead_letter,
                suspend_ms=self._config.suspend_ms,
                run_max_ms=self._config.run_max_ms,
            )
        return KeyedRunner(
            registration,
            workers,
            clock=self._session.clock,
            counts=member.counts,
            tasks=member.tasks,
            dead_letter=returner.dead_letter,
            parker=self._parker,
            suspend_ms=self._config.suspend_ms,
        )

    def _fallback(self, topic: str) -> TopicHandler:
        handler = self._handlers.get(topic)
        if handler is None:
            one = fallback(topic)
            handler = self._handlers[topic] = TopicHandler(
                one, LoopWorkers(one.call, 1, self._session.clock)
            )
            self._workers[topic] = handler.workers
        return handler

    async def _clean(self) -> None:
        if self._clustering:
            await self._concurrent.clean(self.member.unordered())

    async def _direct(self, message: ReceivedMessage) -> tuple[Run, HandlerRegistration]:
        if self.member.stopping:
            raise AlreadyClosed("this consumer stops; it begins no further message")
        handler = self._handlers.get(message.topic) or self._fallback(message.topic)
        running = asyncio.ensure_future(run_directly(handler.workers.submit, message))
        self._directs.add(running)
        running.add_done_callback(self._directs.discard)
        return await asyncio.shield(running), handler.registration

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
        """Return the properties that RocketMQ's tools show."""
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
