"""Leases at work: grants, renewals, commits, releases, and their expiry.

Every operation of `LeaseService` has the same steps: the rules decide (`leases/rules`,
`offsets/rules`), the journal takes the decision (`leases/storage`), the tables change, waiting
clients are notified. If the write fails, no table has changed. Under sync flush a released queue is
free only when the release is on disk.

`LeaseExpiry` lets leases and members expire. The loop may be late and may have unread input, so
nothing expires before the loop has made a few full turns after the deadline, and nothing expires
whose connection is paused. Decisions 15 and 17 give the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import (
    NOBODY,
    POPPED,
    ROCKETMQ_RESTART_MS,
    Decision,
    Lease,
    MemberLiveness,
    Owner,
    Terms,
    Verdict,
)
from inorder.broker.offsets.rules import Committed, judge_commit, repeats_release
from inorder.errors import LeaseLost, LeasesFull, StoreError
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.ordering.fence import merge
from inorder.wire.names import TRANSACTION_GROUP
from inorder.wire.requests.leases import (
    CommitAnswer,
    LeaseAnswer,
    LeaseGrant,
    LeaseRefusal,
    QueueCommit,
    QueueName,
    QueueWish,
    VersionSpan,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.leases.records import Record
    from inorder.broker.pulls.checks import PullFields
    from inorder.net.accepted import ServerConnection
    from inorder.net.server import Server

log = get_logger(__name__)


class LeaseService:
    """Grants, renews, commits and releases leases; revokes them for operators."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.leases
        self._journal = broker.lease_journal

    def lease(
        self,
        group: str,
        owner: Owner,
        terms: Terms,
        wishes: Iterable[QueueWish],
        connection: ServerConnection,
    ) -> LeaseAnswer:
        """Grant, renew or refuse queues."""
        self._broker.safety.require()
        self._broker.lease_expiry.heard_from(group, connection, terms.lease_ms)
        now_ms = self._broker.clock.monotonic_ms()
        named = {GroupQueue(group, one.topic, one.queue_id): one for one in wishes}
        decisions: list[Decision] = []
        planned = 0
        for key, wish in named.items():
            decision = Decision(Verdict.REFUSE, key, owner, terms)
            if self._exists(key) and not self._table.is_superseded(
                key, owner, epoch=wish.epoch, number=wish.number
            ):
                decision = self._table.decide(
                    key, owner, now_ms, epoch=wish.epoch, terms=terms, planned=planned
                )
                planned += decision.verdict in (Verdict.GRANT, Verdict.RESUME)
            decisions.append(decision)
        if decisions and all(one.verdict is Verdict.FULL for one in decisions):
            raise LeasesFull(f"{len(self._table)} queues are leased; no more are")
        self.apply(decisions, now_ms, connection)
        for key, wish in named.items():
            self._table.note_request(key, owner, wish.number)
        granted = [self._granted(one) for one in decisions if one.is_granted]
        refused = [self._refused(one, now_ms) for one in decisions if not one.is_granted]
        return LeaseAnswer(granted, refused, self._journal.start.now.generation)

    def apply(self, decisions: list[Decision], now_ms: int, connection: ServerConnection) -> None:
        """Write decisions to the journal, then apply them."""
        new = [one for one in decisions if one.is_granted and one.is_new]
        self._write_grants(new)
        self._count_grants(new, now_ms)
        for decision in decisions:
            self._table.apply(decision, now_ms, connection=connection.id)
            if decision.is_granted:
                self._mark_ordered(decision.key)
            if decision.verdict is Verdict.REFUSE:
                self._broker.lease_expiry.was_refused(decision.key.group)
        self._broker.housekeeping.lock_deadline_changed()

    def _count_grants(self, new: Iterable[Decision], now_ms: int) -> None:
        counts, meters = self._broker.counts, self._broker.meters
        for one in new:
            if one.verdict not in (Verdict.GRANT, Verdict.RESUME):
                continue
            resumed = one.verdict is Verdict.RESUME
            kind = "stock" if one.owner.is_rocketmq else "resumed" if resumed else "fresh"
            counts.add("inorder_lease_grants_total", one.key.group, kind)
            if meters is not None:
                meters.handovers.granted(one.key, now_ms, resumed=resumed)

    def ended(self, key: GroupQueue, cause: str) -> None:
        """Note how an ownership ended, for whoever measures hand-overs."""
        meters = self._broker.meters
        if meters is not None:
            meters.handovers.ended(key, cause, self._broker.clock.monotonic_ms())

    def _mark_ordered(self, key: GroupQueue) -> None:
        """Note that a group consumes a topic in order; the journalled grant implies the same.

        RocketMQ clients can lock unknown topics and groups; those are not recorded.
        """
        group, topic = key.group, key.topic
        if topic in self._broker.topics and group in self._broker.groups:
            self._table.mark_ordered(group, topic)

    def _write_grants(self, decisions: list[Decision]) -> None:
        if not decisions:
            return
        longest_ms = max(
            ROCKETMQ_RESTART_MS if one.owner.is_rocketmq else one.terms.lease_ms
            for one in decisions
        )
        try:
            self._journal.start.raise_longest(longest_ms)
        except OSError as error:
            raise StoreError(f"leases cannot be granted: {error}") from error
        self._journal.write(
            lease_records.granted(
                one.key,
                self._broker.config.name,
                one.owner,
                one.epoch,
                one.terms,
                revoked=one.leaves_revoked(self._table.get(one.key)),
            )
            for one in decisions
        )

    def _granted(self, decision: Decision) -> LeaseGrant:
        broker, key = self._broker, decision.key
        group, topic, queue_id = key
        offset, finished = -1, ""
        lease = self._table.get(key)
        assert lease is not None, "it was granted"
        if decision.is_fresh:
            broker.offsets.take_reset(group, topic, queue_id)
            offset = broker.offsets.query(group, topic, queue_id)
            finished = broker.commits.finished(key, offset)
            if offset < 0:
                first = broker.offset_service.first_offset(topic, queue_id)
                offset = -1 if first is None else first
        parked, redrive = broker.parking.of_lease(group, topic, queue_id)
        return LeaseGrant(
            topic, queue_id, decision.epoch, decision.is_fresh, offset, finished,
            self.version_spans(topic, queue_id), parked, redrive, lease.was_reset,
            lease.is_revoked,
        )  # fmt: skip

    @staticmethod
    def _refused(decision: Decision, now_ms: int) -> LeaseRefusal:
        holder = "" if decision.holder in (None, NOBODY) else decision.holder.client_id
        waits_ms = max(0, decision.until_ms - now_ms)
        if decision.verdict is Verdict.FULL:
            waits_ms = decision.terms.lease_ms
        return LeaseRefusal(decision.key.topic, decision.key.queue_id, holder, waits_ms)

    def version_spans(self, topic: str, queue_id: int) -> list[VersionSpan]:
        """Return the version spans of a queue: offset, key map version, log generation."""
        return merge(
            self._broker.resizing.version_spans(topic, queue_id),
            self._broker.generations.of(topic, queue_id),
            first=self._broker.store.min_offset(topic, queue_id),
        )

    def commit(
        self,
        group: str,
        owner: Owner,
        commits: Iterable[QueueCommit],
        connection: ServerConnection,
    ) -> CommitAnswer:
        """Accept the commits of queues that the owner holds.

        They are durable once `journal.settled()` returns.
        """
        self._broker.safety.require()
        self._broker.lease_expiry.heard_from(group, connection)
        now_ms = self._broker.clock.monotonic_ms()
        taken, lost, renewed = [], [], []
        records: dict[GroupQueue, lease_records.Commit] = {}
        for one in sorted(commits, key=lambda one: (one.epoch, one.number)):
            key = GroupQueue(group, one.topic, one.queue_id)
            decision, record = self._judge(key, owner, one, now_ms)
            if decision is None:
                self._fenced(key, "commit")
                lost.append(QueueName(one.topic, one.queue_id))
                continue
            taken.append(QueueName(one.topic, one.queue_id))
            renewed.append(decision)
            if record is not None:
                records[key] = record
        self._write_grants([one for one in renewed if one.is_new])
        self._journal.write(records.values())
        for decision in renewed:
            self._table.apply(decision, now_ms, connection=connection.id)
        for record in records.values():
            self._take(record)
        self._broker.housekeeping.lock_deadline_changed()
        return CommitAnswer(taken, lost)

    def _judge(
        self, key: GroupQueue, owner: Owner, one: QueueCommit, now_ms: int
    ) -> tuple[Decision | None, lease_records.Commit | None]:
        """Return the renewal by a commit (None: refused), and its record (None: no progress)."""
        broker = self._broker
        judged = judge_commit(
            key, owner, one, leases=self._table, offsets=broker.offsets, commits=broker.commits,
            end=broker.store.end_offset(one.topic, one.queue_id), now_ms=now_ms,
        )  # fmt: skip
        if not judged.is_progress:
            return judged.renewal, None
        end = broker.store.log.end_position
        return judged.renewal, lease_records.Commit(
            *key, one.offset, end, one.epoch, one.number, one.finished
        )

    def _take(self, record: lease_records.Commit) -> None:
        key = GroupQueue(record.group, record.topic, record.queue_id)
        self._broker.offsets.put(*key, record.offset, self._broker.clock.now_ms())
        commit = Committed(record.epoch, record.number, record.offset, record.finished)
        self._broker.commits.put(key, commit)

    def release(
        self, group: str, owner: Owner, one: QueueCommit
    ) -> Coroutine[Any, Any, None] | None:
        """Commit, release a queue, and notify the owners that wait for it.

        Returns the rest of the work if the release waits for the disk, else None.

        Raises:
            LeaseLost: the epoch is stale, and the commit was not taken.
        """
        self._broker.safety.require()
        now_ms = self._broker.clock.monotonic_ms()
        key = GroupQueue(group, one.topic, one.queue_id)
        renewal, record = self._judge(key, owner, one, now_ms)
        if renewal is None:
            if repeats_release(key, owner, one, leases=self._table, commits=self._broker.commits):
                return None
            raise self.refusal(key, "release")
        records: list[Record] = [lease_records.freed(key, self._broker.config.name)]
        if record is not None:
            records.insert(0, record)
        self._journal.write(records)
        if record is not None:
            self._take(record)
        if self._broker.config.store.sync_flush:
            return self._release_when_settled(key, one.epoch)
        self._release(key, one.epoch)
        return None

    async def _release_when_settled(self, key: GroupQueue, epoch: int) -> None:
        await self._journal.settled()
        self._release(key, epoch)

    def _release(self, key: GroupQueue, epoch: int) -> None:
        if self._table.is_current(key, epoch):
            self.ended(key, "released")
            self._tell(key.group, self._table.release(key))
        else:  # it expired before
            self._table.give_up_claim(key, epoch)

    def _fenced(self, key: GroupQueue, operation: str) -> None:
        self._broker.counts.add("inorder_fenced_requests_total", key.group, operation)

    def refusal(self, key: GroupQueue, operation: str) -> LeaseLost:
        """Return the error for a request under a stale epoch, and count it."""
        self._fenced(key, operation)
        lease = self._table.get(key)
        what = f"{key.topic} {key.queue_id} of group {key.group}"
        if lease is None or lease.owner is NOBODY:
            return LeaseLost(f"{what} is free, or was reset; begin anew")
        return LeaseLost(
            f"{what} belongs to {lease.client_id}", holder=lease.client_id, epoch=lease.epoch
        )

    def check_pull(self, fields: PullFields, connection: ServerConnection) -> None:
        """Refuse a pull under a stale epoch; a pull under the current one renews the lease."""
        self._broker.safety.require()
        key = GroupQueue(fields.group, fields.topic, fields.queue_id)
        now_ms = self._broker.clock.monotonic_ms()
        lease = self._table.get(key)
        if lease is not None and lease.epoch == fields.epoch:
            self.renew(key, lease, connection)
            return
        past = self._table.past(key)
        if past is None:
            raise self.refusal(key, "pull")
        decision = self._table.decide(key, past.owner, now_ms, epoch=fields.epoch)
        if decision.verdict is not Verdict.RESUME:
            raise self.refusal(key, "pull")
        self.apply([decision], now_ms, connection)

    def renew(self, key: GroupQueue, lease: Lease, connection: ServerConnection) -> None:
        """Renew a lease by another request under its epoch.

        The journal gets the first renewal after a start, because the deadline that the start wrote
        no longer holds.
        """
        now_ms = self._broker.clock.monotonic_ms()
        if lease.deadline_ms:
            decision = self._table.decide(key, lease.owner, now_ms, epoch=lease.epoch)
            self.apply([decision], now_ms, connection)
        else:
            self._table.renew(key, now_ms, connection.id)

    def check_held(self, fields: PullFields) -> None:
        """Refuse a held pull whose epoch became stale."""
        key = GroupQueue(fields.group, fields.topic, fields.queue_id)
        if not self._table.is_current(key, fields.epoch):
            raise self.refusal(key, "pull")

    # -- pops --------------------------------------------------------------------------------------

    def grant_popped(
        self, decisions: list[Decision], records: Iterable[Record], now_ms: int
    ) -> None:
        """Lease queues to pops in order; the journal gets the batches in the same write.

        Nobody renews such a lease, so its deadline holds over restarts.
        """
        self.write_popped(((one.key, one.epoch, one.terms) for one in decisions), records, now_ms)
        for decision in decisions:
            self._table.apply(decision, now_ms)
            self._stand_until(decision.key, now_ms + decision.terms.lease_ms)
            self._mark_ordered(decision.key)
        self._broker.housekeeping.lock_deadline_changed()

    def write_popped(
        self,
        leases: Iterable[tuple[GroupQueue, int, Terms]],
        records: Iterable[Record],
        now_ms: int,
    ) -> None:
        """Write leases of pops that end after their terms, and further records."""
        self._broker.safety.require()
        name = self._broker.config.name
        granted = [
            lease_records.granted(
                key, name, POPPED, epoch, terms, deadline_ms=now_ms + terms.lease_ms
            )
            for key, epoch, terms in leases
        ]
        try:
            self._journal.start.raise_longest(max((one.lease_ms for one in granted), default=0))
        except OSError as error:
            raise StoreError(f"queues cannot be popped: {error}") from error
        self._journal.write([*granted, *records])

    def move_popped(self, key: GroupQueue, terms: Terms, now_ms: int) -> None:
        """Let the lease of a pop end after other terms; the journal has it."""
        lease = self._table.get(key)
        assert lease is not None, "the batch holds its queue"
        lease.terms = terms
        self._stand_until(key, now_ms + terms.lease_ms)
        self._broker.housekeeping.lock_deadline_changed()

    def _stand_until(self, key: GroupQueue, until_ms: int) -> None:
        self._table.expire_at(key, until_ms)
        lease = self._table.get(key)
        assert lease is not None, "it has a deadline"
        lease.deadline_ms = until_ms

    def release_popped(self, key: GroupQueue, epoch: int) -> None:
        """Free a queue whose batch is done; the journal has it."""
        self._release(key, epoch)

    def popped_ended(self, key: GroupQueue) -> None:
        """Notify owners that wait for a queue with nothing in flight any more."""
        waiting = self._table.take_waiting(key)
        if waiting:
            self._tell(key.group, waiting)

    # -- operators and resizes -------------------------------------------------------------------

    def force_release(self, key: GroupQueue) -> tuple[str, int]:
        """Take a queue from its owner; return the owner's client id and epoch, ("", 0) if free.

        The broker refuses the next request of the owner. The next owner gets the queue
        when the former owner can no longer start a handler, at the latest one grace period after
        its last renewal.
        """
        lease = self._table.get(key)
        if lease is None or lease.owner == NOBODY:
            return "", 0
        holder, epoch = lease.client_id, lease.epoch
        new = self._table.take_epoch()
        now_ms = self._broker.clock.monotonic_ms()
        until_ms = self._table.trusted_until_ms(key, now_ms)
        self._journal.write(
            [
                lease_records.granted(
                    key, self._broker.config.name, NOBODY, new, lease.terms, deadline_ms=until_ms
                )
            ]
        )
        self.ended(key, "freed")
        self._table.force_release(key, new, now_ms)
        self._broker.housekeeping.lock_deadline_changed()
        self._broker.wake(key.topic, key.queue_id)  # refuses its held pulls
        return holder, epoch

    def revoke(self, key: GroupQueue) -> bool:
        """Ask the owner to hand a queue back; return whether the queue had, or could get, an owner.

        An inorder client finishes its handlers first. The protocol of a RocketMQ client has no
        such request, so its lock is released by force.
        """
        lease, past = self._table.get(key), self._table.past(key)
        if lease is not None and lease.owner.is_rocketmq:
            return bool(self.force_release(key)[0])
        if lease is not None:
            if lease.owner != NOBODY and not lease.is_revoked:
                self._journal.write(
                    [
                        lease_records.granted(
                            key,
                            self._broker.config.name,
                            lease.owner,
                            lease.epoch,
                            lease.terms,
                            revoked=True,
                            deadline_ms=lease.deadline_ms,
                        )
                    ]
                )
                lease.is_revoked = True
            return True
        if past is None or past.released:
            return False
        self._journal.write([lease_records.freed(key, self._broker.config.name)])
        self._table.forget_past(key)
        return True

    def _exists(self, key: GroupQueue) -> bool:
        if key.group == TRANSACTION_GROUP:
            return False  # the broker reads these queues itself
        config = self._broker.topics.get(key.topic)
        return config is not None and key.queue_id < config.read_queues

    def _tell(self, group: str, waiting: dict[Owner, int | None]) -> None:
        """Notify the owners that wait for a free queue; if there are none, the whole group."""
        connections = [
            one for one in self._broker.members.connections(group) if one.id in waiting.values()
        ]
        if connections:
            self._broker.notify_ids_changed(group, connections)
        else:
            self._broker.notify_unlocked(group)


