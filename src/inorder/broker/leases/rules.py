"""Which consumer owns which queue of a group: leases with an epoch, for our clients and for stock.

    owner     client id and a random instance id, so that the replacement of a frozen process is a
              new owner, whatever its client id (stock clients have no instance id)
    epoch     grows with every new owner and every reset, also over restarts: the number of the
              start is its high half. Under a stale one nothing is pulled, committed or given back
    lease     a queue is free at the end of it; a RocketMQ client's lasts 60 s (`broker/locks`)
    grace     what is left when the connection that renewed a lease last closes: the time that the
              client stated, and within which of its last renewal it starts a handler

A lease stands until `expire` takes it, also beyond its time: the broker reads what arrived before
it looks at the clock. Who comes back after that, and nobody else had the queue, goes on under the
same epoch. Refused owners are remembered, so that they can be told.

After a start the leases of the journal stand for the whole time that they state (a stock client's
for 31 s, since its view began with our answer). On the same boot of the machine their owners go on
with the epoch they have; else they are nobody's, and only waited for. The end of that time is
written down, and the next start of the same boot keeps to it, unless the owner has been heard of:
the first renewal after a start is written down before its answer.

`decide` changes nothing: the shell writes what was decided to its journal, then calls `apply`.
Time is monotonic.

The words of leases: who, what, for how long, what was decided. `broker/leases/rules.py` has the
table.

Signs of life: which members of a group that hold leases have fallen silent.

A frozen process keeps its connection and so its place in the list of members, and nobody else is
given its queues. Our clients say every fraction of a second that they are there. Who has begun to
and says nothing for the length of its leases is left out of the list until it speaks again.
Time is monotonic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from inorder.model import GroupQueue

STOCK_LEASE_MS: Final = 60_000
STOCK_VIEW_MS: Final = 30_000
"""How long a stock client trusts a lock that it could not renew."""
STOCK_RESTART_MS: Final = STOCK_VIEW_MS + 1_000


class Owner(NamedTuple):
    """Who holds a lease; `instance` is empty for a stock client."""

    client_id: str
    instance: str = ""

    @property
    def is_rocketmq(self) -> bool:
        """Tell whether RocketMQ's rules apply."""
        return not self.instance


NOBODY: Final = Owner("", "\0")
"""Holds what may not be given to anybody yet; no client can have this instance id."""


class Terms(NamedTuple):
    """For how long."""

    lease_ms: int = STOCK_LEASE_MS
    grace_ms: int = STOCK_VIEW_MS

    @property
    def trust_ms(self) -> int:
        """Return how long an owner starts handlers after a renewal."""
        return min(self)


STOCK: Final = Terms()


@dataclass(slots=True)
class Lease:
    """A grant."""

    owner: Owner
    epoch: int
    terms: Terms
    granted_ms: int
    renewed_ms: int
    expires_ms: int
    connection: int | None = None
    """The connection that renewed it last."""
    was_reset: bool = False
    recalled: bool = False
    """Its owner is to finish what it handles, and give the queue back."""
    asked: int = 0
    """The number of the request by which it was granted; earlier ones of its owner are late."""
    deadline_ms: int = 0
    """When it ends at the latest, also over restarts: nobody has renewed it since a start. 0: it
    was granted or renewed since, so the next start cannot know."""

    @property
    def client_id(self) -> str:
        """Return the owner's client id."""
        return self.owner.client_id

    @property
    def lease_ms(self) -> int:
        """Return how long it lasts without a renewal."""
        return self.terms.lease_ms


class Past(NamedTuple):
    """A lease that is over, on a queue that nobody has had since."""

    owner: Owner
    epoch: int
    terms: Terms
    released: bool
    recalled: bool = False
    deadline_ms: int = 0


def deadline_after_start(stated_ms: int, whole_ms: int, now_ms: int, *, same_boot: bool) -> int:
    """Return when what was granted before a start has run out, by the clock of the boot.

    `stated_ms`: what an earlier start has said, 0 for nothing. It holds as long as the machine is
    not restarted: whoever renews after a start has that voided before the answer. So a broker that
    restarts again and again does not keep a dead owner's queue for ever.
    """
    begun_anew_ms = now_ms + whole_ms
    return min(stated_ms, begun_anew_ms) if same_boot and stated_ms else begun_anew_ms


