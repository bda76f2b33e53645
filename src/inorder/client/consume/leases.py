"""Taking, renewing and losing the leases and locks of ordered queues.

`LeaseRenewer` keeps what this member owns. It renews leases every third of min(lease, grace), with
all queues of a broker in one request; the request is also the heartbeat of a member that owns
nothing there. When the connection to a broker is lost, no handler of its queues starts until the
broker has confirmed their epochs over a new connection.

`Leases` speaks to brokers that know leases: take, renew, commit, release. Requests do not wait for
each other, because each carries the epoch and commits are numbered: the broker refuses a late one.

`Locks` speaks RocketMQ's lock protocol: lock, renew, unlock. Each broker gets one request at a
time: a renewal could arrive after the unlock and lock the queue again, for a consumer that has left
it.

`rules/leases.py` decides what to ask and what an answer means. Leases or locks: decision 16.
Silent, unconfirmed and forced-out owners: decision 17.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from inorder.client.api import LeaseApi
from inorder.client.consume.queue import AssignedQueue, QueueEvents
from inorder.client.consume.rules import leases as rules
from inorder.client.consume.rules.assignment import apply_renewal, by_broker, to_renew
from inorder.client.consume.rules.commits import NOT_STORED, NOTHING, NumberedCommit
from inorder.client.consume.rules.leases import (
    LOCK_RENEW_FIRST_MS,
    LOCK_RENEW_MS,
    LeaseState,
    RevokeReason,
    Terms,
)
from inorder.client.identity import new_id
from inorder.client.session import Session
from inorder.errors import CodeNotSupported, InorderError, RequestTimeout
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.wire.requests.leases import (
    Commit,
    CommitBody,
    Lease,
    LeaseBody,
    LeaseGrant,
    QueueCommit,
    Release,
)

if TYPE_CHECKING:
    from inorder.client.consume.assignment import Member

log = get_logger(__name__)

UNANSWERED_MAX: Final = 2
"""After this many unanswered renewals in a row the connection is closed."""
LEASES_SINCE: Final = 1
"""The version of inorder's extensions that brought leases."""
_ON_ROCKETMQ: Final = (
    "broker %s knows no leases: queues are locked by RocketMQ's rules. Order is kept; a queue of a "
    "consumer that died is free after 60 s; after a crash messages since the last commit are "
    "handled again, with order='key' also finished ones above it; messages have no fence"
)


