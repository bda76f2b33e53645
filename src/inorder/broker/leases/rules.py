"""Which consumer owns which queue: leases with epochs, for inorder clients and RocketMQ clients.

    owner     client id and random instance id. A process that replaces a frozen one is a new owner
              even under the same client id. A RocketMQ client has no instance id.
    epoch     grows with every new owner and every reset, also over restarts: its high half is the
              number of the broker's start. A stale epoch pulls, commits and releases nothing.
    lease     ends if it is not renewed; the lock of a RocketMQ client lasts 60 s (`broker/locks`).
    grace     the longest time a lease lasts after the connection that last renewed it closes. A
              client starts no handler once the grace period has passed since its last renewal.

A lease stands until `expire` removes it, even past its deadline: the broker reads pending input
before it looks at the clock. If an expired owner comes back before anyone else got the queue, it
resumes under its old epoch. The table remembers refused owners, so that the broker can notify them.

After a restart, the leases of the journal stand for their whole length; the lock of a RocketMQ
client stands for 31 s, because the client counts from our reply. If the machine was not rebooted,
owners go on under their epochs. Otherwise the leases belong to nobody and only delay the next
owner. The deadline is written down, so that a broker that restarts often does not keep the queue of
a dead owner for ever. The first renewal after a restart is in the journal before its reply.

`decide` changes nothing. The service writes the decision to the journal, then calls `apply`.
`MemberLiveness` finds members that missed their heartbeats. All times are monotonic.
Decisions 15 and 17 give the reasons.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from inorder.model import GroupQueue
from inorder.wire.requests.leases import POPPED_INSTANCE, WAITING_MAX

ROCKETMQ_LEASE_MS: Final = 60_000
ROCKETMQ_VIEW_MS: Final = 30_000
"""How long a RocketMQ client trusts a lock that it could not renew."""
ROCKETMQ_RESTART_MS: Final = ROCKETMQ_VIEW_MS + 1_000


class Owner(NamedTuple):
    """The owner of a lease; `instance` is empty for a RocketMQ client."""

    client_id: str
    instance: str = ""

    @property
    def is_rocketmq(self) -> bool:
        """Return whether RocketMQ's rules apply."""
        return not self.instance


NOBODY: Final = Owner("", "\0")
"""The owner of queues that nobody may get yet; no client can have this instance id."""


POPPED: Final = Owner("(popped)", POPPED_INSTANCE)
"""The owner of queues whose messages were popped (`broker/pops/rules.py`)."""


class Terms(NamedTuple):
    """How long a lease lasts without a renewal, and how long it survives a lost connection."""

    lease_ms: int = ROCKETMQ_LEASE_MS
    grace_ms: int = ROCKETMQ_VIEW_MS

    @property
    def trust_ms(self) -> int:
        """Return how long after a renewal an owner still starts handlers."""
        return min(self)


ROCKETMQ_TERMS: Final = Terms()


@dataclass(slots=True)
class Lease:
    """A granted lease."""

    owner: Owner
    epoch: int
    terms: Terms
    granted_ms: int
    renewed_ms: int
    expires_ms: int
    connection: int | None = None
    """The connection of the last renewal."""
    was_reset: bool = False
    is_revoked: bool = False
    """The owner is to finish its handlers and hand the queue back (wire name `recalled`)."""
    request_number: int = 0
    """The highest request number of the owner; a request with a lower number is late."""
    deadline_ms: int = 0
    """When a lease from before the last start ends, also over further restarts. 0: the lease was
    granted or renewed since, so the next start cannot know."""

    @property
    def client_id(self) -> str:
        """Return the client id of the owner."""
        return self.owner.client_id

    @property
    def lease_ms(self) -> int:
        """Return how long the lease lasts without a renewal."""
        return self.terms.lease_ms


class PastLease(NamedTuple):
    """An ended lease on a queue that nobody has owned since."""

    owner: Owner
    epoch: int
    terms: Terms
    released: bool
    revoked: bool = False
    deadline_ms: int = 0


def deadline_after_start(stated_ms: int, whole_ms: int, now_ms: int, *, same_boot: bool) -> int:
    """Return when a lease from before a start has ended, by the clock of the boot.

    `stated_ms` is the deadline that an earlier start wrote down, 0 for none. It holds until the
    machine reboots, because a renewal voids it before the reply.
    """
    begun_anew_ms = now_ms + whole_ms
    return min(stated_ms, begun_anew_ms) if same_boot and stated_ms else begun_anew_ms