class Verdict(Enum):
    """What becomes of a wish."""

    RENEW = auto()
    RESUME = auto()  # it ran out, and nobody else had the queue: the same epoch
    GRANT = auto()  # a new epoch
    RESET = auto()  # it is the owner's, under another epoch than it thinks
    REFUSE = auto()
    FULL = auto()


class Decision(NamedTuple):
    """A verdict, not yet applied."""

    verdict: Verdict
    key: GroupQueue
    owner: Owner
    terms: Terms
    epoch: int = 0
    holder: Owner | None = None
    until_ms: int = 0
    is_new: bool = False
    """The journal does not know it."""

    @property
    def is_granted(self) -> bool:
        """Tell whether the queue is the owner's."""
        return self.verdict not in (Verdict.REFUSE, Verdict.FULL)

    @property
    def is_fresh(self) -> bool:
        """Tell whether the owner has to begin anew."""
        return self.verdict in (Verdict.GRANT, Verdict.RESET)

    def leaves_recalled(self, lease: Lease | None) -> bool:
        """Tell whether a queue was asked back, and is not begun anew by this."""
        return lease is not None and lease.recalled and self.verdict is not Verdict.GRANT


COUNTER_BITS: Final = 32
SPARED_MS: Final = 10
"""When a lease is looked at again whose owner may have spoken and was not read."""
WAITING_MAX: Final = 64
PAST_MAX: Final = 100_000
"""Owners of the past that are remembered; who is forgotten begins anew."""
ORDERED_MAX: Final = 500_000
"""Groups and topics that are consumed in order; at it no further one is leased or locked."""