class LeaseRenewer:
    """Renews the leases and locks of one member."""

    def __init__(self, member: Member, events: QueueEvents) -> None:
        self._member = member
        self._events = events
        self._clock = member.session.clock
        self._renewing: set[str] = set()
        self._unanswered: dict[str, int] = {}
        self._wake = asyncio.Event()

    # Leases.

    async def keep_leases(self) -> None:
        """Renew the leases until cancelled, and cancel handlers that run longer than theirs."""
        member, renew_ms = self._member, self._member.leases.terms.renew_ms
        due_ms = self._clock.monotonic_ms() + renew_ms
        while True:
            now_ms = self._clock.monotonic_ms()
            lease_states = member.lease_states
            for queue in rules.outlived(lease_states, now_ms):
                self._outlived(member.assigned_queues[queue])
            if now_ms >= due_ms or self._wake.is_set():
                self._wake.clear()
                due_ms = now_ms + renew_ms
                for broker in member.leases.brokers:
                    self._start_renewal(broker)
            wait_ms = rules.next_check_ms(
                lease_states, now_ms=now_ms, renew_ms=max(1, due_ms - now_ms)
            )
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def renew_now(self) -> None:
        """Renew all leases at once."""
        self._wake.set()

    def _start_renewal(self, broker: str) -> None:
        if broker not in self._renewing:
            self._renewing.add(broker)
            self._member.tasks.start(self._renew_at(broker), name=f"leases of {broker}")

    async def _renew_at(self, broker: str) -> None:
        try:
            for renewed in await self._member.leases.renew(broker, self._member.lease_states):
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
        """Give up the leases of a broker that no longer knows leases."""
        self._member.leases.forget(broker)
        for assigned in list(self._member.assigned_queues.values()):
            if assigned.leased and assigned.queue.broker == broker:
                self.lost(assigned)

    def _not_answered(self, broker: str) -> None:
        """Close a connection that leaves renewals unanswered: its other end may be gone."""
        self._unanswered[broker] = self._unanswered.get(broker, 0) + 1
        if self._unanswered[broker] >= UNANSWERED_MAX:
            del self._unanswered[broker]
            self._member.leases.drop_connection(broker, "renewals were not answered in time")

    async def refresh(self, assigned: AssignedQueue) -> None:
        """Renew the leases of a queue's broker now, and take in its answer."""
        for renewed in await self._member.leases.renew(
            assigned.queue.broker, self._member.lease_states
        ):
            self._apply(renewed)

    def _apply(self, renewed: rules.Renewed) -> None:
        assigned_queues = self._member.assigned_queues
        for queue in renewed.lost:
            self._drop(queue)
        for queue, grant in renewed.granted:
            if queue in assigned_queues:
                self._take_in(assigned_queues[queue], grant)
                self._settle(assigned_queues[queue], revived=queue in renewed.revived)

    def _take_in(self, assigned: AssignedQueue, grant: LeaseGrant) -> None:
        """Take in what a renewal says beside the epoch: revokes, versions and parked keys."""
        if grant.recalled and assigned.live:
            assigned.drop(RevokeReason.REVOKED)
            return
        if assigned.fencing is not None:
            assigned.fencing.spans = tuple(grant.chapters)
        if grant.redrive or (grant.parked, grant.redrive) != (assigned.parked, assigned.redrive):
            assigned.parked, assigned.redrive = grant.parked, grant.redrive
            self._events.parked_changed(assigned)

    def confirmed(self, assigned: AssignedQueue, sent_ms: int) -> None:
        """Note that the broker accepted a request under the queue's epoch."""
        revived = rules.confirm(assigned.lease, sent_ms, self._clock.monotonic_ms())
        self._settle(assigned, revived=revived)

    def _settle(self, assigned: AssignedQueue, *, revived: bool) -> None:
        """Start the handlers that waited for the confirmation of a lease."""
        revived |= assigned.confirm()
        if revived:
            assigned.outlived = False
            assigned.woken.set()
            if assigned.live:
                self._events.arrived(assigned)

    def lost(self, assigned: AssignedQueue) -> None:
        """Give up a queue whose epoch the broker has refused."""
        if self._member.assigned_queues.get(assigned.queue) is assigned and rules.is_leased(
            assigned.lease
        ):
            assigned.lease.lose()
            self._drop(assigned.queue)

    def _drop(self, queue: TopicQueue) -> None:
        assigned = self._member.assigned_queues.get(queue)
        if assigned is not None:
            log.warning("lost the queue group=%s queue=%s", self._member.group, queue)
            assigned.dropped()

    def _outlived(self, assigned: AssignedQueue) -> None:
        """Cancel the async handlers of a queue whose lease has ended; count the others."""
        runs = [run for run in assigned.runs if run.started_ms is not None]
        if assigned.outlived or not runs:
            return
        assigned.outlived = True
        cancelled = sum(run.cancel() for run in runs)
        self._member.counts.outlived += len(runs)
        log.warning(
            "queue=%s: %d handlers run longer than the lease, which could not be renewed; %d were "
            "cancelled, the others may overlap with those of the next owner", assigned.queue,
            len(runs), cancelled,
        )  # fmt: skip

    # RocketMQ's locks.

    async def keep_locks(self) -> None:
        """Renew the locks until cancelled."""
        delay_ms = LOCK_RENEW_FIRST_MS
        while True:
            await asyncio.sleep(delay_ms / 1000)
            answered = await self._renew_locks()
            delay_ms = LOCK_RENEW_MS if answered else LOCK_RENEW_FIRST_MS

    async def _renew_locks(self) -> bool:
        """Renew the locks once and give up lost queues; return whether every broker answered."""
        lost, answered = await self._member.locks.renew(self._member.lease_states)
        for queue in lost:
            self._drop(queue)
        for assigned in list(self._member.assigned_queues.values()):
            if not assigned.leased and assigned.confirm() and assigned.live:
                self._events.arrived(assigned)
        return answered

    # Connections.

    async def reconnected(self) -> None:
        """Renew all leases and locks over a new connection or route."""
        self.renew_now()
        await self._renew_locks()

    def connection_lost(self, address: str) -> None:
        """Distrust the locks of the broker at an address until it confirms them.

        A RocketMQ broker forgets its locks when it restarts, and may give them to others at once
        (O13). It may also have forgotten the last commits, so they are sent again.
        """
        member, now_ms = self._member, self._clock.monotonic_ms()
        for queue, assigned in member.assigned_queues.items():
            if member.session.master_address(queue) in (None, address):
                assigned.mark_unconfirmed(now_ms)
                if not assigned.leased:
                    assigned.progress.saved = NOT_STORED
        self.renew_now()