class Verdict(Enum):
    """The outcome of a request for a queue."""

    RENEW = auto()
    RESUME = auto()  # the lease expired, nobody else got the queue: the same epoch
    GRANT = auto()  # a new epoch
    RESET = auto()  # the owner keeps the queue under a new epoch: it was reset
    REFUSE = auto()
    FULL = auto()


class Decision(NamedTuple):
    """A verdict that is not applied yet."""

    verdict: Verdict
    key: GroupQueue
    owner: Owner
    terms: Terms
    epoch: int = 0
    holder: Owner | None = None
    until_ms: int = 0
    is_new: bool = False
    """The journal does not have it yet."""

    @property
    def is_granted(self) -> bool:
        """Return whether the owner has the queue."""
        return self.verdict not in (Verdict.REFUSE, Verdict.FULL)

    @property
    def is_fresh(self) -> bool:
        """Return whether the owner starts from the committed offset."""
        return self.verdict in (Verdict.GRANT, Verdict.RESET)

    def leaves_revoked(self, lease: Lease | None) -> bool:
        """Return whether a revoked lease stays revoked: only a grant clears the mark."""
        return lease is not None and lease.is_revoked and self.verdict is not Verdict.GRANT


COUNTER_BITS: Final = 32
POPPED_RETRY_MS: Final = 1000
"""When to ask again for a queue with popped messages in flight; whoever waits is told earlier."""
UNREAD_MS: Final = 10
"""When to check again a lease whose owner has unread input."""
PAST_MAX: Final = 100_000
"""Former owners in memory; a forgotten one cannot resume."""
ORDERED_MAX: Final = 500_000
"""Pairs of group and topic consumed in order; at the limit no further pair gets a lease."""


T = TypeVar("T")


class Deadlines(Generic[T]):
    """Items by the time at which each may be due.

    An item has one entry. If its deadline moves the entry stays, and is pushed again with the new
    deadline when the old one comes; only an earlier deadline needs a second entry.
    """

    def __init__(self) -> None:
        # The serial number keeps the heap from comparing items, which is slow.
        self._heap: list[tuple[int, int, T]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, deadline_ms: int, item: T) -> None:
        """Add an entry."""
        self._serial += 1
        heapq.heappush(self._heap, (deadline_ms, self._serial, item))

    def pop(self, now_ms: int) -> T | None:
        """Remove the first entry whose time has come and return its item; None: there is none."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        return heapq.heappop(self._heap)[2]

    def is_due(self, now_ms: int, deadline_of: Callable[[T], int | None]) -> bool:
        """Return whether an item is due; put off entries whose deadline has moved.

        `deadline_of` returns the deadline of an item, None if the item is gone.
        """
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            item = heap[0][2]
            deadline_ms = deadline_of(item)
            if deadline_ms is not None and deadline_ms <= now_ms:
                return True
            heapq.heappop(heap)
            if deadline_ms is not None:
                self.push(deadline_ms, item)
        return False

    def next_ms(self) -> int | None:
        """Return the time of the first entry, or None."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Remove all entries."""
        self._heap.clear()


