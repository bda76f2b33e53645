"""LeaseTable against what owners believe: never two of them at a time, over closes and restarts."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inorder.broker.leases.rules import (
    NOBODY,
    ROCKETMQ_RESTART_MS,
    ROCKETMQ_VIEW_MS,
    Decision,
    LeaseTable,
    Owner,
    PastLease,
    Terms,
    Verdict,
)
from inorder.model import GroupQueue

KEYS = [GroupQueue("g", "t", index) for index in range(2)]
OWNERS = [Owner("a", "one"), Owner("a", "two"), Owner("b", "one"), Owner("stock")]
TERMS = [Terms(5000, 1000), Terms(8000, 8000), Terms(2000, 0)]

keys, owners, terms = st.sampled_from(KEYS), st.sampled_from(OWNERS), st.sampled_from(TERMS)


@dataclass
class Belief:
    """What an owner believes of a queue: it starts handlers until then."""

    epoch: int
    until_ms: int
    terms: Terms


class LeaseModel(RuleBasedStateMachine):
    """Owners that count from the sending of their requests, which arrive a little later."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.starts = 1
        self.table = LeaseTable(start_number=1)
        self.journal: dict[GroupQueue, PastLease] = {}
        self.beliefs: dict[tuple[GroupQueue, Owner], Belief] = {}
        self.connections = {owner: index for index, owner in enumerate(OWNERS)}
        self.last_epoch = dict.fromkeys(KEYS, 0)
        self.last_owner: dict[GroupQueue, tuple[Owner, int]] = {}
        self.kept_since: dict[GroupQueue, int] = {}
        """When the broker has started for the first time since it heard of a queue's owner."""

    def _believes(self, key: GroupQueue, owner: Owner) -> bool:
        belief = self.beliefs.get((key, owner))
        return belief is not None and belief.until_ms > self.now

    def _ask(self, key: GroupQueue, owner: Owner, epoch: int, wanted: Terms, late: int) -> Decision:
        """Send now, arrive `late` ms later, be answered at once."""
        sent = self.now
        self.now += late
        self.table.expire(self.now)
        given = None if owner.is_rocketmq else wanted
        decision = self.table.decide(key, owner, self.now, epoch=epoch, terms=given)
        self.table.apply(decision, self.now, connection=self.connections[owner])
        if not decision.is_granted:
            self.beliefs.pop((key, owner), None)
            return decision
        if decision.is_new:
            self.journal[key] = PastLease(owner, decision.epoch, decision.terms, released=False)
        if decision.verdict is Verdict.GRANT:
            assert decision.epoch > self.last_epoch[key], "epochs grow"
            self.last_epoch[key] = decision.epoch
        else:
            assert decision.epoch == self.last_epoch[key], "nobody goes on under a stale epoch"
        self.last_owner[key] = (owner, decision.epoch)
        self.kept_since.pop(key, None)
        # A RocketMQ client's view begins when it has the answer.
        trust = self.now + ROCKETMQ_VIEW_MS if owner.is_rocketmq else sent + decision.terms.trust_ms
        self.beliefs[key, owner] = Belief(decision.epoch, trust, decision.terms)
        return decision

    @rule(key=keys, owner=owners, wanted=terms, late=st.integers(0, 300))
    def takes(self, key: GroupQueue, owner: Owner, wanted: Terms, late: int) -> None:
        known = self.beliefs.get((key, owner))
        if known is None or owner.is_rocketmq:
            self._ask(key, owner, 0, wanted, late)

    @rule(key=keys, owner=owners, late=st.integers(0, 300))
    def renews(self, key: GroupQueue, owner: Owner, late: int) -> None:
        known = self.beliefs.get((key, owner))
        if known is not None:
            before = known.epoch
            decision = self._ask(key, owner, before, known.terms, late)
            if decision.is_fresh:
                assert decision.epoch > before

    @rule(key=keys, owner=owners, late=st.integers(0, 300))
    def pulls(self, key: GroupQueue, owner: Owner, late: int) -> None:
        """Any request under the present epoch renews."""
        known = self.beliefs.get((key, owner))
        if known is None or owner.is_rocketmq or not self.table.is_current(key, known.epoch):
            return
        sent = self.now
        self.now += late
        self.table.expire(self.now)
        lease = self.table.get(key)
        if lease is not None and lease.epoch == known.epoch:
            if lease.deadline_ms:
                decision = self.table.decide(key, owner, self.now, epoch=known.epoch)
                assert decision.is_new, "the journal is told of the first renewal after a start"
                self.journal[key] = PastLease(owner, decision.epoch, decision.terms, released=False)
                self.table.apply(decision, self.now, connection=self.connections[owner])
            else:
                self.table.renew(key, self.now, self.connections[owner])
            known.until_ms = sent + known.terms.trust_ms
            self.kept_since.pop(key, None)

    @rule(ms=st.integers(1, 9000))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.table.expire(self.now)

    @rule(owner=owners)
    def connection_closes(self, owner: Owner) -> None:
        if not owner.is_rocketmq:
            self.table.connection_lost(self.connections[owner], self.now)
            self.connections[owner] += 100

    @rule(key=keys, owner=owners)
    def releases(self, key: GroupQueue, owner: Owner) -> None:
        """The owner starts nothing any more, then gives the queue back."""
        known = self.beliefs.get((key, owner))
        if known is not None and self.table.is_current(key, known.epoch):
            lease = self.table.get(key)
            assert lease is not None
            assert lease.owner == owner
            self.table.release(key)
            self.journal[key] = self.journal[key]._replace(released=True)
            del self.beliefs[key, owner]

    @rule(key=keys)
    def operator_takes_away(self, key: GroupQueue) -> None:
        lease = self.table.get(key)
        if lease is not None and lease.owner != NOBODY:
            epoch = self.table.take_epoch()
            until_ms = self.table.trusted_until_ms(key, self.now)
            self.journal[key] = PastLease(
                NOBODY, epoch, lease.terms, released=False, deadline_ms=until_ms
            )
            assert self.table.force_release(key, epoch, self.now) == until_ms
            self.last_epoch[key] = epoch

    @rule(key=keys)
    def operator_resets(self, key: GroupQueue) -> None:
        lease, epoch = self.table.get(key), self.table.take_epoch()
        if lease is None:
            self.table.forget_past(key)
            if key in self.journal:
                self.journal[key] = self.journal[key]._replace(released=True)
        else:
            self.table.raise_epoch(key, epoch)
            self.journal[key] = PastLease(
                lease.owner, epoch, lease.terms, released=False, deadline_ms=lease.deadline_ms
            )
        self.last_epoch[key] = epoch

    @rule(same_boot=st.booleans(), down_ms=st.integers(0, 2000))
    def broker_restarts(self, same_boot: bool, down_ms: int) -> None:
        """On another boot nobody resumes, and what the journal says is waited for."""
        self.now += down_ms
        self.starts += 1
        self.table = LeaseTable(start_number=self.starts)
        self.table.restore(self.journal.items(), self.now, same_boot=same_boot)
        for key, past in list(self.journal.items()):
            lease = self.table.get(key)
            if lease is None:
                continue
            if not same_boot:
                assert not self.table.is_current(key, past.epoch)
                self.last_epoch[key] = lease.epoch
                self.kept_since.pop(key, None)
            self.kept_since.setdefault(key, self.now)
        self.journal_is_folded()
        for owner in OWNERS:
            self.connections[owner] += 100

    @rule()
    def journal_is_folded(self) -> None:
        """What it says is what stands: who ran out is not in it any more."""
        self.journal = {
            key: PastLease(
                lease.owner, lease.epoch, lease.terms, released=False,
                deadline_ms=lease.deadline_ms,
            )
            for key in KEYS
            if (lease := self.table.get(key)) is not None
        }  # fmt: skip

    @invariant()
    def a_dead_owner_is_waited_for_once(self) -> None:
        """However often the broker restarts: a lease after the first start its queue is free."""
        self.table.expire(self.now)
        for key, since_ms in self.kept_since.items():
            lease = self.table.get(key)
            if lease is not None:
                longest_ms = max(
                    lease.terms.lease_ms, ROCKETMQ_RESTART_MS * lease.owner.is_rocketmq
                )
                assert self.now < since_ms + longest_ms, f"{key} is kept for {lease.owner}"

    @invariant()
    def one_owner_at_a_time(self) -> None:
        for key in KEYS:
            believers = [owner for owner in OWNERS if self._believes(key, owner)]
            assert len(believers) <= 1, f"{believers} start handlers of {key}"

    @invariant()
    def who_believes_is_not_overtaken(self) -> None:
        """While an owner starts handlers the broker gives the queue to nobody else."""
        for key in KEYS:
            lease = self.table.get(key)
            for owner in OWNERS:
                if self._believes(key, owner) and lease is not None:
                    assert lease.owner in (owner, NOBODY)

    @invariant()
    def the_table_is_consistent(self) -> None:
        table = self.table
        assert len(table._deadlines) <= 2 * len(table) + 64
        bound = {
            (key, lease.connection)
            for key in KEYS
            if (lease := table.get(key)) is not None
            and lease.connection is not None
            and not lease.owner.is_rocketmq
        }
        assert bound == {(k, c) for c, held in table._renewed_by.items() for k in held}
        for key in KEYS:
            assert table.get(key) is None or table.past(key) is None


LeaseModel.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestLeasesHaveOneOwner = LeaseModel.TestCase