class Leases:
    """The lease requests of one consumer. Its `instance` id makes it an owner of its own."""

    def __init__(self, session: Session, group: str, terms: Terms) -> None:
        self.terms = terms
        self.instance = new_id(session.message_ids)
        self._session = session
        self._group = group
        self._brokers: dict[str, TopicQueue] = {}
        self._numbers = itertools.count(1)
        self.asked_brokers: set[str] = set()
        """Brokers that have said whether they support leases."""

    @property
    def brokers(self) -> tuple[str, ...]:
        """Return the brokers that support leases."""
        return tuple(self._brokers)

    async def known_at(self, queue: TopicQueue) -> bool:
        """Return whether a queue's broker knows leases. Raises InorderError without an answer."""
        capability = await self._session.capability(queue)
        self.asked_brokers.add(queue.broker)
        if capability < LEASES_SINCE:
            self._without(queue)
            return False
        self._brokers[queue.broker] = queue
        return True

    async def take(self, queues: Sequence[TopicQueue]) -> rules.Acquired | None:
        """Request new queues of one broker; None if it does not know leases after all."""
        found = rules.Acquired({})
        broker = queues[0].broker
        for wishes in rules.take_wishes(queues, next(self._numbers)):
            api = await self._api(queues[0])
            sent_ms = self._session.clock.monotonic_ms()
            try:
                answer = await api.lease(self._lease(), LeaseBody(wishes))
            except CodeNotSupported:
                self._without(queues[0])
                return None
            found = found.and_also(rules.acquired(broker, answer, sent_ms))
        return found

    async def renew(
        self, broker: str, owned: Mapping[TopicQueue, LeaseState]
    ) -> list[rules.Renewed]:
        """Renew the leases at a broker.

        Raises:
            CodeNotSupported: Another kind of broker answers at its address by now.
            InorderError: The broker does not answer.
        """
        found = []
        for wishes in rules.renewal_wishes(owned, broker):
            queue = self._brokers.get(broker)
            if queue is None:
                break
            api = await self._api(queue)
            sent_ms = self._session.clock.monotonic_ms()
            answer = await api.lease(
                self._lease(), LeaseBody(wishes), timeout_ms=self.request_timeout_ms
            )
            now_ms = self._session.clock.monotonic_ms()
            found.append(
                rules.apply_renewal(owned, broker, wishes, answer, sent_ms=sent_ms, now_ms=now_ms)
            )
        return found

    async def commit(
        self, commits: Sequence[tuple[TopicQueue, int, NumberedCommit]]
    ) -> tuple[int, set[TopicQueue], set[TopicQueue]]:
        """Commit queues of one broker, with their epochs.

        Returns when the request was sent, the queues whose commit was accepted, and the queues that
        this consumer does not own any more.
        """
        broker = commits[0][0].broker
        body = CommitBody(
            [
                QueueCommit(
                    queue.topic,
                    queue.index,
                    epoch,
                    one.number,
                    one.progress.offset,
                    one.progress.finished,
                )
                for queue, epoch, one in commits
            ]
        )
        api = await self._api(commits[0][0])
        sent_ms = self._session.clock.monotonic_ms()
        request = Commit(self._group, self._session.client_id, self.instance)
        answer = await api.commit(request, body, timeout_ms=self.request_timeout_ms)
        taken = {TopicQueue(one.topic, broker, one.queue_id) for one in answer.taken}
        lost = {TopicQueue(one.topic, broker, one.queue_id) for one in answer.lost}
        return sent_ms, taken, lost

    async def release(self, queue: TopicQueue, epoch: int, commit: NumberedCommit | None) -> None:
        """Commit and release in one request. Raises LeaseLost if the epoch is stale."""
        api = await self._api(queue)
        await api.release(
            Release(
                self._group,
                self._session.client_id,
                self.instance,
                queue.topic,
                queue.index,
                epoch,
                NOTHING if commit is None else commit.progress.offset,
                "" if commit is None else commit.progress.finished,
                0 if commit is None else commit.number,
            ),
            timeout_ms=self.request_timeout_ms,
        )

    def forget(self, broker: str) -> None:
        """Send no lease requests to a broker until it says again that it knows leases."""
        if broker in self._brokers:
            self._without(self._brokers[broker])
            self.asked_brokers.discard(broker)

    def drop_connection(self, broker: str, reason: str) -> None:
        """Close the connection to a broker that does not answer."""
        if broker in self._brokers:
            self._session.drop_connection(self._brokers[broker], reason)

    @property
    def request_timeout_ms(self) -> int:
        """Return how long to wait for an answer: after the end of the lease it is useless."""
        return min(self._session.config.request_timeout_ms, self.terms.lease_ms)

    async def _api(self, queue: TopicQueue) -> LeaseApi:
        """Return the requests to a queue's broker; a new connection exchanges versions first."""
        await self._session.capability(queue)
        return LeaseApi(await self._session.master_of(queue))

    def _lease(self) -> Lease:
        return Lease(
            self._group,
            self._session.client_id,
            self.instance,
            self.terms.lease_ms,
            self.terms.grace_ms,
        )

    def _without(self, queue: TopicQueue) -> None:
        self._brokers.pop(queue.broker, None)
        self._session.say_once("leases", _ON_ROCKETMQ, queue.broker)


def commit_parts(
    commits: Sequence[tuple[TopicQueue, int, NumberedCommit]], *, count_max: int, chars_max: int
) -> list[list[tuple[TopicQueue, int, NumberedCommit]]]:
    """Divide the commits for a broker into requests of a bounded size."""
    parts: list[list[tuple[TopicQueue, int, NumberedCommit]]] = []
    room = 0
    for one in commits:
        size = len(one[2].progress.finished)
        if not parts or len(parts[-1]) >= count_max or size > room:
            parts.append([])
            room = chars_max
        parts[-1].append(one)
        room -= size
    return parts


class Locks:
    """The lock requests of one consumer."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def acquire(self, queues: Iterable[TopicQueue]) -> dict[TopicQueue, int]:
        """Request locks; return the granted queues and when each request was sent."""
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

    async def renew(self, owned: Mapping[TopicQueue, LeaseState]) -> tuple[list[TopicQueue], bool]:
        """Renew all locks; return the lost queues, and whether every broker answered."""
        lost: list[TopicQueue] = []
        answered = True
        for broker in to_renew(owned):
            async with self._turns[broker]:
                asked = to_renew(owned).get(broker, ())  # some queues may be gone by now
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
        """Unlock a queue and wait for the answer; return whether it came."""
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