EXPIRED_AT_ONCE: Final = 1000
"""How many leases expire in one turn of the loop."""
ROUNDS: Final = 3
"""Turns of the loop after which every event loop has read all pending input."""


class _Unread:
    """The ids of connections with unread input."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __contains__(self, connection_id: object) -> bool:
        found = self._server.find(connection_id)
        return found is not None and found.is_unread


class LeaseExpiry:
    """Expires leases, and members that missed their heartbeats."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.leases
        self._liveness: MemberLiveness[ServerConnection] = MemberLiveness()
        self._refused_groups: set[str] = set()
        self._checking: asyncio.Task[None] | None = None

    def next_deadline_ms(self) -> int | None:
        """Return the next time at which something may expire, or None."""
        deadlines = [
            self._table.next_deadline_ms(),
            self._liveness.next_deadline_ms(),
            self._table.closed_until_ms or None,
        ]
        return min((one for one in deadlines if one is not None), default=None)

    def is_overdue(self, keys: Iterable[GroupQueue], owner: Owner) -> bool:
        """Return whether another owner holds one of these queues past its deadline.

        Then call `check` before the reply: the renewal of that owner may be unread.
        """
        now_ms = self._broker.clock.monotonic_ms()
        leases = map(self._table.get, keys)
        return any(
            lease is not None and lease.expires_ms <= now_ms and lease.owner != owner
            for lease in leases
        )

    def on_deadline(self) -> int | None:
        """Start a check if something has expired; return the next deadline if nothing has."""
        now_ms = self._broker.clock.monotonic_ms()
        closed_until_ms = self._table.closed_until_ms
        if (
            self._table.is_due(now_ms)
            or self._liveness.is_due(now_ms)
            or 0 < closed_until_ms <= now_ms
        ):
            self.check_soon()
            return None  # the check sets the next deadline
        return self.next_deadline_ms()

    def check_soon(self) -> asyncio.Task[None]:
        """Start a check, unless one runs: read pending input, then expire."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check(), name="leases")
        return self._checking

    async def check(self) -> None:
        """Return when everything that is past its deadline now has expired."""
        await asyncio.shield(self.check_soon())

    async def _check(self) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        broker, table = self._broker, self._table
        now_ms = broker.clock.monotonic_ms()
        groups, unread = set(), _Unread(broker.server)
        while expired := table.expire(
            now_ms, unread=unread, count_max=EXPIRED_AT_ONCE, tell=self._expired
        ):
            groups |= {key.group for key in expired}
            if len(expired) < EXPIRED_AT_ONCE:
                break
            await asyncio.sleep(0)
        for group, connection in self._liveness.missed(now_ms, lambda one: one.is_unread):
            if broker.members.silence(group, connection):
                log.warning(
                    "a member missed its heartbeats group=%s peer=%s", group, connection.peer
                )
                groups.add(group)
        if 0 < table.closed_until_ms <= now_ms:
            self._reopen()
            groups |= self._refused_groups
            self._refused_groups.clear()
        for group in sorted(groups):
            broker.notify_ids_changed(group)
        broker.housekeeping.lock_deadline_changed()

    def _expired(self, key: GroupQueue, lease: Lease) -> None:
        gone = self._broker.server.find(lease.connection) is None
        self._broker.lease_service.ended(key, "closed" if gone else "expired")

    def _reopen(self) -> None:
        """Grant queues again: every lease that the journal may have lost has expired."""
        self._table.closed_until_ms = 0
        try:
            self._broker.lease_journal.start.waited()
        except OSError as error:  # the next start waits again
            log.error("start.json is not saved error=%s", error)

    def was_refused(self, group: str) -> None:
        """Notify a group when the broker grants queues again, if it grants none now."""
        if self._table.closed_until_ms:
            self._refused_groups.add(group)

    def heard_from(
        self, group: str, connection: ServerConnection, lease_ms: int | None = None
    ) -> None:
        """Note a request of a member; list the member again if it had missed its heartbeats."""
        now_ms = self._broker.clock.monotonic_ms()
        if self._liveness.note(group, connection, now_ms, lease_ms):
            notice = self._broker.members.heard(group, connection)
            if notice is not None:
                self._broker.notify_ids_changed(notice.group, notice.connections)
            self._broker.housekeeping.lock_deadline_changed()

    def left(self, group: str, connection: ServerConnection) -> None:
        """Expect no more heartbeats of a member that unregistered."""
        self._liveness.forget(lambda name, one: name == group and one is connection)

    def connection_lost(self, connection: ServerConnection) -> None:
        """Shorten the leases that a connection renewed last."""
        if len(self._liveness):
            self._liveness.forget(lambda _, one: one is connection)
        if self._table.connection_lost(connection.id, self._broker.clock.monotonic_ms()):
            self._broker.housekeeping.lock_deadline_changed()

    def cancel(self) -> None:
        """Stop a running check."""
        if self._checking is not None:
            self._checking.cancel()