class LeaseTable:
    """The leases of all groups, and the owners that wait for them."""

    def __init__(
        self,
        *,
        start_number: int = 0,
        leases_max: int = 500_000,
        ordered_max: int = ORDERED_MAX,
        is_popped: Callable[[GroupQueue], bool] = lambda _: False,
    ) -> None:
        self.leases_max = leases_max
        self.ordered_max = ordered_max
        self.closed_until_ms = 0
        """Until this time the table renews leases but grants none: after a power cut it does not
        know which leases their owners still trust."""
        self._is_popped = is_popped
        """Whether a group has messages of a queue in flight that were popped without order; nobody
        gets such a queue."""
        self._next_epoch = (start_number << COUNTER_BITS) + 1
        self._groups: dict[str, dict[GroupQueue, Lease]] = {}
        self._past: dict[GroupQueue, PastLease] = {}
        self._waiting: dict[GroupQueue, dict[Owner, int | None]] = {}
        self._ordered: dict[tuple[str, str], None] = {}
        self._renewed_by: dict[int, set[GroupQueue]] = {}
        self._deadlines: Deadlines[GroupQueue] = Deadlines()
        self._count = 0

    def __repr__(self) -> str:
        return f"LeaseTable({self._count} leases in {len(self._groups)} groups)"

    def __len__(self) -> int:
        return self._count

    def begin(self, start_number: int) -> None:
        """Take epochs from the range of this start."""
        self._next_epoch = (start_number << COUNTER_BITS) + 1

    # Queries.

    def get(self, key: GroupQueue) -> Lease | None:
        """Return the lease on a queue, expired or not."""
        table = self._groups.get(key.group)
        return None if table is None else table.get(key)

    def held(self, group: str) -> dict[GroupQueue, Lease]:
        """Return a copy of the leases of a group."""
        return dict(self._groups.get(group, ()))

    def groups(self) -> list[str]:
        """Return the groups that hold queues."""
        return list(self._groups)

    def holds_any(self, group: str) -> bool:
        """Return whether a group holds a lease."""
        return group in self._groups

    def keys(self) -> list[GroupQueue]:
        """Return the keys of all leases."""
        return [key for table in self._groups.values() for key in table]

    def past(self, key: GroupQueue) -> PastLease | None:
        """Return the last lease of a free queue."""
        return self._past.get(key)

    def waiting(self, key: GroupQueue) -> dict[Owner, int | None]:
        """Return the owners that a queue was refused to, with their connections."""
        return dict(self._waiting.get(key, ()))

    def take_waiting(self, key: GroupQueue) -> dict[Owner, int | None]:
        """Remove and return the owners that a free queue was refused to."""
        return self._waiting.pop(key, {})

    def is_current(self, key: GroupQueue, epoch: int) -> bool:
        """Return whether an epoch is current; each epoch has one owner."""
        lease = self.get(key)
        return lease is not None and lease.epoch == epoch

    def is_superseded(self, key: GroupQueue, owner: Owner, *, epoch: int, number: int) -> bool:
        """Return whether a request for a queue is an old copy: its owner has sent a later one."""
        lease = self.get(key)
        if epoch or lease is None or lease.owner != owner:
            return False
        return 0 < lease.request_number >= number

    def note_request(self, key: GroupQueue, owner: Owner, number: int) -> None:
        """Note the number of an owner's request."""
        lease = self.get(key)
        if lease is not None and lease.owner == owner:
            lease.request_number = max(lease.request_number, number)

    # Which groups consume in order.

    def is_ordered(self, group: str, topic: str) -> bool:
        """Return whether a group ever held a queue of a topic, since either was created."""
        return (group, topic) in self._ordered

    def mark_ordered(self, group: str, topic: str) -> bool:
        """Note that a group consumes a topic in order; return False if the table is full."""
        if (group, topic) in self._ordered:
            return True
        if len(self._ordered) >= self.ordered_max:
            return False
        self._ordered[group, topic] = None
        return True

    def ordered(self) -> list[tuple[str, str]]:
        """Return all pairs of group and topic that are consumed in order."""
        return list(self._ordered)

    # Grants.

    def decide(
        self,
        key: GroupQueue,
        owner: Owner,
        now_ms: int,
        *,
        epoch: int = 0,
        terms: Terms | None = None,
        planned: int = 0,
    ) -> Decision:
        """Decide a request for a queue.

        With epoch 0 the client asks to become the owner. With another epoch it says that it is the
        owner under that epoch and asks to continue. Without `terms` the lease keeps its terms.
        `planned` is the number of grants that are decided but not applied yet.
        """
        lease = self.get(key)
        if lease is not None:
            wanted = terms or lease.terms
            if lease.owner != owner:
                return Decision(
                    Verdict.REFUSE, key, owner, wanted, 0, lease.owner, lease.expires_ms
                )
            is_new = wanted != lease.terms or lease.deadline_ms > 0
            if owner.is_rocketmq or lease.epoch == epoch:
                return Decision(Verdict.RENEW, key, owner, wanted, lease.epoch, is_new=is_new)
            if epoch:
                return Decision(Verdict.RESET, key, owner, wanted, lease.epoch, is_new=is_new)
            return self._grant(key, owner, wanted)
        if owner != POPPED and self._is_popped(key):
            until_ms = now_ms + POPPED_RETRY_MS
            return Decision(
                Verdict.REFUSE, key, owner, terms or ROCKETMQ_TERMS, 0, POPPED, until_ms
            )
        past = self._past.get(key)
        if epoch:
            if past is None or past.released or (past.owner, past.epoch) != (owner, epoch):
                return Decision(
                    Verdict.REFUSE, key, owner, ROCKETMQ_TERMS, 0, None, self.closed_until_ms
                )
            if self._count + planned >= self.leases_max:
                return Decision(Verdict.FULL, key, owner, past.terms)
            return Decision(Verdict.RESUME, key, owner, terms or past.terms, epoch, is_new=True)
        if now_ms < self.closed_until_ms:
            return Decision(
                Verdict.REFUSE, key, owner, ROCKETMQ_TERMS, 0, None, self.closed_until_ms
            )
        full = len(self._ordered) >= self.ordered_max and not self.is_ordered(key.group, key.topic)
        if full or self._count + planned >= self.leases_max:
            return Decision(Verdict.FULL, key, owner, terms or ROCKETMQ_TERMS)
        return self._grant(key, owner, terms or ROCKETMQ_TERMS)

    def _grant(self, key: GroupQueue, owner: Owner, terms: Terms) -> Decision:
        return Decision(Verdict.GRANT, key, owner, terms, self.take_epoch(), is_new=True)

    def take_epoch(self) -> int:
        """Return an unused epoch."""
        epoch = self._next_epoch
        self._next_epoch += 1
        return epoch

    def apply(self, decision: Decision, now_ms: int, *, connection: int | None = None) -> None:
        """Apply a decision, in the same turn of the loop in which it was made."""
        key, owner = decision.key, decision.owner
        if not decision.is_granted:
            if decision.holder is not None:
                self._wait(key, owner, connection)
            return
        expires_ms = now_ms + decision.terms.lease_ms
        lease = self.get(key)
        if lease is None:
            lease = Lease(owner, decision.epoch, decision.terms, now_ms, now_ms, expires_ms)
            self._groups.setdefault(key.group, {})[key] = lease
            self._count += 1
            self._deadlines.push(expires_ms, key)
            self._past.pop(key, None)
        assert lease.owner == owner, "the decision was made for another owner"
        self._waiting.get(key, {}).pop(owner, None)
        lease.renewed_ms = now_ms
        lease.terms = decision.terms
        lease.deadline_ms = 0
        if decision.is_fresh:
            assert decision.epoch >= lease.epoch, "epochs grow"
            lease.epoch, lease.granted_ms = decision.epoch, now_ms
        lease.was_reset &= decision.verdict is Verdict.RESET
        lease.is_revoked = decision.leaves_revoked(lease)
        self._bind(key, lease, connection)
        self._set_expiry(key, lease, expires_ms)

    def renew(self, key: GroupQueue, now_ms: int, connection: int | None) -> None:
        """Renew a lease by another request under its epoch."""
        lease = self._groups[key.group][key]
        assert not lease.deadline_ms, "the journal needs the renewal first"
        lease.renewed_ms = now_ms
        self._bind(key, lease, connection)
        self._set_expiry(key, lease, now_ms + lease.terms.lease_ms)

    # Ends of leases.

    def release(self, key: GroupQueue) -> dict[Owner, int | None]:
        """Release a queue; return the owners that waited for it."""
        return self._remove(key, released=True)

    def give_up_claim(self, key: GroupQueue, epoch: int) -> None:
        """Note that the last owner of a free queue gives up its claim."""
        past = self._past.get(key)
        if past is not None and past.epoch == epoch:
            self._past[key] = past._replace(released=True)

    def trusted_until_ms(self, key: GroupQueue, now_ms: int) -> int:
        """Return when an owner that hears nothing more no longer starts handlers."""
        lease = self._groups[key.group][key]
        return max(now_ms, min(lease.expires_ms, lease.renewed_ms + lease.terms.trust_ms))

    def force_release(self, key: GroupQueue, epoch: int, now_ms: int) -> int:
        """Take a queue from its owner; return when the next owner may get it.

        That is when the old owner no longer starts handlers on its own.
        """
        lease = self._groups[key.group][key]
        until_ms = self.trusted_until_ms(key, now_ms)
        self._bind(key, lease, None)
        lease.owner, lease.epoch, lease.deadline_ms = NOBODY, epoch, until_ms
        self._set_expiry(key, lease, until_ms)
        return lease.expires_ms

    def raise_epoch(self, key: GroupQueue, epoch: int) -> None:
        """Make requests under way stale after a reset; a renewal tells the owner the new epoch."""
        lease = self._groups[key.group][key]
        assert epoch > lease.epoch, "epochs grow"
        lease.epoch, lease.was_reset = epoch, True

    def connection_lost(self, connection: int, now_ms: int) -> bool:
        """Shorten the leases that a closed connection renewed; return whether there were any."""
        keys = self._renewed_by.pop(connection, ())
        for key in keys:
            lease = self._groups[key.group][key]
            lease.connection = None
            until_ms = now_ms + lease.terms.grace_ms
            if until_ms < lease.expires_ms:
                self._set_expiry(key, lease, until_ms)
        return bool(keys)

    def expire_at(self, key: GroupQueue, until_ms: int) -> None:
        """Change when a lease ends.

        A RocketMQ client's lock ends earlier when the client's connection closes, and at its usual
        time again when the client comes back.
        """
        self._set_expiry(key, self._groups[key.group][key], until_ms)

    def remove(self, key: GroupQueue) -> dict[Owner, int | None]:
        """Free a queue whose lease has ended; return the owners that waited for it."""
        return self._remove(key, released=False)

    def forget_past(self, key: GroupQueue) -> None:
        """Let no former owner resume a free queue."""
        self._past.pop(key, None)

    def forget(self, *, group: str = "", topic: str = "") -> list[GroupQueue]:
        """Forget a deleted group or topic; return the keys of its leases."""

        def matches(key: GroupQueue) -> bool:
            return group in ("", key.group) and topic in ("", key.topic)

        gone = [key for key in self.keys() if matches(key)]
        for key in gone:
            self._remove(key, released=True)
        for key in [key for key in self._past if matches(key)]:
            del self._past[key]
        for pair in [
            pair for pair in self._ordered if group in ("", pair[0]) and topic in ("", pair[1])
        ]:
            del self._ordered[pair]
        return gone

    def expire(
        self,
        now_ms: int,
        *,
        unread: Container[int] = (),
        count_max: int | None = None,
        tell: Callable[[GroupQueue, Lease], None] = lambda _key, _lease: None,
    ) -> list[GroupQueue]:
        """Remove expired leases, except those whose connections have unread input.

        `tell` hears of each before it is gone.
        """
        expired: list[GroupQueue] = []
        deadlines = self._deadlines
        while len(expired) != count_max and (key := deadlines.pop(now_ms)) is not None:
            if (lease := self.get(key)) is None:
                continue
            if lease.expires_ms > now_ms:
                deadlines.push(lease.expires_ms, key)
            elif lease.connection is not None and lease.connection in unread:
                lease.expires_ms = now_ms + UNREAD_MS
                deadlines.push(lease.expires_ms, key)
            else:
                tell(key, lease)
                self._remove(key, released=False)
                expired.append(key)
        return expired

    def is_due(self, now_ms: int) -> bool:
        """Return whether a lease has expired; put off the deadlines of renewed leases."""
        return self._deadlines.is_due(now_ms, self._expires_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the next time at which a lease may expire, or None."""
        return self._deadlines.next_ms()

    # Restarts.

    def restore(
        self, leases: Iterable[tuple[GroupQueue, PastLease]], now_ms: int, *, same_boot: bool
    ) -> None:
        """Take over the leases of the journal."""
        for key, past in leases:
            owner, epoch, terms, _, revoked, stated_ms = past
            if past.released:
                self._remember(key, past)
                continue
            whole_ms = ROCKETMQ_RESTART_MS if owner.is_rocketmq else terms.lease_ms
            until_ms = deadline_after_start(stated_ms, whole_ms, now_ms, same_boot=same_boot)
            lease = Lease(
                owner, epoch, terms, now_ms, now_ms, until_ms, is_revoked=revoked,
                deadline_ms=until_ms,
            )  # fmt: skip
            if not same_boot:  # refuses everything under the old epoch, also pulls
                lease.owner, lease.epoch = NOBODY, self.take_epoch()
            self._groups.setdefault(key.group, {})[key] = lease
        self._count = sum(map(len, self._groups.values()))
        self._rebuild_deadlines()

    # Internals.

    def _wait(self, key: GroupQueue, owner: Owner, connection: int | None) -> None:
        waiting = self._waiting.setdefault(key, {})
        if owner in waiting or len(waiting) < WAITING_MAX:
            waiting[owner] = connection

    def _remember(self, key: GroupQueue, past: PastLease) -> None:
        self._past.pop(key, None)
        if len(self._past) >= PAST_MAX:
            del self._past[next(iter(self._past))]
        self._past[key] = past

    def _bind(self, key: GroupQueue, lease: Lease, connection: int | None) -> None:
        """Note the connection of the last renewal."""
        before = lease.connection
        if before == connection:
            return
        lease.connection = connection
        if lease.owner.is_rocketmq:
            return  # its locks are found by client id
        if before is not None:
            keys = self._renewed_by[before]
            keys.discard(key)
            if not keys:
                del self._renewed_by[before]
        if connection is not None:
            self._renewed_by.setdefault(connection, set()).add(key)

    def _set_expiry(self, key: GroupQueue, lease: Lease, expires_ms: int) -> None:
        if expires_ms < lease.expires_ms:
            self._deadlines.push(expires_ms, key)
        lease.expires_ms = expires_ms
        self._compact()

    def _remove(self, key: GroupQueue, *, released: bool) -> dict[Owner, int | None]:
        table = self._groups[key.group]
        self._bind(key, lease := table.pop(key), None)
        if not table:
            del self._groups[key.group]
        self._count -= 1
        self._compact()
        gone = lease.owner is NOBODY or (lease.is_revoked and not released)
        if not lease.owner.is_rocketmq and not gone:
            self._remember(key, PastLease(lease.owner, lease.epoch, lease.terms, released))
        return self._waiting.pop(key, {})

    def _compact(self) -> None:
        """Rebuild the heap when most of its entries belong to ended leases."""
        if len(self._deadlines) > 2 * self._count + 64:
            self._rebuild_deadlines()

    def _rebuild_deadlines(self) -> None:
        self._deadlines.clear()
        for table in self._groups.values():
            for key, lease in table.items():
                self._deadlines.push(lease.expires_ms, key)

    def _expires_ms(self, key: GroupQueue) -> int | None:
        lease = self.get(key)
        return None if lease is None else lease.expires_ms


C = TypeVar("C", bound=Hashable)


class MemberLiveness(Generic[C]):
    """Finds lease holders that missed their heartbeats.

    A frozen process keeps its connection, and so its place in the list of members, and nobody else
    is assigned its queues. inorder clients send several requests per lease. A member that stops
    for the length of its leases is left out of the list until it speaks again.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[str, C], tuple[int, int]] = {}  # deadline, span
        self._deadlines: Deadlines[tuple[str, C]] = Deadlines()

    def __repr__(self) -> str:
        return f"MemberLiveness({len(self._until)} members)"

    def __len__(self) -> int:
        return len(self._until)

    def note(self, group: str, connection: C, now_ms: int, span_ms: int | None = None) -> bool:
        """Note a request of a member; return whether it is the first, or the first after a silence.

        Without `span_ms` only known members are noted.
        """
        member = (group, connection)
        known = self._until.get(member)
        if known is None:
            if span_ms is None:
                return False
            self._deadlines.push(now_ms + span_ms, member)
        span = known[1] if span_ms is None and known is not None else span_ms
        assert span is not None, "the span is known or given"
        self._until[member] = (now_ms + span, span)
        return known is None

    def forget(self, matches: Callable[[str, C], bool]) -> None:
        """Expect no more heartbeats of members that left."""
        for member in [one for one in self._until if matches(*one)]:
            del self._until[member]

    def missed(self, now_ms: int, is_unread: Callable[[C], bool]) -> list[tuple[str, C]]:
        """Remove and return members that missed their heartbeats and have no unread input."""
        found = []
        deadlines = self._deadlines
        while (member := deadlines.pop(now_ms)) is not None:
            known = self._until.get(member)
            if known is None:
                continue
            if known[0] > now_ms:
                deadlines.push(known[0], member)
            elif is_unread(member[1]):
                deadlines.push(now_ms + known[1] // 8 + 1, member)
            else:
                del self._until[member]
                found.append(member)
        return found

    def is_due(self, now_ms: int) -> bool:
        """Return whether a member missed its heartbeats; put off the deadlines of the others."""
        return self._deadlines.is_due(now_ms, self._deadline_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the next time at which `missed` may find a member, or None."""
        return self._deadlines.next_ms()

    def _deadline_ms(self, member: tuple[str, C]) -> int | None:
        known = self._until.get(member)
        return None if known is None else known[0]