class LeaseTable:
    """(group, queue) to lease."""

    def __init__(
        self, *, start_number: int = 0, leases_max: int = 500_000, ordered_max: int = ORDERED_MAX
    ) -> None:
        self.leases_max = leases_max
        self.ordered_max = ordered_max
        self.closed_until_ms = 0
        """Nothing is granted before, but what is renewed: what was granted is not known."""
        self._next_epoch = (start_number << COUNTER_BITS) + 1
        self._groups: dict[str, dict[GroupQueue, Lease]] = {}
        self._past: dict[GroupQueue, Past] = {}
        self._waiting: dict[GroupQueue, dict[Owner, int | None]] = {}
        self._ordered: dict[tuple[str, str], None] = {}
        self._renewed_by: dict[int, set[GroupQueue]] = {}
        # One entry per lease, made again when it is popped too early; more only after a shortening.
        # The number keeps the heap from comparing keys, which is slow.
        self._deadlines: list[tuple[int, int, GroupQueue]] = []
        self._entries = 0
        self._count = 0

    def __repr__(self) -> str:
        return f"LeaseTable({self._count} leases in {len(self._groups)} groups)"

    def __len__(self) -> int:
        return self._count

    def begin(self, start_number: int) -> None:
        """Give epochs from the number of a start on."""
        self._next_epoch = (start_number << COUNTER_BITS) + 1

    # Looking.

    def get(self, key: GroupQueue) -> Lease | None:
        """Return the lease on a queue, run out or not."""
        table = self._groups.get(key.group)
        return None if table is None else table.get(key)

    def held(self, group: str) -> dict[GroupQueue, Lease]:
        """Return a copy of a group's leases."""
        return dict(self._groups.get(group, ()))

    def groups(self) -> list[str]:
        """Return the groups that hold queues."""
        return list(self._groups)

    def holds_any(self, group: str) -> bool:
        """Tell whether a group holds a queue."""
        return group in self._groups

    def keys(self) -> list[GroupQueue]:
        """Return what is leased."""
        return [key for table in self._groups.values() for key in table]

    def past(self, key: GroupQueue) -> Past | None:
        """Return the last lease of a queue that is free."""
        return self._past.get(key)

    def waiting(self, key: GroupQueue) -> dict[Owner, int | None]:
        """Return who asked for a queue that another one holds, and over which connection."""
        return dict(self._waiting.get(key, ()))

    def is_current(self, key: GroupQueue, epoch: int) -> bool:
        """Tell whether an epoch is that of the lease; each epoch has one owner."""
        lease = self.get(key)
        return lease is not None and lease.epoch == epoch

    # Which groups consume in order.

    def is_ordered(self, group: str, topic: str) -> bool:
        """Tell whether a group ever held a queue of a topic, since either was made."""
        return (group, topic) in self._ordered

    def mark_ordered(self, group: str, topic: str) -> bool:
        """Note that a group consumes a topic in order; tell whether there is room for that."""
        if (group, topic) in self._ordered:
            return True
        if len(self._ordered) >= self.ordered_max:
            return False
        self._ordered[group, topic] = None
        return True

    def ordered(self) -> list[tuple[str, str]]:
        """Return the groups and topics that were ever held."""
        return list(self._ordered)

    # Taking.

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
        """Say what becomes of a wish: epoch 0 to take the queue, else to go on under that epoch.

        Without `terms` those of the lease stay. `planned` counts grants decided and not applied.
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
        past = self._past.get(key)
        if epoch:
            if past is None or past.released or (past.owner, past.epoch) != (owner, epoch):
                return Decision(Verdict.REFUSE, key, owner, STOCK, 0, None, self.closed_until_ms)
            if self._count + planned >= self.leases_max:
                return Decision(Verdict.FULL, key, owner, past.terms)
            return Decision(Verdict.RESUME, key, owner, terms or past.terms, epoch, is_new=True)
        if now_ms < self.closed_until_ms:
            return Decision(Verdict.REFUSE, key, owner, STOCK, 0, None, self.closed_until_ms)
        full = len(self._ordered) >= self.ordered_max and not self.is_ordered(key.group, key.topic)
        if full or self._count + planned >= self.leases_max:
            return Decision(Verdict.FULL, key, owner, terms or STOCK)
        return self._grant(key, owner, terms or STOCK)

    def _grant(self, key: GroupQueue, owner: Owner, terms: Terms) -> Decision:
        return Decision(Verdict.GRANT, key, owner, terms, self.take_epoch(), is_new=True)

    def take_epoch(self) -> int:
        """Return an epoch that nobody has had."""
        epoch = self._next_epoch
        self._next_epoch += 1
        return epoch

    def apply(self, decision: Decision, now_ms: int, *, connection: int | None = None) -> None:
        """Do what was decided in this same turn."""
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
            self._push(expires_ms, key)
            self._past.pop(key, None)
        assert lease.owner == owner, "nobody is given what another one has"
        self._waiting.get(key, {}).pop(owner, None)
        lease.renewed_ms = now_ms
        lease.terms = decision.terms
        lease.deadline_ms = 0
        if decision.is_fresh:
            assert decision.epoch >= lease.epoch, "epochs grow"
            lease.epoch, lease.granted_ms = decision.epoch, now_ms
        lease.was_reset &= decision.verdict is Verdict.RESET
        lease.recalled = decision.leaves_recalled(lease)
        self._bind(key, lease, connection)
        self._set_expiry(key, lease, expires_ms)

    def renew(self, key: GroupQueue, now_ms: int, connection: int | None) -> None:
        """Count something else that came under the present epoch as a renewal."""
        lease = self._groups[key.group][key]
        assert not lease.deadline_ms, "the journal has to be told first"
        lease.renewed_ms = now_ms
        self._bind(key, lease, connection)
        self._set_expiry(key, lease, now_ms + lease.terms.lease_ms)

    # Giving back and taking away.

    def release(self, key: GroupQueue) -> dict[Owner, int | None]:
        """Give a queue back; return who waited for it."""
        return self._remove(key, released=True)

    def released(self, key: GroupQueue, epoch: int) -> None:
        """Note that the last owner of a queue that is free gives up its claim."""
        past = self._past.get(key)
        if past is not None and past.epoch == epoch:
            self._past[key] = past._replace(released=True)

    def trusted_until_ms(self, key: GroupQueue, now_ms: int) -> int:
        """Return when an owner has ceased to start handlers by itself, if it hears no more."""
        lease = self._groups[key.group][key]
        return max(now_ms, min(lease.expires_ms, lease.renewed_ms + lease.terms.trust_ms))

    def force_release(self, key: GroupQueue, epoch: int, now_ms: int) -> int:
        """Take a queue from its owner; return when another one may have it.

        Not before the owner has ceased to start handlers by itself.
        """
        lease = self._groups[key.group][key]
        until_ms = self.trusted_until_ms(key, now_ms)
        self._bind(key, lease, None)
        lease.owner, lease.epoch, lease.deadline_ms = NOBODY, epoch, until_ms
        self._set_expiry(key, lease, until_ms)
        return lease.expires_ms

    def raise_epoch(self, key: GroupQueue, epoch: int) -> None:
        """Make what is under way stale: the offset was reset. The owner learns it by renewing."""
        lease = self._groups[key.group][key]
        assert epoch > lease.epoch, "epochs grow"
        lease.epoch, lease.was_reset = epoch, True

    def connection_lost(self, connection: int, now_ms: int) -> bool:
        """Shorten the leases that a closed connection renewed last; tell whether there were any."""
        keys = self._renewed_by.pop(connection, ())
        for key in keys:
            lease = self._groups[key.group][key]
            lease.connection = None
            until_ms = now_ms + lease.terms.grace_ms
            if until_ms < lease.expires_ms:
                self._set_expiry(key, lease, until_ms)
        return bool(keys)

    def shorten(self, key: GroupQueue, until_ms: int) -> None:
        """Let a lease end earlier, or, for a stock client that is back, later."""
        self._set_expiry(key, self._groups[key.group][key], until_ms)

    def remove(self, key: GroupQueue) -> dict[Owner, int | None]:
        """Free a queue whose lease is over; return who waited for it."""
        return self._remove(key, released=False)

    def forget_past(self, key: GroupQueue) -> None:
        """Let nobody go on with a queue that is free: it was reset."""
        self._past.pop(key, None)

    def forget(self, *, group: str = "", topic: str = "") -> list[GroupQueue]:
        """Forget a group or a topic that is no more; return what was leased."""

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
        self, now_ms: int, *, spared: Container[int] = (), count_max: int | None = None
    ) -> list[GroupQueue]:
        """Remove the leases that ran out, but for those of connections that we do not read."""
        expired: list[GroupQueue] = []
        kept: list[tuple[int, GroupQueue]] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(expired) != count_max:
            key = heapq.heappop(self._deadlines)[2]
            if (lease := self.get(key)) is None:
                continue
            if lease.expires_ms > now_ms:
                kept.append((lease.expires_ms, key))
            elif lease.connection is not None and lease.connection in spared:
                lease.expires_ms = now_ms + SPARED_MS
                kept.append((lease.expires_ms, key))
            else:
                self._remove(key, released=False)
                expired.append(key)
        for deadline_ms, key in kept:
            self._push(deadline_ms, key)
        return expired

    def is_due(self, now_ms: int) -> bool:
        """Tell whether a lease has run out; deadlines of those that were renewed are put off."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            key = deadlines[0][2]
            lease = self.get(key)
            if lease is None:
                heapq.heappop(deadlines)
            elif lease.expires_ms > now_ms:
                heapq.heappop(deadlines)
                self._push(lease.expires_ms, key)
            else:
                return True
        return False

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` may have something to do, or None."""
        return self._deadlines[0][0] if self._deadlines else None

    # Over a restart.

    def restore(
        self, leases: Iterable[tuple[GroupQueue, Past]], now_ms: int, *, same_boot: bool
    ) -> None:
        """Take over what a journal says."""
        for key, past in leases:
            owner, epoch, terms, _, recalled, stated_ms = past
            if past.released:
                self._remember(key, past)
                continue
            whole_ms = STOCK_RESTART_MS if owner.is_rocketmq else terms.lease_ms
            until_ms = deadline_after_start(stated_ms, whole_ms, now_ms, same_boot=same_boot)
            lease = Lease(
                owner, epoch, terms, now_ms, now_ms, until_ms, recalled=recalled,
                deadline_ms=until_ms,
            )  # fmt: skip
            if not same_boot:  # whoever comes with the old epoch is refused, also with a pull
                lease.owner, lease.epoch = NOBODY, self.take_epoch()
            self._groups.setdefault(key.group, {})[key] = lease
        self._count = sum(map(len, self._groups.values()))
        self._rebuild_deadlines()

    # Inside.

    def _wait(self, key: GroupQueue, owner: Owner, connection: int | None) -> None:
        waiting = self._waiting.setdefault(key, {})
        if owner in waiting or len(waiting) < WAITING_MAX:
            waiting[owner] = connection

    def _remember(self, key: GroupQueue, past: Past) -> None:
        self._past.pop(key, None)
        if len(self._past) >= PAST_MAX:
            del self._past[next(iter(self._past))]
        self._past[key] = past

    def _bind(self, key: GroupQueue, lease: Lease, connection: int | None) -> None:
        """Note which connection renewed a lease last."""
        before = lease.connection
        if before == connection:
            return
        lease.connection = connection
        if lease.owner.is_rocketmq:
            return  # its locks are looked for by its client id
        if before is not None:
            keys = self._renewed_by[before]
            keys.discard(key)
            if not keys:
                del self._renewed_by[before]
        if connection is not None:
            self._renewed_by.setdefault(connection, set()).add(key)

    def _set_expiry(self, key: GroupQueue, lease: Lease, expires_ms: int) -> None:
        if expires_ms < lease.expires_ms:
            self._push(expires_ms, key)
        lease.expires_ms = expires_ms
        self._compact()

    def _remove(self, key: GroupQueue, *, released: bool) -> dict[Owner, int | None]:
        table = self._groups[key.group]
        self._bind(key, lease := table.pop(key), None)
        if not table:
            del self._groups[key.group]
        self._count -= 1
        self._compact()
        gone = lease.owner is NOBODY or (lease.recalled and not released)
        if not lease.owner.is_rocketmq and not gone:
            self._remember(key, Past(lease.owner, lease.epoch, lease.terms, released))
        return self._waiting.pop(key, {})

    def _compact(self) -> None:
        """Rebuild the heap when most of it is about leases that are gone."""
        if len(self._deadlines) > 2 * self._count + 64:
            self._rebuild_deadlines()

    def _rebuild_deadlines(self) -> None:
        self._deadlines.clear()
        for table in self._groups.values():
            for key, lease in table.items():
                self._push(lease.expires_ms, key)

    def _push(self, deadline_ms: int, key: GroupQueue) -> None:
        self._entries += 1
        heapq.heappush(self._deadlines, (deadline_ms, self._entries, key))


C = TypeVar("C", bound=Hashable)


class MemberLiveness(Generic[C]):
    """(group, connection) to when it must have spoken again."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, C], tuple[int, int]] = {}  # deadline, span
        # One entry per member, made again when it is popped too early.
        self._deadlines: list[tuple[int, int, tuple[str, C]]] = []
        self._serial = 0

    def __repr__(self) -> str:
        return f"MemberLiveness({len(self._until)} members)"

    def __len__(self) -> int:
        return len(self._until)

    def note(self, group: str, connection: C, now_ms: int, span_ms: int | None = None) -> bool:
        """Note a sign; tell whether it is the first one, or the first after a silence.

        Without `span_ms` only who has given one before is noted.
        """
        member = (group, connection)
        known = self._until.get(member)
        if known is None:
            if span_ms is None:
                return False
            self._push(now_ms + span_ms, member)
        span = known[1] if span_ms is None and known is not None else span_ms
        assert span is not None, "it is known or given"
        self._until[member] = (now_ms + span, span)
        return known is None

    def forget(self, matches: Callable[[str, C], bool]) -> None:
        """Expect nothing more of members that went."""
        for member in [one for one in self._until if matches(*one)]:
            del self._until[member]

    def silent(self, now_ms: int, is_unread: Callable[[C], bool]) -> list[tuple[str, C]]:
        """Take out who has been silent for too long, unless we do not read its connection."""
        found = []
        kept = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, member = heapq.heappop(self._deadlines)
            known = self._until.get(member)
            if known is None:
                continue
            if known[0] > now_ms:
                kept.append((known[0], member))
            elif is_unread(member[1]):
                kept.append((now_ms + known[1] // 8 + 1, member))
            else:
                del self._until[member]
                found.append(member)
        for deadline, member in kept:
            self._push(deadline, member)
        return found

    def is_due(self, now_ms: int) -> bool:
        """Tell whether somebody is silent; deadlines of those that spoke are put off."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            member = deadlines[0][2]
            known = self._until.get(member)
            if known is None:
                heapq.heappop(deadlines)
            elif known[0] > now_ms:
                heapq.heappop(deadlines)
                self._push(known[0], member)
            else:
                return True
        return False

    def next_deadline_ms(self) -> int | None:
        """Return when `silent` may find somebody, or None."""
        return self._deadlines[0][0] if self._deadlines else None

    def _push(self, deadline_ms: int, member: tuple[str, C]) -> None:
        self._serial += 1
        heapq.heappush(self._deadlines, (deadline_ms, self._serial, member))
